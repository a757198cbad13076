//! The table of one slot: its memory, and eviction when it may not grow.

use std::{
    cmp::Reverse,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use crate::{
    algorithm::{Granted, Limit, LogCounter},
    descriptor::Key,
    store::{
        budget::Budget,
        holds::{CounterCopy, HoldSize, Holds},
        key_hasher::ByKey,
        packed_counter::PackedCounter,
    },
    time::Timestamp,
};

mod hash_table;

use hash_table::{HashTable, buckets_for, bytes_of, capacity_of, next_after};

/// An eviction frees one eighth of the table, so that evictions are rare.
const EVICT_DIVISOR: usize = 8;
/// If an eviction frees less than this fraction, the next one is delayed.
const WORTHWHILE_DIVISOR: usize = 64;
/// The delay, in nanoseconds.
const EVICTION_PAUSE_NANOS: u64 = 50_000_000;
/// The number of distinct eviction costs, one byte.
const EVICTION_COSTS: usize = 1 << u8::BITS;
/// The highest eviction cost of a counter that does not refuse now.
pub(super) const EVICTION_COST_MAX: u8 = u8::MAX - 1;
/// A table below this fraction of its part of the memory may take memory from others.
const STARVED_DIVISOR: usize = 8;
/// The bytes of the first allocation of a table.
pub(super) const BYTES_FIRST: usize = bytes_of(next_after(0));

/// Counters by key.
#[derive(Debug, Default)]
pub(super) struct Table {
    buckets: HashTable,
    // No eviction before this instant: the last one freed too little.
    no_eviction_until: Timestamp,
    // Only few slots have holds. Evicting a counter does not affect them.
    holds: Option<Box<ByKey<Box<Holds>>>>,
    // Only few slots have counters of which clients that decide by themselves have a part.
    grants: Option<Box<ByKey<Grant>>>,
}

/// What is granted of the limit of a counter, and what is asked of the rest.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) limit: Limit,
    pub(super) granted: Granted,
    /// Hits that callers have asked for since this was read.
    pub(super) asked: u64,
}

/// The resources that all tables share.
#[derive(Debug)]
pub(super) struct TableResources {
    pub(super) budget: Arc<Budget>,
    /// The number of tables.
    pub(super) tables: usize,
    pub(super) evicted_idle: EventCounter,
    pub(super) evicted_unexpired: EventCounter,
    pub(super) holds: HoldTotals,
    /// Penalties that began.
    pub(super) penalties: EventCounter,
}

/// What all holds take, and what happened to them.
#[derive(Debug, Default)]
pub(super) struct HoldTotals {
    pub(super) open: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) released: EventCounter,
    pub(super) charged: EventCounter,
    pub(super) exhausted: EventCounter,
    /// Ids that were forgotten because a counter had too many.
    pub(super) forgotten: EventCounter,
}

/// A counter of events.
#[derive(Debug, Default)]
pub(super) struct EventCounter(AtomicU64);

