//! Hits that are leased to other replicas. They are stored beside the counter and count as charged until they are used
//! or returned.

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

/// Used hits of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedHits {
    /// The number of hits.
    pub hits: u64,
    /// When the last one was used.
    pub at: Timestamp,
}

impl Memory {
    /// Leases `hits` of `key` if they would pass on top of all leased hits, and returns what would be left. `None` if
    /// nothing is leased: also if the algorithm does not support it (see [`Limit::is_leasable`]), or this replica does
    /// not own the slot.
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

    /// The leased hits of `key`.
    pub fn reserved(&self, key: Key) -> u64 {
        self.ownerships.as_ref().map_or(0, |ownerships| ownerships.lock(self.slot(key)).lent(key))
    }

    /// Sets the leased hits of `key`, as reported by the former owner. Returns whether this replica owns the slot.
    pub fn set_reserved(&self, key: Key, hits: u64) -> bool {
        self.change_reserved(key, |_| hits)
    }

    /// Takes back up to `hits` leased and unused hits. Returns whether this replica owns the slot.
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

    /// Charges used hits of a lease at the time of their use and removes them from the leased hits, in one step, so
    /// that they are never free in between. Returns whether this replica owns the slot.
    ///
    /// The time of the last hit stands for all of them, which is at most too strict. Report hits of different windows
    /// separately.
    pub fn charge_lent(&self, key: Key, limit: &Limit, used: UsedHits, now: Timestamp) -> bool {
        let charged = self.with_counter(key, limit, now, |counter| {
            limit.charge_at(counter, used.hits, used.at.min(now), now);
        });
        charged && self.reclaim(key, used.hits)
    }

    /// Takes back hits that [`Memory::charge_lent`] charged and that turned out to be unused, as far as they still
    /// count. Returns whether this replica owns the slot.
    pub fn refund_lent(&self, key: Key, limit: &Limit, unused: UsedHits, now: Timestamp) -> bool {
        self.with_counter(key, limit, now, |counter| {
            limit.refund_at(counter, unused.hits, unused.at.min(now), now);
        })
    }
}

impl LockedSlots<'_> {
    /// Checks that no decision depends on leased hits: that no check would be refused only because of them. Changes
    /// nothing.
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
                let table = &self.tables[self.position(memory.slot(check.key))];
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
        // Without a cluster nothing is leased.
        self.ownerships.get(self.position(memory.slot(key))).map_or(0, |ownership| ownership.lent(key))
    }
}

/// The effect of an action on a counter with leased hits.
pub(super) struct Applied {
    pub(super) decision: Decision,
    /// Whether it was refused and would have passed without leased hits.
    passes_unlent: bool,
}

/// Applies an action to a counter, with `lent` hits counted as charged now.
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
            let with_leases = check.limit.decide(&mut full, now, check.operation);
            let mut unlent = counter.clone();
            let bare = check.limit.decide(&mut unlent, now, check.operation);
            let passes = with_leases.verdict.passes();
            if check.limit.is_changed_by(check.operation, passes) {
                *counter = unlent;
            }
            let decision = if passes {
                Decision { remaining: with_leases.remaining, ..bare }
            } else {
                Decision { receipt: None, ..with_leases }
            };
            Applied { decision, passes_unlent: !passes && bare.verdict.passes() }
        }
    }
}

#[cfg(test)]
mod tests;
