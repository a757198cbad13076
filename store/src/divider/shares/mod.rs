//! A rate, divided into shares of whole hits a second.

use std::time::Duration;

use assign::{AssignedShares, BEGIN_DIVISOR, growth};
use serde::{Deserialize, Serialize};
use subscriber::{DemandCoverage, REPORTED, ShareSubscriber};
use tollgate_counter::{
    algorithm::{Granted, HitRate, QuotaTerms},
    time::Timestamp,
};

use crate::{
    divider::{
        assignment::{
            DELIVERY_MAX, DivisionOutcome, HEADROOM, REPORT_EVERY, SubscriberUsage, UNCERTAIN, brought,
            end_of_assignment, moved,
        },
        demand::SubscriberDemand,
        roster::SubscriberRoster,
    },
    memory::grants::{CounterView, Turn},
    subscribers::{LimitPart, SubscriberId, SubscriberState},
};

mod assign;
mod subscriber;
mod targets;
mod tokens;

/// The greatest share that Envoy takes.
const SHARE_MAX: u64 = u32::MAX as u64;
/// A share that other subscribers wait for stays for this long: two reports.
const ROTATION: Duration = Duration::from_secs(10);

/// A rate and its subscribers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    rate: HitRate,
    pub(super) each: SubscriberRoster<ShareSubscriber>,
    // Of callers that ask for each request.
    pub(super) callers: SubscriberDemand,
    callers_turn: Turns,
    // Hits of the burst that were granted and may have been used, and those that were not, since the last turn.
    spent: u64,
    returned: u64,
    // Hits of the burst that an earlier divider may have granted: they are granted as long as it may, and then count as
    // used.
    unknown: u64,
    // Hits of the burst that it may have granted, and that have not come back since, to be charged.
    lost: u64,
    // Since when a share waits for its target.
    changes_since: Option<Timestamp>,
    // What the counter has been paid.
    #[serde(skip)]
    paid: PaidHits,
    // The result of the last division, as long as reports do not change it.
    #[serde(skip)]
    settled: Option<SettledShares>,
}

/// A division after which each subscriber has all that it is to get.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SettledShares {
    held: HitRate,
    until: Option<Timestamp>,
    // Whether all shares cover their demands.
    is_ample: bool,
}

impl Shares {
    /// Shares of `rate`. An earlier divider may have granted its burst until `unknown_until`.
    pub(super) fn new(rate: HitRate, unknown_until: Timestamp, now: Timestamp) -> Self {
        let lost = rate.burst.saturating_sub(brought(rate.per_second, now.since(unknown_until)));
        let is_known = unknown_until == Timestamp::EPOCH || now < unknown_until;
        Self {
            rate,
            each: SubscriberRoster::default(),
            callers: SubscriberDemand::new(now),
            callers_turn: Turns { has_share: false, since: now },
            spent: 0,
            returned: 0,
            unknown: 0,
            lost: if is_known { 0 } else { lost },
            changes_since: None,
            paid: PaidHits::default(),
            settled: None,
        }
    }

    /// What each subscriber has.
    pub(super) fn states(&self, now: Timestamp) -> impl Iterator<Item = SubscriberState> {
        self.each.iter().filter(move |(_, subscriber)| now < subscriber.expires_at).map(
            move |(id, subscriber)| SubscriberState {
                id,
                demand: subscriber.demand.per_second(),
                part: LimitPart::Share(subscriber.granted),
                ends_after: subscriber.expires_at.since(now),
                has_ended: subscriber.has_ended,
            },
        )
    }

    pub(super) fn set_rate(&mut self, rate: HitRate) {
        (self.rate, self.settled) = (rate, None);
    }

    /// Forgets what only this replica knows: the result of the last division, so the next report divides the rate, and
    /// what the counter has been paid, so smaller shares give nothing back.
    pub(super) fn forget_local_state(&mut self) {
        (self.settled, self.paid) = (None, PaidHits::default());
        self.each.states_mut().iter_mut().for_each(|subscriber| subscriber.tokens.forget_paid());
    }

