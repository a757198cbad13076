//! The value of a counter in the store: a version, then the packed counter and its holds, with instants of the servers'
//! clock.

use tollgate_counter::time::Timestamp;
use tollgate_store::{DecodedHeldCounter, HeldCounter};

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

/// The announcement of a replica that lost races for a counter: others leave the next change to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// The replica.
    pub(super) replica: u64,
    /// The instant of the servers' clock at which the claim expires.
    pub(super) until: Timestamp,
}

/// The first bytes of a value that a replica has claimed. The instant of its expiry follows.
pub(super) fn claim_mark(replica: u64) -> [u8; 9] {
    let mut mark = [CLAIMED; 9];
    mark[1..].copy_from_slice(&replica.to_le_bytes());
    mark
}

/// Encodes a counter. An absent one is empty.
pub(super) fn encode(counter: &HeldCounter) -> Vec<u8> {
    match (counter.write_counter(), counter.write_holds()) {
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

/// Decodes a value and the claim on it. An empty value is an absent counter. A malformed one is no value of Tollgate.
pub(super) fn decode(bytes: &[u8]) -> (Option<DecodedHeldCounter>, Option<Claim>) {
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
            parts.map_or(DecodedHeldCounter::Malformed, |(counter, holds)| read(counter, Some(holds)))
        }
        [VERSION] => DecodedHeldCounter::Malformed,
        [_, ..] => DecodedHeldCounter::Unknown,
    };
    (Some(value), claim)
}

/// Decodes the tag and the fields of a counter, if there are any, and its holds.
fn read(counter: &[u8], holds: Option<&[u8]>) -> DecodedHeldCounter {
    HeldCounter::read(counter.split_first().map(|(tag, fields)| (*tag, fields)), holds)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tollgate_counter::{
        algorithm::{Limit, Operation, laws::every_limit},
        packed_counter::Now,
        time::SECOND,
    };
    use tollgate_store::{CounterOperation, HoldId, HoldOutcome, HoldTerms, OnExpiry, Room, UnknownId};

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    fn read_back(bytes: &[u8]) -> HeldCounter {
        match decode(bytes) {
            (Some(DecodedHeldCounter::Counter(counter)), None) => counter,
            other => panic!("{other:?}"),
        }
    }

    fn reserve(
        counter: &mut HeldCounter,
        limit: &Limit,
        terms: HoldTerms,
        hits: u64,
        now: Now,
    ) -> HoldOutcome {
        let operation = CounterOperation::Reserve { terms: Box::new(terms), hits };
        counter.apply(limit, &operation, now, Room::OF_VALUE).0.hold
    }

    fn settle(counter: &mut HeldCounter, limit: &Limit, id: &HoldId, now: Now) -> HoldOutcome {
        let operation = CounterOperation::Settle { id: id.clone(), actual: 2, unknown: UnknownId::Remember };
        counter.apply(limit, &operation, now, Room::OF_VALUE).0.hold
    }

    #[test]
    fn counter_with_and_without_holds_is_read_as_written() {
        let now = Now { now: NOW, given_up: None };
        for limit in every_limit(10, 3_600 * SECOND) {
            let mut counter = HeldCounter::default();
            counter.update(&limit, now, |limit, counter| limit.decide(counter, NOW, Operation::Charge(1)));
            let plain = encode(&counter);
            assert_eq!(plain[0], VERSION, "older versions read it");
            assert_eq!(encode(&read_back(&plain)), plain);
            let id = HoldId::new(b"a").unwrap();
            let terms = HoldTerms::new(id.clone(), Duration::from_secs(60), OnExpiry::Release).unwrap();
            reserve(&mut counter, &limit, terms, 4, now);
            let held = encode(&counter);
            assert_eq!(held[0], VERSION_WITH_HOLDS);
            assert_eq!(encode(&read_back(&held)), held);
            let [settled, expected] = [&mut read_back(&held), &mut counter]
                .map(|counter| settle(counter, &limit, &id, Now { now: NOW.plus(SECOND), given_up: None }));
            assert_eq!(settled, expected);
        }
    }

    #[test]
    fn value_of_full_counter_is_bounded() {
        let now = Now { now: NOW, given_up: None };
        let limit = &every_limit(1_000_000, 3_600 * SECOND)[0];
        let mut counter = HeldCounter::default();
        let mut reserve_and_settle = |number: u64| {
            let id = HoldId::new(&[&[b'x'; 56][..], &number.to_be_bytes()].concat()).unwrap();
            let terms = HoldTerms::new(id.clone(), Duration::from_secs(60), OnExpiry::Release).unwrap();
            let is_held = reserve(&mut counter, limit, terms, 1, now) != HoldOutcome::Exhausted;
            if is_held {
                settle(&mut counter, limit, &id, now);
            }
            let length = if number.is_multiple_of(1_000) { encode(&counter).len() } else { 0 };
            (is_held, length)
        };
        let longest = (0..10_000).map(|number| {
            let (is_held, length) = reserve_and_settle(number);
            assert!(is_held, "settled ids make room");
            length
        });
        let longest = longest.max().unwrap();
        assert!(longest < 900_000, "{longest}");
    }

    #[test]
    fn truncated_and_unknown_values_are_told_apart() {
        for malformed in [&[VERSION][..], &[VERSION_WITH_HOLDS, 9, 0, 0, 0, 1], &[VERSION_WITH_HOLDS, 0, 0]] {
            assert!(
                matches!(decode(malformed), (Some(DecodedHeldCounter::Malformed), None)),
                "{malformed:?}"
            );
        }
        assert!(matches!(decode(&[VERSION_WITH_HOLDS + 1, 1, 2]), (Some(DecodedHeldCounter::Unknown), None)));
    }
}
