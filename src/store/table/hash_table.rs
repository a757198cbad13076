//! Counters by their keys, in open addressing: each lies as near behind the home of its key as there was a place.
//! Nothing but the places themselves says where a key is, so a look-up waits for one line from memory.

use crate::{descriptor::Key, store::packed_counter::PackedCounter};

/// The fewest places, where there are any.
const FEWEST: usize = 4;
/// The fraction of the golden section, whose multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Places for counters, some of them empty.
#[derive(Debug, Default)]
pub(super) struct HashTable {
    // Invariant: at most three of four are taken, and from the home of a key to its place all are.
    buckets: Box<[Bucket]>,
    len: usize,
    factor: u64,
}

/// Room for one counter. Two are a line of the processor's cache, and none is in two lines.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Bucket(Option<(Key, PackedCounter)>);

// The bytes for each counter follow from this, and so does what docs/algorithms.md says of them.
const _: () = assert!(size_of::<Bucket>() == 32);

/// The bytes of so many places.
pub(super) const fn bytes_of(buckets: usize) -> usize {
    buckets * size_of::<Bucket>()
}

/// How many of so many places may be taken. More, and the runs of taken ones would become long.
pub(super) const fn capacity_of(buckets: usize) -> usize {
    buckets * 3 / 4
}

/// The places that so many counters need.
pub(super) fn buckets_for(counters: usize) -> usize {
    if counters == 0 { 0 } else { (counters * 4).div_ceil(3).max(FEWEST) }
}

/// How many places there are after so many, when they are all that may be taken.
pub(super) const fn next_after(buckets: usize) -> usize {
    if buckets < FEWEST { FEWEST } else { buckets + buckets / 2 }
}

impl HashTable {
    /// So many empty places.
    pub(super) fn new(buckets: usize) -> Self {
        // Were keys in the same order in all tables, then counters that are moved one by one in the order of theirs
        // would all come to the beginning of another that is still small, each looking longer for a place than the one
        // before. So the order depends on the number of places. The factor is odd, so that no bit of a key is lost.
        let factor = GOLDEN.wrapping_mul(buckets as u64) | 1;
        Self { buckets: (0..buckets).map(|_| Bucket::default()).collect(), len: 0, factor }
    }

    /// How many places there are.
    pub(super) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// How many counters there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether as many are taken as may be.
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

