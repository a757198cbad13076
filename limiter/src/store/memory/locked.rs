//! The locked slots of the checks of one call.

use std::{collections::BTreeMap, sync::MutexGuard};

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Limit},
    descriptor::Key,
    store::{
        Check, NotLocal, Slot,
        decide_set::decide_set,
        held_counter::apply_leased,
        holds::Holds,
        memory::{
            Memory,
            ownership::{OwnershipTable, SlotOwnership},
        },
        operation::CounterOperation,
        table::Table,
    },
    time::Timestamp,
};

/// The locked slots of the checks of one call, at the instant of the call.
pub(super) struct LockedSlots<'m> {
    pub(super) memory: &'m Memory,
    pub(super) now: Timestamp,
    // Invariant: ascending and unique; one table for each, and one ownership for each in a cluster.
    slots: SmallVec<[Slot; 2]>,
    tables: SmallVec<[MutexGuard<'m, Table>; 2]>,
    ownerships: Option<Ownerships<'m>>,
}

/// The ownerships of the locked slots.
struct Ownerships<'m> {
    all: &'m OwnershipTable,
    each: SmallVec<[MutexGuard<'m, SlotOwnership>; 2]>,
}

impl Memory {
    /// Locks all slots of the checks, each once, in ascending order.
    pub(super) fn lock(&self, checks: &[Check<'_>], now: Timestamp) -> LockedSlots<'_> {
        let mut slots: SmallVec<[Slot; 2]> = checks.iter().map(|check| self.slot(check.key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let tables = slots.iter().map(|slot| self.table(*slot)).collect();
        let ownerships = self
            .ownerships
            .as_ref()
            .map(|all| Ownerships { all, each: slots.iter().map(|slot| all.lock(*slot)).collect() });
        LockedSlots { memory: self, now, slots, tables, ownerships }
    }

    /// Locks all slots of the checks, which this replica owns.
    pub(super) fn lock_owned(
        &self,
        checks: &[Check<'_>],
        now: Timestamp,
    ) -> Result<LockedSlots<'_>, NotLocal> {
        if self.restrictions.is_suspended()
            && let Some(check) = checks.first()
        {
            return Err(NotLocal::Slot(self.slot(check.key)));
        }
        let locked = self.lock(checks, now);
        let mut slots = locked.ownerships().iter().zip(&locked.slots);
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
    pub(super) fn table(&mut self, key: Key) -> &mut Table {
        let position = self.position(key);
        &mut self.tables[position]
    }

    fn table_ref(&self, key: Key) -> &Table {
        &self.tables[self.position(key)]
    }

    fn ownerships(&self) -> &[MutexGuard<'_, SlotOwnership>] {
        self.ownerships.as_ref().map_or(&[], |ownerships| &ownerships.each)
    }

    /// Whether a slot has holds, leases or pending usage.
    pub(super) fn have_side_data(&self) -> bool {
        self.tables.iter().any(|table| table.has_holds())
            || self.ownerships().iter().any(|ownership| ownership.side_data().is_some())
    }

    /// Merges pending usage into the counters of the checks, and ends their holds that have expired.
    pub(super) fn settle_side_data(&mut self, checks: &[Check<'_>]) {
        for Check { key, limit, .. } in checks {
            let (memory, now, position) = (self.memory, self.now, self.position(*key));
            let table = &mut self.tables[position];
            let mut has_changed = false;
            if let Some(ownerships) = &mut self.ownerships {
                has_changed = memory.absorb_pending(table, &mut ownerships.each[position], *key, limit, now);
            }
            if memory.expire_holds(table, *key, limit, now) || has_changed {
                self.record_change(*key);
            }
        }
    }

    /// Records that the counter of `key` has changed.
    pub(super) fn record_change(&mut self, key: Key) {
        let position = self.position(key);
        if let Some(Ownerships { all, each }) = &mut self.ownerships {
            all.record_change(self.slots[position], &mut each[position], key, self.tables[position].len());
        }
    }

    /// Records which counters the checks have changed.
    pub(super) fn record_changes(&mut self, checks: &[Check<'_>], decisions: &[Decision]) {
        if self.ownerships.is_none() {
            return;
        }
        for (check, decision) in checks.iter().zip(decisions) {
            if check.limit.is_changed_by(check.operation, decision.verdict.passes()) {
                self.record_change(check.key);
            }
        }
    }

    /// The holds of `key`.
    pub(super) fn holds(&self, key: Key) -> Option<&Holds> {
        self.table_ref(key).holds(key)
    }

    /// A copy of the counter of `key`.
    pub(super) fn copy(&self, key: Key, limit: &Limit) -> Counter {
        let packed = self.table_ref(key).get(key);
        packed.map_or_else(|| limit.fresh(), |packed| packed.corrected(limit, self.memory.at(self.now)))
    }

    /// The leased hits of `key`.
    pub(super) fn leased(&self, key: Key) -> u64 {
        // Without a cluster nothing is leased.
        self.ownerships().get(self.position(key)).map_or(0, |ownership| ownership.leased(key))
    }

    /// Applies an operation to the counter of a check, and returns whether the counter is stored.
    pub(super) fn apply(&mut self, check: &Check<'_>, operation: &CounterOperation) -> (Decision, bool) {
        let (memory, now, leased) = (self.memory, self.now, self.leased(check.key));
        let table = self.table(check.key);
        if leased == 0 && !table.has_holds() {
            return memory.touch(table, check, operation, now, Some);
        }
        memory.touch_unpacked(table, check.key, check.limit, now, |counter| {
            apply_leased(check.limit, counter, operation, leased, now).decision
        })
    }

    /// Checks that no decision depends on leased hits: that no check would be refused only because of them, and that no
    /// refund may be for hits that a borrower has used and not reported. Changes nothing.
    pub(super) fn require_unleased(
        &self,
        checks: &[Check<'_>],
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<(), NotLocal> {
        if checks.iter().all(|check| self.leased(check.key) == 0) {
            return Ok(());
        }
        let (mut copies, mut wanted): (BTreeMap<Key, Counter>, _) = (BTreeMap::new(), None);
        decide_set(checks, refused, |index, operation| {
            let Check { key, limit, .. } = checks[index];
            let copy = copies.entry(key).or_insert_with(|| self.copy(key, limit));
            let applied = apply_leased(limit, copy, operation, self.leased(key), self.now);
            if applied.depends_on_leases {
                wanted = wanted.or(Some(key));
            }
            (applied.decision, true)
        });
        wanted.map_or(Ok(()), |key| Err(NotLocal::Leased(key)))
    }
}
