//! A hash table with open addressing and linear probing. Keys are stored only in the buckets themselves, so a lookup
//! waits for one cache line.

use crate::{descriptor::Key, store::packed_counter::PackedCounter};

/// The minimum number of buckets of a table that is not empty.
const FEWEST: usize = 4;
/// The fractional part of the golden ratio; its multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Buckets for counters.
#[derive(Debug, Default)]
pub(super) struct HashTable {
    // Invariant: at most 3/4 of the buckets are occupied, and all from the home bucket of a key to its own are.
    buckets: Box<[Bucket]>,
    len: usize,
    factor: u64,
}

/// A bucket for one counter. Two fill a cache line; none crosses one.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Bucket(Option<(Key, PackedCounter)>);

// The memory per counter follows from this size; docs/algorithms.md states it.
const _: () = assert!(size_of::<Bucket>() == 32);

/// The bytes of this many buckets.
pub(super) const fn bytes_of(buckets: usize) -> usize {
    buckets * size_of::<Bucket>()
}

/// The maximum number of occupied buckets. Above it, probe sequences would become long.
pub(super) const fn capacity_of(buckets: usize) -> usize {
    buckets * 3 / 4
}

/// The number of buckets for this many counters.
pub(super) fn buckets_for(counters: usize) -> usize {
    if counters == 0 { 0 } else { (counters * 4).div_ceil(3).max(FEWEST) }
}

/// The next larger number of buckets.
pub(super) const fn next_after(buckets: usize) -> usize {
    if buckets < FEWEST { FEWEST } else { buckets + buckets / 2 }
}

impl HashTable {
    /// A table of empty buckets.
    pub(super) fn new(buckets: usize) -> Self {
        // The order of keys depends on the number of buckets. Otherwise, counters moved from one table to another in
        // order would all collide at the beginning of the smaller one, with ever longer probes. The factor is odd, so
        // that no bit of a key is lost.
        let factor = GOLDEN.wrapping_mul(buckets as u64) | 1;
        Self { buckets: (0..buckets).map(|_| Bucket::default()).collect(), len: 0, factor }
    }

