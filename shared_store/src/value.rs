//! The value of a counter in the store: a version, then the packed counter and its side data, with instants of the
//! servers' clock. A lane knows the values that the store last held, as far as this replica has seen.

use rustc_hash::FxHashMap;
use tollgate_counter::{descriptor::Key, packed_counter::DecodeError, time::Timestamp};
use tollgate_store::HeldCounter;

/// The version of a counter. Records of it and of its side data follow, with instants in nanoseconds since the Unix epoch.
pub(super) const VERSION: u8 = 4;
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
    let mut bytes = counter.write();
    if !bytes.is_empty() {
        bytes.insert(0, VERSION);
    }
    bytes
}

/// Decodes a value and the claim on it. An empty value is an absent counter. A malformed one is no value of Tollgate.
pub(super) fn decode(bytes: &[u8]) -> (Option<Result<HeldCounter, DecodeError>>, Option<Claim>) {
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
        [VERSION] => Err(DecodeError::Malformed),
        [VERSION, counter @ ..] => HeldCounter::read(counter),
        [_, ..] => Err(DecodeError::Unknown),
    };
    (Some(value), claim)
}

/// The bytes of an entry without its value and what its counter has on the heap.
const ENTRY_BYTES: usize = 160;

/// A value of the store.
#[derive(Debug)]
pub(super) struct Known {
    /// The value as stored; empty if there is none.
    pub(super) bytes: Vec<u8>,
    /// The counter in the value.
    pub(super) counter: HeldCounter,
    /// The claim on the value.
    pub(super) claim: Option<Claim>,
    /// Whether another version of Tollgate has written the value, so that this one leaves it alone.
    pub(super) is_foreign: bool,
    /// The local instant of the answer that had the value.
    pub(super) confirmed_at: Timestamp,
}

impl Known {
    /// What an answer that arrived at `confirmed_at` says about a key.
    pub(super) fn read(bytes: Vec<u8>, confirmed_at: Timestamp) -> Self {
        let (value, claim) = decode(&bytes);
        let (counter, is_foreign) = match value {
            Some(Ok(counter)) => (counter, false),
            Some(Err(DecodeError::Unknown)) => (HeldCounter::default(), true),
            // What is no value of Tollgate counts as absent, and the next charge overwrites it.
            Some(Err(DecodeError::Malformed)) | None => (HeldCounter::default(), false),
        };
        Self { bytes, counter, claim, is_foreign, confirmed_at }
    }

    fn size(&self) -> usize {
        ENTRY_BYTES + self.bytes.len() + self.counter.heap_bytes()
    }
}

/// Known values, bounded by their bytes. When those that were used lately take half of the bound, they become the old
/// ones, and the old ones before them are forgotten.
#[derive(Debug)]
pub(super) struct KnownValues {
    recent: FxHashMap<Key, Known>,
    old: FxHashMap<Key, Known>,
    recent_bytes: usize,
    bytes_max: usize,
}

impl KnownValues {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { recent: FxHashMap::default(), old: FxHashMap::default(), recent_bytes: 0, bytes_max }
    }

    /// The known value of `key`.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Known> {
        match self.recent.get_mut(&key) {
            Some(known) => Some(known),
            None => self.old.get_mut(&key),
        }
    }

    /// Takes the known value of `key` out.
    pub(super) fn take(&mut self, key: Key) -> Option<Known> {
        match self.recent.remove(&key) {
            Some(known) => {
                self.recent_bytes = self.recent_bytes.saturating_sub(known.size());
                Some(known)
            }
            None => self.old.remove(&key),
        }
    }

    /// Retains the value of `key`, which was not known. Returns forgotten values, to be dropped without a lock.
    #[must_use]
    pub(super) fn insert(&mut self, key: Key, known: Known) -> Option<FxHashMap<Key, Known>> {
        self.recent_bytes += known.size();
        self.recent.insert(key, known);
        if self.recent_bytes <= self.bytes_max / 2 {
            return None;
        }
        self.recent_bytes = 0;
        let recent = std::mem::take(&mut self.recent);
        Some(std::mem::replace(&mut self.old, recent))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_counter::{
        algorithm::{Limit, Operation, laws::every_limit},
        descriptor::{KeyText, Secret},
        packed_counter::Now,
        time::SECOND,
    };
    use tollgate_store::{
        CounterOperation, HoldId, HoldOutcome, HoldTerms, LimitOrigin, OnExpiry, Room, UnknownId,
    };

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    fn read_back(bytes: &[u8]) -> HeldCounter {
        match decode(bytes) {
            (Some(Ok(counter)), None) => counter,
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
        counter.apply(limit, LimitOrigin::Rule, &operation, now, Room::OF_VALUE).0.hold
    }

    fn settle(counter: &mut HeldCounter, limit: &Limit, id: &HoldId, now: Now) -> HoldOutcome {
        let operation = CounterOperation::Settle { id: id.clone(), actual: 2, unknown: UnknownId::Remember };
        counter.apply(limit, LimitOrigin::Rule, &operation, now, Room::OF_VALUE).0.hold
    }

    #[test]
    fn counter_with_and_without_holds_is_read_as_written() {
        let now = Now { now: NOW, given_up: None };
        for limit in every_limit(10, 3_600 * SECOND) {
            let mut counter = HeldCounter::default();
            counter.update(&limit, now, |limit, counter| limit.decide(counter, NOW, Operation::Charge(1)));
            let plain = encode(&counter);
            assert_eq!(encode(&read_back(&plain)), plain);
            let id = HoldId::new(b"a").unwrap();
            let terms = HoldTerms::new(id.clone(), Duration::from_secs(60), OnExpiry::Release).unwrap();
            reserve(&mut counter, &limit, terms, 4, now);
            let held = encode(&counter);
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
        for malformed in [&[VERSION][..], &[VERSION, 130], &[VERSION, 130, 9, 1], &[VERSION, 130, 1, 0]] {
            assert!(matches!(decode(malformed), (Some(Err(DecodeError::Malformed)), None)), "{malformed:?}");
        }
        assert!(matches!(decode(&[VERSION + 1, 1, 2]), (Some(Err(DecodeError::Unknown)), None)));
    }

    fn key(number: u32) -> Key {
        KeyText::new("domain").key(&number.to_le_bytes(), &Secret::from_bytes([1; 16]))
    }

    #[test]
    fn known_values_stay_within_their_bound() {
        let mut values = KnownValues::new(100 * (ENTRY_BYTES + 10));
        for number in 0..10_000 {
            drop(values.insert(key(number), Known::read(vec![9; 10], Timestamp::EPOCH)));
            // A value that is used all the time stays known.
            let used = values.take(key(0)).unwrap();
            drop(values.insert(key(0), used));
            assert!(values.recent.len() + values.old.len() <= 102);
        }
        assert!(values.get_mut(key(9_999)).is_some());
        assert!(values.get_mut(key(5)).is_none());
    }
}
