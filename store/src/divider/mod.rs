//! Divides a limit over clients that decide by themselves, as the rate limit quota service of Envoy needs it.
//!
//! A subscriber is a bucket of one stream of reports. A limit with a rate is divided into shares, max-min fair by
//! demand. Any other limit is divided into slices: hits that are granted once, and that count as charged until reports
//! say what has become of them. Callers that send each request are one more subscriber.
//!
//! A [`Divider`] is pure: reports, a view of the counter and the time in, assignments out.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Granted, Limit, QuotaTerms},
    resilience::{CALLER_SHARE, SharedUse},
    time::Timestamp,
};

use crate::{
    divider::{
        assignment::{end_of_assignment, moved},
        roster::SubscriberRoster,
        shares::Shares,
        slices::Slices,
    },
    memory::grants::{CounterView, Turn},
};

mod assignment;
mod demand;
mod max_min;
mod registry;
mod roster;
mod shares;
mod slices;

pub use assignment::{
    ASSIGNMENT_TTL, Assignment, DividerReport, DivisionOutcome, SubscriberUsage, UNCERTAIN,
};
pub use registry::DividerStats;
pub use registry::{Assignments, Divide, Dividers, SlotDivisions, SubscriberReport};

pub use crate::{LimitPart, SUBSCRIBERS_LISTED_MAX, SubscriberId, SubscriberState, Subscribers};

#[cfg(test)]
mod tests;

/// The most subscribers of one limit. All of them go to another replica in one message.
pub const SUBSCRIBERS_MAX: usize = 4_096;

/// A limit with at most so many subscribers is divided with each report.
const SUBSCRIBERS_AT_ONCE: usize = 64;
/// A limit with more than [`SUBSCRIBERS_AT_ONCE`] subscribers is divided once in this time for each subscriber, and
/// what is reported meanwhile is noted. So the work for a report does not grow with their number: a limit has at most
/// 20,000 of them visited in a second.
const PAUSE_EACH: Duration = Duration::from_micros(50);

/// Divides one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divider {
    limit: Limit,
    way: Way,
    // What an earlier divider has granted is not known, and may be in force until then.
    learns_until: Timestamp,
    // The last division, until another one may follow.
    #[serde(skip)]
    last: Option<Division>,
}

/// What a division has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Division {
    granted: Granted,
    next_from: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Way {
    Shares(Shares),
    Slices(Slices),
}

/// Evaluates an expression for the subscribers of either way.
macro_rules! each_way {
    ($way:expr, $subscribers:ident => $expression:expr) => {
        match $way {
            Way::Shares($subscribers) => $expression,
            Way::Slices($subscribers) => $expression,
        }
    };
}