impl TableResources {
    /// Records that the holds of a counter have changed.
    pub(super) fn change_holds(&self, before: HoldSize, after: HoldSize) {
        self.budget.change(before.bytes, after.bytes);
        for (total, before, after) in
            [(&self.holds.open, before.open, after.open), (&self.holds.bytes, before.bytes, after.bytes)]
        {
            // Both at once: the difference may be negative.
            total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

impl EventCounter {
    /// Adds the difference of two numbers of penalties. It is negative if some were forgotten.
    pub(super) fn add_penalties(&self, before: u32, after: u32) {
        if before < after {
            self.add((after - before) as usize);
        }
    }

    pub(super) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Table {
    /// A table of these counters.
    pub(super) fn of(cells: impl ExactSizeIterator<Item = (Key, PackedCounter)>) -> Self {
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
    pub(super) fn grant(&self, key: Key) -> Option<&Grant> {
        self.grants.as_ref()?.get(&key)
    }

    /// The same to be changed.
    pub(super) fn grant_mut(&mut self, key: Key) -> Option<&mut Grant> {
        self.grants.as_mut()?.get_mut(&key)
    }

    /// Sets what is granted of the counter of `key`, which is divided from now on.
    pub(super) fn set_granted(&mut self, key: Key, limit: &Limit, granted: Granted) {
        let grants = self.grants.get_or_insert_default();
        let grant = grants.entry(key).or_insert_with(|| Grant { limit: limit.clone(), granted, asked: 0 });
        if grant.limit != *limit {
            grant.limit = limit.clone();
        }
        grant.granted = granted;
    }

    /// Ends the division of the counter of `key`.
    pub(super) fn end_grant(&mut self, key: Key) {
        if let Some(grants) = &mut self.grants {
            grants.remove(&key);
        }
        self.grants.take_if(|grants| grants.is_empty());
    }

    /// The hits that are granted beside each counter, with its limit.
    pub(super) fn granted_hits(&self) -> Vec<(Key, Limit, u64)> {
        let grants = self.grants.iter().flat_map(|grants| grants.iter());
        let with_hits = grants.filter(|(_, grant)| grant.granted.hits > 0);
        with_hits.map(|(key, grant)| (*key, grant.limit.clone(), grant.granted.hits)).collect()
    }

    /// The holds of `key`, if there are any.
    pub(super) fn holds(&self, key: Key) -> Option<&Holds> {
        self.holds.as_ref()?.get(&key).map(|holds| &**holds)
    }

    /// The keys with holds.
    pub(super) fn keys_with_holds(&self) -> Vec<Key> {
        self.holds.as_ref().map_or_else(Vec::new, |holds| holds.keys().copied().collect())
    }

    /// Takes the holds of `key` until [`Table::put_holds`].
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
    /// [`Table::copy_all`] and [`Table::copy_all_holds`].
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
                CounterCopy::Part { log, kept: copy.log().map_or(0, LogCounter::kept) }
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
        if self.buckets.is_full() {
            self.forget_idle_or_grow(now, resources);
        }
        if self.is_short(heap, resources) {
            self.evict(now, resources);
            if self.is_short(heap, resources) {
                return false;
            }
        }
        if self.buckets.is_full() {
            self.resize(next_after(self.buckets.bucket_count()), resources);
        }
        self.buckets.put(key.low(), packed);
        resources.budget.change(0, heap);
        true
    }

    /// Grows once for this many more counters, if there is memory.
    pub(super) fn reserve(&mut self, counters: usize, resources: &TableResources) {
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

    /// Evicts idle counters from a full table before it grows. If this frees too little, the table grows if it may.
    fn forget_idle_or_grow(&mut self, now: Timestamp, resources: &TableResources) {
        let all = self.len();
        let forgotten = self.forget_idle(now, resources);
        let larger = next_after(self.buckets.bucket_count());
        if forgotten * EVICT_DIVISOR < all && !resources.budget.is_short_of(bytes_of(larger)) {
            self.resize(larger, resources);
        }
    }

    /// Evicts idle counters and returns their number.
    pub(super) fn forget_idle(&mut self, now: Timestamp, resources: &TableResources) -> usize {
        let forgotten = self.remove_where(resources, |packed| packed.idle_at() <= now);
        resources.evicted_idle.add(forgotten);
        forgotten
    }

    /// Makes room without growing: evicts idle counters, then those with the lowest eviction cost, until an eighth is
    /// free. Counters that refuse now stay.
    fn evict(&mut self, now: Timestamp, resources: &TableResources) {
        if self.is_eviction_paused(now) {
            return;
        }
        let all = self.len();
        if self.evict_up_to(EVICTION_COST_MAX, now, resources) <= all / WORTHWHILE_DIVISOR {
            self.no_eviction_until = now.plus(EVICTION_PAUSE_NANOS);
        }
    }

    /// Whether the last eviction freed so little that the next one waits.
    pub(super) fn is_eviction_paused(&self, now: Timestamp) -> bool {
        now < self.no_eviction_until
    }

    /// Evicts idle counters, then those that cost at most `cost_max`, until an eighth is free. Returns their number.
    fn evict_up_to(&mut self, cost_max: u8, now: Timestamp, resources: &TableResources) -> usize {
        let enough = (self.len() / EVICT_DIVISOR).max(1);
        let idle = self.forget_idle(now, resources);
        let least = self.evict_cheapest(enough.saturating_sub(idle), cost_max, now, resources);
        resources.evicted_unexpired.add(least);
        idle + least
    }

    /// Evicts an eighth as an insertion does, of the counters that cost at most `cost_max`, and releases their memory.
    pub(super) fn shed(&mut self, cost_max: u8, now: Timestamp, resources: &TableResources) {
        if self.evict_up_to(cost_max, now, resources) > 0 {
            self.resize(buckets_for(self.len()), resources);
        }
    }

    /// Drops counters until the others take at most `bytes_max` bytes: first those with the lowest eviction cost, last
    /// those that refuse now. Returns how many of the latter it drops.
    pub(super) fn cut_to(&mut self, bytes_max: usize, now: Timestamp, resources: &TableResources) -> usize {
        let (bytes, heap) = (self.bytes(), self.heap_bytes());
        let mut counters: Vec<_> = std::mem::take(&mut self.buckets).into_counters().collect();
        let cost = |packed: &PackedCounter| packed.eviction_cost(now).map_or(EVICTION_COSTS, usize::from);
        counters.sort_by_cached_key(|(_, packed)| Reverse(cost(packed)));
        let mut heap_kept = 0;
        let fits = |(index, (_, packed)): &(usize, &(u64, PackedCounter))| {
            heap_kept += packed.heap_bytes();
            bytes_of(buckets_for(index + 1)) + heap_kept <= bytes_max
        };
        let kept = counters.iter().enumerate().take_while(fits).count();
        let refusing =
            counters[kept..].iter().filter(|(_, packed)| packed.eviction_cost(now).is_none()).count();
        resources.evicted_unexpired.add(counters.len() - kept - refusing);
        counters.truncate(kept);
        self.buckets = HashTable::new(buckets_for(counters.len()));
        counters.into_iter().for_each(|(low, packed)| self.buckets.put(low, packed));
        resources.budget.change_table(bytes, self.bytes());
        resources.budget.change(heap, self.heap_bytes());
        refusing
    }

    /// The bytes of the table and of the heap of its counters.
    pub(super) fn all_bytes(&self) -> usize {
        self.bytes() + self.heap_bytes()
    }

    fn heap_bytes(&self) -> usize {
        self.buckets.iter().map(|(_, packed)| packed.heap_bytes()).sum()
    }

    /// Evicts `number` counters with the lowest eviction cost, at most `cost_max`, except those that refuse now. Returns
    /// their number.
    fn evict_cheapest(
        &mut self,
        number: usize,
        cost_max: u8,
        now: Timestamp,
        resources: &TableResources,
    ) -> usize {
        let cost = |packed: &PackedCounter| packed.eviction_cost(now).map(usize::from);
        let mut by_cost = [0; EVICTION_COSTS];
        self.buckets.iter().filter_map(|(_, packed)| cost(packed)).for_each(|cost| by_cost[cost] += 1);
        // Evicts all with a cost below `bound`, and `left` of those with that cost.
        let (mut bound, mut left) = (0, number);
        while bound <= usize::from(cost_max) && by_cost[bound] <= left {
            left -= by_cost[bound];
            bound += 1;
        }
        if bound > usize::from(cost_max) {
            left = 0;
        }
        // Spread over the table: if the first ones were evicted every time, the end of the table would fill up.
        let mut due = 0;
        self.remove_where(resources, |packed| match cost(packed) {
            Some(cost) if cost == bound => {
                due += left;
                let goes = by_cost[bound] <= due;
                due -= if goes { by_cost[bound] } else { 0 };
                goes
            }
            Some(cost) => cost < bound,
            None => false,
        })
    }

    /// Removes all counters for which `goes` returns true, and returns their number.
    fn remove_where(
        &mut self,
        resources: &TableResources,
        mut goes: impl FnMut(&PackedCounter) -> bool,
    ) -> usize {
        let (before, mut heap) = (self.len(), 0);
        self.buckets.retain(|packed| {
            let goes = goes(packed);
            heap += if goes { packed.heap_bytes() } else { 0 };
            !goes
        });
        resources.budget.change(heap, 0);
        before - self.len()
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
pub(super) mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{Counter, DebtCounter, Excess, Limit, Operation, Rate, SlidingLog, Span, TokenBucket},
        time::SECOND,
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    /// A key with `index` as its upper half.
    pub(in crate::store) fn key(index: u64) -> Key {
        // A step of SplitMix64 spreads the lower halves like a hash.
        let mut low = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        low = (low ^ low >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        low = (low ^ low >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Key::from_halves(index, low ^ low >> 31)
    }

    /// A bucket that is full at `idle_at`, in nanoseconds.
    pub(super) fn packed(idle_at: u64) -> PackedCounter {
        let hour = NonZeroU64::new(3_600 * SECOND).unwrap();
        let rate = Rate::new(NonZeroU64::MIN, hour);
        let counter = DebtCounter { paid_at: Timestamp::from_nanos(idle_at), rest: 0 };
        let limit = Limit::TokenBucket(TokenBucket { rate, burst: 11, excess: Excess::Refuse });
        packed_after_peek(&limit, Counter::Debt(counter))
    }

    /// A counter with bytes on the heap.
    fn log(now: Timestamp) -> PackedCounter {
        let (span, sub_window) = (Span::of_nanos(3_600 * SECOND).unwrap(), NonZeroU64::MIN);
        let limit = Limit::SlidingLog(SlidingLog { limit: 100, span, sub_window, excess: Excess::Refuse });
        let mut counter = limit.fresh();
        limit.decide(&mut counter, now, Operation::Charge(7));
        packed_after_peek(&limit, counter)
    }

    fn packed_after_peek(limit: &Limit, mut counter: Counter) -> PackedCounter {
        let peek = limit.decide(&mut counter, NOW, Operation::Peek);
        PackedCounter::new(limit, counter, &peek)
    }

    fn resources(bytes_max: usize) -> TableResources {
        TableResources {
            budget: Arc::new(Budget::new(bytes_max as u64, 1, BYTES_FIRST)),
            tables: 1,
            evicted_idle: EventCounter::default(),
            evicted_unexpired: EventCounter::default(),
            holds: HoldTotals::default(),
            penalties: EventCounter::default(),
        }
    }

    /// A bucket that is full in this many hours. It refuses with more than ten to go.
    fn bucket(hours: u64) -> PackedCounter {
        packed(NOW.plus(hours * 3_600 * SECOND).as_nanos())
    }

    fn hours(packed: &PackedCounter) -> u64 {
        packed.idle_at().nanos_since(NOW) / (3_600 * SECOND)
    }

    proptest! {
        #[test]
        fn budget_equals_bytes_of_table_and_heap(
            bytes_max in 200..6_000_usize,
            steps in prop::collection::vec((0..4_u8, 0..200_u64, 0..13_u64), 1..200),
        ) {
            let (mut table, resources) = (Table::default(), resources(bytes_max));
            for (action, index, hour) in steps {
                let now = NOW.plus(hour * 3_600 * SECOND);
                match action {
                    0 => table.remove(key(index), &resources),
                    1 => {
                        table.forget_idle(now, &resources);
                        table.shrink(&resources);
                    }
                    _ if table.get(key(index)).is_some() => {}
                    2 => {
                        table.insert(key(index), log(now), NOW, &resources);
                    }
                    _ => {
                        table.insert(key(index), bucket(hour), NOW, &resources);
                    }
                }
                let heap: usize = table.buckets.iter().map(|(_, packed)| packed.heap_bytes()).sum();
                prop_assert_eq!(resources.budget.used(), table.bytes() + heap);
                prop_assert!(resources.budget.used() <= bytes_max);
            }
        }

        #[test]
        fn eviction_frees_the_eighth_with_the_lowest_cost(
            all in prop::collection::vec(0..13_u64, 1..400),
        ) {
            let (mut table, resources) = (Table::default(), resources(1 << 20));
            for (index, hours) in all.iter().enumerate() {
                table.buckets.resize(buckets_for(index + 1));
                table.buckets.put(key(index as u64).low(), bucket(*hours));
            }
            table.evict(NOW, &resources);
            let mut stay: Vec<u64> = table.copies().iter().map(|(_, packed)| hours(packed)).collect();
            let mut expected = all.clone();
            expected.sort_unstable();
            stay.sort_unstable();
            let (idle, may_go) =
                (all.iter().filter(|hours| **hours == 0).count(), all.iter().filter(|hours| bucket(**hours).eviction_cost(NOW).is_some()).count());
            let gone = idle.max((all.len() / EVICT_DIVISOR).max(1)).min(may_go);
            prop_assert_eq!(stay, &expected[gone..]);
            prop_assert_eq!(resources.evicted_idle.get() + resources.evicted_unexpired.get(), gone as u64);
        }
    }

    #[test]
    fn table_after_many_evictions_keeps_short_probes() {
        let (mut table, resources) = (Table::default(), resources(bytes_of(2_000)));
        for index in 0..20_000 {
            assert!(table.insert(key(index), bucket(5), NOW, &resources));
        }
        assert!(resources.evicted_unexpired.get() > 10_000);
        let (all, longest) = table.buckets.probe_lengths();
        assert!(
            all <= 3 * table.len() && longest <= 100,
            "{all} buckets probed for {}, {longest} for one",
            table.len()
        );
    }
}