    pub(super) fn leave(&mut self, id: SubscriberId) {
        self.settled = None;
        self.each.leave(id);
    }

    /// Ends the subscribers of a replica.
    pub(super) fn leave_all(&mut self, replica: u64) {
        self.settled = None;
        self.each.leave_all(replica);
    }

    /// Gives a subscriber the share of one of the same caller that has ended: the smallest one of which its client can
    /// have let so much pass. So clients that come back one after the other never have more together than before. If
    /// there is none, the demand of the client is known nevertheless, and so what it may have to itself.
    pub(super) fn resume(&mut self, id: SubscriberId, usage: SubscriberUsage, now: Timestamp) {
        let could_be = |each: &ShareSubscriber| {
            each.has_ended && now < each.expires_at && each.may_have_passed(usage, now)
        };
        let ended = self.each.of_caller(id.caller()).filter(|(_, each)| could_be(each));
        // Its client may be another one, whose bucket holds less: it must not grow. What it may have is then held until
        // the others have come back, too.
        let smallest =
            ended.map(|(other, each)| (other, each.granted)).reduce(|(one, share), (other, its)| {
                let burst = share.burst.min(its.burst);
                if share.per_second <= its.per_second {
                    (one, HitRate { burst, ..share })
                } else {
                    (other, HitRate { burst, ..its })
                }
            });
        let resumed = smallest.and_then(|(other, HitRate { burst: least, .. })| {
            let ended = self.each.remove_if(other, |_| true)?;
            // It may have been that of another client, for which one of the others is left then.
            let others = self.each.iter_mut().filter(|(other, _)| other.caller() == id.caller());
            others.filter(|(_, each)| could_be(each)).for_each(|(_, each)| each.limit_burst(least));
            Some(ended.resumed(least, usage.allowed_before, now))
        });
        let subscriber = resumed.unwrap_or_else(|| ShareSubscriber {
            reported: usage.allowed_before,
            ..ShareSubscriber::new(now.before(REPORT_EVERY))
        });
        self.each.get_or_insert_with(id, || subscriber);
    }

    /// Moves all instants to another clock.
    pub(super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.callers.move_to(from, to);
        self.paid.at = moved(self.paid.at, from, to);
        self.callers_turn.since = moved(self.callers_turn.since, from, to);
        self.changes_since = self.changes_since.map(|instant| moved(instant, from, to));
        for subscriber in self.each.states_mut() {
            subscriber.demand.move_to(from, to);
            subscriber.allowed.move_to(from, to);
            subscriber.tokens.move_to(from, to);
            if let Some(pending) = &mut subscriber.pending {
                pending.at = moved(pending.at, from, to);
            }
            for instant in [&mut subscriber.settles_at, &mut subscriber.expires_at, &mut subscriber.since] {
                *instant = moved(*instant, from, to);
            }
        }
    }

    /// Adds the subscribers of another division of the same rate. What either has assigned may be in force.
    pub(super) fn add(&mut self, mut other: Self, now: Timestamp) {
        self.settled = None;
        // Another counter was paid.
        other.forget_local_state();
        self.spent = self.spent.saturating_add(other.spent);
        self.unknown = self.unknown.max(other.unknown);
        self.lost = self.lost.max(other.lost);
        self.each.add(other.each, |known, subscriber| {
            let held = known.held.max_of(subscriber.held);
            // The later report is the one whose assignment is in force.
            if known.expires_at < subscriber.expires_at {
                *known = subscriber;
            }
            known.held = held;
            known.settles_at = known.settles_at.max(now.after(REPORTED));
        });
    }

    /// Lets everything that is assigned be in force for the longest time.
    pub(super) fn prolong(&mut self, now: Timestamp) {
        self.settled = None;
        for subscriber in self.each.states_mut() {
            subscriber.expires_at = end_of_assignment(now);
        }
    }