impl Way {
    fn new(limit: &Limit, learns_until: Timestamp, now: Timestamp) -> Self {
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

fn has_room_for<S>(roster: &SubscriberRoster<S>, id: SubscriberId) -> bool {
    let all = roster.len();
    let max = SUBSCRIBERS_MAX;
    all < max / 2
        || roster.has(id)
        || SharedUse { own: roster.count_of_caller(id.caller()), all, max }.has_room_for(1, CALLER_SHARE)
}

impl Divider {
    /// Divides `limit`, of which anything may be granted until `learns_until`.
    pub fn new(limit: Limit, learns_until: Timestamp, now: Timestamp) -> Self {
        Self { way: Way::new(&limit, learns_until, now), limit, learns_until, last: None }
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
        (self.limit, self.last) = (limit.clone(), None);
        match (&mut self.way, limit.hit_rate()) {
            (Way::Shares(shares), Some(rate)) => shares.set_rate(rate),
            (Way::Slices(slices), None) => slices.set_allowance(limit.allowance()),
            // What was granted in the other way is in force until its end.
            (way, _) => {
                self.learns_until = self.learns_until.max(end_of_assignment(now));
                *way = Way::new(limit, self.learns_until, now);
            }
        }
        true
    }

    /// A copy for another replica, which divides anew at the first report.
    pub(super) fn copied(&self) -> Self {
        let mut copy = self.clone();
        if let Way::Shares(shares) = &mut copy.way {
            shares.forget_local_state();
        }
        copy
    }

    /// The number of subscribers.
    pub fn len(&self) -> usize {
        each_way!(&self.way, divided => divided.each.len())
    }

    /// The memory of the subscribers, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        each_way!(&self.way, divided => divided.each.bytes())
    }

    /// Whether there is a place for a subscriber, in the share of its caller.
    pub fn has_room_for(&self, id: SubscriberId) -> bool {
        each_way!(&self.way, divided => has_room_for(&divided.each, id))
    }

    /// Takes the report of a subscriber, and divides; but of many subscribers most reports wait for the next division.
    pub fn report(
        &mut self,
        id: SubscriberId,
        terms: QuotaTerms,
        report: DividerReport,
        view: CounterView,
        now: Timestamp,
    ) -> DivisionOutcome {
        let report = match report {
            // Nothing is in force there, or nothing is left of it.
            DividerReport::Resumed(usage) if usage.allowed == 0 && usage.denied > 0 => {
                DividerReport::Usage(usage)
            }
            report => report,
        };
        each_way!(&mut self.way, divided => match report {
            DividerReport::Usage(usage) => divided.report(id, usage, terms, now),
            DividerReport::Resumed(usage) => {
                divided.resume(id, usage, now);
                divided.report(id, usage, terms, now);
            }
            DividerReport::End => divided.leave(id),
            DividerReport::Limit | DividerReport::Counted(_) => {}
        });
        let reporter = matches!(report, DividerReport::Usage(_) | DividerReport::Resumed(_)).then_some(id);
        self.divide(reporter, view, now)
    }

    /// The subscribers at `now`, at most `max` of them.
    pub fn subscribers(&self, max: usize, now: Timestamp) -> Subscribers {
        each_way!(&self.way, divided => {
            Subscribers::new(divided.states(now), divided.callers.per_second(), max)
        })
    }

    /// The ids of the subscribers, in ascending order.
    pub(super) fn ids(&self) -> &[SubscriberId] {
        each_way!(&self.way, divided => divided.each.ids())
    }

    /// Ends the subscribers of a replica.
    pub fn leave_all(&mut self, replica: u64) {
        self.last = None;
        each_way!(&mut self.way, divided => divided.leave_all(replica));
    }

    /// What is granted of the limit.
    pub fn granted(&self) -> Granted {
        each_way!(&self.way, divided => divided.granted())
    }

    /// Moves all instants, of a clock that shows `from`, to one that shows `to`.
    pub fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        (self.learns_until, self.last) = (moved(self.learns_until, from, to), None);
        each_way!(&mut self.way, divided => divided.move_to(from, to));
    }

    /// Adds another division of this limit, whose assignments may be in force at the same time.
    pub fn add(&mut self, other: Self, now: Timestamp) {
        (self.learns_until, self.last) = (self.learns_until.max(other.learns_until), None);
        match (&mut self.way, other.way) {
            (Way::Shares(shares), Way::Shares(more)) => shares.add(more, now),
            (Way::Slices(slices), Way::Slices(more)) => slices.add(more),
            // The other one had another limit.
            (Way::Shares(_), Way::Slices(_)) | (Way::Slices(_), Way::Shares(_)) => self.learn(now),
        }
    }

    /// Counts everything that an earlier owner has assigned as in force, including what is not known here.
    pub fn learn(&mut self, now: Timestamp) {
        (self.learns_until, self.last) = (self.learns_until.max(end_of_assignment(now)), None);
        each_way!(&mut self.way, divided => divided.prolong(now));
    }

    /// Divides without a report, unless the last division was just now.
    pub fn turn(&mut self, view: CounterView, now: Timestamp) -> DivisionOutcome {
        self.divide(None, view, now)
    }

    fn divide(
        &mut self,
        reporter: Option<SubscriberId>,
        view: CounterView,
        now: Timestamp,
    ) -> DivisionOutcome {
        if let (Way::Shares(shares), Some(reporter)) = (&mut self.way, reporter)
            && let Some(outcome) = shares.renew(reporter, view, now)
        {
            return outcome;
        }
        if let Some(Division { granted, next_from }) = self.last.filter(|last| now < last.next_from) {
            match &mut self.way {
                Way::Shares(shares) => shares.note_requested(view.requested, granted, now),
                Way::Slices(slices) => slices.note_requested(view.requested, now),
            }
            // What was used meanwhile stays granted, so it counts.
            let turn = Turn { granted, ..Turn::default() };
            return DivisionOutcome { turn, next_at: Some(next_from), ..DivisionOutcome::default() };
        }
        let learns = now < self.learns_until;
        let visited = self.len();
        let mut outcome = each_way!(&mut self.way, divided => divided.turn(view, learns, now));
        outcome.visited = visited;
        if learns && !self.is_empty() {
            outcome.next_at = outcome.next_at.into_iter().chain([self.learns_until]).min();
        }
        let pause = PAUSE_EACH * u32::try_from(visited).unwrap_or(u32::MAX);
        let granted = outcome.turn.granted;
        let last = Division { granted, next_from: now.after(pause) };
        self.last = (visited > SUBSCRIBERS_AT_ONCE).then_some(last);
        outcome
    }
}
