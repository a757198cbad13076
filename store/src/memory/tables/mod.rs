//! The tables of all slots, each behind its lock, within one memory limit.

use std::{
    mem,
    sync::{MutexGuard, atomic::Ordering},
};

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Receipt, Verdict},
    descriptor::Key,
    lock::Lock,
    metrics::MetricCounter,
    packed_counter::{Now, PackedCounter},
    time::Timestamp,
};

use crate::{
    budget::Budget,
    check::{Check, OnFull},
    held_counter::{HeldCounter, Room, TakenBack},
    operation::{CounterOperation, OperationOutcome},
    side_data::SideDataSize,
    slot::Slot,
    table::{BYTES_FIRST, SlotTable, resources::TableResources},
};

pub(crate) mod shedding;

use shedding::Shedding;

/// The part of the memory limit that holds may take, and limits of their own: one of this many.
pub(super) const SHARE_DIVISOR: usize = 8;

/// The most bytes by which a counter grows at a time, beyond as many as it has.
const GROWTH_BYTES: usize = 1_024;

/// The tables of all slots.
#[derive(Debug)]
pub(super) struct Tables {
    // One for each slot.
    each: Box<[TableLock]>,
    pub(super) resources: TableResources,
    pub(super) on_full: OnFull,
    pub(super) refused_full: MetricCounter,
    shedding: Shedding,
}

/// The table of one slot behind its lock, alone in its cache line: the lock and the pointer to the table are loaded
/// together, and locks do not share a line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TableLock(Lock<SlotTable>);

const _: () = assert!(size_of::<TableLock>() == 64);

/// What an operation has done to a counter.
pub(super) struct AppliedOperation {
    pub(super) outcome: OperationOutcome,
    pub(super) is_changed: bool,
    /// Whether the counter is stored with what is charged.
    pub(super) is_stored: bool,
}

/// A counter with its holds, taken out of the table of its slot until [`Tables::put`].
pub(super) struct Taken {
    pub(super) key: Key,
    pub(super) counter: HeldCounter,
    // What the budget knows of it.
    heap: usize,
    size: SideDataSize,
    // Whether its place in the table is retained.
    pub(super) is_stored: bool,
}

