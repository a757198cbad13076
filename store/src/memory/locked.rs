//! The locked slots of the checks of one call.

use std::{borrow::Cow, collections::BTreeMap, sync::MutexGuard};

use smallvec::{SmallVec, smallvec};
use tollgate_counter::{
    algorithm::{Counter, Decision, Granted, Limit, Operation},
    descriptor::Key,
    time::Timestamp,
};

use crate::{
    OwnTerms,
    check::Check,
    decisions::CheckDecision,
    held_counter::{HeldCounter, Room},
    memory::{Memory, NotLocal, admin::CounterState, ownership::SlotOwnership, tables::AppliedOperation},
    operation::{CounterOperation, OperationOutcome, decide_leased, decide_set},
    side_data::SideData,
    slot::Slot,
    table::SlotTable,
};

/// The locked slots of the checks of one call, at the instant of the call.
pub(super) struct LockedSlots<'m> {
    pub(super) memory: &'m Memory,
    pub(super) now: Timestamp,
    // Invariant: ascending and unique; one table for each, and one ownership for each in a cluster.
    slots: SmallVec<[Slot; 2]>,
    tables: SmallVec<[MutexGuard<'m, SlotTable>; 2]>,
    ownerships: SmallVec<[MutexGuard<'m, SlotOwnership>; 2]>,
}

impl<'m> LockedSlots<'m> {
    /// Locks all slots of the checks, each once, in ascending order.
    pub(super) fn new(memory: &'m Memory, checks: &[Check<'_>], now: Timestamp) -> Self {
        let mut slots: SmallVec<[Slot; 2]> = checks.iter().map(|check| memory.slot(check.key)).collect();
        slots.sort_unstable();
        slots.dedup();
        Self::lock(memory, slots, now)
    }

    /// Locks the slot of a key.
    pub(super) fn for_key(memory: &'m Memory, key: Key, now: Timestamp) -> Self {
        Self::lock(memory, smallvec![memory.slot(key)], now)
    }

    // Ascending and unique slots.
    fn lock(memory: &'m Memory, slots: SmallVec<[Slot; 2]>, now: Timestamp) -> Self {
        let tables = slots.iter().map(|slot| memory.tables.lock(*slot)).collect();
        let ownerships = match &memory.ownerships {
            Some(all) => slots.iter().map(|slot| all.lock(*slot)).collect(),
            None => SmallVec::new(),
        };
        Self { memory, now, slots, tables, ownerships }
    }

    /// Locks all slots of the checks, which this replica owns.
    pub(super) fn owned(memory: &'m Memory, checks: &[Check<'_>], now: Timestamp) -> Result<Self, NotLocal> {
        if memory.restrictions.is_suspended()
            && let Some(check) = checks.first()
        {
            return Err(NotLocal::Slot(memory.slot(check.key)));
        }
        let locked = Self::new(memory, checks, now);
        let mut slots = locked.ownerships.iter().zip(&locked.slots);
        let missing = slots.find(|(ownership, _)| !ownership.is_owned());
        match missing.map(|(_, slot)| *slot) {
            Some(slot) => Err(NotLocal::Slot(slot)),
            None => Ok(locked),
        }
    }
}

