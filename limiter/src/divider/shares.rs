//! A rate, divided into shares of whole hits a second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Granted, HitRate},
    divider::{
        Outcome, Part, SubscriberId, SubscriberState, Usage,
        assignment::{HEADROOM, end_of_assignment, moved},
        demand::Demand,
        roster::Roster,
    },
    rules::QuotaTerms,
    store::{CounterView, Turn},
    time::Timestamp,
};

mod subscriber;
mod targets;

use subscriber::{HYSTERESIS_DIVISOR, SETTLE, Standing, Subscriber};

/// So much of what is claimed stays unused at most: one of so many.
const UNUSED_DIVISOR: u64 = 50;
/// The greatest share that Envoy takes.
const SHARE_MAX: u64 = u32::MAX as u64;
/// A share that others wait for is kept for this long.
const ROTATION: Duration = Duration::from_secs(5);

/// A rate and its subscribers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    rate: HitRate,
    each: Roster<Subscriber>,
    // Of callers that ask for each request.
    callers: Demand,
    // Since when a share waits for its target.
    changes_since: Option<Timestamp>,
    // The result of the last division, as long as reports do not change it.
    #[serde(skip)]
    settled: Option<Settled>,
}

/// A division after which each subscriber has all that it is to get.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settled {
    held: HitRate,
    until: Option<Timestamp>,
    // Whether all shares cover their demands.
    is_ample: bool,
}

/// What has become of shares that should change.
#[derive(Clone, Copy)]
struct Assigned {
    has_changed: bool,
    // Whether all shares are as they should be.
    is_complete: bool,
}

impl Shares {
    pub(super) fn new(rate: HitRate, now: Timestamp) -> Self {
        Self { rate, each: Roster::default(), callers: Demand::new(now), changes_since: None, settled: None }
    }

    /// The subscribers.
    pub(super) fn roster(&self) -> &Roster<Subscriber> {
        &self.each
    }

    /// What each subscriber has.
    pub(super) fn states(&self, now: Timestamp) -> impl Iterator<Item = SubscriberState> {
        self.each.iter().filter(move |(_, subscriber)| now < subscriber.expires_at).map(
            move |(id, subscriber)| SubscriberState {
                id,
                demand: subscriber.demand.per_second(),
                part: Part::Share(subscriber.given),
                ends_after: subscriber.expires_at.since(now),
                has_ended: subscriber.has_ended,
            },
        )
    }

    /// Hits that callers ask for in each second.
    pub(super) fn callers(&self) -> f64 {
        self.callers.per_second()
    }

