//! Counters in memory, in one table for each slot.

use std::{
    hash::Hasher,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit, Verdict},
    descriptor::Key,
    store::{
        Check, Decisions, OnFull, SLOTS, Slot, SlotData,
        budget::Budget,
        packed_counter::PackedCounter,
        table::{BYTES_FIRST, EventCounter, Table, TableResources},
    },
    time::{Clock, Timestamp},
};

mod admin;
mod check_set;
mod edit;
mod leases;
mod ownership;
mod restrictions;
mod sharing;
mod single;

pub use admin::{CounterState, DryRun, Replacement};
pub use leases::UsedHits;
pub use restrictions::Lead;
pub use single::SingleDecision;

use check_set::{Action, decide_set};
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
    /// The part of these bytes that copies take.
    pub backup_bytes: usize,
    /// Idle counters that were evicted, since the start.
    pub evicted_idle: u64,
    /// Counters that were evicted for lack of memory before they were idle.
    pub evicted_unexpired: u64,
    /// Charges to new keys for which there was no memory.
    pub refused_full: u64,
}

/// Why a check set is not decided on this replica. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLocal {
    /// This replica does not own the slot.
    #[error("this replica does not own slot {}", .0.0)]
    Slot(Slot),
    /// A check would be refused only because hits of its key are leased out.
    #[error("the rest of a limit is leased out")]
    Lent(Key),
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
            backup_bytes: self.resources.budget.outside_tables(),
            evicted_idle: self.resources.evicted_idle.get(),
            evicted_unexpired: self.resources.evicted_unexpired.get(),
            refused_full: self.refused_full.get(),
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
        for (key, packed) in data.into_counters().filter(|(_, packed)| now < packed.idle_at()) {
            self.insert(&mut self.table(self.slot(key)), key, packed, now);
        }
    }

    /// Decides a check set atomically.
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
        if self.restrictions.flags().is_suspended()
            && let Some(check) = checks.first()
        {
            return Err(NotLocal::Slot(self.slot(check.key)));
        }
        let mut locked = self.lock(checks);
        locked.require_owned()?;
        locked.absorb_pending(self, checks, now);
        locked.require_unlent(self, checks, now, &refused)?;
        let mut each = |index: usize, action: Action| {
            let check = &checks[index];
            let (position, lent) = (locked.position(self.slot(check.key)), locked.lent(self, check.key));
            let table = &mut *locked.tables[position];
            let decide = |counter: &mut Counter| apply_action(lent, action, check, counter, now).decision;
            self.touch(table, check.key, check.limit, now, decide)
        };
        let decisions = decide_set(checks, refused, &mut each);
        locked.record_changes(self, checks, &decisions);
        Ok(decisions)
    }

    /// Applies `decide` to the counter of a key in the table of its slot, and returns whether the counter is stored. A
    /// new counter that stays idle need not be stored.
    fn touch(
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
        self.restrictions.add_lead(lead);
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

    /// Locks all slots of the checks, each once, in ascending order.
    fn lock(&self, checks: &[Check<'_>]) -> LockedSlots<'_> {
        let mut slots: SmallVec<[Slot; 2]> = checks.iter().map(|check| self.slot(check.key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let tables = slots.iter().map(|slot| self.table(*slot)).collect();
        let ownerships =
            self.ownerships.iter().flat_map(|all| slots.iter().map(|slot| all.lock(*slot))).collect();
        LockedSlots { slots, tables, ownerships }
    }

    /// Locks the table of a slot.
    #[inline]
    fn table(&self, slot: Slot) -> MutexGuard<'_, Table> {
        // Every change leaves the table consistent, so a poisoned lock is harmless.
        self.tables[slot.index()].0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The locked slots of one check set.
struct LockedSlots<'m> {
    // Invariant: ascending and unique; one table for each, and one ownership for each in a cluster.
    slots: SmallVec<[Slot; 2]>,
    tables: SmallVec<[MutexGuard<'m, Table>; 2]>,
    ownerships: SmallVec<[MutexGuard<'m, SlotOwnership>; 0]>,
}

impl LockedSlots<'_> {
    /// The position of a slot among the locked ones.
    fn position(&self, slot: Slot) -> usize {
        self.slots.partition_point(|other| *other < slot)
    }

    fn require_owned(&self) -> Result<(), NotLocal> {
        let missing = self.ownerships.iter().zip(&self.slots).find(|(ownership, _)| !ownership.is_owned());
        missing.map_or(Ok(()), |(_, slot)| Err(NotLocal::Slot(*slot)))
    }

    /// Merges pending usage into the counters of the checks.
    fn absorb_pending(&mut self, memory: &Memory, checks: &[Check<'_>], now: Timestamp) {
        let Some(ownerships) = &memory.ownerships else { return };
        for check in checks {
            let slot = memory.slot(check.key);
            let position = self.position(slot);
            let (table, ownership) = (&mut self.tables[position], &mut self.ownerships[position]);
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
                let position = self.position(slot);
                ownerships.record_change(
                    slot,
                    &mut self.ownerships[position],
                    check.key,
                    self.tables[position].len(),
                );
            }
        }
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
pub async fn sweep(memory: Arc<Memory>, clock: Clock) {
    let pause = SWEEP_ROUND / SWEEP_PARTS as u32;
    for part in (0..SWEEP_PARTS).cycle() {
        tokio::time::sleep(pause).await;
        memory.sweep_part(part, clock.now());
    }
}

/// An identity hasher: keys are hashes already.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Unused: a [`Key`] hashes as one number.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

#[cfg(test)]
mod tests;
