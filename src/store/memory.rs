//! Counters in memory, in one table for each slot.

use std::{
    slice,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit, Receipt, Verdict},
    descriptor::Key,
    store::{
        Check, Decisions, OnFull, SLOTS, SingleDecision, Slot, SlotData,
        budget::Budget,
        packed_counter::PackedCounter,
        table::{BYTES_FIRST, EventCounter, HoldTotals, Table, TableResources},
    },
    time::{Clock, Timestamp},
};

mod admin;
mod decide_set;
mod edit;
mod holds;
mod leases;
mod ownership;
mod restrictions;
mod sharing;

pub(crate) use admin::charged_counter;
pub use admin::{CounterState, DryRun, Replacement};
pub(crate) use decide_set::{Action, decide_set};
pub(crate) use holds::each_hold_id;
pub use holds::{ReserveError, Reserved};
pub use leases::UsedHits;
pub use restrictions::Lead;

use leases::apply_action;
use ownership::{OwnershipTable, SlotOwnership};
use restrictions::Restrictions;

/// A sweep visits one of this many parts of the slots at a time.
const SWEEP_PARTS: usize = 64;
/// The duration of a full round of sweeps.
const SWEEP_ROUND: Duration = Duration::from_secs(10);

/// The counters of this process, each under the lock of its slot, within a memory budget.
#[derive(Debug)]
pub struct Memory {
    // One for each slot.
    tables: Box<[TableLock]>,
    // `None` if this replica owns all slots.
    ownerships: Option<OwnershipTable>,
    restrictions: Restrictions,
    resources: TableResources,
    on_full: OnFull,
    refused_full: EventCounter,
}

/// The table of one slot behind its lock, alone in its cache line: the lock and the pointer to the table are loaded
/// together, and locks do not share a line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TableLock(Mutex<Table>);

const _: () = assert!(size_of::<TableLock>() == 64);

/// Statistics of counters in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStats {
    /// Counters in memory, including idle ones that have not been swept.
    pub live: usize,
    /// The bytes of counters, including copies of other owners' counters.
    pub bytes: usize,
    /// The bytes that all of these may take.
    pub bytes_max: usize,
    /// The part of these bytes that copies take.
    pub backup_bytes: usize,
    /// Idle counters that were evicted, since the start.
    pub evicted_idle: u64,
    /// Counters that were evicted for lack of memory before they were idle.
    pub evicted_unexpired: u64,
    /// Charges to new keys for which there was no memory.
    pub refused_full: u64,
    /// Open reservations.
    pub holds_open: usize,
    /// Reservations that their expiry released, since the start.
    pub holds_released: u64,
    /// Reservations that their expiry charged, since the start.
    pub holds_charged: u64,
    /// Reservations that were refused because there were too many.
    pub holds_exhausted: u64,
}

/// Why a check set is not decided on this replica. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLocal {
    /// This replica does not own the slot.
    #[error("this replica does not own slot {}", .0.0)]
    Slot(Slot),
    /// A check would be refused only because hits of its key are leased out.
    #[error("the rest of a limit is leased out")]
    Leased(Key),
}

impl Memory {
    /// An empty store of at most `bytes_max` bytes, which owns all slots. `on_full` decides on new keys without
    /// memory.
    pub fn new(bytes_max: u64, on_full: OnFull) -> Self {
        Self::of(bytes_max, on_full, SLOTS)
    }

    /// The same with this many slots, a power of two from 2 to 65,536. Drops all counters.
    pub fn with_slots(self, slots: usize) -> Self {
        Self::of(self.resources.budget.bytes_max() as u64, self.on_full, slots)
    }

    /// The same as part of a cluster: it owns no slot until [`Memory::acquire`].
    pub fn shared(self) -> Self {
        Self { ownerships: Some(OwnershipTable::new(self.slots())), ..self }
    }

    fn of(bytes_max: u64, on_full: OnFull, slots: usize) -> Self {
        assert!(slots.is_power_of_two() && (2..=1 << 16).contains(&slots), "{slots} slots");
        let resources = TableResources {
            budget: Arc::new(Budget::new(bytes_max, slots, BYTES_FIRST)),
            evicted_idle: EventCounter::default(),
            evicted_unexpired: EventCounter::default(),
            holds: HoldTotals::default(),
        };
        Self {
            tables: (0..slots).map(|_| TableLock::default()).collect(),
            ownerships: None,
            restrictions: Restrictions::default(),
            resources,
            on_full,
            refused_full: EventCounter::default(),
        }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.tables.len()
    }

    /// The slot of a key.
    pub fn slot(&self, key: Key) -> Slot {
        Slot::of(key, self.slots())
    }