impl LockedSlots<'_> {
    /// The position of the slot of a key among the locked ones.
    fn position(&self, key: Key) -> usize {
        let slot = self.memory.slot(key);
        self.slots.partition_point(|other| *other < slot)
    }

    /// The table of a key.
    pub(super) fn table(&mut self, key: Key) -> &mut SlotTable {
        let position = self.position(key);
        &mut self.tables[position]
    }

    fn table_ref(&self, key: Key) -> &SlotTable {
        &self.tables[self.position(key)]
    }

    /// Whether a counter of the slots has side data.
    pub(super) fn have_side_data(&self) -> bool {
        self.tables.iter().any(|table| table.has_side_data())
    }

    /// Merges pending usage into the counters of the checks, and ends their holds that have expired.
    pub(super) fn settle_side_data(&mut self, checks: &[Check<'_>]) {
        for Check { key, limit, .. } in checks {
            self.settle_side_data_of(*key, limit);
        }
    }

    /// Merges pending usage into the counter of `key`, and ends its holds that have expired.
    pub(super) fn settle_side_data_of(&mut self, key: Key, limit: &Limit) {
        let memory = self.memory;
        let now = self.now;
        let limit = &*self.limit_in_force(key, limit);
        if memory.tables.catch_up(self.table(key), key, limit, memory.at(now)) {
            self.record_change(key);
        }
    }

    /// Whether this replica owns the slots.
    pub(super) fn are_owned(&self) -> bool {
        self.ownerships.iter().all(|ownership| ownership.is_owned())
    }

    /// Applies `change` to the counter of `key` with its holds, and returns whether the counter is stored.
    pub(super) fn with_held<R>(&mut self, key: Key, change: impl FnOnce(&mut HeldCounter) -> R) -> (R, bool) {
        let memory = self.memory;
        let now = self.now;
        memory.tables.with_held(self.table(key), key, now, change)
    }

    /// The state of the counter of `key` by the limit of its own, or by `limit`.
    pub(super) fn state(&self, key: Key, limit: &Limit, own: Option<&OwnTerms>) -> CounterState {
        let held = self.held(key);
        let limit = &own.map_or(limit, |own| &own.limit).without_rate_and_burst(self.granted(key).rate);
        let mut counter = held.counter(limit, self.memory.at(self.now));
        let details = held.details(limit, &counter, self.now);
        let limit = held.limit_without_holds(limit);
        let idle_at = Some(limit.idle_at(&counter)).filter(|idle_at| self.now < *idle_at);
        let peek = limit.decide(&mut counter, self.now, Operation::Peek);
        CounterState { idle_at, peek: own.map_or(peek, |own| own.allowed(peek)), details }
    }

    /// Records that the counter of `key` has changed.
    pub(super) fn record_change(&mut self, key: Key) {
        let position = self.position(key);
        if let Some(all) = &self.memory.ownerships {
            let ownership = &mut self.ownerships[position];
            all.record_change(self.slots[position], ownership, key, &self.tables[position]);
        }
    }

    /// Records which counters the checks have changed.
    pub(super) fn record_changes(&mut self, checks: &[Check<'_>], decisions: &[CheckDecision]) {
        if self.ownerships.is_empty() {
            return;
        }
        for (check, decision) in checks.iter().zip(decisions) {
            if check.limit.is_changed_by(check.operation, decision.verdict.passes()) {
                self.record_change(check.key);
            }
        }
    }

    /// The limit of its own that decides on `key`.
    pub(super) fn own_terms(&self, key: Key) -> Option<&OwnTerms> {
        self.table_ref(key).side_data(key)?.own_terms(self.now)
    }

    /// The limit of its own that decides on a check.
    pub(super) fn own_terms_of(&self, check: &Check<'_>) -> Option<&OwnTerms> {
        check.origin.replaced_by(self.own_terms(check.key))
    }

    /// The limit that decides on `key`: its own, or `limit`.
    pub(super) fn limit_in_force<'l>(&self, key: Key, limit: &'l Limit) -> Cow<'l, Limit> {
        self.own_terms(key).map_or(Cow::Borrowed(limit), |own| Cow::Owned(own.limit.clone()))
    }

    /// A copy of the counter of `key`.
    pub(super) fn copy(&self, key: Key, limit: &Limit) -> Counter {
        let packed = self.table_ref(key).get(key);
        packed.map_or_else(|| limit.fresh(), |packed| packed.corrected(limit, self.memory.at(self.now)))
    }

    /// What the counter of `key` would say without a charge, with what is granted of it.
    pub(super) fn peek_with_grants(&self, key: Key, limit: &Limit, operation: Operation) -> Decision {
        let Granted { rate, hits } = self.granted(key);
        let mut counter = self.copy(key, limit);
        let limit = limit.without_rate(rate);
        let leased = self.leased(key).saturating_add(hits);
        decide_leased(&limit, &mut counter, operation, leased, self.now)
    }

    /// What is granted of the counter of `key`.
    pub(super) fn granted(&self, key: Key) -> Granted {
        self.table_ref(key).side_data(key).map(SideData::granted).unwrap_or_default()
    }

    /// The leased hits of `key`.
    pub(super) fn leased(&self, key: Key) -> u64 {
        self.table_ref(key).side_data(key).map_or(0, |side_data| side_data.leased)
    }

    /// Changes the side data of `key`.
    pub(super) fn change_side_data<R>(&mut self, key: Key, change: impl FnOnce(&mut SideData) -> R) -> R {
        let resources = &self.memory.tables.resources;
        self.table(key).change_side_data(key, resources, change)
    }

    /// Applies an operation to the counter of a check.
    #[inline]
    pub(super) fn apply(&mut self, check: &Check<'_>, operation: &CounterOperation) -> AppliedOperation {
        let memory = self.memory;
        let at = memory.at(self.now);
        let table = self.table(check.key);
        if let Some(operation) = operation.properties().decided
            && table.side_data(check.key).is_none()
        {
            let check = Check { operation, ..*check };
            let (decision, is_stored) = memory.tables.decide(table, &check, at, Some);
            let passes = decision.verdict.passes();
            let charged = if is_stored { check.limit.charged(operation, passes) } else { 0 };
            let outcome = OperationOutcome::new(decision, charged);
            return AppliedOperation {
                outcome,
                is_changed: check.limit.is_changed_by(operation, passes),
                is_stored,
            };
        }
        memory.tables.apply(table, check, operation, at)
    }

    /// A copy of the counter of `key` with its side data.
    pub(super) fn held(&self, key: Key) -> HeldCounter {
        let table = self.table_ref(key);
        let side_data = table.side_data(key).map(|side_data| Box::new(side_data.clone()));
        HeldCounter { packed: table.get(key).cloned(), side_data }
    }

    /// Checks that no decision depends on leased hits. Changes nothing.
    pub(super) fn require_unleased(
        &self,
        checks: &[Check<'_>],
        refused: impl Fn(&[CheckDecision]) -> bool,
    ) -> Result<(), NotLocal> {
        if checks.iter().all(|check| self.leased(check.key) == 0) {
            return Ok(());
        }
        let at = self.memory.at(self.now);
        let mut copies = BTreeMap::<Key, HeldCounter>::new();
        let mut wanted = None;
        decide_set(checks, refused, |index, operation| {
            let Check { key, limit, origin, .. } = checks[index];
            let copy = copies.entry(key).or_insert_with(|| self.held(key));
            if copy.depends_on_leases(limit, origin, operation, at) {
                wanted = wanted.or(Some(key));
            }
            ((&copy.apply(limit, origin, operation, at, Room::NONE).0).into(), true)
        });
        wanted.map_or(Ok(()), |key| Err(NotLocal::Leased(key)))
    }
}