    pub(super) fn set_rate(&mut self, rate: HitRate) {
        (self.rate, self.settled) = (rate, None);
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

    /// Gives a subscriber the share of one that has ended: of all, the one whose share is closest to what has passed.
    /// Whichever it was, the shares of all together are the same.
    pub(super) fn resume(&mut self, id: SubscriberId, usage: Usage, now: Timestamp) {
        let has_ended = |subscriber: &Subscriber| subscriber.has_ended && now < subscriber.expires_at;
        let per_second = |(other, subscriber): (SubscriberId, &Subscriber)| {
            let time = now.since(subscriber.demand.since()).as_secs_f64().max(1.0);
            let distance = (usage.allowed as f64 / time - subscriber.given.per_second as f64).abs();
            (other, distance)
        };
        let ended = self.each.iter().filter(|(_, subscriber)| has_ended(subscriber)).map(per_second);
        if let Some((other, _)) = ended.min_by(|(_, one), (_, other)| one.total_cmp(other))
            && let Some(subscriber) = self.each.remove_if(other, |_| true)
        {
            *self.each.get_or_insert_with(id, || Subscriber::new(now)) = subscriber;
        }
    }

    /// Moves all instants to another clock.
    pub(super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.callers.move_to(from, to);
        self.changes_since = self.changes_since.map(|instant| moved(instant, from, to));
        for subscriber in self.each.states_mut() {
            subscriber.demand.move_to(from, to);
            subscriber.allowed.move_to(from, to);
            for instant in [&mut subscriber.settles_at, &mut subscriber.expires_at, &mut subscriber.since] {
                *instant = moved(*instant, from, to);
            }
        }
    }

    /// Adds the subscribers of another division of the same rate. What either has assigned may be in force.
    pub(super) fn add(&mut self, other: Self, now: Timestamp) {
        self.settled = None;
        self.each.add(other.each, |known, subscriber| {
            known.held = known.held.max_of(subscriber.held);
            known.settles_at = now.after(SETTLE);
            known.expires_at = known.expires_at.max(subscriber.expires_at);
        });
    }

    /// Lets everything that is assigned be in force for the longest time.
    pub(super) fn prolong(&mut self, now: Timestamp) {
        self.settled = None;
        for subscriber in self.each.states_mut() {
            subscriber.expires_at = end_of_assignment(now);
        }
    }

    /// All that may be in force.
    pub(super) fn granted(&self) -> Granted {
        Granted { rate: self.held(), hits: 0 }
    }

    pub(super) fn report(&mut self, id: SubscriberId, usage: Usage, terms: QuotaTerms, now: Timestamp) {
        let subscriber = self.each.get_or_insert_with(id, || Subscriber::new(now));
        let before = (subscriber.standing(), subscriber.terms);
        let asked = subscriber.demand.per_second();
        subscriber.terms = terms;
        if !subscriber.was_assigned {
            subscriber.beyond_grant = subscriber.beyond_grant.saturating_add(usage.allowed);
        }
        let hits = usage.allowed.saturating_add(usage.denied);
        subscriber.demand.add(hits, subscriber.given.per_second, now);
        subscriber.allowed.add(usage.allowed, 0, now);
        (subscriber.has_ended, subscriber.is_owed) = (false, true);
        // What it had is renewed with this report.
        subscriber.expires_at = end_of_assignment(now);
        let (standing, asks) = (subscriber.standing(), subscriber.demand.per_second());
        self.settled.take_if(|settled| {
            let stays = match standing {
                Standing::Capped => true,
                Standing::Covered => settled.is_ample || asks == asked,
                Standing::Open => false,
            };
            !stays || before != (standing, terms)
        });
    }

    /// Counts hits that callers have asked for, while the rate is not divided and so much of it is granted.
    pub(super) fn note_asked(&mut self, asked: u64, granted: Granted, now: Timestamp) {
        self.callers.add(asked, self.rate.per_second.saturating_sub(granted.rate.per_second), now);
    }

    /// The outcome of a report that leaves all shares as they are: it renews the share.
    pub(super) fn renew(
        &mut self,
        reporter: SubscriberId,
        view: CounterView,
        now: Timestamp,
    ) -> Option<Outcome> {
        let settled = self.settled.filter(|settled| settled.until.is_none_or(|until| now < until))?;
        let Settled { held, until, is_ample } = settled;
        let left = self.rate.per_second.saturating_sub(held.per_second);
        let is_enough =
            if is_ample { HEADROOM * self.callers.per_second() <= left as f64 } else { view.asked == 0 };
        if !is_enough {
            return None;
        }
        self.callers.add(view.asked, left, now);
        let subscriber = self.each.get_mut(reporter)?;
        (subscriber.expires_at, subscriber.is_owed) = (end_of_assignment(now), false);
        Some(Outcome {
            assignments: vec![(reporter, subscriber.assignment())],
            turn: Turn { used: 0, granted: Granted { rate: held, hits: 0 } },
            next_at: until,
            beyond_grant: std::mem::take(&mut subscriber.beyond_grant),
            ..Outcome::default()
        })
    }

    /// Divides the rate, and assigns what has changed; to those that have reported in any case.
    pub(super) fn turn(&mut self, view: CounterView, learns: bool, now: Timestamp) -> Outcome {
        self.each.retain(|subscriber| now < subscriber.expires_at);
        for subscriber in self.each.states_mut().iter_mut().filter(|subscriber| subscriber.settles_at <= now)
        {
            subscriber.held = subscriber.given;
        }
        let left = self.rate.per_second.saturating_sub(self.held().per_second);
        self.callers.add(view.asked, left, now);
        let active: Vec<usize> =
            (0..self.each.len()).filter(|index| !self.each.states()[*index].has_ended).collect();
        let mut targets = self.targets(&active, now);
        if learns {
            self.learn(&active, &mut targets);
        }
        let Assigned { has_changed, is_complete } = self.assign(&active, &targets, now);
        let converged_after = self.converged_after(has_changed, is_complete, now);
        let mut outcome = Outcome { converged_after, ..Outcome::default() };
        for (id, subscriber) in self.each.iter_mut() {
            // What a newcomer may have from an earlier divider stays until it is measured.
            let is_known = !learns || subscriber.demand.is_measured();
            if std::mem::take(&mut subscriber.is_owed) && is_known {
                outcome.assignments.push((id, subscriber.assignment()));
                subscriber.expires_at = end_of_assignment(now);
            }
            outcome.beyond_grant += std::mem::take(&mut subscriber.beyond_grant);
        }
        let held = self.held();
        outcome.turn = Turn { used: 0, granted: Granted { rate: held, hits: 0 } };
        outcome.next_at = self.next_at(&active, &targets, now);
        self.settled = None;
        if is_complete && !learns {
            self.settled = self.settled(held, outcome.next_at);
        }
        outcome
    }

    /// What the last division has come to, unless any report may change it.
    fn settled(&self, held: HitRate, until: Option<Timestamp>) -> Option<Settled> {
        let (left, callers) =
            (self.rate.per_second.saturating_sub(held.per_second), self.callers.per_second());
        let mut standings = self.each.states().iter().map(Subscriber::standing);
        let is_ample = HEADROOM * callers <= left as f64
            && standings.clone().all(|standing| standing == Standing::Covered);
        let is_settled = is_ample || callers == 0.0 && standings.all(|standing| standing != Standing::Open);
        is_settled.then_some(Settled { held, until, is_ample })
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
        let mut each = active.iter().zip(targets);
        let waits = each.any(|(index, target)| self.each.states()[*index].given.per_second < *target);
        let settle = self.each.states().iter().map(|each| each.settles_at).filter(|at| now < *at).min();
        let rotate = waits.then(|| now.after(ROTATION));
        let expire = self.each.states().iter().map(|each| each.expires_at).min();
        settle.into_iter().chain(rotate).chain(expire).min()
    }

    fn held(&self) -> HitRate {
        self.each.states().iter().map(|subscriber| subscriber.held).fold(HitRate::default(), HitRate::plus)
    }

    /// Applies smaller shares at once, and larger ones as far as the rate is free.
    fn assign(&mut self, active: &[usize], targets: &[u64], now: Timestamp) -> Assigned {
        let rate = self.rate;
        let given = |shares: &Self, index: usize| shares.each.states()[active[index]].given.per_second;
        let is_close = |subscriber: &Subscriber, target: u64| {
            let (given, floor) = (subscriber.given.per_second, subscriber.terms.floor.min(target));
            given > 0 && given >= floor && given.abs_diff(target) <= given / HYSTERESIS_DIVISOR
        };
        let kept: Vec<u64> = active
            .iter()
            .zip(targets)
            .map(|(index, target)| {
                let subscriber = &self.each.states()[*index];
                if is_close(subscriber, *target) { subscriber.given.per_second } else { *target }
            })
            .collect();
        // A share that is a little too large is kept only where that takes nothing from others, and one that is a little
        // too small only where little stays unused.
        let sum = |shares: &[u64]| shares.iter().fold(0_u64, |sum, share| sum.saturating_add(*share));
        let (all, claimed) = (sum(&kept), sum(targets));
        let next: Vec<u64> = if all > rate.per_second {
            kept.iter().zip(targets).map(|(kept, target)| *kept.min(target)).collect()
        } else if all < claimed - claimed / UNUSED_DIVISOR {
            kept.iter().zip(targets).map(|(kept, target)| *kept.max(target)).collect()
        } else {
            kept
        };
        let (mut has_changed, mut is_complete) = (false, true);
        let is_less = |shares: &Self, index: usize| next[index] < given(shares, index);
        let (mut order, mut more): (Vec<usize>, Vec<usize>) =
            (0..active.len()).partition(|index| is_less(self, *index));
        more.sort_by_key(|index| given(self, *index));
        order.extend(more);
        let mut held = self.held();
        for index in order {
            let subscriber = &mut self.each.states_mut()[active[index]];
            let others = held.per_second.saturating_sub(subscriber.held.per_second);
            let share = next[index].min(rate.per_second.saturating_sub(others));
            is_complete &= share == next[index];
            let other_bursts = held.burst.saturating_sub(subscriber.held.burst);
            let burst =
                burst_of(share, rate).min(rate.burst.saturating_sub(other_bursts)).max(u64::from(share > 0));
            if share != subscriber.given.per_second {
                subscriber.give(HitRate { per_second: share, burst }, now);
                held = HitRate { per_second: others, burst: other_bursts }.plus(subscriber.held);
                has_changed = true;
            }
        }
        Assigned { has_changed, is_complete }
    }
}

/// The part of the burst for a share of the rate.
fn burst_of(share: u64, rate: HitRate) -> u64 {
    let part = u128::from(rate.burst) * u128::from(share) / u128::from(rate.per_second.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(SHARE_MAX)
}