    /// Current statistics.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            live: self.each_slot().map(|slot| self.table(slot).len()).sum(),
            bytes: self.resources.budget.used(),
            bytes_max: self.resources.budget.bytes_max(),
            backup_bytes: self.resources.budget.outside_tables(),
            evicted_idle: self.resources.evicted_idle.get(),
            evicted_unexpired: self.resources.evicted_unexpired.get(),
            refused_full: self.refused_full.get(),
            holds_open: self.resources.holds.open.load(Ordering::Relaxed),
            holds_released: self.resources.holds.released.get(),
            holds_charged: self.resources.holds.charged.get(),
            holds_exhausted: self.resources.holds.exhausted.get(),
        }
    }

    /// All slots, owned or not.
    pub fn each_slot(&self) -> impl Iterator<Item = Slot> + use<> {
        // At most 65,536, so they fit.
        (0..self.slots()).map(|slot| Slot(slot as u16))
    }

    /// Restores counters from a snapshot, as many as the memory allows.
    pub(super) fn restore(&self, data: SlotData, now: Timestamp) {
        self.adopt_lead(&data, now);
        let (counters, holds) = data.into_counters();
        for (key, packed) in counters.into_iter().filter(|(_, packed)| now < packed.idle_at()) {
            let mut table = self.table(self.slot(key));
            // A snapshot that names a key twice is damaged, whatever its checksum says.
            if table.get(key).is_none() {
                self.insert(&mut table, key, packed, now);
            }
        }
        for (key, holds) in holds {
            self.restore_holds(key, holds);
        }
    }

    /// Decides the checks of one call atomically.
    ///
    /// If `refused` returns that the decisions refuse the call, the charges that passed are taken back before other
    /// calls can see them, if their checks say so; their decisions then report what is left without them.
    ///
    /// In a cluster this fails unless this replica owns the slots of all checks and no decision depends on leased
    /// hits.
    pub fn apply(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<Decisions, NotLocal> {
        let mut locked = self.lock_owned(checks)?;
        if locked.have_side_data() {
            locked.absorb_pending(self, checks, now);
            locked.expire_holds(self, checks, now);
            locked.require_unleased(self, checks, now, &refused)?;
        }
        let decisions = decide_set(checks, refused, |index, action| {
            let check = &checks[index];
            let leased = locked.leased(self, check.key);
            let table = locked.table(self.slot(check.key));
            if leased == 0 && !table.has_holds() {
                return self.touch(table, check, action, now, Some);
            }
            let decide = |counter: &mut Counter| apply_action(leased, action, check, counter, now).decision;
            self.touch_unpacked(table, check.key, check.limit, now, decide)
        });
        locked.record_changes(self, checks, &decisions);
        Ok(decisions)
    }

    /// Decides the only check of a call, as [`Memory::apply`] does.
    // Without the lists that several checks need, a decision costs about a third less.
    // `inline(always)`: a decision is too large to move.
    #[inline(always)]
    pub fn apply_single(&self, check: &Check<'_>, now: Timestamp) -> Result<SingleDecision, NotLocal> {
        let slot = self.slot(check.key);
        if self.restrictions.is_suspended() {
            return Err(NotLocal::Slot(slot));
        }
        let mut table = self.table(slot);
        let mut ownership = self.ownerships.as_ref().map(|ownerships| ownerships.lock(slot));
        if let Some(ownership) = &ownership
            && !ownership.is_owned()
        {
            return Err(NotLocal::Slot(slot));
        }
        if table.has_holds() || ownership.as_ref().is_some_and(|ownership| ownership.side_data().is_some()) {
            drop((ownership, table));
            return self.apply_single_with_side_data(check, now);
        }
        let (decision, stored) = self.touch(&mut table, check, Action::Decide, now, |_| None);
        let passes = decision.verdict.passes();
        if let (Some(ownerships), Some(ownership)) = (&self.ownerships, &mut ownership)
            && check.limit.is_changed_by(check.operation, passes)
        {
            ownerships.record_change(slot, ownership, check.key, table.len());
        }
        let charged = if stored { check.limit.charged(check.operation, passes) } else { 0 };
        Ok(SingleDecision { decision, charged })
    }

    /// The same in a slot with holds, leases or pending usage.
    #[cold]
    #[inline(never)]
    fn apply_single_with_side_data(
        &self,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<SingleDecision, NotLocal> {
        let decisions = self.apply(slice::from_ref(check), now, |_| false)?;
        Ok(SingleDecision { decision: decisions[0].keep_receipt(|_| None), charged: decisions.charged()[0] })
    }

    /// Applies an action to the counter of a check in the table of its slot, and returns whether the counter is stored.
    /// `keep` returns what is kept of a receipt.
    #[inline(always)]
    fn touch<R>(
        &self,
        table: &mut Table,
        check: &Check<'_>,
        action: Action,
        now: Timestamp,
        keep: impl Fn(Receipt) -> Option<R>,
    ) -> (Decision<R>, bool) {
        if let Action::Decide = action
            && let Some(packed) = table.get_mut(check.key)
            && let Some(decision) =
                packed.decide(check.limit, self.lead_given_up_at(now), now, check.operation, &keep)
        {
            return (decision, true);
        }
        let decide = |counter: &mut Counter| action.apply(check, counter, now);
        let (decision, stored) = self.touch_unpacked(table, check.key, check.limit, now, decide);
        (decision.keep_receipt(keep), stored)
    }

    /// Applies `decide` to the unpacked counter of a key, and returns whether the counter is stored. Its holds observe
    /// the change.
    fn touch_unpacked(
        &self,
        table: &mut Table,
        key: Key,
        limit: &Limit,
        now: Timestamp,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> (Decision, bool) {
        let Some(mut holds) = table.take_holds(key) else {
            return self.touch_counter(table, key, limit, now, decide);
        };
        let size = holds.size();
        self.clamp_holds_ahead(&mut holds, now);
        let decided = self.touch_counter(table, key, limit, now, |counter| {
            holds.observe(limit, counter, now);
            let decision = decide(counter);
            holds.observe(limit, counter, now);
            decision
        });
        table.put_holds(key, holds, size, &self.resources);
        decided
    }

    /// Applies `decide` to the unpacked counter of a key, and returns whether the counter is stored. A new counter that
    /// stays idle need not be stored.
    // `inline(never)`: new counters are rare and need a larger stack frame.
    #[inline(never)]
    fn touch_counter(
        &self,
        table: &mut Table,
        key: Key,
        limit: &Limit,
        now: Timestamp,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> (Decision, bool) {
        if let Some(packed) = table.get_mut(key) {
            let before = packed.heap_bytes();
            packed.clamp_ahead(limit, self.lead_given_up_at(now), now);
            let decision = packed.update(limit, decide);
            self.resources.budget.change(before, packed.heap_bytes());
            return (decision, true);
        }
        let mut counter = limit.fresh();
        let decision = decide(&mut counter);
        if limit.idle_at(&counter) <= now {
            return (decision, true);
        }
        let packed = PackedCounter::new(limit, counter, &decision);
        if self.insert(table, key, packed, now) {
            return (decision, true);
        }
        (self.on_full.without_memory(decision), false)
    }

    fn insert(&self, table: &mut Table, key: Key, packed: PackedCounter, now: Timestamp) -> bool {
        let stored = table.insert(key, packed, now, &self.resources);
        if !stored {
            self.refused_full.add(1);
        }
        stored
    }

    /// Records that the clock gave up a lead: from now on, each decision first clamps its counter. Call this before
    /// the first `now` of the corrected clock.
    pub fn give_up_lead(&self, lead: Lead) {
        self.restrictions.give_up(lead);
    }

    /// When the current lead was given up, if there is one.
    fn lead_given_up_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.restrictions.lead().map(|lead| lead.at.min(now))
    }

    /// Adopts the lead of counters from a replica whose clock gave one up.
    fn adopt_lead(&self, data: &SlotData, now: Timestamp) {
        if let Some(lead) = data.lead().filter(|lead| now < lead.until) {
            self.restrictions.add_lead(lead);
        }
    }

    /// A clamped copy of a packed counter.
    fn copy(&self, packed: &PackedCounter, limit: &Limit, now: Timestamp) -> Counter {
        let mut packed = packed.clone();
        packed.clamp_ahead(limit, self.lead_given_up_at(now), now);
        packed.counter(limit)
    }

    /// Locks all slots of the checks, which this replica owns.
    fn lock_owned(&self, checks: &[Check<'_>]) -> Result<LockedSlots<'_>, NotLocal> {
        if self.restrictions.is_suspended()
            && let Some(check) = checks.first()
        {
            return Err(NotLocal::Slot(self.slot(check.key)));
        }
        let locked = self.lock(checks);
        locked.require_owned()?;
        Ok(locked)
    }

    /// Locks all slots of the checks, each once, in ascending order.
    fn lock(&self, checks: &[Check<'_>]) -> LockedSlots<'_> {
        let mut slots: SmallVec<[Slot; 2]> = checks.iter().map(|check| self.slot(check.key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let tables = slots.iter().map(|slot| self.table(*slot)).collect();
        let ownerships =
            self.ownerships.as_ref().map(|all| slots.iter().map(|slot| all.lock(*slot)).collect());
        LockedSlots { slots, tables, ownerships }
    }

    /// Locks the table of a slot.
    #[inline]
    fn table(&self, slot: Slot) -> MutexGuard<'_, Table> {
        // Every change leaves the table consistent, so a poisoned lock is harmless.
        self.tables[slot.index()].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts idle counters and releases unused memory.
    pub fn sweep(&self, now: Timestamp) {
        (0..SWEEP_PARTS).for_each(|part| self.sweep_part(part, now));
    }

    /// Evicts idle counters in one of the parts and releases unused memory.
    fn sweep_part(&self, number: usize, now: Timestamp) {
        self.restrictions.end_lead(now);
        for slot in self.each_slot().skip(number).step_by(SWEEP_PARTS) {
            self.sweep_slot(slot, now);
        }
    }

    fn sweep_slot(&self, slot: Slot, now: Timestamp) {
        let mut table = self.table(slot);
        self.sweep_holds(slot, &mut table, now);
        table.forget_idle(now, &self.resources);
        // Counters may have grown since they were inserted.
        if self.resources.budget.is_exceeded() {
            table.evict(now, &self.resources);
        }
        table.shrink(&self.resources);
        drop(table);
        if let Some(ownerships) = &self.ownerships {
            ownerships.lock(slot).forget_idle(now);
        }
    }
}

/// The locked slots of the checks of one call.
struct LockedSlots<'m> {
    // Invariant: ascending and unique; one table for each, and one ownership for each in a cluster.
    slots: SmallVec<[Slot; 2]>,
    tables: SmallVec<[MutexGuard<'m, Table>; 2]>,
    ownerships: Option<SmallVec<[MutexGuard<'m, SlotOwnership>; 2]>>,
}

impl LockedSlots<'_> {
    /// The position of a slot among the locked ones.
    fn position(&self, slot: Slot) -> usize {
        self.slots.partition_point(|other| *other < slot)
    }

    fn table(&mut self, slot: Slot) -> &mut Table {
        let position = self.position(slot);
        &mut self.tables[position]
    }

    fn ownerships(&self) -> &[MutexGuard<'_, SlotOwnership>] {
        self.ownerships.as_deref().unwrap_or_default()
    }

    fn require_owned(&self) -> Result<(), NotLocal> {
        let mut slots = self.ownerships().iter().zip(&self.slots);
        let missing = slots.find(|(ownership, _)| !ownership.is_owned());
        missing.map_or(Ok(()), |(_, slot)| Err(NotLocal::Slot(*slot)))
    }

    /// Whether a slot has holds, leases or pending usage.
    fn have_side_data(&self) -> bool {
        self.tables.iter().any(|table| table.has_holds())
            || self.ownerships().iter().any(|ownership| ownership.side_data().is_some())
    }

    /// Merges pending usage into the counters of the checks.
    fn absorb_pending(&mut self, memory: &Memory, checks: &[Check<'_>], now: Timestamp) {
        let Some(ownerships) = &memory.ownerships else { return };
        for check in checks {
            let slot = memory.slot(check.key);
            let Some((table, ownership)) = self.part(slot) else { return };
            if memory.absorb_pending(table, ownership, check.key, check.limit, now) {
                ownerships.record_change(slot, ownership, check.key, table.len());
            }
        }
    }

    /// Records which counters the checks have changed.
    fn record_changes(&mut self, memory: &Memory, checks: &[Check<'_>], decisions: &[Decision]) {
        let Some(ownerships) = &memory.ownerships else { return };
        for (check, decision) in checks.iter().zip(decisions) {
            if check.limit.is_changed_by(check.operation, decision.verdict.passes()) {
                let slot = memory.slot(check.key);
                let Some((table, ownership)) = self.part(slot) else { return };
                ownerships.record_change(slot, ownership, check.key, table.len());
            }
        }
    }

    /// The table and the ownership of a slot; `None` without a cluster.
    fn part(&mut self, slot: Slot) -> Option<(&mut Table, &mut SlotOwnership)> {
        let position = self.position(slot);
        let ownership = &mut self.ownerships.as_mut()?[position];
        Some((&mut self.tables[position], ownership))
    }
}

impl OnFull {
    /// The decision in place of one whose counter could not be stored.
    fn without_memory(self, decision: Decision) -> Decision {
        let verdict = match self {
            _ if !decision.verdict.passes() => decision.verdict,
            Self::Allow => Verdict::Pass,
            Self::Deny => Verdict::Refuse { retry_after: None },
        };
        let remaining = if verdict.passes() { decision.remaining } else { 0 };
        Decision { verdict, remaining, receipt: None, ..decision }
    }
}

/// Evicts idle counters, one part of the slots at a time, for as long as it is polled.
#[cfg(feature = "server")]
pub async fn sweep(memory: Arc<Memory>, clock: Clock) {
    let pause = SWEEP_ROUND / SWEEP_PARTS as u32;
    for part in (0..SWEEP_PARTS).cycle() {
        tokio::time::sleep(pause).await;
        memory.sweep_part(part, clock.now());
    }
}

#[cfg(test)]
mod tests;
