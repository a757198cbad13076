//! The divider of one limit.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Granted, Limit},
    divider::{
        Outcome, Report, SubscriberId, Subscribers,
        assignment::{end_of_assignment, moved},
        shares::Shares,
        slices::Slices,
    },
    rules::QuotaTerms,
    store::CounterView,
    time::Timestamp,
};

/// The most subscribers of one limit. All of them go to another replica in one message.
pub const SUBSCRIBERS_MAX: usize = 4_096;

/// Divides one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divider {
    limit: Limit,
    way: Way,
    // What an earlier divider has granted is not known, and may be in force until then.
    learns_until: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Way {
    Shares(Shares),
    Slices(Slices),
}

impl Way {
    fn of(limit: &Limit, learns_until: Timestamp, now: Timestamp) -> Self {
        match limit.hit_rate() {
            Some(rate) => Self::Shares(Shares::new(rate, learns_until, now)),
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
        Self { way: Way::of(&limit, learns_until, now), limit, learns_until }
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether there is no subscriber.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
                self.learns_until = self.learns_until.max(end_of_assignment(now));
                *way = Way::of(limit, self.learns_until, now);
            }
        }
        true
    }

    /// The number of subscribers.
    pub fn len(&self) -> usize {
        match &self.way {
            Way::Shares(shares) => shares.roster().len(),
            Way::Slices(slices) => slices.roster().len(),
        }
    }

    /// Whether there is a place for a subscriber.
    pub fn has_room_for(&self, id: SubscriberId) -> bool {
        let is_known = match &self.way {
            Way::Shares(shares) => shares.roster().has(id),
            Way::Slices(slices) => slices.roster().has(id),
        };
        is_known || self.len() < SUBSCRIBERS_MAX
    }

    /// Takes the report of a subscriber, and divides.
    pub fn report(
        &mut self,
        id: SubscriberId,
        terms: QuotaTerms,
        report: Report,
        view: CounterView,
        now: Timestamp,
    ) -> Outcome {
        match (report, &mut self.way) {
            (Report::Usage(usage), Way::Shares(shares)) => shares.report(id, usage, terms, now),
            (Report::Resumed(usage), Way::Shares(shares)) => {
                shares.resume(id, usage, now);
                shares.report(id, usage, terms, now);
            }
            (Report::Usage(usage), Way::Slices(slices)) => slices.report(id, usage, terms, now),
            (Report::Resumed(usage), Way::Slices(slices)) => {
                slices.resume(id, usage, now);
                slices.report(id, usage, terms, now);
            }
            (Report::End, Way::Shares(shares)) => shares.leave(id),
            (Report::End, Way::Slices(slices)) => slices.leave(id),
            (Report::Limit | Report::Counted(_), _) => {}
        }
        let reporter = matches!(report, Report::Usage(_) | Report::Resumed(_)).then_some(id);
        self.divide(reporter, view, now)
    }

    /// The subscribers at `now`, at most `max` of them.
    pub fn subscribers(&self, max: usize, now: Timestamp) -> Subscribers {
        match &self.way {
            Way::Shares(shares) => Subscribers::of(shares.states(now), shares.callers(), max),
            Way::Slices(slices) => Subscribers::of(slices.states(now), slices.callers(), max),
        }
    }

    /// The replica of each subscriber.
    pub fn replicas(&self) -> Box<dyn Iterator<Item = u64> + '_> {
        match &self.way {
            Way::Shares(shares) => Box::new(shares.roster().ids().iter().map(|id| id.replica)),
            Way::Slices(slices) => Box::new(slices.roster().ids().iter().map(|id| id.replica)),
        }
    }

    /// Ends the subscribers of a replica.
    pub fn leave_all(&mut self, replica: u64) {
        match &mut self.way {
            Way::Shares(shares) => shares.leave_all(replica),
            Way::Slices(slices) => slices.leave_all(replica),
        }
    }

    /// What is granted of the limit.
    pub fn granted(&self) -> Granted {
        match &self.way {
            Way::Shares(shares) => shares.granted(),
            Way::Slices(slices) => slices.granted(),
        }
    }

    /// Moves all instants, of a clock that shows `from`, to one that shows `to`.
    pub fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.learns_until = moved(self.learns_until, from, to);
        match &mut self.way {
            Way::Shares(shares) => shares.move_to(from, to),
            Way::Slices(slices) => slices.move_to(from, to),
        }
    }

    /// Adds another division of the same limit, whose assignments may be in force, too.
    pub fn add(&mut self, other: Self, now: Timestamp) {
        self.learns_until = self.learns_until.max(other.learns_until);
        match (&mut self.way, other.way) {
            (Way::Shares(shares), Way::Shares(more)) => shares.add(more, now),
            (Way::Slices(slices), Way::Slices(more)) => slices.add(more),
            // The other one had another limit.
            (Way::Shares(_), Way::Slices(_)) | (Way::Slices(_), Way::Shares(_)) => self.learn(now),
        }
    }

    /// Counts everything that an owner before has assigned as in force: also what is not known here.
    pub fn learn(&mut self, now: Timestamp) {
        self.learns_until = self.learns_until.max(end_of_assignment(now));
        match &mut self.way {
            Way::Shares(shares) => shares.prolong(now),
            Way::Slices(slices) => slices.prolong(now),
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