impl Tables {
    /// Empty tables of `slots` slots, in at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64, on_full: OnFull, slots: usize) -> Self {
        assert!(slots.is_power_of_two() && (2..=1 << 16).contains(&slots), "{slots} slots");
        Self {
            each: (0..slots).map(|_| TableLock::default()).collect(),
            resources: TableResources::new(Budget::new(bytes_max, slots, BYTES_FIRST), slots),
            on_full,
            refused_full: MetricCounter::default(),
            shedding: Shedding::default(),
        }
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.each.len()
    }

    /// Locks the table of a slot.
    #[inline]
    pub(super) fn lock(&self, slot: Slot) -> MutexGuard<'_, SlotTable> {
        self.each[slot.index()].0.lock()
    }

    /// Decides a check on the counter alone, which has no side data, and returns whether the counter is stored. `keep`
    /// returns what is retained of a receipt.
    #[inline(always)]
    pub(super) fn decide<R>(
        &self,
        table: &mut SlotTable,
        check: &Check<'_>,
        at: Now,
        keep: impl Fn(Receipt) -> Option<R>,
    ) -> (Decision<R>, bool) {
        if let Some(packed) = table.get_mut(check.key)
            && let Some(decision) = packed.decide(check.limit, at, check.operation, &keep)
        {
            return (decision, true);
        }
        let (decision, stored) = self.decide_unpacked(table, check, at);
        (decision.keep_receipt(keep), stored)
    }

    /// Decides a check on a new counter, or on one that is not packed. A new counter that stays idle need not be stored.
    // `inline(never)`: new counters are rare and need a larger stack frame.
    #[inline(never)]
    fn decide_unpacked(&self, table: &mut SlotTable, check: &Check<'_>, at: Now) -> (Decision, bool) {
        let Check { key, limit, operation, .. } = *check;
        let Self { resources, on_full, .. } = self;
        let decide = |counter: &mut Counter| limit.decide(counter, at.now, operation);
        if let Some(packed) = table.get_mut(key) {
            let heap = packed.heap_bytes();
            if !resources.budget.is_short_of(heap + GROWTH_BYTES) {
                let penalties = packed.penalties();
                let decision = packed.change(limit, at, decide);
                resources.budget.change(heap, packed.heap_bytes());
                resources.add_penalties(penalties, packed.penalties());
                return (decision, true);
            }
        } else {
            let (decision, new) = PackedCounter::first(limit, at.now, decide);
            let Some(packed) = new else { return (decision, true) };
            if packed.heap_bytes() == 0 {
                let stored = self.insert(table, key, packed, at.now);
                return (if stored { decision } else { on_full.without_memory(decision) }, stored);
            }
        }
        let applied = self.apply(table, check, &CounterOperation::Decide(operation), at);
        (applied.outcome.decision, applied.is_stored)
    }

    /// Applies an operation to the counter of a check with its side data. If there is no memory for what the counter
    /// grows by, nor after others were evicted, it is taken back.
    pub(super) fn apply(
        &self,
        table: &mut SlotTable,
        check: &Check<'_>,
        operation: &CounterOperation,
        at: Now,
    ) -> AppliedOperation {
        let Check { key, limit, origin, .. } = *check;
        let budget = &self.resources.budget;
        // Taken out, it is not evicted itself.
        let mut taken = self.take(table, key);
        let counter = &mut taken.counter;
        let had_record = counter.has_record();
        let penalties = counter.penalties();
        let (mut outcome, is_changed) = counter.apply(limit, origin, operation, at, self.room());
        let mut taken_back = TakenBack::Nothing;
        let grown = counter.packed_heap_bytes().saturating_sub(taken.heap);
        if grown > 0 && budget.is_short_of(grown) {
            table.evict_and_shrink(at.now, &self.resources);
            self.evict_elsewhere(at.now);
            if budget.is_short_of(grown) {
                let decision = &mut outcome.decision;
                taken_back = counter.take_growth_back((limit, origin), operation, decision, at, had_record);
            }
        }
        self.resources.add_penalties(penalties, counter.penalties());
        let mut is_stored = self.put(table, taken, at.now);
        match taken_back {
            TakenBack::Nothing => {}
            TakenBack::Record => self.resources.refusals_unrecorded.add(1),
            TakenBack::Charge => {
                self.refused_full.add(1);
                is_stored = false;
            }
        }
        if !is_stored {
            outcome = outcome.without_memory(self.on_full, operation);
        }
        AppliedOperation { outcome, is_changed, is_stored }
    }

    pub(super) fn insert(
        &self,
        table: &mut SlotTable,
        key: Key,
        packed: PackedCounter,
        now: Timestamp,
    ) -> bool {
        if table.is_starved(&self.resources) {
            self.shed_elsewhere(now);
        }
        let stored = table.insert(key, packed, now, &self.resources);
        if !stored {
            self.refused_full.add(1);
        }
        stored
    }

    /// Merges pending usage into the counter of `key` and ends its holds that have expired, and returns whether that
    /// changed the counter.
    pub(super) fn catch_up(&self, table: &mut SlotTable, key: Key, limit: &Limit, at: Now) -> bool {
        if table.side_data(key).is_none_or(|side_data| !side_data.is_due(at)) {
            return false;
        }
        let ((is_changed, expired), _) =
            self.with_held(table, key, at.now, |counter| counter.catch_up(limit, at));
        self.resources.events.holds_released.add(expired.released as u64);
        self.resources.events.holds_charged.add(expired.charged as u64);
        is_changed
    }

    /// Applies `change` to the counter of `key` with its holds, and returns whether the counter is stored.
    pub(super) fn with_held<R>(
        &self,
        table: &mut SlotTable,
        key: Key,
        now: Timestamp,
        change: impl FnOnce(&mut HeldCounter) -> R,
    ) -> (R, bool) {
        let mut taken = self.take(table, key);
        let result = change(&mut taken.counter);
        (result, self.put(table, taken, now))
    }

    /// Takes the counter of `key` and its holds out of their table.
    pub(super) fn take(&self, table: &mut SlotTable, key: Key) -> Taken {
        let packed = table.get_mut(key).map(|packed| mem::replace(packed, PackedCounter::TAKEN));
        let is_stored = packed.is_some();
        let side_data = table.take_side_data(key);
        let size = side_data.as_ref().map(|side_data| side_data.size()).unwrap_or_default();
        let counter = HeldCounter { packed, side_data };
        Taken { key, heap: counter.packed_heap_bytes(), counter, size, is_stored }
    }

    /// Puts a counter and its holds back, and returns whether the counter is stored.
    pub(super) fn put(&self, table: &mut SlotTable, taken: Taken, now: Timestamp) -> bool {
        let is_stored = self.keep_place(table, &taken, &taken.counter, now);
        let Taken { key, counter: HeldCounter { packed, side_data }, heap, size, .. } = taken;
        match (packed, table.get_mut(key)) {
            (Some(packed), Some(place)) => {
                self.resources.budget.change(heap, packed.heap_bytes());
                *place = packed;
            }
            (None, Some(_)) => {
                self.resources.budget.change(heap, 0);
                table.remove(key, &self.resources);
            }
            (Some(_) | None, None) => {}
        }
        table.put_side_data(key, side_data, size, &self.resources);
        is_stored
    }

    /// Whether a counter has a place in its table, or needs none. A new one gets a place if there is memory.
    pub(super) fn keep_place(
        &self,
        table: &mut SlotTable,
        taken: &Taken,
        counter: &HeldCounter,
        now: Timestamp,
    ) -> bool {
        let is_new = !taken.is_stored && counter.is_in_use(now) && table.get(taken.key).is_none();
        !is_new || self.insert(table, taken.key, PackedCounter::TAKEN, now)
    }

    /// The room for more holds.
    pub(super) fn room(&self) -> Room {
        let budget = &self.resources.budget;
        let used = self.resources.hold_bytes.load(Ordering::Relaxed);
        let share = (budget.bytes_max() / SHARE_DIVISOR).saturating_sub(used);
        let own = self.resources.own_limit_bytes.load(Ordering::Relaxed);
        let own = (budget.bytes_max() / SHARE_DIVISOR).saturating_sub(own);
        Room {
            bytes: share.min(budget.free()),
            request_ids: Room::REQUEST_IDS_MAX,
            own_bytes: own.min(budget.free()),
        }
    }
}

impl OnFull {
    /// The decision in place of one whose counter could not be stored.
    pub fn without_memory(self, decision: Decision) -> Decision {
        let verdict = match self {
            _ if !decision.verdict.passes() => decision.verdict,
            Self::Allow => Verdict::Pass,
            Self::Deny => Verdict::Refuse { retry_after: None },
        };
        let remaining = if verdict.passes() { decision.remaining } else { 0 };
        Decision { verdict, remaining, receipt: None, ..decision }
    }
}
