//! The codec of the messages between replicas: each message by `postcard`, with its length before it and its slot data
//! behind it.
//!
//! **Versions.** During a rolling update two versions exchange messages. A reader ignores a message that it does not
//! know, and one with an operation, a limit or a receipt that it does not know, for example another algorithm or a time
//! zone that is not compiled in; a grant under such a limit is left out of its copy. So a later version may append
//! variants. Any other change raises [`VERSION`](super::protocol::VERSION).
//!
//! **Clocks.** Messages carry durations, and slot contents carry ages. A status says what the sender's clock shows, for
//! operators, and decides nothing. Otherwise only a receipt holds instants: those of the
//! owner that issued it. The forwarding replica returns the receipt unchanged, so its instants are exact at the same
//! owner. If the counter has moved to an owner with another clock, the receipt takes back its own hits at most:
//!
//! - From a window exactly its hits, because windows have the same starts on every replica.
//! - From a log nothing, unless an entry has that very instant, because entries are shifted between the clocks.
//! - From a debt or steps, what is left of the hits by the new owner's clock. If that clock is ahead, too little is
//!   taken back. If it is behind, the hits that the limit regains in the difference may be taken back twice.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_util::bytes::Bytes;
use tollgate_counter::time::Timestamp;
use tollgate_store::SlotData;

use crate::message::Message;

#[cfg(test)]
mod tests;

/// The size that most messages do not exceed, in bytes.
const USUAL_BYTES: usize = 128;

/// The size of a short message, in bytes: a batch rarely has more messages than fit into it at that size.
const SHORT_BYTES: usize = 32;
/// The most messages for which there is room before they are decoded.
const ROOM_MAX: usize = 1_024;

/// The bytes are not a valid batch. Never contains the bytes, which may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is damaged")]
pub(crate) struct MalformedBatch;

/// Encodes `messages` at the instant `now`. A concatenation of encoded batches is a batch.
pub(crate) fn encode(messages: &[Message], now: Timestamp) -> Bytes {
    let mut batch = Vec::with_capacity(messages.len() * USUAL_BYTES);
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    for message in messages {
        bytes.clear();
        put(&mut bytes, message);
        message.contents().for_each(|contents| put_block(&mut bytes, &contents.encode(now)));
        put_block(&mut batch, &bytes);
    }
    batch.into()
}

/// Decodes a batch received at `now`, in order and without messages of unknown kinds.
///
/// Memory is bounded by the length of `batch`. An error also discards the messages before it.
pub(crate) fn decode(batch: &[u8], now: Timestamp) -> Result<Vec<Message>, MalformedBatch> {
    let room = (batch.len() / SHORT_BYTES).min(ROOM_MAX);
    let mut messages = Vec::with_capacity(room);
    let mut rest = batch;
    while !rest.is_empty() {
        let bytes;
        (bytes, rest) = take(rest)?;
        messages.extend(message(bytes, now)?);
    }
    Ok(messages)
}

/// Decodes one message; `None` if it contains something that this version does not know.
// `inline(always)`: a message is large to move.
#[inline(always)]
fn message(bytes: &[u8], now: Timestamp) -> Result<Option<Message>, MalformedBatch> {
    let mut deserializer = postcard::Deserializer::from_bytes(bytes);
    let mut message = match Message::deserialize(&mut deserializer) {
        Ok(message) => message,
        // The bytes are complete but name no existing value.
        Err(postcard::Error::SerdeDeCustom) => return Ok(None),
        Err(_) => return Err(MalformedBatch),
    };
    let mut rest = deserializer.finalize().map_err(|_| MalformedBatch)?;
    for contents in message.contents_mut() {
        let bytes;
        (bytes, rest) = take(rest)?;
        *contents = Arc::new(SlotData::decode(bytes, now).map_err(|_| MalformedBatch)?);
    }
    Ok(Some(message))
}

fn put(bytes: &mut Vec<u8>, value: &impl Serialize) {
    postcard::to_io(value, bytes).expect("memory grows as needed, and every length is known");
}

/// Writes a length and these bytes.
fn put_block(bytes: &mut Vec<u8>, block: &[u8]) {
    put(bytes, &block.len());
    bytes.extend_from_slice(block);
}

/// Splits off what [`put_block`] has written.
fn take<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<(T, &'b [u8]), MalformedBatch> {
    postcard::take_from_bytes(bytes).map_err(|_| MalformedBatch)
}
