//! Reservations: several checks held as one, settled and withdrawn.

use std::{collections::BTreeMap, mem};

use smallvec::SmallVec;
use tollgate_counter::{descriptor::Key, time::Timestamp};

use crate::{
    OwnTerms,
    check::{Check, Checks},
    decisions::{CheckDecision, CounterOutcomes},
    held_counter::{
        HeldCounter,
        draft::{Reserve, reserve},
    },
    memory::{LockedSlots, Memory, NotLocal, tables::Taken},
    reservation::{HoldId, HoldTerms},
    slot::Slot,
    table::SlotTable,
};

impl Memory {
    /// Holds the charges of all checks, or none if `refused` returns that their decisions refuse the call. A check whose
    /// id is known is answered as the first time and charges nothing. `None`, and nothing is held, if a counter has too
    /// many holds, or all holds take too much memory.
    ///
    /// In a cluster this fails unless this replica owns the slots of all checks and no decision depends on leased
    /// hits.
    pub fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        now: Timestamp,
        refused: impl Fn(&[CheckDecision]) -> bool,
    ) -> Result<Option<CounterOutcomes>, NotLocal> {
        let mut locked = LockedSlots::owned(self, checks, now)?;
        locked.settle_side_data(checks);
        locked.require_unleased(checks, &refused)?;
        let own: SmallVec<[Option<OwnTerms>; 2]> =
            checks.iter().map(|check| locked.own_terms_of(check).cloned()).collect();
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
                let limit = own[index].as_ref().map_or(check.limit, |own| &own.limit);
                Reserve { counter, limit, terms, hits: check.hits() }
            })
            .collect();
        let mut counters: SmallVec<[HeldCounter; 2]> =
            taken.iter_mut().map(|taken| mem::take(&mut taken.counter)).collect();
        let store = |counters: &[HeldCounter]| {
            let store = |(taken, counter): (&mut Taken, &HeldCounter)| {
                taken.is_stored = self.tables.keep_place(locked.table(taken.key), taken, counter, now);
                (!taken.is_stored).then_some(self.tables.on_full)
            };
            taken.iter_mut().zip(counters).map(store).collect()
        };
        let room = self.tables.room();
        let reserved = reserve(&each, &mut counters, self.at(now), room, refused, store);
        for (mut taken, counter) in taken.into_iter().zip(counters) {
            taken.counter = counter;
            let key = taken.key;
            self.tables.put(locked.table(key), taken, now);
            if reserved.as_ref().is_some_and(|reserved| reserved.is_held) {
                locked.record_change(key);
            }
        }
        let Some(mut reserved) = reserved else {
            self.count_exhausted();
            return Ok(None);
        };
        for (decision, own) in reserved.decisions.iter_mut().zip(&own) {
            decision.own = own.as_ref().map(|own| own.requests_per_unit);
        }
        Ok(Some(reserved))
    }

    /// Ends the holds of a slot that have expired, and forgets side data that no longer changes an answer.
    pub(super) fn sweep_side_data(&self, slot: Slot, table: &mut SlotTable, now: Timestamp) {
        for key in table.keys_with_side_data() {
            let limit = table.holds(key).map(|holds| holds.limit().clone());
            let changed = limit.is_some_and(|limit| self.tables.catch_up(table, key, &limit, self.at(now)));
            self.tables.with_held(table, key, now, |counter| counter.forget_side_data(now));
            if changed && let Some(ownerships) = &self.ownerships {
                ownerships.record_change(slot, &mut ownerships.lock(slot), key, table);
            }
        }
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
