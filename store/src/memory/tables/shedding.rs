//! Eviction from all slots: for a slot that needs memory, and while memory is overfull.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tollgate_counter::{lock::Lock, time::Timestamp};

use crate::{
    budget::Budget,
    memory::tables::Tables,
    slot::Slot,
    table::{SlotTable, eviction::EVICTION_COST_MAX},
};

/// A slot that needs memory, or a counter that grows, takes it from this many other slots at a time.
const STARVED_SHED_SLOTS: usize = 8;

/// When memory is overfull, all slots evict counters up to each of these costs in turn.
const SHED_COSTS: [u8; 5] = [7, 31, 63, 127, EVICTION_COST_MAX];

/// A turn of the sweep evicts from at most this many slots. The tests count them.
pub(in crate::memory) const SHED_SLOTS_MAX: usize = 512;
/// A turn of the sweep ends after tables of this many bytes: about 2 ms.
const SHED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The pause after eviction from all slots has found nothing to evict.
pub(in crate::memory) const SHED_PAUSE: Duration = Duration::from_secs(10);

/// How far eviction from all slots has got.
#[derive(Debug, Default)]
pub(super) struct Shedding {
    // The next slot that makes room for another one.
    for_starved: AtomicUsize,
    walk: Lock<Walk>,
}

/// A walk over all slots, once or several times for each cost.
#[derive(Debug, Default)]
struct Walk {
    // The index of the next slot.
    next: usize,
    // The slots of this round so far.
    visited: usize,
    // The index of the cost of this round.
    cost: usize,
    // Whether this round has evicted a counter.
    has_evicted: bool,
    // No eviction before this instant: nothing could be evicted.
    paused_until: Timestamp,
}

impl Walk {
    /// Pauses: nothing more can be evicted.
    fn pause(&mut self, now: Timestamp) {
        *self = Self { next: self.next, paused_until: now.after(SHED_PAUSE), ..Self::default() };
    }

    /// Goes on to the next slot of `slots`.
    fn advance(&mut self, has_evicted: bool, slots: usize, now: Timestamp) {
        self.next = (self.next + 1) % slots;
        self.visited += 1;
        self.has_evicted |= has_evicted;
        if self.visited < slots {
            return;
        }
        // Each round evicts an eighth of the counters that may go.
        let cost = if self.has_evicted { self.cost } else { self.cost + 1 };
        (self.visited, self.has_evicted, self.cost) = (0, false, cost);
        if cost == SHED_COSTS.len() {
            self.pause(now);
        }
    }
}

impl Tables {
    /// Evicts counters of other slots for the table of a slot that may not grow although it is small.
    #[cold]
    pub(super) fn shed_elsewhere(&self, now: Timestamp) {
        let first = self.shedding.for_starved.fetch_add(STARVED_SHED_SLOTS, Ordering::Relaxed);
        for cost_max in SHED_COSTS {
            for number in 0..STARVED_SHED_SLOTS {
                // The table of the small slot is locked, and so may others be.
                if let Some(mut table) = self.each[(first + number) % self.slots()].0.try_lock()
                    && !table.is_eviction_paused(now)
                {
                    table.shed(cost_max, now, &self.resources);
                }
            }
            if !self.resources.budget.is_exceeded() {
                return;
            }
        }
    }

    /// Evicts counters of a few other slots while memory is overfull because a counter has grown. A slot that has evicted
    /// too little lately is left alone.
    #[cold]
    pub(super) fn evict_elsewhere(&self, now: Timestamp) {
        let first = self.shedding.for_starved.fetch_add(STARVED_SHED_SLOTS, Ordering::Relaxed);
        for number in 0..STARVED_SHED_SLOTS {
            if !self.resources.budget.is_exceeded() {
                return;
            }
            // The table of the counter is locked, and so may others be.
            if let Some(mut table) = self.each[(first + number) % self.slots()].0.try_lock() {
                table.evict_and_shrink(now, &self.resources);
            }
        }
    }

    /// Evicts counters of all slots, from `first` on, while it is needed and anything can be evicted: those that have used
    /// least of their limit before all others. If all slots have too little, later calls do nothing for a while.
    pub(in crate::memory) fn shed_while(
        &self,
        first: Slot,
        now: Timestamp,
        is_needed: impl Fn(&Budget) -> bool,
    ) {
        if !is_needed(&self.resources.budget) {
            return;
        }
        let mut shared = self.shedding.walk.lock();
        if now < shared.paused_until {
            return;
        }
        let mut walk = Walk { next: first.index(), ..Walk::default() };
        self.shed_next(&mut walk, now, is_needed, |_| true);
        if now < walk.paused_until {
            shared.pause(now);
        }
    }

    /// Evicts counters of the next slots while memory is overfull, in the order of [`Tables::shed_while`], and returns
    /// the number of slots that it has looked at. Once nothing can be evicted, it waits for [`SHED_PAUSE`].
    pub(in crate::memory) fn shed_some(&self, now: Timestamp) -> usize {
        if !self.resources.budget.is_exceeded() {
            return 0;
        }
        let mut slots = 0;
        let mut bytes = 0;
        self.shed_next(&mut self.shedding.walk.lock(), now, Budget::is_exceeded, |table| {
            slots += 1;
            bytes += table.bytes();
            slots < SHED_SLOTS_MAX && bytes < SHED_BYTES_MAX
        });
        slots
    }

    /// Goes on with a walk while eviction is needed and not paused, up to the first table for which `goes_on` returns
    /// false.
    fn shed_next(
        &self,
        walk: &mut Walk,
        now: Timestamp,
        is_needed: impl Fn(&Budget) -> bool,
        mut goes_on: impl FnMut(&SlotTable) -> bool,
    ) {
        let mut is_last = false;
        while !is_last && walk.paused_until <= now && is_needed(&self.resources.budget) {
            let mut table = self.lock(Slot::at(walk.next));
            is_last = !goes_on(&table);
            let has_evicted = table.shed(SHED_COSTS[walk.cost], now, &self.resources);
            drop(table);
            walk.advance(has_evicted, self.slots(), now);
        }
    }
}
