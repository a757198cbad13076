//! Hits that are lent to other replicas: they are kept apart from the counter, and counted as if they were taken
//! at every moment until they are used or back.

use std::collections::BTreeMap;

use crate::{
    algorithm::{Ask, Counter, Decision, Limit},
    descriptor::Key,
    store::{
        Check, Elsewhere,
        memory::{
            Locked, Memory,
            settle::{Deed, settle},
        },
    },
    time::Timestamp,
};

/// Hits of a slice that were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
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
        let tenures = self.tenures.as_ref().filter(|_| limit.can_be_lent())?;
        let slot = self.slot(key);
        let mut table = self.table(slot);
        let mut tenure = tenures.lock(slot);
        if !tenure.is_held() || self.means.budget.is_short_of(0) {
            return None;
        }
        if self.absorb_extras(&mut table, &mut tenure, key, limit, now) {
            tenures.note(slot, &mut tenure, key, table.len());
        }
        let all = tenure.lent(key).checked_add(hits)?;
        let mut copy = table.get(key).map_or_else(|| limit.fresh(), |cell| self.copy(cell, limit, now));
        let decision = limit.decide(&mut copy, now, Ask::Charge(all));
        decision.verdict.passes().then(|| {
            tenure.change_beside(|| self.nothing_beside(), |beside| beside.lend(key, all));
            Decision { receipt: None, ..decision }
        })
    }

    /// Hits of `key` that are lent out.
    pub fn reserved(&self, key: Key) -> u64 {
        self.tenures.as_ref().map_or(0, |tenures| tenures.lock(self.slot(key)).lent(key))
    }

    /// Notes that so many hits of `key` are lent out, as a former holder has told. Says whether its slot is held.
    pub fn set_reserved(&self, key: Key, hits: u64) -> bool {
        self.change_reserved(key, |_| hits)
    }

    /// Takes back up to `hits` that were lent and not used. Says whether the slot is held.
    pub fn unlend(&self, key: Key, hits: u64) -> bool {
        self.change_reserved(key, |lent| lent.saturating_sub(hits))
    }

    fn change_reserved(&self, key: Key, change: impl FnOnce(u64) -> u64) -> bool {
        let Some(tenures) = &self.tenures else { return false };
        let mut tenure = tenures.lock(self.slot(key));
        let lent = change(tenure.lent(key));
        if tenure.is_held() {
            tenure.change_beside(|| self.nothing_beside(), |beside| beside.lend(key, lent));
        }
        tenure.is_held()
    }

    /// Charges hits that were lent and are used, at the time when they were, and no longer counts them as lent: in
    /// one step, so that nobody finds them free between. Says whether the slot is held.
    ///
    /// Of hits that were used one after another, the last one's instant stands for all: that is at most too
    /// strict. Those of different windows are best told apart.
    pub fn charge_lent(&self, key: Key, limit: &Limit, used: Used, now: Timestamp) -> bool {
        let charged = self.with_counter(key, limit, now, |counter| {
            limit.charge_taken(counter, used.hits, used.at.min(now), now);
        });
        charged && self.unlend(key, used.hits)
    }

    /// Takes back hits that [`Memory::charge_lent`] charged and that were not used after all, as far as they still
    /// count. Says whether the slot is held.
    pub fn return_lent(&self, key: Key, limit: &Limit, unused: Used, now: Timestamp) -> bool {
        self.with_counter(key, limit, now, |counter| {
            limit.return_taken(counter, unused.hits, unused.at.min(now), now);
        })
    }
}

impl Locked<'_> {
    /// Whether the call can be decided as if what is lent were taken: not where a check would be refused only for
    /// that. Nothing is changed.
    pub(super) fn call_back(
        &self,
        memory: &Memory,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<(), Elsewhere> {
        if checks.iter().all(|check| self.lent(memory, check.key) == 0) {
            return Ok(());
        }
        let (mut copies, mut wanted): (BTreeMap<Key, Counter>, _) = (BTreeMap::new(), None);
        let mut each = |index: usize, deed: Deed| {
            let check = &checks[index];
            let copy = copies.entry(check.key).or_insert_with(|| {
                let table = &self.tables[self.place(memory.slot(check.key))];
                let fresh = || check.limit.fresh();
                table.get(check.key).map_or_else(fresh, |cell| memory.copy(cell, check.limit, now))
            });
            let done = beside(self.lent(memory, check.key), deed, check, copy, now);
            if done.would_pass_alone {
                wanted = wanted.or(Some(check.key));
            }
            (done.decision, true)
        };
        settle(checks, refused, &mut each);
        wanted.map_or(Ok(()), |key| Err(Elsewhere::Lent(key)))
    }

    pub(super) fn lent(&self, memory: &Memory, key: Key) -> u64 {
        // Without tenures nothing is ever lent.
        self.tenures.get(self.place(memory.slot(key))).map_or(0, |tenure| tenure.lent(key))
    }
}

/// What a deed has led to beside hits that are lent.
pub(super) struct Done {
    pub(super) decision: Decision,
    /// It was refused, but would have passed if nothing were lent.
    would_pass_alone: bool,
}

/// Does a deed to a counter of which so many hits are lent, as if these were taken now.
pub(super) fn beside(
    lent: u64,
    deed: Deed,
    check: &Check<'_>,
    counter: &mut Counter,
    now: Timestamp,
) -> Done {
    if lent == 0 {
        return Done { decision: deed.done(check, counter, now), would_pass_alone: false };
    }
    if let Deed::TakeBack(receipt) = deed {
        check.limit.undo(counter, receipt, now);
    }
    let mut full = counter.clone();
    check.limit.charge_taken(&mut full, lent, now, now);
    match deed {
        Deed::TakeBack(_) | Deed::Look => {
            let decision = check.limit.decide(&mut full, now, Ask::Look);
            Done { decision, would_pass_alone: false }
        }
        Deed::Ask => {
            let told = check.limit.decide(&mut full, now, check.ask);
            let mut alone = counter.clone();
            let bare = check.limit.decide(&mut alone, now, check.ask);
            let passes = told.verdict.passes();
            if check.limit.is_changed_by(check.ask, passes) {
                *counter = alone;
            }
            let decision = if passes {
                Decision { remaining: told.remaining, ..bare }
            } else {
                Decision { receipt: None, ..told }
            };
            Done { decision, would_pass_alone: !passes && bare.verdict.passes() }
        }
    }
}

#[cfg(test)]
mod tests;