    /// All that may be in force. What is left of the rate has a burst of one at least.
    pub(super) fn granted(&self) -> Granted {
        let HitRate { per_second, burst } = self.reserved();
        let burst = if per_second < self.rate.per_second {
            burst.min(self.rate.burst.saturating_sub(1))
        } else {
            burst
        };
        Granted { rate: HitRate { per_second, burst }, hits: 0 }
    }

    fn reserved(&self) -> HitRate {
        self.held().plus(HitRate { per_second: 0, burst: self.unknown })
    }

    pub(super) fn report(
        &mut self,
        id: SubscriberId,
        usage: SubscriberUsage,
        terms: QuotaTerms,
        now: Timestamp,
    ) {
        let new = || ShareSubscriber { reported: usage.allowed_before, ..ShareSubscriber::new(now) };
        let subscriber = self.each.get_or_insert_with(id, new);
        let before = (subscriber.coverage(), subscriber.terms);
        let demand_before = subscriber.demand.per_second();
        subscriber.terms = terms;
        // A bucket that is sent again after its end would be full again.
        if subscriber.granted.per_second > 0 && subscriber.expires_at <= now.after(DELIVERY_MAX + UNCERTAIN) {
            self.spent = self.spent.saturating_add(subscriber.begin_anew(now));
        }
        if !subscriber.was_assigned {
            subscriber.beyond_grant = subscriber.beyond_grant.saturating_add(usage.allowed);
        }
        // With those of reports that were lost.
        let allowed = usage.allowed_in_all().saturating_sub(subscriber.reported);
        subscriber.reported = subscriber.reported.saturating_add(allowed);
        self.paid.add_until(now);
        let returned = subscriber.tokens.report(allowed, subscriber.granted, self.paid.hits, now);
        self.returned = self.returned.saturating_add(returned);
        let hits = usage.allowed.saturating_add(usage.denied);
        subscriber.demand.add(hits, subscriber.granted.per_second, now);
        subscriber.allowed.add(usage.allowed, 0, now);
        subscriber.is_refusing = usage.denied > 0;
        (subscriber.has_ended, subscriber.is_owed) = (false, true);
        // What it had is renewed with this report.
        subscriber.expires_at = end_of_assignment(now);
        let coverage = subscriber.coverage();
        let demand = subscriber.demand.per_second();
        self.settled.take_if(|settled| {
            let stays = match coverage {
                DemandCoverage::Capped => true,
                DemandCoverage::Covered => settled.is_ample || demand == demand_before,
                DemandCoverage::Open => false,
            };
            !stays || before != (coverage, terms)
        });
    }

    /// Counts hits that callers have requested, while the rate is not divided and so much of it is granted.
    pub(super) fn note_requested(&mut self, requested: u64, granted: Granted, now: Timestamp) {
        self.callers.add(requested, self.rate.per_second.saturating_sub(granted.rate.per_second), now);
    }

    /// The outcome of a report that leaves all shares as they are: it renews the share.
    pub(super) fn renew(
        &mut self,
        reporter: SubscriberId,
        view: CounterView,
        now: Timestamp,
    ) -> Option<DivisionOutcome> {
        let settled = self.settled.filter(|settled| settled.until.is_none_or(|until| now < until))?;
        let SettledShares { held, until, is_ample } = settled;
        let left = self.rate.per_second.saturating_sub(held.per_second);
        let is_enough =
            if is_ample { HEADROOM * self.callers.per_second() <= left as f64 } else { view.requested == 0 };
        if !is_enough {
            return None;
        }
        let rate = self.rate;
        let subscriber = self.each.get_mut(reporter)?;
        if growth(subscriber, rate, rate.burst, view.free) > 0 {
            return None;
        }
        self.callers.add(view.requested, left, now);
        (subscriber.expires_at, subscriber.is_owed) = (end_of_assignment(now), false);
        Some(DivisionOutcome {
            assignments: vec![(reporter, subscriber.assignment())],
            turn: Turn {
                spent: std::mem::take(&mut self.spent),
                returned: std::mem::take(&mut self.returned),
                granted: Granted { rate: held, hits: 0 },
                ..Turn::default()
            },
            next_at: until,
            beyond_grant: std::mem::take(&mut subscriber.beyond_grant),
            ..DivisionOutcome::default()
        })
    }

