//! A hash table with open addressing and linear probing. Keys are stored only in the buckets themselves, so a lookup
//! waits for one cache line, or for two neighbours. A key is the lower half of a [`Key`](tollgate_counter::descriptor::Key): all
//! keys of a slot have the same bits that select the slot.

use tollgate_counter::packed_counter::PackedCounter;

/// The minimum number of buckets of a table that is not empty.
pub(super) const FEWEST: usize = 4;
/// The fractional part of the golden ratio; its multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Buckets for counters.
#[derive(Debug, Default)]
pub(super) struct HashTable {
    // Invariant: at most 3/4 of the buckets are occupied, and all from the home bucket of a key to its own are.
    buckets: Box<[TableBucket]>,
    len: usize,
    factor: u64,
}

/// A bucket for one counter. Three of four are in one cache line, and the others in two neighbours.
#[derive(Debug, Default)]
struct TableBucket(Option<(u64, PackedCounter)>);

// The memory per counter follows from this size; docs/algorithms.md states it.
const _: () = assert!(size_of::<TableBucket>() == 24);

/// The bytes of this many buckets.
pub(super) const fn bytes_of(buckets: usize) -> usize {
    buckets * size_of::<TableBucket>()
}

/// The maximum number of occupied buckets. Above it, probe sequences would become long.
pub(super) const fn capacity_of(buckets: usize) -> usize {
    buckets * 3 / 4
}

/// The number of buckets for this many counters.
pub(super) fn buckets_for(counters: usize) -> usize {
    if counters == 0 { 0 } else { (counters * 4).div_ceil(3).max(FEWEST) }
}

/// The next larger number of buckets, which has room for more counters. By a quarter, so that a table that has just
/// grown is 3/5 full.
pub(super) const fn next_after(buckets: usize) -> usize {
    match buckets {
        ..FEWEST => FEWEST,
        FEWEST..8 => buckets + 2,
        _ => buckets + buckets / 4,
    }
}

impl HashTable {
    /// A table of empty buckets.
    pub(super) fn new(buckets: usize) -> Self {
        // The order of keys depends on the number of buckets. Otherwise, counters moved from one table to another in
        // order would all collide at the beginning of the smaller one, with ever longer probes. The factor is odd, so
        // that no bit of a key is lost.
        let factor = GOLDEN.wrapping_mul(buckets as u64) | 1;
        Self { buckets: (0..buckets).map(|_| TableBucket::default()).collect(), len: 0, factor }
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
    pub(super) fn get(&self, key: u64) -> Option<&PackedCounter> {
        self.buckets[self.find(key)?].0.as_ref().map(|(_, packed)| packed)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut PackedCounter> {
        let index = self.find(key)?;
        self.buckets[index].0.as_mut().map(|(_, packed)| packed)
    }

    /// Inserts a key that is not in the table. The table must not be full.
    pub(super) fn put(&mut self, key: u64, packed: PackedCounter) {
        debug_assert!(!self.is_full() && self.find(key).is_none());
        self.len += 1;
        self.insert_near_home(key, packed);
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<PackedCounter> {
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, PackedCounter)> {
        self.buckets.iter().filter_map(|bucket| bucket.0.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (u64, PackedCounter)> {
        self.buckets.iter_mut().filter_map(|bucket| bucket.0.as_mut())
    }

    pub(super) fn into_counters(self) -> impl Iterator<Item = (u64, PackedCounter)> {
        self.buckets.into_iter().filter_map(|bucket| bucket.0)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
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
    fn insert_near_home(&mut self, key: u64, packed: PackedCounter) {
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
    pub(super) fn home(&self, key: u64) -> usize {
        let share = u128::from(key.wrapping_mul(self.factor));
        // Less than the number of buckets.
        ((share * self.bucket_count() as u128) >> u64::BITS) as usize
    }

    #[inline]
    fn next(&self, index: usize) -> usize {
        if index + 1 < self.bucket_count() { index + 1 } else { 0 }
    }

    /// The number of buckets probed beyond the home bucket: in total, and the maximum.
    #[cfg(test)]
    pub(super) fn probe_lengths(&self) -> (usize, usize) {
        let bucket_count = self.bucket_count();
        let occupied = self.buckets.iter().enumerate();
        let occupied = occupied.filter_map(|(index, bucket)| Some((index, bucket.0.as_ref()?.0)));
        let lengths = occupied.map(|(index, key)| (index + bucket_count - self.home(key)) % bucket_count);
        lengths.fold((0, 0), |(all, longest), length| (all + length, longest.max(length)))
    }
}
