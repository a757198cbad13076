//! Reservations: several checks held as one, settled and withdrawn.

use std::{collections::BTreeMap, mem};

use smallvec::SmallVec;
use tollgate_counter::{algorithm::Decision, descriptor::Key, time::Timestamp};

use crate::{
    Check, Checks, HoldId, HoldTerms, NotLocal, Reserved, Settled, Slot, UnknownId,
    held_counter::{Exhausted, HeldCounter, ReservationDraft, Reserve, Room},
    memory::{LockedSlots, Memory, tables::Taken},
    operation::{CounterOperation, OperationOutcome},
    table::SlotTable,
};

/// Why nothing is reserved. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The checks are not decided on this replica.
    #[error(transparent)]
    NotLocal(#[from] NotLocal),
    /// A counter has too many holds, or all holds take too much memory.
    #[error("too many reservations are open")]
    Exhausted,
}

impl Memory {
    /// Holds the charges of all checks, or none if `refused` returns that their decisions refuse the call. A check whose
    /// id is known is answered as the first time and charges nothing.
    ///
    /// In a cluster this fails unless this replica owns the slots of all checks and no decision depends on leased
    /// hits.
    pub fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<Reserved, ReserveError> {
        let mut locked = self.lock_for_holds(checks, now)?;
        locked.require_unleased(checks, &refused)?;
        let own = locked.each_own_terms(checks);
        let mut taken: SmallVec<[Taken; 2]> = SmallVec::new();
        let each: SmallVec<[Reserve<'_>; 2]> = checks
            .iter()
            .zip(each_hold_id(checks, &terms.id))
            .enumerate()
            .map(|(index, (check, id))| {
                let counter = taken.iter().position(|taken| taken.key == check.key).unwrap_or_else(|| {
                    taken.push(self.tables.take(locked.table(check.key), check.key));
                    taken.len() - 1
                });
                let terms = terms.for_part(index, id);
                let leased = taken[counter].counter.leased();
                let limit = own[index].as_ref().map_or(check.limit, |own| &own.limit);
                Reserve { counter, limit, terms, hits: check.hits(), leased }
            })
            .collect();
        let mut counters: SmallVec<[HeldCounter; 2]> =
            taken.iter_mut().map(|taken| mem::take(&mut taken.counter)).collect();
        let store = |counters: &[HeldCounter]| {
            for (taken, counter) in taken.iter_mut().zip(counters) {
                taken.is_stored = self.tables.keep_place(locked.table(taken.key), taken, counter, now);
            }
            taken.iter().map(|taken| taken.is_stored).collect()
        };
        let reserved = self.reserve_taken(&each, &mut counters, now, refused, store);
        for (mut taken, counter) in taken.into_iter().zip(counters) {
            taken.counter = counter;
            let key = taken.key;
            self.tables.put(locked.table(key), taken, now);
            if reserved.as_ref().is_ok_and(|reserved| reserved.is_held) {
                locked.record_change(key);
            }
        }
        match reserved {
            Ok(reserved) => Ok(reserved.with_own(&own)),
            Err(Exhausted) => {
                self.count_exhausted();
                Err(ReserveError::Exhausted)
            }
        }
    }

    /// Holds the charges of all checks, or none of them, in counters that are taken out of their tables. `store`
    /// returns which of the counters have a place there.
    fn reserve_taken(
        &self,
        each: &[Reserve<'_>],
        counters: &mut [HeldCounter],
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
        store: impl FnOnce(&[HeldCounter]) -> SmallVec<[bool; 2]>,
    ) -> Result<Reserved, Exhausted> {
        let at = self.at(now);
        let mut draft = ReservationDraft::new(each, counters, at);
        if refused(&draft.decisions) {
            return Ok(draft.not_held(each, counters, at, |_| true));
        }
        draft.require_room(each, counters, at, self.tables.room())?;
        draft.charge(each, counters, at);
        let are_stored = store(counters);
        for (Reserve { counter, .. }, decision) in each.iter().zip(&mut draft.decisions) {
            if !are_stored[*counter] {
                *decision = self.tables.on_full.without_memory(*decision);
            }
        }
        if refused(&draft.decisions) {
            draft.undo(each, counters, at);
            return Ok(draft.not_held(each, counters, at, |counter| are_stored[counter]));
        }
        Ok(draft.hold(each, counters, at))
    }

    /// Settles the holds of all checks, each at the hits of its charge. An unknown id charges these hits.
    ///
    /// In a cluster this fails unless this replica owns the slots of all checks and no charge depends on leased hits.
    pub fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        unknown: UnknownId,
        now: Timestamp,
    ) -> Result<SmallVec<[Settled; 2]>, NotLocal> {
        let mut locked = self.lock_for_holds(checks, now)?;
        let ids = each_hold_id(checks, id);
        for (check, id) in checks.iter().zip(&ids) {
            locked.require_chargeable(check, id)?;
        }
        Ok(checks.iter().zip(&ids).map(|(check, id)| locked.settle(check, id, unknown)).collect())
    }

    /// Applies a refund that counts once.
    ///
    /// In a cluster this fails unless this replica owns the slot and the refund does not depend on leased hits.
    pub(super) fn refund_once(
        &self,
        check: &Check<'_>,
        operation: &CounterOperation,
        now: Timestamp,
    ) -> Result<OperationOutcome, NotLocal> {
        let mut locked = self.lock_for_holds(std::slice::from_ref(check), now)?;
        locked.require_unleased(std::slice::from_ref(check), |_| false)?;
        let at = self.at(now);
        let room = self.tables.room();
        let ((outcome, is_changed), _) =
            locked.with_held(check.key, |counter| counter.apply(check.limit, operation, at, room));
        if is_changed {
            locked.record_change(check.key);
        }
        Ok(outcome)
    }

    /// Takes back the holds of all checks that one attempt has made, and forgets them. Fails unless this replica owns
    /// the slots.
    pub fn withdraw(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        attempt: u64,
        now: Timestamp,
    ) -> Result<(), NotLocal> {
        let mut locked = self.lock_for_holds(checks, now)?;
        let own = locked.each_own_terms(checks);
        for ((check, own), id) in checks.iter().zip(&own).zip(each_hold_id(checks, id)) {
            let limit = own.as_ref().map_or(check.limit, |own| &own.limit);
            let (was_held, _) =
                locked.with_held(check.key, |counter| counter.withdraw(limit, &id, attempt, self.at(now)));
            if was_held {
                locked.record_change(check.key);
            }
        }
        Ok(())
    }

    /// Locks the slots of the checks, and ends holds that have expired.
    fn lock_for_holds(&self, checks: &[Check<'_>], now: Timestamp) -> Result<LockedSlots<'_>, NotLocal> {
        let mut locked = LockedSlots::owned(self, checks, now)?;
        locked.settle_side_data(checks);
        Ok(locked)
    }

    /// Ends the holds of a slot that have expired, and forgets side data that no longer changes an answer.
    pub(super) fn sweep_side_data(&self, slot: Slot, table: &mut SlotTable, now: Timestamp) {
        for key in table.keys_with_side_data() {
            let limit = table.holds(key).map(|holds| holds.limit().clone());
            let changed =
                limit.is_some_and(|limit| self.tables.expire_holds(table, key, &limit, self.at(now)));
            self.tables.with_held(table, key, now, |counter| counter.forget_side_data(now));
            if changed && let Some(ownerships) = &self.ownerships {
                ownerships.record_change(slot, &mut ownerships.lock(slot), key, table);
            }
        }
    }
}

impl LockedSlots<'_> {
    /// Checks that what settling charges does not depend on leased hits. Changes nothing.
    fn require_chargeable(&self, check: &Check<'_>, id: &HoldId) -> Result<(), NotLocal> {
        let Check { key, limit, .. } = *check;
        let own = self.own_terms(key);
        let limit = own.map_or(limit, |own| &own.limit);
        let leased = self.leased(key);
        let actual = check.hits();
        let missing = self.holds(key).map_or(actual, |holds| holds.charges(id, actual));
        if leased == 0 || missing == 0 {
            return Ok(());
        }
        let mut bare = self.copy(key, limit);
        let mut full = bare.clone();
        limit.charge_at(&mut full, leased, self.now, self.now);
        let [(charged, _), (possible, _)] =
            [&mut full, &mut bare].map(|counter| limit.charge_used(counter, missing, self.now));
        if charged < possible { Err(NotLocal::Leased(key)) } else { Ok(()) }
    }

    fn settle(&mut self, check: &Check<'_>, id: &HoldId, unknown: UnknownId) -> Settled {
        let memory = self.memory;
        let now = self.now;
        let actual = check.hits();
        let room = match unknown {
            UnknownId::Remember => memory.tables.room(),
            UnknownId::Forget => Room::NONE,
        };
        let own = self.own_terms(check.key).cloned();
        let limit = own.as_ref().map_or(check.limit, |own| &own.limit);
        let (mut settled, stored) =
            self.with_held(check.key, |counter| counter.settle(limit, id, actual, memory.at(now), room));
        if !stored {
            settled.uncharged = actual.saturating_sub(settled.reserved);
        }
        self.record_change(check.key);
        settled
    }
}

/// The id of each check: checks of one counter are numbered.
pub fn each_hold_id(checks: &[Check<'_>], id: &HoldId) -> SmallVec<[HoldId; 2]> {
    let mut seen: BTreeMap<Key, usize> = BTreeMap::new();
    let nth = |check: &Check<'_>| {
        let seen = seen.entry(check.key).or_default();
        *seen += 1;
        id.nth(*seen - 1)
    };
    checks.iter().map(nth).collect()
}

#[cfg(test)]
mod tests;
