//! Messages as bytes, and bytes as messages: `proto/tollgate/cluster/v1/messages.proto`.
//!
//! **Versions.** While a cluster is replaced replica by replica, two versions talk to each other. What this one does
//! not know it passes by, and what it misses has a default that the file notes. A limit, and a receipt in an undo,
//! count as unknown where their bytes are well formed and say something that means nothing here: another algorithm, a
//! time zone that is not compiled in.
//!
//! **Clocks.** Messages carry lengths of time, and contents the ages of what they hold. A receipt alone holds
//! instants, those of the holder whose counter it is of, and they are shifted by nobody: the asker hands it back bit
//! for bit, so that at the same holder it means to the nanosecond what it meant. The counter may have moved
//! meanwhile, to a holder with another clock. Then the receipt still takes back its own hits at most:
//!
//! - of a window exactly, for windows have the same starts everywhere;
//! - of a log nothing, unless an entry has that very instant, since the entries have moved with the clocks;
//! - of a debt or of steps, what is left of the hits by the new holder's clock. Where that is ahead, too little comes
//!   back. Where it is behind, what a limit brings in the time by which it is behind may come back twice.

use prost::{
    Message as _,
    bytes::{Bytes, BytesMut},
};

use crate::{cluster::message::Message, time::Timestamp};

mod parts;
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

/// What most messages take at most, in bytes.
const USUAL_BYTES: usize = 128;

/// The names of the kinds of messages, from number 1 on.
const KINDS: [&str; 16] = [
    "ask", "answer", "hello", "member", "holds", "transfer", "taken", "backup", "backed", "lacking", "query",
    "known", "orphan", "better", "recall", "revoke",
];

/// Why bytes are no batch. It never tells what is in them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Cut off or damaged outside of any message.
    #[error("a batch is damaged")]
    Batch,
    /// Cut off or damaged within a message of a kind.
    #[error("a message of kind `{kind}` is damaged")]
    Message { kind: &'static str },
    /// A part of a message of a kind is missing, or is not what it should be.
    #[error("a message of kind `{kind}` has no valid {part}")]
    Part { kind: &'static str, part: &'static str },
}

/// The bytes of `messages`, told at `now`. Those of several batches in a row are one batch, too.
pub(crate) fn encode(messages: &[Message], now: Timestamp) -> Bytes {
    let mut bytes = BytesMut::with_capacity(messages.len() * USUAL_BYTES);
    let mut writer = write::Writer::new(now);
    let mut batch = proto::Batch { items: Vec::with_capacity(1) };
    for message in messages {
        batch.items.push(proto::Item { kind: Some(writer.kind(message)) });
        batch.encode(&mut bytes).expect("a buffer that grows has room for whatever comes");
        batch.items.clear();
    }
    bytes.freeze()
}

/// The messages of a batch, heard at `now`, in order, without those of unknown kinds.
///
/// What it takes is bounded by the length of `batch`. An error tells nothing about the messages before it.
pub(crate) fn decode(batch: Bytes, now: Timestamp) -> Result<Vec<Message>, Malformed> {
    let batch = proto::Batch::decode(batch.clone()).map_err(|_| damaged(batch))?;
    let mut messages = Vec::with_capacity(batch.items.len());
    for kind in batch.items.into_iter().filter_map(|item| item.kind) {
        messages.extend(read::message(kind, now)?);
    }
    Ok(messages)
}

/// A batch, as far as it can be read where its items cannot.
#[derive(Clone, PartialEq, prost::Message)]
struct Outline {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    items: Vec<Bytes>,
}

/// Where the damage is. What the decoder says of it is no use: it may quote a number that is a piece of a secret.
fn damaged(batch: Bytes) -> Malformed {
    let items = Outline::decode(batch).unwrap_or_default().items;
    let item = items.into_iter().find(|item| proto::Item::decode(item.clone()).is_err());
    // An item begins with the number of its kind, above three bits for how the rest is written.
    let number = item.and_then(|item| prost::decode_length_delimiter(item).ok()).map(|key| key >> 3);
    let kind = number.and_then(|number| KINDS.get(number.checked_sub(1)?));
    kind.map_or(Malformed::Batch, |kind| Malformed::Message { kind })
}
