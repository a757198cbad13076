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
            decide_set::{Action, decide_set},
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
    pub fn lease(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Option<Decision> {
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
        if self.expire_holds(&mut table, key, limit, now) {
            ownerships.record_change(slot, &mut ownership, key, table.len());
        }
        let all = ownership.leased(key).checked_add(hits)?;
        let mut copy = table.get(key).map_or_else(|| limit.fresh(), |packed| self.copy(packed, limit, now));
        let decision = limit.decide(&mut copy, now, Operation::Charge(all));
        decision.verdict.passes().then(|| {
            ownership.update_side_data(|| self.empty_side_data(), |side_data| side_data.set_leased(key, all));
            Decision { receipt: None, ..decision }
        })
    }

    /// The leased hits of `key`.
    pub fn leased(&self, key: Key) -> u64 {
        self.ownerships.as_ref().map_or(0, |ownerships| ownerships.lock(self.slot(key)).leased(key))
    }

    /// Sets the leased hits of `key`, as reported by the former owner. Returns whether this replica owns the slot.
    pub fn set_leased(&self, key: Key, hits: u64) -> bool {
        self.change_leased(key, |_| hits)
    }

    /// Takes back up to `hits` leased and unused hits. Returns whether this replica owns the slot.
    pub fn reclaim(&self, key: Key, hits: u64) -> bool {
        self.change_leased(key, |leased| leased.saturating_sub(hits))
    }

    fn change_leased(&self, key: Key, change: impl FnOnce(u64) -> u64) -> bool {
        let Some(ownerships) = &self.ownerships else { return false };
        let mut ownership = ownerships.lock(self.slot(key));
        let leased = change(ownership.leased(key));
        if ownership.is_owned() {
            ownership
                .update_side_data(|| self.empty_side_data(), |side_data| side_data.set_leased(key, leased));
        }
        ownership.is_owned()
    }

    /// Charges used hits of a lease at the time of their use and removes them from the leased hits, in one step, so
    /// that they are never free in between. Returns whether this replica owns the slot.
    ///
    /// The time of the last hit stands for all of them, which is at most too strict. Report hits of different windows
    /// separately.
    pub fn charge_leased(&self, key: Key, limit: &Limit, used: UsedHits, now: Timestamp) -> bool {
        let charged = self.with_counter(key, limit, now, |counter| {
            limit.charge_at(counter, used.hits, used.at.min(now), now);
        });
        charged && self.reclaim(key, used.hits)
    }

    /// Takes back hits that [`Memory::charge_leased`] charged and that turned out to be unused, as far as they still
    /// count. Returns whether this replica owns the slot.
    pub fn refund_leased(&self, key: Key, limit: &Limit, unused: UsedHits, now: Timestamp) -> bool {
        self.with_counter(key, limit, now, |counter| {
            limit.refund_at(counter, unused.hits, unused.at.min(now), now);
        })
    }
}

impl LockedSlots<'_> {
    /// Checks that no decision depends on leased hits: that no check would be refused only because of them, and that no
    /// refund may be for hits that a borrower has used and not reported. Changes nothing.
    pub(super) fn require_unleased(
        &self,
        memory: &Memory,
        checks: &[Check<'_>],
        now: Timestamp,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<(), NotLocal> {
        if checks.iter().all(|check| self.leased(memory, check.key) == 0) {
            return Ok(());
        }
        let (mut copies, mut wanted): (BTreeMap<Key, Counter>, _) = (BTreeMap::new(), None);
        decide_set(checks, refused, |index, action| {
            let check = &checks[index];
            let copy = copies.entry(check.key).or_insert_with(|| {
                let table = &self.tables[self.position(memory.slot(check.key))];
                let fresh = || check.limit.fresh();
                table.get(check.key).map_or_else(fresh, |packed| memory.copy(packed, check.limit, now))
            });
            let apply = apply_action(self.leased(memory, check.key), action, check, copy, now);
            if apply.depends_on_leases {
                wanted = wanted.or(Some(check.key));
            }
            (apply.decision, true)
        });
        wanted.map_or(Ok(()), |key| Err(NotLocal::Leased(key)))
    }

    pub(super) fn leased(&self, memory: &Memory, key: Key) -> u64 {
        // Without a cluster nothing is leased.
        self.ownerships().get(self.position(memory.slot(key))).map_or(0, |ownership| ownership.leased(key))
    }
}

/// The effect of an action on a counter with leased hits.
pub(super) struct Applied {
    pub(super) decision: Decision,
    /// Whether the decision would differ if the leased hits were returned.
    depends_on_leases: bool,
}

/// Applies an action to a counter, with `leased` hits counted as charged now.
pub(super) fn apply_action(
    leased: u64,
    action: Action,
    check: &Check<'_>,
    counter: &mut Counter,
    now: Timestamp,
) -> Applied {
    if leased == 0 {
        return Applied { decision: action.apply(check, counter, now), depends_on_leases: false };
    }
    if let Action::TakeBack(receipt) = action {
        check.limit.undo(counter, receipt, now);
    }
    let mut full = counter.clone();
    check.limit.charge_at(&mut full, leased, now, now);
    match action {
        Action::TakeBack(_) | Action::Peek => {
            let decision = check.limit.decide(&mut full, now, Operation::Peek);
            Applied { decision, depends_on_leases: false }
        }
        Action::Decide => {
            let with_leases = check.limit.decide(&mut full, now, check.operation);
            let mut unleased = counter.clone();
            let bare = check.limit.decide(&mut unleased, now, check.operation);
            let passes = with_leases.verdict.passes();
            if check.limit.is_changed_by(check.operation, passes) {
                *counter = unleased;
            }
            let decision = if passes {
                Decision { remaining: with_leases.remaining, ..bare }
            } else {
                Decision { receipt: None, ..with_leases }
            };
            let depends_on_leases = match check.operation {
                Operation::Peek | Operation::Charge(_) => !passes && bare.verdict.passes(),
                // A refund gives back no more than was charged.
                Operation::Refund(_) => check.limit.idle_at(counter) <= now,
            };
            Applied { decision, depends_on_leases }
        }
    }
}

#[cfg(test)]
mod tests;
