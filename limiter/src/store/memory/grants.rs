//! What clients that decide by themselves have of a limit. It is stored beside the counter: a share of the rate lowers
//! the rate of the counter, hits of a slice count as charged until they are used or given back. Callers that ask get
//! what is left.

use std::time::Duration;

use crate::{
    algorithm::{Decision, Granted, Limit, Operation, Verdict},
    descriptor::Key,
    store::{
        memory::{Memory, locked::LockedSlots},
        operation::charge_used,
    },
    time::Timestamp,
};

/// What is granted of counters in memory. It goes to other replicas with the dividers of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'m> {
    pub(super) memory: &'m Memory,
}

/// A counter at the turn of its divider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterView {
    /// Hits that would pass now if no hits were granted. 0 for a limit with a rate, whose division does not need it.
    pub free: u64,
    /// If no hit passes beside those that are granted: the time until one does, if that is known. `None` for a limit with
    /// a rate.
    pub free_after: Option<Duration>,
    /// Hits that callers have asked for since the last turn.
    pub asked: u64,
}

/// What a turn of the divider does to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Hits that clients have used. They are charged whether they would pass or not.
    pub used: u64,
    /// What is granted from now on.
    pub granted: Granted,
}

impl Grants<'_> {
    /// Lets `divide` change what is granted of the counter of `key`, while nothing else changes the counter.
    pub fn turn(&self, key: Key, limit: &Limit, now: Timestamp, divide: impl FnOnce(CounterView) -> Turn) {
        let mut locked = self.memory.lock_key(key, now);
        if !locked.are_owned() {
            return;
        }
        locked.settle_side_data_of(key, limit);
        let asked = locked.table(key).grant_mut(key).map_or(0, |grant| std::mem::take(&mut grant.asked));
        let mut view = CounterView { asked, ..CounterView::default() };
        if limit.hit_rate().is_none() {
            let with_leased = Operation::Charge(locked.leased(key).saturating_add(1));
            view.free = free(&limit.decide(&mut locked.copy(key, limit), now, with_leased));
            view.free_after = free_after(&locked.peek_beside_grants(key, limit, Operation::Charge(1)));
        }
        let Turn { used, granted } = divide(view);
        locked.table(key).set_granted(key, limit, granted);
        locked.charge_used(key, limit, used);
    }

    /// Charges hits that a client has used, whether they would pass or not.
    pub fn charge(&self, key: Key, limit: &Limit, used: u64, now: Timestamp) {
        let mut locked = self.memory.lock_key(key, now);
        if locked.are_owned() {
            locked.charge_used(key, limit, used);
        }
    }

    /// Ends the division of the counter of `key`.
    pub fn end(&self, key: Key, now: Timestamp) {
        self.memory.lock_key(key, now).table(key).end_grant(key);
    }
}

impl LockedSlots<'_> {
    fn charge_used(&mut self, key: Key, limit: &Limit, used: u64) {
        if used == 0 {
            return;
        }
        let (memory, now) = (self.memory, self.now);
        self.with_held(key, |counter| {
            counter.update(limit, memory.at(now), |limit, counter| charge_used(limit, counter, used, now))
        });
        self.record_change(key);
    }
}

/// The hits that passed, given the decision on a charge of one hit.
fn free(decision: &Decision) -> u64 {
    if decision.verdict.passes() { decision.remaining.saturating_add(1) } else { 0 }
}

fn free_after(decision: &Decision) -> Option<Duration> {
    match decision.verdict {
        Verdict::Refuse { retry_after } => retry_after,
        Verdict::Pass | Verdict::Delay(_) => None,
    }
}
