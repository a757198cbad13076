//! The table of one slot: its counters with their holds and grants, and its memory.

use tollgate_counter::{
    algorithm::{Granted, Limit, LogCounter},
    descriptor::Key,
    packed_counter::PackedCounter,
    time::Timestamp,
};

use crate::{
    holds::{CounterCopy, HoldSize, Holds},
    key_hasher::ByKey,
};

mod eviction;
mod hash_table;
mod resources;

pub(super) use eviction::EVICTION_COST_MAX;
use hash_table::{HashTable, buckets_for, bytes_of, capacity_of, next_after};
pub(super) use resources::{EventCounter, HoldTotals, TableResources};

/// A table below this fraction of its part of the memory may take memory from others.
const STARVED_DIVISOR: usize = 8;
/// The bytes of the first allocation of a table.
pub(super) const BYTES_FIRST: usize = bytes_of(next_after(0));

/// Counters by key.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    buckets: HashTable,
    // No eviction before this instant: the last one freed too little.
    no_eviction_until: Timestamp,
    // Only few slots have holds. Evicting a counter does not affect them.
    holds: Option<Box<ByKey<Box<Holds>>>>,
    // Only few slots have counters of which clients that decide by themselves have a part.
    grants: Option<Box<ByKey<CounterGrant>>>,
}

/// What is granted of the limit of a counter, and what is requested of the rest.
#[derive(Debug)]
pub(super) struct CounterGrant {
    pub(super) limit: Limit,
    pub(super) granted: Granted,
    /// Hits that callers have requested since this was read.
    pub(super) requested: u64,
}

impl SlotTable {
    /// A table of these counters.
    pub(super) fn from_counters(cells: impl ExactSizeIterator<Item = (Key, PackedCounter)>) -> Self {
        let mut buckets = HashTable::new(buckets_for(cells.len()));
        cells.for_each(|(key, packed)| buckets.put(key.low(), packed));
        Self { buckets, ..Self::default() }
    }