    /// The number of buckets.
    pub(super) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// The number of counters.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether the maximum number of buckets is occupied.
    pub(super) fn is_full(&self) -> bool {
        self.len == capacity_of(self.bucket_count())
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&PackedCounter> {
        self.buckets[self.find(key)?].0.as_ref().map(|(_, packed)| packed)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut PackedCounter> {
        let index = self.find(key)?;
        self.buckets[index].0.as_mut().map(|(_, packed)| packed)
    }

    /// Inserts a key that is not in the table. The table must not be full.
    pub(super) fn put(&mut self, key: Key, packed: PackedCounter) {
        debug_assert!(!self.is_full() && self.find(key).is_none());
        self.len += 1;
        self.insert_near_home(key, packed);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<PackedCounter> {
        let mut index = self.find(key)?;
        let (_, packed) = self.buckets[index].0.take()?;
        self.len -= 1;
        // Later counters of the run may move nearer to their home bucket.
        index = self.next(index);
        while self.buckets[index].0.is_some() {
            self.reinsert(index);
            index = self.next(index);
        }
        Some(packed)
    }

    /// Keeps the counters for which `stays` returns true. It is called once for each.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&PackedCounter) -> bool) {
        // Starts behind an empty bucket, because a run must be visited from its beginning.
        let Some(mut index) = self.buckets.iter().position(|bucket| bucket.0.is_none()) else { return };
        let mut has_gap = false;
        for _ in 0..self.bucket_count() {
            index = self.next(index);
            match &self.buckets[index].0 {
                None => has_gap = false,
                Some((_, packed)) if stays(packed) => {
                    if has_gap {
                        self.reinsert(index);
                    }
                }
                Some(_) => {
                    self.buckets[index].0 = None;
                    self.len -= 1;
                    has_gap = true;
                }
            }
        }
    }

    /// Moves all counters to this many buckets, which must suffice.
    pub(super) fn resize(&mut self, buckets: usize) {
        let before = std::mem::replace(self, Self::new(buckets));
        before.into_counters().for_each(|(key, packed)| self.put(key, packed));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Key, PackedCounter)> {
        self.buckets.iter().filter_map(|bucket| bucket.0.as_ref())
    }

    pub(super) fn into_counters(self) -> impl Iterator<Item = (Key, PackedCounter)> {
        self.buckets.into_iter().filter_map(|bucket| bucket.0)
    }

    #[inline]
    fn find(&self, key: Key) -> Option<usize> {
        let mut index = self.home(key);
        loop {
            // Also returns for a table without buckets.
            let (other, _) = self.buckets.get(index)?.0.as_ref()?;
            if *other == key {
                return Some(index);
            }
            index = self.next(index);
        }
    }

    /// Puts a counter into the first empty bucket from its home bucket on.
    fn insert_near_home(&mut self, key: Key, packed: PackedCounter) {
        let mut index = self.home(key);
        while self.buckets[index].0.is_some() {
            index = self.next(index);
        }
        self.buckets[index].0 = Some((key, packed));
    }

    /// Moves a counter to an empty bucket nearer to its home bucket.
    fn reinsert(&mut self, index: usize) {
        if let Some((key, packed)) = self.buckets[index].0.take() {
            self.insert_near_home(key, packed);
        }
    }

    /// The home bucket of a key. A multiplication instead of a remainder, so any number of buckets is possible.
    #[inline]
    fn home(&self, key: Key) -> usize {
        let share = u128::from(key.low().wrapping_mul(self.factor));
        // Less than the number of buckets.
        ((share * self.bucket_count() as u128) >> u64::BITS) as usize
    }

    #[inline]
    fn next(&self, index: usize) -> usize {
        if index + 1 < self.bucket_count() { index + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::store::table::tests::{key, packed};

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put(usize),
        Remove(usize),
        Evict { every: u64, from: u64 },
        Resize(usize),
    }

    fn any_step(resizes: bool) -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (0..48_usize).prop_map(Step::Put),
            4 => (0..48_usize).prop_map(Step::Remove),
            1 => (1..5_u64, 0..5_u64).prop_map(|(every, from)| Step::Evict { every, from }),
            u32::from(resizes) => (0..40_usize).prop_map(Step::Resize),
        ]
    }

    /// Keys whose home buckets are among the last three.
    fn keys_with_last_homes(buckets: usize) -> Vec<Key> {
        let empty = HashTable::new(buckets);
        (0..).map(key).filter(|key| buckets - 3 <= empty.home(*key)).take(48).collect()
    }

    /// Applies the steps to the table and a map, and compares them after each.
    fn assert_equals_map(mut buckets: HashTable, keys: &[Key], steps: &[Step]) {
        let mut map = HashMap::new();
        for (step, action) in steps.iter().enumerate() {
            let value = step as u64;
            match *action {
                Step::Put(index) => {
                    if let Some(kept) = buckets.get_mut(keys[index]) {
                        *kept = packed(value);
                    } else if buckets.is_full() {
                        continue;
                    } else {
                        buckets.put(keys[index], packed(value));
                    }
                    map.insert(keys[index], packed(value));
                }
                Step::Remove(index) => assert_eq!(buckets.remove(keys[index]), map.remove(&keys[index])),
                Step::Evict { every, from } => {
                    let stays = |packed: &PackedCounter| packed.idle_at().as_nanos() % every != from;
                    let (all, mut asked) = (buckets.len(), 0);
                    buckets.retain(|packed| {
                        asked += 1;
                        stays(packed)
                    });
                    map.retain(|_, packed| stays(packed));
                    assert_eq!(asked, all, "`stays` is called once for each counter");
                }
                Step::Resize(more) => buckets.resize(buckets_for(buckets.len() + more)),
            }
            assert!(buckets.len() == map.len() && buckets.len() <= capacity_of(buckets.bucket_count()));
            assert_eq!(buckets.iter().cloned().collect::<HashMap<_, _>>(), map);
            assert_eq!(buckets.iter().count(), map.len(), "no counter is duplicated");
            keys.iter().for_each(|key| assert_eq!(buckets.get(*key), map.get(key)));
        }
    }

    proptest! {
        #[test]
        fn hash_table_equals_std_map(steps in prop::collection::vec(any_step(true), 1..120)) {
            let keys: Vec<Key> = (0..48).map(key).collect();
            assert_equals_map(HashTable::default(), &keys, &steps);
        }

        #[test]
        fn run_across_the_end_loses_and_duplicates_nothing(
            buckets in 4..64_usize,
            steps in prop::collection::vec(any_step(false), 1..120),
        ) {
            assert_equals_map(HashTable::new(buckets), &keys_with_last_homes(buckets), &steps);
        }

        #[test]
        fn bucket_count_for_counters_is_minimal(counters in 4..1_000_000_usize) {
            let buckets = buckets_for(counters);
            prop_assert!(capacity_of(buckets - 1) < counters && counters <= capacity_of(buckets));
        }
    }

    #[test]
    fn counter_takes_43_to_64_bytes() {
        let mut buckets = next_after(0);
        while buckets < 1 << 40 {
            let (full, larger) = (capacity_of(buckets), next_after(buckets));
            assert!(buckets < FEWEST + 4 || 128 * full <= 3 * bytes_of(buckets));
            assert!(bytes_of(larger) <= 64 * (full + 1) && full < capacity_of(larger));
            buckets = larger;
        }
    }

    #[test]
    fn counters_in_order_of_another_table_keep_short_probes() {
        for bucket_count in [300, 5_000, 6_667, 20_000] {
            let mut from = HashTable::new(buckets_for(bucket_count));
            (0..bucket_count as u64).for_each(|index| from.put(key(index), packed(index)));
            let mut into = HashTable::default();
            for (key, packed) in from.into_counters() {
                if into.is_full() {
                    let (all, longest) = into.probe_lengths();
                    // Random keys have a mean of 1.4 too, and rarely more than 4.
                    assert!(all <= 5 * into.len(), "{all} buckets probed for {} counters", into.len());
                    assert!(longest <= 200, "{longest} buckets probed for one of {} counters", into.len());
                    into.resize(next_after(into.bucket_count()));
                }
                into.put(key, packed);
            }
        }
    }

    impl HashTable {
        /// The number of buckets probed beyond the home bucket: in total, and the maximum.
        pub(in crate::store::table) fn probe_lengths(&self) -> (usize, usize) {
            let bucket_count = self.bucket_count();
            let len = self.buckets.iter().enumerate();
            let len = len.filter_map(|(index, bucket)| Some((index, bucket.0.as_ref()?.0)));
            let probe_lengths =
                len.map(|(index, key)| (index + bucket_count - self.home(key)) % bucket_count);
            probe_lengths.fold((0, 0), |(all, longest), way| (all + way, longest.max(way)))
        }
    }
}
