//! The codec of the messages in `proto/tollgate/cluster/v1/messages.proto`.
//!
//! **Versions.** During a rolling update two versions exchange messages. A reader ignores what it does not know; a
//! missing field has the default that the proto file names. A limit, or a receipt in an undo, counts as unknown if its
//! bytes are well formed but have no meaning in this version, for example another algorithm or a time zone that is not
//! compiled in.
//!
//! **Clocks.** Messages carry durations, and slot contents carry ages. Only a receipt holds instants: those of the
//! owner that issued it. The forwarding replica returns the receipt unchanged, so its instants are exact at the same
//! owner. If the counter has moved to an owner with another clock, the receipt takes back its own hits at most:
//!
//! - From a window exactly its hits, because windows have the same starts on every replica.
//! - From a log nothing, unless an entry has that very instant, because entries are shifted between the clocks.
//! - From a debt or steps, what is left of the hits by the new owner's clock. If that clock is ahead, too little is
//!   taken back. If it is behind, the hits that the limit regains in the difference may be taken back twice.

use prost::{
    Message as _,
    bytes::{Bytes, BytesMut},
};

use crate::{cluster::message::Message, time::Timestamp};

mod convert;
mod read;
#[cfg(test)]
mod tests;
mod write;

/// Generated.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
pub(in crate::cluster) mod proto {
    include!(concat!(env!("OUT_DIR"), "/cluster.rs"));
    pub(in crate::cluster) use self::tollgate::cluster::v1::*;
}

/// The size that most messages do not exceed, in bytes.
const USUAL_BYTES: usize = 128;

/// The names of the message kinds, from field number 1 on.
const KINDS: [&str; 16] = [
    "ask", "answer", "hello", "member", "holds", "transfer", "taken", "backup", "backed", "lacking", "query",
    "known", "orphan", "better", "recall", "revoke",
];

/// Why bytes are not a valid batch. Never contains the bytes, which may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// The bytes outside of any message are truncated or damaged.
    #[error("a batch is damaged")]
    Batch,
    /// A message of this kind is truncated or damaged.
    #[error("a message of kind `{kind}` is damaged")]
    Message { kind: &'static str },
    /// A part of a message of this kind is missing or invalid.
    #[error("a message of kind `{kind}` has no valid {part}")]
    Part { kind: &'static str, part: &'static str },
}

/// Encodes `messages` at the instant `now`. The concatenation of encoded batches is one batch, too.
pub(crate) fn encode(messages: &[Message], now: Timestamp) -> Bytes {
    let mut bytes = BytesMut::with_capacity(messages.len() * USUAL_BYTES);
    let mut writer = write::Writer::new(now);
    let mut batch = proto::Batch { items: Vec::with_capacity(1) };
    for message in messages {
        batch.items.push(proto::Item { kind: Some(writer.kind(message)) });
        batch.encode(&mut bytes).expect("a growing buffer has room for any message");
        batch.items.clear();
    }
    bytes.freeze()
}

/// Decodes a batch received at `now`, in order and without messages of unknown kinds.
///
/// Memory is bounded by the length of `batch`. An error discards the messages before it, too.
pub(crate) fn decode(batch: Bytes, now: Timestamp) -> Result<Vec<Message>, Malformed> {
    let batch = proto::Batch::decode(batch.clone()).map_err(|_| damaged(batch))?;
    let mut messages = Vec::with_capacity(batch.items.len());
    for kind in batch.items.into_iter().filter_map(|item| item.kind) {
        messages.extend(read::message(kind, now)?);
    }
    Ok(messages)
}

/// A batch whose items stay undecoded, to locate damage.
#[derive(Clone, PartialEq, prost::Message)]
struct Outline {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    items: Vec<Bytes>,
}

/// Locates the damage. The decoder's own error is dropped: it may quote a number that is part of a secret.
fn damaged(batch: Bytes) -> Malformed {
    let items = Outline::decode(batch).unwrap_or_default().items;
    let item = items.into_iter().find(|item| proto::Item::decode(item.clone()).is_err());
    // An item begins with its field number, shifted by the three bits of the wire type.
    let number = item.and_then(|item| prost::decode_length_delimiter(item).ok()).map(|key| key >> 3);
    let kind = number.and_then(|number| KINDS.get(number.checked_sub(1)?));
    kind.map_or(Malformed::Batch, |kind| Malformed::Message { kind })
}