    /// Divides the rate, and assigns what has changed; to those that have reported in any case.
    pub(super) fn turn(&mut self, view: CounterView, learns: bool, now: Timestamp) -> DivisionOutcome {
        self.paid.add_until(now);
        let has_begun = self.settle(now);
        let mut free = self.free_burst(view, learns);
        let lacks_burst = free < self.rate.burst.saturating_sub(self.reserved().burst);
        let left = self.rate.per_second.saturating_sub(self.held().per_second);
        self.callers.add(view.requested, left, now);
        let active: Vec<usize> =
            (0..self.each.len()).filter(|index| !self.each.states()[*index].has_ended).collect();
        let mut targets = self.targets(&active, lacks_burst, now);
        if learns {
            self.learn(&active, &mut targets);
        }
        let AssignedShares { has_changed, is_complete } = self.assign(&active, &targets, &mut free, now);
        let converged_after = self.converged_after(has_changed || has_begun, is_complete, now);
        let mut outcome = DivisionOutcome { converged_after, ..DivisionOutcome::default() };
        for (id, subscriber) in self.each.iter_mut() {
            // What a newcomer may have from an earlier divider stays until it is measured.
            let is_known = !learns || subscriber.demand.is_measured();
            if std::mem::take(&mut subscriber.is_owed) && is_known {
                outcome.assignments.push((id, subscriber.assignment()));
                subscriber.expires_at = end_of_assignment(now);
            }
            outcome.beyond_grant += std::mem::take(&mut subscriber.beyond_grant);
        }
        let held = self.granted().rate;
        self.paid.per_second = self.rate.per_second.saturating_sub(held.per_second);
        let spent = std::mem::take(&mut self.spent);
        let returned = std::mem::take(&mut self.returned);
        outcome.turn = Turn { used: 0, spent, returned, granted: Granted { rate: held, hits: 0 } };
        outcome.next_at = self.next_at(&active, &targets, now);
        self.settled = None;
        if is_complete && !learns {
            self.settled = self.settled(held, outcome.next_at);
        }
        outcome
    }

    /// What the last division has come to, unless any report may change it.
    fn settled(&self, held: HitRate, until: Option<Timestamp>) -> Option<SettledShares> {
        let (left, callers) =
            (self.rate.per_second.saturating_sub(held.per_second), self.callers.per_second());
        let mut coverages = self.each.states().iter().map(ShareSubscriber::coverage);
        let is_ample = HEADROOM * callers <= left as f64
            && coverages.clone().all(|coverage| coverage == DemandCoverage::Covered);
        let is_settled =
            is_ample || callers == 0.0 && coverages.all(|coverage| coverage != DemandCoverage::Open);
        is_settled.then_some(SettledShares { held, until, is_ample })
    }

    /// The time from the first change until all shares are as they should be, if that is now.
    fn converged_after(&mut self, has_changed: bool, is_complete: bool, now: Timestamp) -> Option<Duration> {
        if !is_complete {
            self.changes_since.get_or_insert(now);
            return None;
        }
        let since = self.changes_since.take();
        (has_changed || since.is_some()).then(|| now.since(since.unwrap_or(now)))
    }