    /// Takes a place for a key that has none. They are not full.
    pub(super) fn put(&mut self, key: Key, packed: PackedCounter) {
        debug_assert!(!self.is_full() && self.find(key).is_none());
        self.len += 1;
        self.insert_near_home(key, packed);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<PackedCounter> {
        let mut index = self.find(key)?;
        let (_, packed) = self.buckets[index].0.take()?;
        self.len -= 1;
        // What follows may be nearer to its home now.
        index = self.next(index);
        while self.buckets[index].0.is_some() {
            self.reinsert(index);
            index = self.next(index);
        }
        Some(packed)
    }

    /// Forgets all counters but those for which `stays` says so, which is asked once for each.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&PackedCounter) -> bool) {
        // A run of taken places is gone through from its beginning, so from behind an empty place on.
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

    /// Moves all counters into so many places, which are enough.
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
            // Where there are no places at all, nor is this one.
            let (other, _) = self.buckets.get(index)?.0.as_ref()?;
            if *other == key {
                return Some(index);
            }
            index = self.next(index);
        }
    }

    /// Puts a counter into the first empty place from its home on.
    fn insert_near_home(&mut self, key: Key, packed: PackedCounter) {
        let mut index = self.home(key);
        while self.buckets[index].0.is_some() {
            index = self.next(index);
        }
        self.buckets[index].0 = Some((key, packed));
    }

    /// Moves a counter nearer to its home, where there is an empty place now.
    fn reinsert(&mut self, index: usize) {
        if let Some((key, packed)) = self.buckets[index].0.take() {
            self.insert_near_home(key, packed);
        }
    }

    /// Where a key belongs. It is a share of the places, not a rest, so they may be of any number.
    #[inline]
    fn home(&self, key: Key) -> usize {
        let share = u128::from(key.low().wrapping_mul(self.factor));
        // Less than the number of places.
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
        Forget { every: u64, from: u64 },
        Resize(usize),
    }

    fn any_step(resizes: bool) -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (0..48_usize).prop_map(Step::Put),
            4 => (0..48_usize).prop_map(Step::Remove),
            1 => (1..5_u64, 0..5_u64).prop_map(|(every, from)| Step::Forget { every, from }),
            u32::from(resizes) => (0..40_usize).prop_map(Step::Resize),
        ]
    }

    /// Keys whose homes are the last three of so many places.
    fn keys_with_last_homes(buckets: usize) -> Vec<Key> {
        let empty = HashTable::new(buckets);
        (0..).map(key).filter(|key| buckets - 3 <= empty.home(*key)).take(48).collect()
    }

    /// Takes the steps, and compares with what a map holds after each.
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
                Step::Forget { every, from } => {
                    let stays = |packed: &PackedCounter| packed.idle_at().as_nanos() % every != from;
                    let (all, mut asked) = (buckets.len(), 0);
                    buckets.retain(|packed| {
                        asked += 1;
                        stays(packed)
                    });
                    map.retain(|_, packed| stays(packed));
                    assert_eq!(asked, all, "each is asked once");
                }
                Step::Resize(more) => buckets.resize(buckets_for(buckets.len() + more)),
            }
            assert!(buckets.len() == map.len() && buckets.len() <= capacity_of(buckets.bucket_count()));
            assert_eq!(buckets.iter().cloned().collect::<HashMap<_, _>>(), map);
            assert_eq!(buckets.iter().count(), map.len(), "none is there twice");
            keys.iter().for_each(|key| assert_eq!(buckets.get(*key), map.get(key)));
        }
    }

    proptest! {
        #[test]
        fn places_hold_what_a_map_would(steps in prop::collection::vec(any_step(true), 1..120)) {
            let keys: Vec<Key> = (0..48).map(key).collect();
            assert_equals_map(HashTable::default(), &keys, &steps);
        }

        #[test]
        fn a_run_that_goes_on_from_the_beginning_loses_and_doubles_nothing(
            buckets in 4..64_usize,
            steps in prop::collection::vec(any_step(false), 1..120),
        ) {
            assert_equals_map(HashTable::new(buckets), &keys_with_last_homes(buckets), &steps);
        }

        #[test]
        fn as_many_places_as_counters_need_are_enough_and_no_more_than_that(counters in 4..1_000_000_usize) {
            let buckets = buckets_for(counters);
            prop_assert!(capacity_of(buckets - 1) < counters && counters <= capacity_of(buckets));
        }
    }

    #[test]
    fn a_counter_takes_43_to_64_bytes() {
        let mut buckets = next_after(0);
        while buckets < 1 << 40 {
            let (full, larger) = (capacity_of(buckets), next_after(buckets));
            assert!(buckets < FEWEST + 4 || 128 * full <= 3 * bytes_of(buckets));
            assert!(bytes_of(larger) <= 64 * (full + 1) && full < capacity_of(larger));
            buckets = larger;
        }
    }

    #[test]
    fn counters_that_come_in_the_order_of_another_table_are_found_as_soon_as_others() {
        for bucket_count in [300, 5_000, 6_667, 20_000] {
            let mut from = HashTable::new(buckets_for(bucket_count));
            (0..bucket_count as u64).for_each(|index| from.put(key(index), packed(index)));
            let mut into = HashTable::default();
            for (key, packed) in from.into_counters() {
                if into.is_full() {
                    let (all, longest) = into.probe_lengths();
                    // Of keys in no order too: 1.4 at the mean, in few places by chance more than 4.
                    assert!(all <= 5 * into.len(), "{all} places for {} counters", into.len());
                    assert!(longest <= 200, "{longest} places for one of {} counters", into.len());
                    into.resize(next_after(into.bucket_count()));
                }
                into.put(key, packed);
            }
        }
    }

    impl HashTable {
        /// How many places are looked at beyond their homes to find all counters, and to find the furthest.
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
