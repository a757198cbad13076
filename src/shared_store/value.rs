//! The value of a counter in the store: a version, then the packed counter with instants of the servers' clock.

use crate::{
    store::{Decoded, PackedCounter},
    time::Timestamp,
};

/// The version of the layout. It is followed by the tag and the fields of the packed counter, whose instants are in
/// nanoseconds since the Unix epoch.
const VERSION: u8 = 1;
/// A claimed value: 16 bytes of a [`Claim`], then the value. See the script.
const CLAIMED: u8 = 2;
/// The bytes of a claim with its mark.
const CLAIM_BYTES: usize = 17;

/// A value that was read from the store.
#[derive(Debug)]
pub(super) enum Value {
    /// A counter.
    Counter(PackedCounter),
    /// Written by a version of Tollgate that this one does not know. It is not overwritten.
    Unknown,
    /// No value of Tollgate. It counts as absent, and the next charge overwrites it.
    Malformed,
}

/// The announcement of a replica that lost races for a counter: others leave the next change to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The replica.
    pub(super) replica: u64,
    /// The instant of the servers' clock at which the claim expires.
    pub(super) until: Timestamp,
}

/// Encodes a counter.
pub(super) fn encode(packed: &PackedCounter) -> Vec<u8> {
    // Ages since the epoch are absolute instants.
    let (tag, fields) = packed.write(Timestamp::EPOCH);
    let mut bytes = Vec::with_capacity(fields.len() + 2);
    bytes.extend_from_slice(&[VERSION, tag]);
    bytes.extend_from_slice(&fields);
    bytes
}

/// Decodes a value and the claim on it. An empty value is an absent counter.
pub(super) fn decode(bytes: &[u8]) -> (Option<Value>, Option<Claim>) {
    let (claim, bytes) = match bytes {
        [CLAIMED, ..] if bytes.len() >= CLAIM_BYTES => {
            let number = |range: std::ops::Range<usize>| {
                u64::from_le_bytes(bytes[range].try_into().expect("both ranges have 8 bytes"))
            };
            let until = Timestamp::from_nanos(number(9..17).saturating_mul(1_000));
            (Some(Claim { replica: number(1..9), until }), &bytes[CLAIM_BYTES..])
        }
        _ => (None, bytes),
    };
    let value = match bytes {
        [] => return (None, claim),
        [VERSION, tag, fields @ ..] => match PackedCounter::read(*tag, fields, Timestamp::EPOCH) {
            Decoded::Counter(packed) => Value::Counter(packed),
            Decoded::Unknown => Value::Unknown,
            Decoded::Malformed => Value::Malformed,
        },
        [VERSION] => Value::Malformed,
        [_, ..] => Value::Unknown,
    };
    (Some(value), claim)
}
