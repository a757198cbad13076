//! The table of one slot: its counters with their side data, and its memory.

use tollgate_counter::{
    algorithm::{Granted, Limit, LogCounter},
    descriptor::Key,
    packed_counter::PackedCounter,
    time::Timestamp,
};

use crate::{
    holds::{Holds, copies::CounterCopy},
    side_data::{CounterGrant, SideData, SideDataSize, own::OwnLimit},
    slot::ByKey,
};

pub(crate) mod eviction;
mod hash_table;
pub(crate) mod resources;

use hash_table::{HashTable, buckets_for, bytes_of, capacity_of, next_after};
pub use resources::CounterEvents;
use resources::TableResources;

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
    // Only few slots have any. Evicting a counter does not affect it. Invariant: none is empty.
    side_data: Option<Box<ByKey<Box<SideData>>>>,
}

impl SlotTable {
    /// A table of these counters, at most `len`.
    pub(super) fn from_counters(len: usize, counters: impl Iterator<Item = (Key, PackedCounter)>) -> Self {
        let mut buckets = HashTable::new(buckets_for(len));
        counters.for_each(|(key, packed)| buckets.put(key.low(), packed));
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

    /// Whether a counter has side data.
    #[inline(always)]
    pub(super) fn has_side_data(&self) -> bool {
        self.side_data.is_some()
    }

    /// The side data of `key`, if there is any.
    pub(super) fn side_data(&self, key: Key) -> Option<&SideData> {
        self.side_data.as_ref()?.get(&key).map(|side_data| &**side_data)
    }

    /// The holds of `key`, if there are any.
    pub(super) fn holds(&self, key: Key) -> Option<&Holds> {
        self.side_data(key)?.holds.as_deref()
    }

    /// What is granted of the counter of `key`, for changes that keep its size, if anything is.
    pub(super) fn grant_mut(&mut self, key: Key) -> Option<&mut CounterGrant> {
        self.side_data.as_mut()?.get_mut(&key)?.grant.as_deref_mut()
    }

    /// The limits of their own of the keys after `after`, in the order of the keys.
    pub(super) fn own_limits(&self, after: Option<Key>) -> impl Iterator<Item = (Key, &OwnLimit)> {
        let each = self.side_data.iter().flat_map(|each| each.iter());
        let own = each.filter_map(|(key, side_data)| Some((*key, side_data.own.as_deref()?)));
        let mut own: Vec<_> = own.filter(|(key, _)| after.is_none_or(|after| after < *key)).collect();
        own.sort_unstable_by_key(|(key, _)| *key);
        own.into_iter()
    }

    /// The keys with side data.
    pub(super) fn keys_with_side_data(&self) -> Vec<Key> {
        self.side_data.as_ref().map_or_else(Vec::new, |each| each.keys().copied().collect())
    }

    /// Takes the side data of `key` until [`SlotTable::put_side_data`].
    pub(super) fn take_side_data(&mut self, key: Key) -> Option<Box<SideData>> {
        self.side_data.as_mut()?.remove(&key)
    }

    /// Puts side data back that had the size `before`.
    pub(super) fn put_side_data(
        &mut self,
        key: Key,
        side_data: Option<Box<SideData>>,
        before: SideDataSize,
        resources: &TableResources,
    ) {
        let mut side_data = side_data.filter(|side_data| !side_data.is_empty());
        let holds = side_data.as_mut().and_then(|side_data| side_data.holds.as_mut());
        let forgotten = holds.map_or(0, |holds| holds.take_forgotten_early());
        if forgotten > 0 {
            resources.events.ids_forgotten.add(forgotten as u64);
        }
        resources.change_side_data(
            before,
            side_data.as_ref().map(|side_data| side_data.size()).unwrap_or_default(),
        );
        match side_data {
            Some(side_data) => {
                self.side_data.get_or_insert_default().insert(key, side_data);
            }
            None => {
                self.side_data.take_if(|each| each.is_empty());
            }
        }
    }

    /// Changes the side data of `key`.
    pub(super) fn change_side_data<R>(
        &mut self,
        key: Key,
        resources: &TableResources,
        change: impl FnOnce(&mut SideData) -> R,
    ) -> R {
        let mut side_data = self.take_side_data(key).unwrap_or_default();
        let before = if side_data.is_empty() { SideDataSize::default() } else { side_data.size() };
        let result = change(&mut side_data);
        self.put_side_data(key, Some(side_data), before, resources);
        result
    }

    /// What is granted of each counter, with its limit.
    pub(super) fn granted(&self) -> Vec<(Key, Limit, Granted)> {
        let each = self.side_data.iter().flat_map(|each| each.iter());
        let grants = each.filter_map(|(key, side_data)| Some((key, side_data.grant.as_ref()?)));
        let with_some = grants.filter(|(_, grant)| !grant.granted.is_nothing());
        with_some.map(|(key, grant)| (*key, grant.limit.clone(), grant.granted)).collect()
    }

    /// Copies of all side data, for a backup.
    pub(super) fn copy_all_side_data(&mut self, resources: &TableResources) -> ByKey<Box<SideData>> {
        let each = self.side_data.as_deref_mut().into_iter().flatten();
        let copy = |(key, side_data): (&Key, &mut Box<SideData>)| {
            let before = side_data.size();
            let copy = side_data.copy_all();
            resources.change_side_data(before, side_data.size());
            Some((*key, copy.boxed()?))
        };
        each.filter_map(copy).collect()
    }

    /// Copies of all side data.
    pub(super) fn copies_of_side_data(&self) -> ByKey<Box<SideData>> {
        let each = self.side_data.iter().flat_map(|each| each.iter());
        each.filter_map(|(key, side_data)| Some((*key, side_data.copy().boxed()?))).collect()
    }

    /// Takes all side data, which no longer counts in the memory of this table. What stays in this process is dropped.
    pub(super) fn take_all_side_data(&mut self, resources: &TableResources) -> ByKey<Box<SideData>> {
        let mut all = self.side_data.take().map(|all| *all).unwrap_or_default();
        all.retain(|_, side_data| {
            resources.change_side_data(side_data.size(), SideDataSize::default());
            side_data.drop_local();
            !side_data.is_empty()
        });
        all
    }

    /// Adds the side data of another table.
    pub(super) fn add_side_data(&mut self, all: ByKey<Box<SideData>>, resources: &TableResources) {
        for (key, side_data) in all {
            self.put_side_data(key, Some(side_data), SideDataSize::default(), resources);
        }
    }

    /// A copy of what has changed of the counter of `key`, and of its side data, since the last such copy, or the last
    /// [`SlotTable::copy_all`] and [`SlotTable::copy_all_side_data`].
    pub(super) fn copy_changes(
        &mut self,
        key: Key,
        resources: &TableResources,
    ) -> (Option<PackedCounter>, Option<Box<SideData>>) {
        let counter = self.buckets.get_mut(key.low()).map(|packed| {
            let before = packed.heap_bytes();
            let copy = packed.copy_changes();
            resources.budget.change(before, packed.heap_bytes());
            copy
        });
        let Some(side_data) = self.side_data.as_mut().and_then(|each| each.get_mut(&key)) else {
            return (counter, None);
        };
        let copied = match (&counter, self.buckets.get(key.low()).and_then(PackedCounter::log)) {
            (None, _) => CounterCopy::Absent,
            (Some(copy), Some(log)) if copy.is_partial() => {
                CounterCopy::Part { log, retained: copy.log().map_or(0, LogCounter::retained) }
            }
            (Some(_), _) => CounterCopy::Whole,
        };
        let before = side_data.size();
        let copy = side_data.copy_changes(copied);
        resources.change_side_data(before, side_data.size());
        (counter, copy.boxed())
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