    /// The next instant at which something changes without a report.
    fn next_at(&self, active: &[usize], targets: &[u64], now: Timestamp) -> Option<Timestamp> {
        let states = || active.iter().map(|index| &self.each.states()[*index]);
        let waits = states().zip(targets).any(|(each, target)| each.next_share().per_second < *target);
        let settle = self.each.states().iter().map(|each| each.settles_at).filter(|at| now < *at).min();
        // Those that would have a share by turns wait for the end of the first one.
        let wants = self.callers.per_second() > 0.0 && !self.callers_turn.has_share
            || states().any(|each| each.demand.per_second() > 0.0 && each.next_share().per_second == 0);
        let turns = states().map(ShareSubscriber::turns).chain([self.callers_turn]);
        let ends = turns.filter(|turns| turns.has_share).map(|turns| turns.since.after(ROTATION));
        let rotate = if wants { ends.filter(|at| now < *at).min() } else { None };
        let retry = waits.then(|| now.after(ROTATION));
        let begin = states().filter_map(|each| each.pending).map(|pending| pending.at).min();
        let expire = self.each.states().iter().map(|each| each.expires_at).min();
        settle.into_iter().chain(rotate).chain(retry).chain(begin).chain(expire).min()
    }

    /// Removes what is over, and gives what was pending. Returns whether any has begun.
    fn settle(&mut self, now: Timestamp) -> bool {
        let mut spent = 0_u64;
        self.each.retain(|subscriber| {
            let is_over = subscriber.expires_at <= now;
            if is_over {
                spent = spent.saturating_add(subscriber.held.burst);
            }
            !is_over
        });
        let mut has_begun = false;
        for subscriber in self.each.states_mut() {
            if subscriber.settles_at <= now {
                spent = spent.saturating_add(subscriber.settle());
            }
            if subscriber.has_ended {
                subscriber.cancel(now);
            }
            if let Some(pending) = subscriber.pending.filter(|pending| pending.at <= now) {
                subscriber.grant(pending.share, self.paid.hits, now);
                has_begun = true;
            }
        }
        self.spent = self.spent.saturating_add(spent);
        has_begun
    }

    /// The hits of the burst that are free. While the divider `learns`, clients may have all others, but for a tenth of
    /// what the rate brings in a second.
    fn free_burst(&mut self, view: CounterView, learns: bool) -> u64 {
        let lost = std::mem::take(&mut self.lost).min(view.free);
        self.spent = self.spent.saturating_add(lost);
        let known = (view.free - lost).saturating_add(self.returned);
        let free = known.min(self.rate.burst.saturating_sub(self.reserved().burst));
        if !learns {
            self.spent = self.spent.saturating_add(std::mem::take(&mut self.unknown));
            return free;
        }
        let retained = free.min((self.rate.per_second / BEGIN_DIVISOR).max(1));
        self.unknown = self.unknown.saturating_add(free - retained);
        retained
    }

    fn held(&self) -> HitRate {
        self.each.states().iter().map(|subscriber| subscriber.held).fold(HitRate::default(), HitRate::plus)
    }
}

/// What is left of the rate pays what the counter owes. A full bucket loses what more the rate brings, so hits of the
/// burst that were charged, and come back later, are paid by then as far as the rate has brought them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PaidHits {
    // So many until `at`, and then so many in each second.
    hits: f64,
    at: Timestamp,
    per_second: u64,
}

impl PaidHits {
    fn add_until(&mut self, now: Timestamp) {
        self.hits += self.per_second as f64 * now.since(self.at).as_secs_f64();
        self.at = now;
    }
}

/// The turns of one that has a share at times only.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Turns {
    has_share: bool,
    // Since when it has a share, or waits for one.
    since: Timestamp,
}

impl Turns {
    /// Less comes first: a turn that is not over, then the longest wait, then the last turn that is over.
    fn rank(self, now: Timestamp) -> (u8, u64) {
        let since = self.since.as_nanos();
        match self.has_share {
            true if now < self.since.after(ROTATION) => (0, since),
            false => (1, since),
            true => (2, u64::MAX - since),
        }
    }
}
