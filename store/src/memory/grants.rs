//! What clients that decide by themselves have of a limit. It is stored with the counter: a share of the rate lowers
//! the rate of the counter, hits of a slice count as charged until they are used or given back. Callers that request
//! hits get what is left.

use std::{borrow::Cow, time::Duration};

use tollgate_counter::{
    algorithm::{Decision, Granted, HitRate, Limit, Operation, Verdict},
    descriptor::Key,
    time::Timestamp,
};

use crate::{
    memory::{Memory, locked::LockedSlots},
    operation::charge_used,
};

/// What is granted of counters in memory. It goes to other replicas with the dividers of a slot.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'m> {
    pub(super) memory: &'m Memory,
}

/// A counter at the turn of its divider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterView {
    /// Hits that would pass now if no hits were granted. Of a limit with a rate: what is left of its burst without what
    /// is granted.
    pub free: u64,
    /// If no hit passes in addition to those that are granted: the time until one does, if that is known. `None` for a
    /// limit with a rate.
    pub free_after: Option<Duration>,
    /// Hits that callers have requested since the last turn.
    pub requested: u64,
}

/// What a turn of the divider does to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Hits that clients have used. They are charged whether they would pass or not.
    pub used: u64,
    /// Hits of a burst that clients may have used. They are charged whether they would pass or not.
    pub spent: u64,
    /// Hits of a burst that were charged, and that clients have not used.
    pub returned: u64,
    /// What is granted from now on.
    pub granted: Granted,
}

impl Grants<'_> {
    /// Lets `divide` change what is granted of the counter of `key`, while nothing else changes the counter.
    pub fn turn(&self, key: Key, limit: &Limit, now: Timestamp, divide: impl FnOnce(CounterView) -> Turn) {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if !locked.are_owned() {
            return;
        }
        locked.settle_side_data_of(key, limit);
        let own = locked.limit_in_force(key, limit);
        let limit = &*own;
        let requested =
            locked.table(key).grant_mut(key).map_or(0, |grant| std::mem::take(&mut grant.requested));
        let before = locked.granted(key).rate;
        let mut view = CounterView { requested, ..CounterView::default() };
        let with_leased = Operation::Charge(locked.leased(key).saturating_add(1));
        let mut counter = locked.copy(key, limit);
        view.free = free(&limit.without_rate_and_burst(before).decide(&mut counter, now, with_leased));
        if limit.hit_rate().is_none() {
            view.free_after = free_after(&locked.peek_with_grants(key, limit, Operation::Charge(1)));
        }
        let turn = divide(view);
        locked.change_side_data(key, |side_data| side_data.set_granted(limit, turn.granted));
        locked.settle_turn(key, limit, before, turn);
    }

    /// The limit that decides on the counter of `key`: its own, or `limit`.
    pub(crate) fn limit_in_force<'l>(&self, key: Key, limit: &'l Limit, now: Timestamp) -> Cow<'l, Limit> {
        LockedSlots::for_key(self.memory, key, now).limit_in_force(key, limit)
    }

    /// Continues what another replica has granted of the counter of `key`, which came from there.
    pub(crate) fn adopt(&self, key: Key, limit: &Limit, granted: Granted, now: Timestamp) {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if locked.are_owned() {
            locked.change_side_data(key, |side_data| side_data.set_granted(limit, granted));
        }
    }

    /// Continues what an earlier process has granted of the counter of `key`, and takes back what a snapshot of the
    /// instant `at` has charged for it. Returns whether there is a counter.
    pub(crate) fn restore(&self, key: Key, limit: &Limit, granted: Granted, at: Timestamp) -> bool {
        let mut locked = LockedSlots::for_key(self.memory, key, at);
        locked.settle_side_data_of(key, limit);
        let is_there = locked.table(key).get(key).is_some();
        if locked.are_owned() {
            locked.change_side_data(key, |side_data| side_data.set_granted(limit, granted));
            let turn = Turn { returned: granted.hits, granted, ..Turn::default() };
            locked.settle_turn(key, limit, HitRate::default(), turn);
        }
        is_there
    }

    /// Charges hits that a client has used, whether they would pass or not.
    pub fn charge(&self, key: Key, limit: &Limit, used: u64, now: Timestamp) {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if locked.are_owned() {
            let limit = &*locked.limit_in_force(key, limit);
            let granted = locked.granted(key);
            locked.settle_turn(key, limit, granted.rate, Turn { used, granted, ..Turn::default() });
        }
    }

    /// Ends the division of the counter of `key`.
    pub fn end(&self, key: Key, now: Timestamp) {
        let mut locked = LockedSlots::for_key(self.memory, key, now);
        if let Some(grant) = locked.change_side_data(key, |side_data| side_data.grant.take())
            && locked.are_owned()
        {
            locked.settle_turn(key, &grant.limit, grant.granted.rate, Turn::default());
        }
    }
}

impl LockedSlots<'_> {
    /// Charges and takes back what a turn has come to, after which another rate may be granted than `before`.
    fn settle_turn(&mut self, key: Key, limit: &Limit, before: HitRate, turn: Turn) {
        let Turn { used, spent, returned, granted: Granted { rate: after, .. } } = turn;
        let charged = used.saturating_add(spent);
        if charged == 0 && returned == 0 && before == after {
            return;
        }
        let memory = self.memory;
        let now = self.now;
        let left = limit.without_rate_and_burst(after);
        self.with_held(key, |counter| {
            counter.update(&left, memory.at(now), |left, counter| {
                limit.keep_debt(counter, before, after, now);
                charge_used(left, counter, charged, now);
                left.decide(counter, now, Operation::Refund(returned));
                left.decide(counter, now, Operation::Peek)
            })
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
