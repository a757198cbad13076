//! The divider of one limit.

use crate::{
    algorithm::Limit,
    divider::{
        Outcome, SubscriberId, Subscribers, Usage, assignment::end_of_assignment, shares::Shares,
        slices::Slices,
    },
    store::CounterView,
    time::Timestamp,
};

/// Divides one limit.
#[derive(Debug)]
pub struct Divider {
    limit: Limit,
    way: Way,
    // What an earlier divider has granted is not known, and may be in force until then.
    learns_until: Timestamp,
}

#[derive(Debug)]
enum Way {
    Shares(Shares),
    Slices(Slices),
}

impl Way {
    fn of(limit: &Limit, now: Timestamp) -> Self {
        match limit.hit_rate() {
            Some(rate) => Self::Shares(Shares::new(rate, now)),
            None => Self::Slices(Slices::new(limit.allowance(), now)),
        }
    }
}

/// Whether clients can be served a limit: not if a refused hit leaves a trace, if a hit waits, or if a hit occupies a
/// place.
pub fn is_divisible(limit: &Limit) -> bool {
    limit.is_leasable()
}

impl Divider {
    /// Divides `limit`, of which anything may be granted until `learns_until`.
    pub fn new(limit: Limit, learns_until: Timestamp, now: Timestamp) -> Self {
        Self { way: Way::of(&limit, now), limit, learns_until }
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether there is no subscriber.
    pub fn is_empty(&self) -> bool {
        match &self.way {
            Way::Shares(shares) => shares.is_empty(),
            Way::Slices(slices) => slices.is_empty(),
        }
    }

    /// Divides another limit from now on. Returns whether it differs.
    pub fn set_limit(&mut self, limit: &Limit, now: Timestamp) -> bool {
        if self.limit == *limit {
            return false;
        }
        self.limit = limit.clone();
        match (&mut self.way, limit.hit_rate()) {
            (Way::Shares(shares), Some(rate)) => shares.set_rate(rate),
            (Way::Slices(slices), None) => slices.set_allowance(limit.allowance()),
            // What was granted in the other way is in force until its end.
            (way, _) => {
                *way = Way::of(limit, now);
                self.learns_until = self.learns_until.max(end_of_assignment(now));
            }
        }
        true
    }

    /// Takes the report of a subscriber, and divides.
    pub fn report(&mut self, id: SubscriberId, usage: Usage, view: CounterView, now: Timestamp) -> Outcome {
        match &mut self.way {
            Way::Shares(shares) => shares.report(id, usage, now),
            Way::Slices(slices) => slices.report(id, usage, now),
        }
        self.divide(Some(id), view, now)
    }

    /// The subscribers at `now`, at most `max` of them.
    pub fn subscribers(&self, max: usize, now: Timestamp) -> Subscribers {
        match &self.way {
            Way::Shares(shares) => Subscribers::of(shares.states(now), shares.callers(), max),
            Way::Slices(slices) => Subscribers::of(slices.states(now), slices.callers(), max),
        }
    }

    /// Ends a subscriber. What it has is in force until its time is over.
    pub fn leave(&mut self, id: SubscriberId) {
        match &mut self.way {
            Way::Shares(shares) => shares.leave(id),
            Way::Slices(slices) => slices.leave(id),
        }
    }

    /// Divides without a report.
    pub fn turn(&mut self, view: CounterView, now: Timestamp) -> Outcome {
        self.divide(None, view, now)
    }

    fn divide(&mut self, reporter: Option<SubscriberId>, view: CounterView, now: Timestamp) -> Outcome {
        let learns = now < self.learns_until;
        let mut outcome = match &mut self.way {
            Way::Shares(shares) => shares.turn(reporter, view, learns, now),
            Way::Slices(slices) => slices.turn(reporter, view, learns, now),
        };
        if learns && !self.is_empty() {
            outcome.next_at = outcome.next_at.into_iter().chain([self.learns_until]).min();
        }
        outcome
    }
}
