//! Counters in memory, in one table for each slot.

use std::{collections::BTreeMap, convert::Infallible, sync::atomic::Ordering, time::Duration};

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
    packed_counter::Now,
    resilience::SharedUse,
    time::Timestamp,
};

use crate::{
    Lead, OwnTerms,
    check::{Check, Checks, LimitOrigin, OnFull, OnRefusal},
    decisions::{CheckDecision, Decisions},
    held_counter::{HeldCounter, Room},
    operation::{CounterOperation, OperationOutcome, decide_set},
    side_data::{SideDataSize, own::SlotOwnLimits},
    slot::{SLOTS, Slot},
    slot_data::SlotData,
    table::resources::CounterEvents,
};

mod admin;
pub(crate) mod grants;
mod holds;
mod leases;
mod locked;
mod ownership;
mod restrictions;
mod sharing;
mod tables;
#[cfg(any(test, feature = "testing"))]
mod testing;

pub use admin::{CounterState, DryRun};
pub use grants::{CounterView, Grants, Turn};
pub use holds::each_hold_id;
pub use leases::{Leases, UsedHits};

use locked::LockedSlots;
use ownership::OwnershipTable;
use restrictions::Restrictions;
use tables::{AppliedOperation, Tables};

/// A sweep visits one of this many parts of the slots at a time.
pub const SWEEP_PARTS: usize = 100;
/// The duration of a full round of sweeps.
pub const SWEEP_ROUND: Duration = Duration::from_secs(10);

/// The counters of this process, each under the lock of its slot, within a memory budget.
#[derive(Debug)]
pub struct Memory {
    tables: Tables,
    // `None` if this replica owns all slots.
    ownerships: Option<OwnershipTable>,
    restrictions: Restrictions,
}

