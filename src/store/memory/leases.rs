//! Hits that are lent to other replicas: they are kept apart from the counter, and counted as if they were taken
//! at every moment until they are used or back.

use std::collections::BTreeMap;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation},
    descriptor::Key,
    store::{
        Check, NotLocal,
        memory::{
            LockedSlots, Memory,
            check_set::{Action, decide_set},
        },
    },
    time::Timestamp,
};

/// Hits of a slice that were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedHits {
    /// How many.
    pub hits: u64,
    /// When the last of them was.
    pub at: Timestamp,
}

impl Memory {
    /// Lends `hits` of `key`, if they would pass now with all that is lent already. Says what would be left then;
    /// `None` where nothing is lent: also not of limits that cannot be shared so (those that count what they
    /// refuse, owe, queue or remember each hit), nor where the slot is not held or not shared.
    pub fn lend(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Option<Decision> {
        let ownerships = self.ownerships.as_ref().filter(|_| limit.is_leasable())?;
        let slot = self.slot(key);
        let mut table = self.table(slot);
        let mut ownership = ownerships.lock(slot);
        if !ownership.is_owned() || self.resources.budget.is_short_of(0) {
            return None;
        }
        if self.absorb_pending(&mut table, &mut ownership, key, limit, now) {
            ownerships.record_change(slot, &mut ownership, key, table.len());
        }
        let all = ownership.lent(key).checked_add(hits)?;
        let mut copy = table.get(key).map_or_else(|| limit.fresh(), |packed| self.copy(packed, limit, now));
        let decision = limit.decide(&mut copy, now, Operation::Charge(all));
        decision.verdict.passes().then(|| {
            ownership.update_side_data(|| self.empty_side_data(), |side_data| side_data.lend(key, all));
            Decision { receipt: None, ..decision }
        })
    }

    /// Hits of `key` that are lent out.
    pub fn reserved(&self, key: Key) -> u64 {
        self.ownerships.as_ref().map_or(0, |ownerships| ownerships.lock(self.slot(key)).lent(key))
    }

    /// Notes that so many hits of `key` are lent out, as a former holder has told. Says whether its slot is held.
    pub fn set_reserved(&self, key: Key, hits: u64) -> bool {
        self.change_reserved(key, |_| hits)
    }

    /// Takes back up to `hits` that were lent and not used. Says whether the slot is held.
    pub fn reclaim(&self, key: Key, hits: u64) -> bool {
        self.change_reserved(key, |lent| lent.saturating_sub(hits))
    }

    fn change_reserved(&self, key: Key, change: impl FnOnce(u64) -> u64) -> bool {
        let Some(ownerships) = &self.ownerships else { return false };
        let mut ownership = ownerships.lock(self.slot(key));
        let lent = change(ownership.lent(key));
        if ownership.is_owned() {
            ownership.update_side_data(|| self.empty_side_data(), |side_data| side_data.lend(key, lent));
        }
        ownership.is_owned()
    }

    /// Charges hits that were lent and are used, at the time when they were, and no longer counts them as lent: in
    /// one step, so that nobody finds them free between. Says whether the slot is held.
    ///
    /// Of hits that were used one after another, the last one's instant stands for all: that is at most too
    /// strict. Those of different windows are best told apart.
    pub fn charge_lent(&self, key: Key, limit: &Limit, used: UsedHits, now: Timestamp) -> bool {
        let charged = self.with_counter(key, limit, now, |counter| {
            limit.charge_at(counter, used.hits, used.at.min(now), now);
        });
        charged && self.reclaim(key, used.hits)
    }

    /// Takes back hits that [`Memory::charge_lent`] charged and that were not used after all, as far as they still
    /// count. Says whether the slot is held.
    pub fn refund_lent(&self, key: Key, limit: &Limit, unused: UsedHits, now: Timestamp) -> bool {
        self.with_counter(key, limit, now, |counter| {
            limit.refund_at(counter, unused.hits, unused.at.min(now), now);
        })
    }
}

impl LockedSlots<'_> {
    /// Whether the call can be decided as if what is lent were taken: not where a check would be refused only for
    /// that. Nothing is changed.
    pub(super) fn require_unlent(
        &self,
        memory: &Memory,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<(), NotLocal> {
        if checks.iter().all(|check| self.lent(memory, check.key) == 0) {
            return Ok(());
        }
        let (mut copies, mut wanted): (BTreeMap<Key, Counter>, _) = (BTreeMap::new(), None);
        let mut each = |index: usize, action: Action| {
            let check = &checks[index];
            let copy = copies.entry(check.key).or_insert_with(|| {
                let table = &self.tables[self.place(memory.slot(check.key))];
                let fresh = || check.limit.fresh();
                table.get(check.key).map_or_else(fresh, |packed| memory.copy(packed, check.limit, now))
            });
            let apply = apply_action(self.lent(memory, check.key), action, check, copy, now);
            if apply.passes_unlent {
                wanted = wanted.or(Some(check.key));
            }
            (apply.decision, true)
        };
        decide_set(checks, refused, &mut each);
        wanted.map_or(Ok(()), |key| Err(NotLocal::Lent(key)))
    }

    pub(super) fn lent(&self, memory: &Memory, key: Key) -> u64 {
        // Without tenures nothing is ever lent.
        self.ownerships.get(self.place(memory.slot(key))).map_or(0, |ownership| ownership.lent(key))
    }
}

/// What a deed has led to beside hits that are lent.
pub(super) struct Applied {
    pub(super) decision: Decision,
    /// It was refused, but would have passed if nothing were lent.
    passes_unlent: bool,
}

/// Does a deed to a counter of which so many hits are lent, as if these were taken now.
pub(super) fn apply_action(
    lent: u64,
    action: Action,
    check: &Check<'_>,
    counter: &mut Counter,
    now: Timestamp,
) -> Applied {
    if lent == 0 {
        return Applied { decision: action.apply(check, counter, now), passes_unlent: false };
    }
    if let Action::TakeBack(receipt) = action {
        check.limit.undo(counter, receipt, now);
    }
    let mut full = counter.clone();
    check.limit.charge_at(&mut full, lent, now, now);
    match action {
        Action::TakeBack(_) | Action::Peek => {
            let decision = check.limit.decide(&mut full, now, Operation::Peek);
            Applied { decision, passes_unlent: false }
        }
        Action::Decide => {
            let told = check.limit.decide(&mut full, now, check.operation);
            let mut alone = counter.clone();
            let bare = check.limit.decide(&mut alone, now, check.operation);
            let passes = told.verdict.passes();
            if check.limit.is_changed_by(check.operation, passes) {
                *counter = alone;
            }
            let decision = if passes {
                Decision { remaining: told.remaining, ..bare }
            } else {
                Decision { receipt: None, ..told }
            };
            Applied { decision, passes_unlent: !passes && bare.verdict.passes() }
        }
    }
}

#[cfg(test)]
mod tests;
