//! Reservations: several checks held as one, settled and withdrawn.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Held, Limit, Operation},
    descriptor::Key,
    store::{
        Check, Checks, Decisions, HOLDS_MAX, HoldId, HoldTerms, NotLocal, Settled, Slot,
        holds::{HoldSize, Holds, Room},
        memory::{Action, LockedSlots, Memory, leases::apply_action},
        slot_data::HeldConsumption,
        table::Table,
    },
    time::Timestamp,
};

/// The part of the memory limit that holds may take: one of this many.
const SHARE_DIVISOR: usize = 8;

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

/// The answer to a reservation.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Whether everything is held. Otherwise nothing is.
    pub is_held: bool,
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
}

/// A counter before and after the reservations of one call.
struct Draft {
    before: Counter,
    after: Counter,
    // Checks of this counter so far.
    checks: usize,
}

/// A hold that will be added if the call passes.
struct NewHold {
    // The index of its check.
    check: usize,
    id: HoldId,
    hits: u64,
    held: Held,
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
        locked.require_unleased(self, checks, now, &refused)?;
        let (mut decisions, mut drafts, mut new) = (SmallVec::new(), BTreeMap::new(), Vec::new());
        for (index, check) in checks.iter().enumerate() {
            let draft = drafts.entry(check.key).or_insert_with(|| locked.draft(self, check, now));
            let id = terms.id.nth(draft.checks);
            draft.checks += 1;
            if let Some(known) = locked.holds(self, check.key).and_then(|holds| holds.answer(&id)) {
                decisions.push(known);
                continue;
            }
            let mut after = draft.after.clone();
            let leased = locked.leased(self, check.key);
            let decision = apply_action(leased, Action::Decide, check, &mut after, now).decision;
            let passes = decision.verdict.passes();
            let hits = if passes { check.hits() } else { 0 };
            // A refused check that does not refuse the call holds nothing.
            let after = if passes { after } else { draft.after.clone() };
            let held = check.limit.held(&draft.after, &after, hits, now);
            draft.after = after;
            decisions.push(decision);
            new.push(NewHold { check: index, id, hits, held });
        }
        if refused(&decisions) {
            return Ok(locked.not_held(self, checks, decisions, now));
        }
        if !locked.have_room(self, checks, &new) {
            self.resources.holds.exhausted.add(1);
            return Err(ReserveError::Exhausted);
        }
        if !locked.store(self, checks, &drafts, &mut decisions, now) && refused(&decisions) {
            locked.restore(self, checks, &drafts, now);
            return Ok(locked.not_held(self, checks, decisions, now));
        }
        let mut charged = SmallVec::from_elem(0, checks.len());
        for hold in new {
            charged[hold.check] = hold.hits;
            locked.add(self, checks, terms, hold, &decisions, now);
        }
        Ok(Reserved { is_held: true, decisions: Decisions::new(decisions, charged) })
    }

    /// Settles the holds of all checks, each at the hits of its charge. An unknown id charges these hits, and is then
    /// remembered if there is memory for it.
    ///
    /// In a cluster this fails unless this replica owns the slots of all checks and no charge depends on leased hits.
    pub fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        now: Timestamp,
    ) -> Result<SmallVec<[Settled; 2]>, NotLocal> {
        let mut locked = self.lock_for_holds(checks, now)?;
        let ids: SmallVec<[HoldId; 2]> = each_hold_id(checks, id);
        for (check, id) in checks.iter().zip(&ids) {
            locked.require_chargeable(self, check, id, now)?;
        }
        let has_room = self.has_room_for(checks.len() * Holds::bytes_of_one(id));
        Ok(checks.iter().zip(&ids).map(|(check, id)| locked.settle(self, check, id, has_room, now)).collect())
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
        for (check, id) in checks.iter().zip(each_hold_id(checks, id)) {
            let slot = self.slot(check.key);
            let changed = self.change_holds(locked.table(slot), check, now, |holds, counter| {
                holds.withdraw(counter, &id, attempt, now);
            });
            if changed.is_some() {
                locked.record_change(self, check.key);
            }
        }
        Ok(())
    }

    /// Locks the slots of the checks, and ends holds that have expired.
    fn lock_for_holds(&self, checks: &[Check<'_>], now: Timestamp) -> Result<LockedSlots<'_>, NotLocal> {
        let mut locked = self.lock_owned(checks)?;
        locked.absorb_pending(self, checks, now);
        locked.expire_holds(self, checks, now);
        Ok(locked)
    }

    /// Merges what another replica has made of the counter of `key` and of its holds.
    pub(super) fn absorb_held(&self, table: &mut Table, key: Key, there: HeldConsumption, now: Timestamp) {
        let holds = table.take_holds(key);
        let size = holds.as_ref().map(Holds::size).unwrap_or_default();
        let Some(mut holds) = holds.or_else(|| there.limit().map(Holds::new)) else { return };
        let limit = holds.limit().clone();
        self.clamp_holds_ahead(&mut holds, now);
        let has_room = self.has_room_for(there.now.hold_bytes());
        let room = if has_room { Room::Enough } else { Room::None };
        let (there, base) = (there.now.unpacked(&limit), there.base.unpacked(&limit));
        self.touch_counter(table, key, &limit, now, |counter| {
            holds.absorb(counter, there, base, room, now);
            limit.decide(counter, now, Operation::Peek)
        });
        table.put_holds(key, holds, size, &self.resources);
    }

    /// Restores the holds of `key` from a snapshot, if there is memory.
    pub(super) fn restore_holds(&self, key: Key, holds: Holds) {
        if self.has_room_for(holds.bytes()) {
            self.table(self.slot(key)).put_holds(key, holds, HoldSize::default(), &self.resources);
        }
    }

    /// Ends the holds of `key` that have expired, and returns whether that changed the counter.
    pub(super) fn expire_holds(&self, table: &mut Table, key: Key, limit: &Limit, now: Timestamp) -> bool {
        let is_ahead = self.lead_given_up_at(now).is_some();
        if table.holds(key).is_none_or(|holds| !is_ahead && !holds.is_due(now)) {
            return false;
        }
        let Some(mut holds) = table.take_holds(key) else { return false };
        let size = holds.size();
        let has_moved = self.clamp_holds_ahead(&mut holds, now);
        let changes = has_moved || holds.is_due(now);
        if changes {
            self.touch_counter(table, key, limit, now, |counter| {
                let expired = holds.expire(limit, counter, now);
                self.resources.holds.released.add(expired.released);
                self.resources.holds.charged.add(expired.charged);
                limit.decide(counter, now, Operation::Peek)
            });
        }
        table.put_holds(key, holds, size, &self.resources);
        changes
    }

    /// Clamps holds that are ahead, before their counter is clamped. Returns whether the counter has to be.
    pub(super) fn clamp_holds_ahead(&self, holds: &mut Holds, now: Timestamp) -> bool {
        self.lead_given_up_at(now).is_some_and(|at| holds.clamp_ahead(at, now))
    }

    /// Ends the holds of a slot that have expired, and forgets those that ended long ago.
    pub(super) fn sweep_holds(&self, slot: Slot, table: &mut Table, now: Timestamp) {
        for key in table.keys_with_holds() {
            let Some(limit) = table.holds(key).map(|holds| holds.limit().clone()) else { continue };
            let changed = self.expire_holds(table, key, &limit, now);
            if let Some(mut holds) = table.take_holds(key) {
                let size = holds.size();
                holds.forget(now);
                table.put_holds(key, holds, size, &self.resources);
            }
            if changed && let Some(ownerships) = &self.ownerships {
                ownerships.record_change(slot, &mut ownerships.lock(slot), key, table.len());
            }
        }
    }

    /// Applies `change` to the holds of a check and to its counter. `None` if there are no holds.
    fn change_holds<R>(
        &self,
        table: &mut Table,
        check: &Check<'_>,
        now: Timestamp,
        change: impl FnOnce(&mut Holds, &mut Counter) -> R,
    ) -> Option<R> {
        let mut holds = table.take_holds(check.key)?;
        let (size, mut result) = (holds.size(), None);
        self.touch_counter(table, check.key, check.limit, now, |counter| {
            holds.observe(check.limit, counter, now);
            result = Some(change(&mut holds, counter));
            holds.observe(check.limit, counter, now);
            check.limit.decide(counter, now, Operation::Peek)
        });
        table.put_holds(check.key, holds, size, &self.resources);
        result
    }

    /// Whether holds may take `bytes` more.
    fn has_room_for(&self, bytes: usize) -> bool {
        let budget = &self.resources.budget;
        let used = self.resources.holds.bytes.load(Ordering::Relaxed);
        used + bytes <= budget.bytes_max() / SHARE_DIVISOR && !budget.is_short_of(bytes)
    }
}

impl LockedSlots<'_> {
    /// Ends the holds of the checks that have expired.
    pub(super) fn expire_holds(&mut self, memory: &Memory, checks: &[Check<'_>], now: Timestamp) {
        for check in checks {
            let table = self.table(memory.slot(check.key));
            if memory.expire_holds(table, check.key, check.limit, now) {
                self.record_change(memory, check.key);
            }
        }
    }

    fn record_change(&mut self, memory: &Memory, key: Key) {
        let slot = memory.slot(key);
        if let (Some(ownerships), Some((table, ownership))) = (&memory.ownerships, self.part(slot)) {
            ownerships.record_change(slot, ownership, key, table.len());
        }
    }

    fn shared_table(&self, memory: &Memory, key: Key) -> &Table {
        &self.tables[self.position(memory.slot(key))]
    }

    fn holds(&self, memory: &Memory, key: Key) -> Option<&Holds> {
        self.shared_table(memory, key).holds(key)
    }

    /// A copy of the counter of a check.
    fn copy(&self, memory: &Memory, check: &Check<'_>, now: Timestamp) -> Counter {
        let packed = self.shared_table(memory, check.key).get(check.key);
        packed.map_or_else(|| check.limit.fresh(), |packed| memory.copy(packed, check.limit, now))
    }

    fn draft(&self, memory: &Memory, check: &Check<'_>, now: Timestamp) -> Draft {
        let before = self.copy(memory, check, now);
        Draft { after: before.clone(), before, checks: 0 }
    }

    /// Whether there is room for new holds.
    fn have_room(&self, memory: &Memory, checks: &Checks<'_>, new: &[NewHold]) -> bool {
        let mut by_key: BTreeMap<Key, usize> = BTreeMap::new();
        for hold in new {
            *by_key.entry(checks[hold.check].key).or_default() += 1;
        }
        let has_room = |(key, more): (&Key, &usize)| {
            self.holds(memory, *key).map_or(*more <= HOLDS_MAX, |holds| holds.has_room(*more))
        };
        let bytes = new.iter().map(|hold| Holds::bytes_of_one(&hold.id)).sum::<usize>()
            + by_key.len() * size_of::<(Key, Holds)>();
        by_key.iter().all(has_room) && memory.has_room_for(bytes)
    }

    /// Stores the counters of a call. If there is no memory for one of them, changes its decision and returns `false`.
    fn store(
        &mut self,
        memory: &Memory,
        checks: &Checks<'_>,
        drafts: &BTreeMap<Key, Draft>,
        decisions: &mut SmallVec<[Decision; 2]>,
        now: Timestamp,
    ) -> bool {
        let mut all_stored = true;
        for (check, decision) in checks.iter().zip(decisions) {
            let after = &drafts[&check.key].after;
            let table = self.table(memory.slot(check.key));
            let (_, stored) = memory.touch_unpacked(table, check.key, check.limit, now, |counter| {
                counter.clone_from(after);
                check.limit.decide(counter, now, Operation::Peek)
            });
            if !stored {
                *decision = memory.on_full.without_memory(*decision);
                all_stored &= decision.verdict.passes();
            }
        }
        all_stored
    }

    /// Undoes [`LockedSlots::store`].
    fn restore(
        &mut self,
        memory: &Memory,
        checks: &Checks<'_>,
        drafts: &BTreeMap<Key, Draft>,
        now: Timestamp,
    ) {
        for check in checks {
            let table = self.table(memory.slot(check.key));
            memory.touch_unpacked(table, check.key, check.limit, now, |counter| {
                counter.clone_from(&drafts[&check.key].before);
                check.limit.decide(counter, now, Operation::Peek)
            });
        }
    }

    /// The answer to a refused call: what is left without it.
    fn not_held(
        &self,
        memory: &Memory,
        checks: &Checks<'_>,
        mut decisions: SmallVec<[Decision; 2]>,
        now: Timestamp,
    ) -> Reserved {
        for (check, decision) in checks.iter().zip(&mut decisions) {
            decision.receipt = None;
            if decision.verdict.passes() {
                let (leased, mut copy) = (self.leased(memory, check.key), self.copy(memory, check, now));
                let left = apply_action(leased, Action::Peek, check, &mut copy, now).decision;
                (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
            }
        }
        let charged = SmallVec::from_elem(0, checks.len());
        Reserved { is_held: false, decisions: Decisions::new(decisions, charged) }
    }

    fn add(
        &mut self,
        memory: &Memory,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        NewHold { check, id, hits, held }: NewHold,
        decisions: &[Decision],
        now: Timestamp,
    ) {
        let (Check { key, limit, .. }, decision) = (checks[check], &decisions[check]);
        let table = self.table(memory.slot(key));
        let holds = table.take_holds(key);
        let size = holds.as_ref().map(Holds::size).unwrap_or_default();
        let mut holds = holds.unwrap_or_else(|| Holds::new(limit));
        holds.add(id, terms, hits, held, decision, now);
        table.put_holds(key, holds, size, &memory.resources);
        self.record_change(memory, key);
    }

    /// Checks that what settling charges does not depend on leased hits. Changes nothing.
    fn require_chargeable(
        &self,
        memory: &Memory,
        check: &Check<'_>,
        id: &HoldId,
        now: Timestamp,
    ) -> Result<(), NotLocal> {
        let leased = self.leased(memory, check.key);
        let actual = check.hits();
        let missing = self.holds(memory, check.key).map_or(actual, |holds| holds.charges(id, actual));
        if leased == 0 || missing == 0 {
            return Ok(());
        }
        let mut bare = self.copy(memory, check, now);
        let mut full = bare.clone();
        check.limit.charge_at(&mut full, leased, now, now);
        let [(charged, _), (possible, _)] =
            [&mut full, &mut bare].map(|counter| check.limit.charge_used(counter, missing, now));
        if charged < possible { Err(NotLocal::Leased(check.key)) } else { Ok(()) }
    }

    fn settle(
        &mut self,
        memory: &Memory,
        check: &Check<'_>,
        id: &HoldId,
        has_room: bool,
        now: Timestamp,
    ) -> Settled {
        let table = self.table(memory.slot(check.key));
        let holds = table.take_holds(check.key);
        let (size, is_new) = (holds.as_ref().map(Holds::size).unwrap_or_default(), holds.is_none());
        let mut holds = holds.unwrap_or_else(|| Holds::new(check.limit));
        let (is_known, mut settled) = (!is_new && holds.answer(id).is_some(), None);
        let (_, stored) = memory.touch_counter(table, check.key, check.limit, now, |counter| {
            settled = Some(holds.settle(check.limit, counter, id, check.hits(), now));
            holds.observe(check.limit, counter, now);
            check.limit.decide(counter, now, Operation::Peek)
        });
        let mut settled = settled.expect("the closure was called");
        if !stored {
            settled.uncharged = check.hits().saturating_sub(settled.reserved);
        }
        if !is_known && !has_room {
            holds.forget_ended(id);
        }
        table.put_holds(check.key, holds, size, &memory.resources);
        self.record_change(memory, check.key);
        settled
    }
}

/// The id of each check: checks of one counter are numbered.
pub(crate) fn each_hold_id(checks: &[Check<'_>], id: &HoldId) -> SmallVec<[HoldId; 2]> {
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