/// Statistics of counters in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStats {
    /// Counters in memory, including idle ones that have not been swept.
    pub live: usize,
    /// The bytes of counters, including copies of other owners' counters.
    pub bytes: usize,
    /// The bytes that counters and copies may take.
    pub bytes_max: usize,
    /// The bytes of copies of other owners' counters.
    pub backup_bytes: usize,
    /// Idle counters that were evicted, since the start.
    pub evicted_idle: u64,
    /// Counters that were evicted for lack of memory before they were idle.
    pub evicted_unexpired: u64,
    /// Charges to new keys for which there was no memory.
    pub refused_full: u64,
    /// Open reservations.
    pub holds_open: usize,
    /// Refusals of limits with a penalty that were not recorded for lack of memory.
    pub refusals_unrecorded: u64,
    /// Keys with a limit of their own, or with one that was removed lately.
    pub own_limits: usize,
    /// The bytes of limits of their own.
    pub own_limit_bytes: usize,
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
        Self::with_slot_count(bytes_max, on_full, SLOTS)
    }

    /// Sets the number of slots, a power of two from 2 to 65,536. Drops all counters.
    pub fn with_slots(self, slots: usize) -> Self {
        Self::with_slot_count(self.tables.resources.budget.bytes_max() as u64, self.tables.on_full, slots)
    }

    /// Makes the store part of a cluster: it owns no slot until [`Memory::acquire`].
    pub fn shared(self) -> Self {
        Self { ownerships: Some(OwnershipTable::new(self.slots())), ..self }
    }

    fn with_slot_count(bytes_max: u64, on_full: OnFull, slots: usize) -> Self {
        let tables = Tables::new(bytes_max, on_full, slots);
        Self { tables, ownerships: None, restrictions: Restrictions::default() }
    }

    /// The leases of the counters.
    pub fn leases(&self) -> Leases<'_> {
        Leases { memory: self }
    }

    /// What clients that decide by themselves have of the counters.
    pub fn grants(&self) -> Grants<'_> {
        Grants { memory: self }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.tables.slots()
    }

    /// The slot of a key.
    pub fn slot(&self, key: Key) -> Slot {
        Slot::for_key(key, self.slots())
    }

    /// All slots, owned or not.
    pub fn each_slot(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.slots()).map(Slot::at)
    }

    /// Current statistics.
    pub fn stats(&self) -> StoreStats {
        let resources = &self.tables.resources;
        StoreStats {
            live: self.each_slot().map(|slot| self.tables.lock(slot).len()).sum(),
            bytes: resources.budget.used(),
            bytes_max: resources.budget.bytes_max(),
            backup_bytes: resources.budget.outside_tables(),
            evicted_idle: resources.evicted_idle.get(),
            evicted_unexpired: resources.evicted_unexpired.get(),
            refused_full: self.tables.refused_full.get(),
            holds_open: resources.open_holds.load(Ordering::Relaxed),
            refusals_unrecorded: resources.refusals_unrecorded.get(),
            own_limits: resources.own_limits.load(Ordering::Relaxed),
            own_limit_bytes: resources.own_limit_bytes.load(Ordering::Relaxed),
        }
    }

    /// What happened to counters, since the start.
    pub fn events(&self) -> &CounterEvents {
        &self.tables.resources.events
    }

    /// The memory for ids of requests and reservations, in bytes, of which a caller has used `own`.
    pub fn id_memory(&self, own: usize) -> SharedUse {
        let resources = &self.tables.resources;
        let max = resources.budget.bytes_max() / tables::SHARE_DIVISOR;
        SharedUse { own, all: resources.hold_bytes.load(Ordering::Relaxed), max }
    }

    /// Counts a reservation that is refused for lack of memory.
    pub fn count_exhausted(&self) {
        self.events().holds_exhausted.add(1);
    }

    /// Restores counters from a snapshot, as many as the memory allows.
    pub fn restore(&self, data: SlotData, now: Timestamp) {
        self.adopt_lead(&data, now);
        let len = data.len();
        let (counters, side_data) = data.into_counters();
        let mut counters = counters.peekable();
        // Usually all keys are of one slot.
        if let Some((key, _)) = counters.peek() {
            self.tables.lock(self.slot(*key)).reserve(len, &self.tables.resources);
        }
        for (key, packed) in counters.filter(|(_, packed)| now < packed.idle_at()) {
            let mut table = self.tables.lock(self.slot(key));
            // A snapshot that names a key twice is damaged, whatever its checksum says.
            if table.get(key).is_none() {
                self.tables.insert(&mut table, key, packed, now);
            }
        }
        for (key, side_data) in side_data {
            if side_data.size().bytes <= self.tables.room().bytes {
                let mut table = self.tables.lock(self.slot(key));
                table.put_side_data(key, Some(side_data), SideDataSize::default(), &self.tables.resources);
            }
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
        refused: impl Fn(&[CheckDecision]) -> bool,
    ) -> Result<Decisions, NotLocal> {
        let mut locked = LockedSlots::owned(self, checks, now)?;
        if locked.have_side_data() {
            locked.settle_side_data(checks);
            locked.require_unleased(checks, &refused)?;
        }
        let decisions = decide_set(checks, refused, |index, operation| {
            let AppliedOperation { outcome, is_stored, .. } = locked.apply(&checks[index], operation);
            ((&outcome).into(), is_stored)
        });
        locked.record_changes(checks, &decisions);
        Ok(decisions)
    }

    /// Decides the only check of a call as [`Memory::apply`] does, by the counter alone unless its slot has side data.
    // A third cheaper than [`Memory::operate`]. `inline(always)`: a decision is too large to move.
    #[inline(always)]
    pub fn apply_single(
        &self,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Result<CheckDecision<Infallible>, NotLocal> {
        let slot = self.slot(check.key);
        if self.restrictions.is_suspended() {
            return Err(NotLocal::Slot(slot));
        }
        let mut table = self.tables.lock(slot);
        let mut ownership = self.ownerships.as_ref().map(|ownerships| ownerships.lock(slot));
        if let Some(ownership) = &ownership
            && !ownership.is_owned()
        {
            return Err(NotLocal::Slot(slot));
        }
        if table.has_side_data() {
            drop((ownership, table));
            return Ok(self.operate_check(check, &CounterOperation::Decide(check.operation), now)?.into());
        }
        let (decision, stored) = self.tables.decide(&mut table, check, self.at(now), |_| None);
        let passes = decision.verdict.passes();
        if let (Some(ownerships), Some(ownership)) = (&self.ownerships, &mut ownership)
            && check.limit.is_changed_by(check.operation, passes)
        {
            ownerships.record_change(slot, ownership, check.key, &table);
        }
        let charged = if stored { check.limit.charged(check.operation, passes) } else { 0 };
        Ok(CheckDecision { decision, charged, own: None })
    }

    /// Applies an operation to the counter of `key` with its side data, after its holds that are due have ended.
    ///
    /// In a cluster this fails unless this replica owns the slot and no decision depends on leased hits.
    pub fn operate(
        &self,
        key: Key,
        limit: &Limit,
        operation: &CounterOperation,
        now: Timestamp,
    ) -> Result<OperationOutcome, NotLocal> {
        self.operate_by(key, (limit, LimitOrigin::Rule), operation, now)
    }

    /// Applies an operation as [`Memory::operate`] does, by a limit that comes from a rule or from a request.
    pub fn operate_by(
        &self,
        key: Key,
        (limit, origin): (&Limit, LimitOrigin),
        operation: &CounterOperation,
        now: Timestamp,
    ) -> Result<OperationOutcome, NotLocal> {
        if let CounterOperation::ListOwnLimits(after) = operation {
            let slot = self.slot(key);
            let limits = || SlotOwnLimits::new(self.tables.lock(slot).own_limits(*after), now);
            return self.owns(slot).then(limits).map(OperationOutcome::listed).ok_or(NotLocal::Slot(slot));
        }
        let properties = operation.properties();
        let charge = Operation::Charge(properties.reserved.unwrap_or_default());
        let check = Check { key, limit, operation: charge, on_refusal: OnRefusal::TakeBack, origin };
        self.operate_check(&check, operation, now)
    }

    // `inline(never)`: rare, and it needs a larger stack frame.
    #[inline(never)]
    fn operate_check(
        &self,
        check: &Check<'_>,
        operation: &CounterOperation,
        now: Timestamp,
    ) -> Result<OperationOutcome, NotLocal> {
        let Check { key, limit, origin, .. } = *check;
        let properties = operation.properties();
        if let (Some(_), Some(terms)) = (properties.reserved, properties.terms) {
            let refused = |decisions: &[CheckDecision]| !decisions[0].verdict.passes();
            let reserved = self.reserve(&Checks::from_slice(&[*check]), terms, now, refused)?;
            let Some(reserved) = reserved else { return Ok(OperationOutcome::exhausted()) };
            let own = reserved.decisions[0].own.and_then(|_| self.own_terms(key, now));
            return Ok(OperationOutcome::reserved(&reserved)[0].clone().by_own(own.as_ref()));
        }
        let mut locked = LockedSlots::for_key(self, key, now);
        let is_suspended = properties.may_charge && self.restrictions.is_suspended();
        if is_suspended || !locked.are_owned() {
            return Err(NotLocal::Slot(self.slot(key)));
        }
        locked.settle_side_data_of(key, limit);
        if locked.leased(key) > 0
            && locked.held(key).depends_on_leases(limit, origin, operation, self.at(now))
        {
            return Err(NotLocal::Leased(key));
        }
        let AppliedOperation { outcome, is_changed, .. } = locked.apply(check, operation);
        if is_changed {
            locked.record_change(key);
        }
        Ok(outcome)
    }

    /// The decisions that [`Memory::apply`] would return now. Changes nothing, and does not predict a lack of memory
    /// for a new key.
    pub fn dry_run(
        &self,
        checks: &Checks<'_>,
        now: Timestamp,
        refused: impl FnOnce(&[CheckDecision]) -> bool,
    ) -> DryRun {
        let locked = LockedSlots::new(self, checks, now);
        let state = |check: &Check<'_>| locked.state(check.key, check.limit, locked.own_terms_of(check));
        let before = checks.iter().map(state).collect();
        let copies = checks.iter().map(|check| (check.key, locked.held(check.key)));
        let mut copies: BTreeMap<Key, HeldCounter> = copies.collect();
        drop(locked);
        let at = self.at(now);
        let decisions = decide_set(checks, refused, |index, operation| {
            let Check { key, limit, origin, .. } = checks[index];
            let copy = copies.entry(key).or_default();
            ((&copy.apply(limit, origin, operation, at, Room::NONE).0).into(), true)
        });
        DryRun { decisions, before }
    }

    /// The state of the counter of `key`, of the kind of `limit`.
    pub fn peek(&self, key: Key, limit: &Limit, now: Timestamp) -> CounterState {
        let locked = LockedSlots::for_key(self, key, now);
        locked.state(key, limit, locked.own_terms(key))
    }

    /// The limit of its own of `key`.
    pub fn own_terms(&self, key: Key, now: Timestamp) -> Option<OwnTerms> {
        self.tables.lock(self.slot(key)).side_data(key)?.own_terms(now).cloned()
    }

    /// Records that the clock gave up a lead: from now on, each decision first clamps its counter. Call this before
    /// the first `now` of the corrected clock.
    pub fn give_up_lead(&self, lead: Lead) {
        self.restrictions.give_up(lead);
    }

    /// The instant of an operation at `now`.
    #[inline(always)]
    fn at(&self, now: Timestamp) -> Now {
        Now { now, given_up: self.restrictions.lead().map(|lead| lead.at.min(now)) }
    }

    /// Adopts the lead of counters from a replica whose clock gave one up.
    fn adopt_lead(&self, data: &SlotData, now: Timestamp) {
        if let Some(lead) = data.lead.filter(|lead| now < lead.until) {
            self.restrictions.add_lead(lead);
        }
    }

    /// Evicts idle counters and releases unused memory.
    pub fn sweep(&self, now: Timestamp) {
        (0..SWEEP_PARTS).for_each(|part| self.sweep_part(part, now));
    }

    /// Evicts idle counters in one of the parts and releases unused memory.
    pub fn sweep_part(&self, number: usize, now: Timestamp) {
        self.restrictions.end_lead(now);
        for slot in self.each_slot().skip(number).step_by(SWEEP_PARTS) {
            self.sweep_slot(slot, now);
        }
        // Counters may have arrived from other replicas, or have grown.
        self.tables.shed_some(now);
    }

    fn sweep_slot(&self, slot: Slot, now: Timestamp) {
        let mut table = self.tables.lock(slot);
        self.sweep_side_data(slot, &mut table, now);
        table.forget_idle(now, &self.tables.resources);
        table.shrink(&self.tables.resources);
    }
}

#[cfg(test)]
pub(super) mod tests;
