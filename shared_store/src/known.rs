//! The values that a lane knows: what the store last held under each key, as far as this replica has seen.

use rustc_hash::FxHashMap;
use tollgate_counter::{descriptor::Key, time::Timestamp};
use tollgate_store::{DecodedHeldCounter, HeldCounter};

use crate::value::{Claim, decode};

/// The bytes of an entry without its value and what its counter has on the heap.
const ENTRY_BYTES: usize = 160;

/// A value of the store.
#[derive(Debug)]
pub(super) struct Known {
    /// The value as stored; empty if there is none.
    pub(super) bytes: Vec<u8>,
    /// The counter in it.
    pub(super) counter: HeldCounter,
    /// The claim on it.
    pub(super) claim: Option<Claim>,
    /// Whether another version of Tollgate has written it, so that this one leaves it alone.
    pub(super) is_foreign: bool,
    /// The local instant of the answer that had it.
    pub(super) confirmed_at: Timestamp,
}

impl Known {
    /// What an answer that arrived at `confirmed_at` says about a key.
    pub(super) fn read(bytes: Vec<u8>, confirmed_at: Timestamp) -> Self {
        let (value, claim) = decode(&bytes);
        let (counter, is_foreign) = match value {
            Some(DecodedHeldCounter::Counter(counter)) => (counter, false),
            Some(DecodedHeldCounter::Unknown) => (HeldCounter::default(), true),
            // What is no value of Tollgate counts as absent, and the next charge overwrites it.
            Some(DecodedHeldCounter::Malformed) | None => (HeldCounter::default(), false),
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
    use super::*;
    use tollgate_counter::descriptor::{KeyText, Secret};

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
