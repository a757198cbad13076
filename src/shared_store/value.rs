//! The value of a counter in the store: a version, then the packed counter and its holds, with instants of the servers'
//! clock.

use crate::{
    store::{DecodedHeldCounter, HeldCounter},
    time::Timestamp,
};

/// The version of a counter without holds. It is followed by the tag and the fields of the packed counter, whose
/// instants are in nanoseconds since the Unix epoch.
const VERSION: u8 = 1;
/// The version of a counter with holds. It is followed by the length of what follows a [`VERSION`], 0 for no counter,
/// that many bytes, and the holds.
const VERSION_WITH_HOLDS: u8 = 3;
/// A claimed value: 16 bytes of a [`Claim`], then the value. See the script.
const CLAIMED: u8 = 2;
/// The bytes of a claim with its mark.
const CLAIM_BYTES: usize = 17;

/// A value that was read from the store.
#[derive(Debug)]
pub(super) enum Value {
    /// A counter.
    Counter(HeldCounter),
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

/// Encodes a counter. An absent one is empty.
pub(super) fn encode(counter: &HeldCounter) -> Vec<u8> {
    match counter.write() {
        (None, None) => Vec::new(),
        (Some((tag, fields)), None) => [&[VERSION, tag], &fields[..]].concat(),
        (counter, Some(holds)) => {
            let counter = counter.map_or_else(Vec::new, |(tag, fields)| [&[tag], &fields[..]].concat());
            // A counter has at most some megabytes.
            let length = (counter.len() as u32).to_le_bytes();
            [&[VERSION_WITH_HOLDS], &length[..], &counter, &holds].concat()
        }
    }
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
        [VERSION, counter @ ..] if !counter.is_empty() => read(counter, None),
        [VERSION_WITH_HOLDS, rest @ ..] => {
            let parts = rest.split_first_chunk().and_then(|(length, rest)| {
                rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
            });
            parts.map_or(Value::Malformed, |(counter, holds)| read(counter, Some(holds)))
        }
        [VERSION] => Value::Malformed,
        [_, ..] => Value::Unknown,
    };
    (Some(value), claim)
}

/// Decodes the tag and the fields of a counter, if there are any, and its holds.
fn read(counter: &[u8], holds: Option<&[u8]>) -> Value {
    match HeldCounter::read(counter.split_first().map(|(tag, fields)| (*tag, fields)), holds) {
        DecodedHeldCounter::Counter(counter) => Value::Counter(counter),
        DecodedHeldCounter::Unknown => Value::Unknown,
        DecodedHeldCounter::Malformed => Value::Malformed,
    }
}
