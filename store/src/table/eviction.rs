//! Eviction: which counters of a table make room for others.

use std::cmp::Reverse;

use tollgate_counter::{packed_counter::PackedCounter, time::Timestamp};

use crate::{
    side_data::{SideData, pending::CounterUsage},
    table::{
        SlotTable,
        hash_table::{HashTable, buckets_for, bytes_of, next_after},
        resources::TableResources,
    },
};

/// An eviction frees one eighth of the table, so that evictions are rare.
pub(super) const EVICT_DIVISOR: usize = 8;
/// If an eviction frees less than this fraction, the next one is delayed.
const WORTHWHILE_DIVISOR: usize = 64;
/// The delay of an eviction after one that has freed too little, in nanoseconds.
const EVICTION_PAUSE_NANOS: u64 = 50_000_000;
/// The number of distinct eviction costs, one byte.
const EVICTION_COSTS: usize = 1 << u8::BITS;
/// The highest eviction cost of a counter that does not refuse now.
pub(crate) const EVICTION_COST_MAX: u8 = u8::MAX - 1;

impl SlotTable {
    /// Evicts idle counters from a full table before it grows. If this frees too little, the table grows if it may.
    pub(super) fn forget_idle_or_grow(&mut self, now: Timestamp, resources: &TableResources) {
        let all = self.len();
        let forgotten = self.forget_idle(now, resources);
        let larger = next_after(self.buckets.bucket_count());
        if forgotten * EVICT_DIVISOR < all && !resources.budget.is_short_of(bytes_of(larger)) {
            self.resize(larger, resources);
        }
    }

    /// Evicts idle counters and returns their number.
    pub(crate) fn forget_idle(&mut self, now: Timestamp, resources: &TableResources) -> usize {
        let forgotten = self.remove_where(resources, |packed| packed.idle_at() <= now);
        resources.evicted_idle.add(forgotten as u64);
        forgotten
    }

    /// Makes room without growing: evicts idle counters, then those with the lowest eviction cost, until an eighth is
    /// free. Counters that refuse now stay. Returns the number of counters that it evicts.
    pub(super) fn evict(&mut self, now: Timestamp, resources: &TableResources) -> usize {
        if self.is_eviction_paused(now) {
            return 0;
        }
        let all = self.len();
        let evicted = self.evict_up_to(EVICTION_COST_MAX, now, resources);
        if evicted <= all / WORTHWHILE_DIVISOR {
            self.no_eviction_until = now.plus(EVICTION_PAUSE_NANOS);
        }
        evicted
    }

    /// Makes room outside of the table: evicts as [`SlotTable::evict`] does, and releases the buckets.
    pub(crate) fn evict_and_shrink(&mut self, now: Timestamp, resources: &TableResources) {
        let evicted = self.evict(now, resources);
        let buckets = buckets_for(self.len() + 1);
        if evicted > 0 && buckets < self.buckets.bucket_count() {
            self.resize(buckets, resources);
        }
    }

    /// Whether the last eviction freed so little that the next one waits.
    pub(crate) fn is_eviction_paused(&self, now: Timestamp) -> bool {
        now < self.no_eviction_until
    }

    /// Evicts idle counters, then those that cost at most `cost_max`, until an eighth is free. Returns their number.
    fn evict_up_to(&mut self, cost_max: u8, now: Timestamp, resources: &TableResources) -> usize {
        let enough = (self.len() / EVICT_DIVISOR).max(1);
        let idle = self.forget_idle(now, resources);
        let least = self.evict_cheapest(enough.saturating_sub(idle), cost_max, now, resources);
        resources.evicted_unexpired.add(least as u64);
        idle + least
    }

    /// Evicts an eighth as an insertion does, of the counters that cost at most `cost_max`, and releases their memory.
    /// Returns whether there are any.
    pub(crate) fn shed(&mut self, cost_max: u8, now: Timestamp, resources: &TableResources) -> bool {
        let has_evicted = self.evict_up_to(cost_max, now, resources) > 0;
        if has_evicted {
            self.resize(buckets_for(self.len()), resources);
        }
        has_evicted
    }

    /// Drops counters until the others take at most `bytes_max` bytes: first those with the lowest eviction cost, last
    /// those that refuse now. Returns how many of the latter it drops.
    pub(crate) fn cut_to(&mut self, bytes_max: usize, now: Timestamp, resources: &TableResources) -> usize {
        let bytes = self.bytes();
        let heap = self.heap_bytes();
        let mut counters: Vec<_> = std::mem::take(&mut self.buckets).into_counters().collect();
        let cost = |packed: &PackedCounter| packed.eviction_cost(now).map_or(EVICTION_COSTS, usize::from);
        counters.sort_by_cached_key(|(_, packed)| Reverse(cost(packed)));
        let mut heap_kept = 0;
        let fits = |(index, (_, packed)): &(usize, &(u64, PackedCounter))| {
            heap_kept += packed.heap_bytes();
            bytes_of(buckets_for(index + 1)) + heap_kept <= bytes_max
        };
        let retained = counters.iter().enumerate().take_while(fits).count();
        let refusing =
            counters[retained..].iter().filter(|(_, packed)| packed.eviction_cost(now).is_none()).count();
        resources.evicted_unexpired.add((counters.len() - retained - refusing) as u64);
        counters.truncate(retained);
        self.buckets = HashTable::new(buckets_for(counters.len()));
        counters.into_iter().for_each(|(low, packed)| self.buckets.put(low, packed));
        resources.budget.change_table(bytes, self.bytes());
        resources.budget.change(heap, self.heap_bytes());
        refusing
    }

    /// Drops usage that waits for a check while memory is overfull: first that of counters that have used least of their
    /// limit. Returns how many keys lose theirs.
    pub(crate) fn drop_pending_while_overfull(
        &mut self,
        now: Timestamp,
        resources: &TableResources,
    ) -> usize {
        let all = self.side_data.iter().flat_map(|each| each.iter());
        let with_some = all.filter(|(_, side_data)| !side_data.pending.is_empty());
        let cost = |side_data: &SideData| CounterUsage::eviction_cost(&side_data.pending, now);
        let mut keys: Vec<_> = with_some.map(|(key, side_data)| (cost(side_data), *key)).collect();
        keys.sort_unstable();
        let drop =
            |(_, key)| self.change_side_data(key, resources, |side_data| side_data.pending = Vec::new());
        keys.into_iter().take_while(|_| resources.budget.is_exceeded()).map(drop).count()
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
        let mut bound = 0;
        let mut left = number;
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
        let before = self.len();
        let mut heap = 0;
        self.buckets.retain(|packed| {
            let goes = goes(packed);
            heap += if goes { packed.heap_bytes() } else { 0 };
            !goes
        });
        resources.budget.change(heap, 0);
        before - self.len()
    }
}