    /// The number of counters.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// The bytes of the table, without the heap of its counters.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(self.buckets.bucket_count())
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&PackedCounter> {
        self.buckets.get(key.low())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut PackedCounter> {
        self.buckets.get_mut(key.low())
    }

    /// Whether a counter is a log, which is copied in parts.
    pub(super) fn has_log(&self) -> bool {
        self.buckets.iter().any(|(_, packed)| packed.log().is_some())
    }

    /// Whether there are holds.
    #[inline(always)]
    pub(super) fn has_holds(&self) -> bool {
        self.holds.is_some()
    }

    /// Whether there are holds or grants.
    #[inline(always)]
    pub(super) fn has_holds_or_grants(&self) -> bool {
        self.holds.is_some() || self.grants.is_some()
    }

    /// What is granted of the counter of `key`, if anything is.
    pub(super) fn grant(&self, key: Key) -> Option<&CounterGrant> {
        self.grants.as_ref()?.get(&key)
    }

    /// What is granted of the counter of `key`, for changes, if anything is.
    pub(super) fn grant_mut(&mut self, key: Key) -> Option<&mut CounterGrant> {
        self.grants.as_mut()?.get_mut(&key)
    }

    /// Sets what is granted of the counter of `key`, which is divided from now on.
    pub(super) fn set_granted(&mut self, key: Key, limit: &Limit, granted: Granted) {
        let grants = self.grants.get_or_insert_default();
        let grant =
            grants.entry(key).or_insert_with(|| CounterGrant { limit: limit.clone(), granted, requested: 0 });
        if grant.limit != *limit {
            grant.limit = limit.clone();
        }
        grant.granted = granted;
    }

    /// Ends the division of the counter of `key`. Returns what was granted of it.
    pub(super) fn end_grant(&mut self, key: Key) -> Option<CounterGrant> {
        let ended = self.grants.as_mut().and_then(|grants| grants.remove(&key));
        self.grants.take_if(|grants| grants.is_empty());
        ended
    }

    /// What is granted of each counter, with its limit.
    pub(super) fn granted(&self) -> Vec<(Key, Limit, Granted)> {
        let grants = self.grants.iter().flat_map(|grants| grants.iter());
        let with_some = grants.filter(|(_, grant)| !grant.granted.is_nothing());
        with_some.map(|(key, grant)| (*key, grant.limit.clone(), grant.granted)).collect()
    }

    /// The holds of `key`, if there are any.
    pub(super) fn holds(&self, key: Key) -> Option<&Holds> {
        self.holds.as_ref()?.get(&key).map(|holds| &**holds)
    }

    /// The keys with holds.
    pub(super) fn keys_with_holds(&self) -> Vec<Key> {
        self.holds.as_ref().map_or_else(Vec::new, |holds| holds.keys().copied().collect())
    }

    /// Takes the holds of `key` until [`SlotTable::put_holds`].
    pub(super) fn take_holds(&mut self, key: Key) -> Option<Box<Holds>> {
        self.holds.as_mut()?.remove(&key)
    }

    /// Puts holds back that had the size `before`; `None` if there are none left.
    pub(super) fn put_holds(
        &mut self,
        key: Key,
        mut holds: Option<Box<Holds>>,
        before: HoldSize,
        resources: &TableResources,
    ) {
        let forgotten = holds.as_mut().map_or(0, |holds| holds.take_forgotten_early());
        if forgotten > 0 {
            resources.holds.forgotten.add(forgotten);
        }
        resources.change_holds(before, holds.as_ref().map(|holds| holds.size()).unwrap_or_default());
        match holds {
            Some(holds) => {
                self.holds.get_or_insert_default().insert(key, holds);
            }
            None => {
                self.holds.take_if(|holds| holds.is_empty());
            }
        }
    }

    /// Copies of all holds, for a backup.
    pub(super) fn copy_all_holds(&mut self, resources: &TableResources) -> ByKey<Box<Holds>> {
        let each = self.holds.as_deref_mut().into_iter().flatten();
        let copy = |(key, holds): (&Key, &mut Box<Holds>)| {
            let before = holds.size();
            let copy = holds.copy_all();
            resources.change_holds(before, holds.size());
            (*key, Box::new(copy))
        };
        each.map(copy).collect()
    }

    /// Copies of all holds.
    pub(super) fn copies_of_holds(&self) -> ByKey<Box<Holds>> {
        self.holds.as_deref().cloned().unwrap_or_default()
    }

    /// Takes all holds, which no longer count in the memory of this table.
    pub(super) fn take_all_holds(&mut self, resources: &TableResources) -> ByKey<Box<Holds>> {
        let holds = self.holds.take().map(|holds| *holds).unwrap_or_default();
        holds.values().for_each(|holds| resources.change_holds(holds.size(), HoldSize::default()));
        holds
    }

    /// Adds the holds of another table.
    pub(super) fn add_holds(&mut self, holds: ByKey<Box<Holds>>, resources: &TableResources) {
        for (key, holds) in holds {
            self.put_holds(key, Some(holds), HoldSize::default(), resources);
        }
    }

    /// A copy of what has changed of the counter of `key`, and of its holds, since the last such copy, or the last
    /// [`SlotTable::copy_all`] and [`SlotTable::copy_all_holds`].
    pub(super) fn copy_changes(
        &mut self,
        key: Key,
        resources: &TableResources,
    ) -> (Option<PackedCounter>, Option<Box<Holds>>) {
        let counter = self.buckets.get_mut(key.low()).map(|packed| {
            let before = packed.heap_bytes();
            let copy = packed.copy_changes();
            resources.budget.change(before, packed.heap_bytes());
            copy
        });
        let Some(holds) = self.holds.as_mut().and_then(|holds| holds.get_mut(&key)) else {
            return (counter, None);
        };
        let copied = match (&counter, self.buckets.get(key.low()).and_then(PackedCounter::log)) {
            (None, _) => CounterCopy::Absent,
            (Some(copy), Some(log)) if copy.is_partial() => {
                CounterCopy::Part { log, retained: copy.log().map_or(0, LogCounter::retained) }
            }
            (Some(_), _) => CounterCopy::Whole,
        };
        let before = holds.size();
        let copy = holds.copy_changes(copied);
        resources.change_holds(before, holds.size());
        (counter, Some(Box::new(copy)))
    }

    /// Copies of all counters with the lower halves of their keys, for a backup.
    pub(super) fn copy_all(&mut self, resources: &TableResources) -> Vec<(u64, PackedCounter)> {
        let mut copies = Vec::with_capacity(self.len());
        copies.extend(self.buckets.iter_mut().map(|(low, packed)| {
            let before = packed.heap_bytes();
            let copy = packed.copy_all();
            resources.budget.change(before, packed.heap_bytes());
            (*low, copy)
        }));
        copies
    }

    /// Copies of all counters with the lower halves of their keys.
    pub(super) fn copies(&self) -> Vec<(u64, PackedCounter)> {
        let mut copies = Vec::with_capacity(self.len());
        copies.extend(self.buckets.iter().cloned());
        copies
    }

    /// All counters with the lower halves of their keys.
    pub(super) fn into_counters(self) -> impl Iterator<Item = (u64, PackedCounter)> {
        self.buckets.into_counters()
    }

    /// Removes a counter, if there is one.
    pub(super) fn remove(&mut self, key: Key, resources: &TableResources) {
        if let Some(packed) = self.buckets.remove(key.low()) {
            resources.budget.change(packed.heap_bytes(), 0);
        }
    }

    /// Inserts a new counter if there is memory, or if counters with a lower eviction cost can be evicted.
    pub(super) fn insert(
        &mut self,
        key: Key,
        packed: PackedCounter,
        now: Timestamp,
        resources: &TableResources,
    ) -> bool {
        let heap = packed.heap_bytes();
        if !self.make_room(heap, now, resources) {
            return false;
        }
        if self.buckets.is_full() {
            self.resize(next_after(self.buckets.bucket_count()), resources);
        }
        self.buckets.put(key.low(), packed);
        resources.budget.change(0, heap);
        true
    }

    /// Whether there is memory for one more counter with `heap` bytes on the heap, if need be after counters with a
    /// lower eviction cost are evicted.
    pub(super) fn make_room(&mut self, heap: usize, now: Timestamp, resources: &TableResources) -> bool {
        if self.buckets.is_full() {
            self.forget_idle_or_grow(now, resources);
        }
        if !self.is_short(heap, resources) {
            return true;
        }
        if heap == 0 {
            self.evict(now, resources);
        } else {
            self.evict_and_shrink(now, resources);
        }
        !self.is_short(heap, resources)
    }

    /// Grows once for this many more counters, if there is memory.
    pub fn reserve(&mut self, counters: usize, resources: &TableResources) {
        let buckets = buckets_for(self.len() + counters);
        if self.buckets.bucket_count() < buckets && !resources.budget.is_short_of(bytes_of(buckets)) {
            self.resize(buckets, resources);
        }
    }

    /// Whether the table may not grow for lack of memory, although it is much smaller than its part of the memory.
    pub(super) fn is_starved(&self, resources: &TableResources) -> bool {
        self.buckets.is_full()
            && self.bytes() < resources.budget.bytes_max() / resources.tables / STARVED_DIVISOR
            && self.is_short(0, resources)
    }

    /// Whether there is too little memory for one more counter with `heap` bytes on the heap.
    fn is_short(&self, heap: usize, resources: &TableResources) -> bool {
        let buckets = self.buckets.bucket_count();
        let more = if self.buckets.is_full() { bytes_of(next_after(buckets)) } else { 0 };
        if more + heap == 0 {
            // What is free in the table is counted already.
            false
        } else if buckets == 0 {
            resources.budget.is_short_of_first(more + heap)
        } else {
            resources.budget.is_short_of(more + heap)
        }
    }

    /// The bytes of the table and of the heap of its counters.
    pub(super) fn all_bytes(&self) -> usize {
        self.bytes() + self.heap_bytes()
    }

    fn heap_bytes(&self) -> usize {
        self.buckets.iter().map(|(_, packed)| packed.heap_bytes()).sum()
    }

    /// Shrinks a table that has become much too large.
    pub(super) fn shrink(&mut self, resources: &TableResources) {
        if self.len() * 4 < capacity_of(self.buckets.bucket_count()) {
            self.resize(buckets_for(self.len() * 2), resources);
        }
    }

    fn resize(&mut self, buckets: usize, resources: &TableResources) {
        let before = self.bytes();
        self.buckets.resize(buckets);
        resources.budget.change_table(before, self.bytes());
    }
}

#[cfg(test)]
mod hash_table_tests;

#[cfg(test)]
pub(super) mod tests;
