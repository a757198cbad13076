//! Hits that are leased to other replicas. They are stored with the counter and count as charged until they are used or
//! returned.

use tollgate_counter::{
    algorithm::{Counter, Decision, Limit, Operation},
    descriptor::Key,
    time::Timestamp,
};

use crate::memory::{Memory, locked::LockedSlots};

/// The leases of counters in memory. Without a cluster there are none.
#[derive(Clone, Copy, Debug)]
pub struct Leases<'m> {
    pub(super) memory: &'m Memory,
}

/// Used hits of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedHits {
    /// The number of hits.
    pub hits: u64,
    /// When the last hit was used.
    pub at: Timestamp,
}

impl Leases<'_> {
    /// Leases `hits` of `key` if they would pass on top of all leased hits, and returns what would be left. `None` if
    /// nothing is leased: also if the algorithm does not support it (see [`Limit::is_leasable`]), or this replica does
    /// not own the slot.
    pub fn lease(&self, key: Key, limit: &Limit, hits: u64, now: Timestamp) -> Option<Decision> {
        if self.memory.ownerships.is_none() || !limit.is_leasable() {
            return None;
        }
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if !locked.are_owned() || self.memory.tables.resources.budget.is_short_of(0) {
            return None;
        }
        // A change of the limit must apply to the next decision.
        if locked.own_terms(key).is_some() {
            return None;
        }
        locked.settle_side_data_of(key, limit);
        let granted = locked.granted(key);
        let all = locked.leased(key).checked_add(hits)?;
        let charge = Operation::Charge(all.saturating_add(granted.hits));
        let decision = limit.without_rate(granted.rate).decide(&mut locked.copy(key, limit), now, charge);
        decision.verdict.passes().then(|| {
            locked.change_side_data(key, |side_data| side_data.leased = all);
            Decision { receipt: None, ..decision }
        })
    }

    /// The leased hits of `key`.
    pub fn leased(&self, key: Key) -> u64 {
        let table = self.memory.tables.lock(self.memory.slot(key));
        table.side_data(key).map_or(0, |side_data| side_data.leased)
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
        let Some(ownerships) = &self.memory.ownerships else { return false };
        let slot = self.memory.slot(key);
        let mut table = self.memory.tables.lock(slot);
        let is_owned = ownerships.lock(slot).is_owned();
        if is_owned {
            let resources = &self.memory.tables.resources;
            table.change_side_data(key, resources, |side_data| side_data.leased = change(side_data.leased));
        }
        is_owned
    }

    /// Charges used hits of a lease at the time of their use and removes them from the leased hits, in one step, so
    /// that they are never free in between. Returns whether this replica owns the slot.
    ///
    /// The time of the last hit stands for all of them, which is at most too strict. Report hits of different windows
    /// separately.
    pub fn charge_leased(&self, key: Key, limit: &Limit, used: UsedHits, now: Timestamp) -> bool {
        let charged = self.correct_leased(key, limit, now, |counter| {
            limit.charge_at(counter, used.hits, used.at.min(now), now);
        });
        charged && self.reclaim(key, used.hits)
    }

    /// Takes back hits that [`Leases::charge_leased`] charged and that turned out to be unused, as far as they still
    /// count. Returns whether this replica owns the slot.
    pub fn refund_leased(&self, key: Key, limit: &Limit, unused: UsedHits, now: Timestamp) -> bool {
        self.correct_leased(key, limit, now, |counter| {
            limit.refund_at(counter, unused.hits, unused.at.min(now), now);
        })
    }

    fn correct_leased(
        &self,
        key: Key,
        limit: &Limit,
        now: Timestamp,
        correct: impl FnOnce(&mut Counter),
    ) -> bool {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if !locked.are_owned() {
            return false;
        }
        let limit = locked.limit_in_force(key, limit);
        locked.with_held(key, |counter| {
            counter.update(&limit, self.memory.at(now), |limit, counter| {
                correct(counter);
                limit.decide(counter, now, Operation::Peek)
            })
        });
        locked.record_change(key);
        true
    }
}

#[cfg(test)]
mod tests;
