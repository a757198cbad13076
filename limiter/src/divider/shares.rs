//! A rate, divided into shares of whole hits a second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Granted, HitRate},
    divider::{
        Assignment, Outcome, Part, SubscriberId, SubscriberState, Usage,
        assignment::{HEADROOM, end_of_assignment, moved},
        demand::Demand,
        max_min::{Claim, divide, whole},
        roster::{Roster, Subscribed},
    },
    rules::QuotaTerms,
    store::{CounterView, Turn},
    time::Timestamp,
};

/// The time after which a smaller share is in force. Greater ones wait for it.
const SETTLE: Duration = Duration::from_millis(500);
/// A share changes only by more than this part of it: one of so many.
const HYSTERESIS_DIVISOR: u64 = 10;
/// So much of what is claimed stays unused at most: one of so many.
const UNUSED_DIVISOR: u64 = 50;
/// The part of the rate that subscribers get at least, together, if they ask for it: one of so many.
const FLOOR_DIVISOR: f64 = 20.0;
/// A share that others wait for is kept for this long.
const ROTATION: Duration = Duration::from_secs(5);
/// The greatest share that Envoy takes.
const SHARE_MAX: u64 = u32::MAX as u64;

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

/// How the share of a subscriber compares with its demand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The share covers the demand.
    Covered,
    /// The demand is above the share by so much that only less demand of others makes the share larger.
    Capped,
    /// The share may change with the demand.
    Open,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Subscriber {
    terms: QuotaTerms,
    demand: Demand,
    // Of it, what passes.
    allowed: Demand,
    // The last assignment.
    given: HitRate,
    // The greatest that may be in force, until `settles_at`.
    held: HitRate,
    settles_at: Timestamp,
    expires_at: Timestamp,
    // Since when it waits for a share, or has one.
    since: Timestamp,
    has_ended: bool,
    // Whether it has hits that no assignment allows.
    was_assigned: bool,
    beyond_grant: u64,
}

/// What has become of shares that should change.
struct Assigned {
    // The positions of subscribers whose share has changed.
    changed: Vec<usize>,
    // Whether all shares are as they should be.
    is_complete: bool,
}

impl Subscriber {
    fn new(now: Timestamp) -> Self {
        Self {
            terms: QuotaTerms::default(),
            demand: Demand::new(now),
            allowed: Demand::new(now),
            given: HitRate::default(),
            held: HitRate::default(),
            settles_at: now,
            expires_at: end_of_assignment(now),
            since: now,
            has_ended: false,
            was_assigned: false,
            beyond_grant: 0,
        }
    }

    fn give(&mut self, share: HitRate, now: Timestamp) {
        if (self.given.per_second == 0) != (share.per_second == 0) {
            self.since = now;
        }
        self.held = self.held.max_of(share);
        self.given = share;
        self.settles_at = now.after(SETTLE);
        self.was_assigned = true;
    }

    fn needs(&self) -> f64 {
        let given = self.given.per_second as f64;
        if !self.demand.is_measured() {
            return given;
        }
        given.min((HEADROOM * self.demand.per_second()).max(self.floor()))
    }

    fn floor(&self) -> f64 {
        self.terms.floor as f64
    }

    fn is_idle(&self) -> bool {
        self.demand.is_measured() && self.demand.per_second() == 0.0
    }

    fn standing(&self) -> Standing {
        let (given, claimed) = (self.given.per_second as f64, HEADROOM * self.demand.per_second());
        // A share that is kept may be a little less than what the limit allows.
        let most = given + given / HYSTERESIS_DIVISOR as f64;
        if self.has_ended || !self.demand.is_measured() {
            Standing::Open
        } else if claimed <= given {
            Standing::Covered
        } else if given > 0.0 && claimed >= most + 1.0 {
            Standing::Capped
        } else {
            Standing::Open
        }
    }

    fn assignment(&self) -> Assignment {
        if self.given.per_second == 0 { Assignment::Deny } else { Assignment::Share(self.given) }
    }
}

impl Subscribed for Subscriber {
    fn end(&mut self) {
        self.has_ended = true;
    }
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
        subscriber.has_ended = false;
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

    /// The outcome of a report that leaves all shares as they are: it renews the share.
    fn renew(&mut self, reporter: SubscriberId, view: CounterView, now: Timestamp) -> Option<Outcome> {
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
        subscriber.expires_at = end_of_assignment(now);
        Some(Outcome {
            assignments: vec![(reporter, subscriber.assignment())],
            turn: Turn { used: 0, granted: Granted { rate: held, hits: 0 } },
            next_at: until,
            beyond_grant: std::mem::take(&mut subscriber.beyond_grant),
            converged_after: None,
        })
    }

    /// Divides the rate, and assigns what has changed; to the `reporter` in any case.
    pub(super) fn turn(
        &mut self,
        reporter: Option<SubscriberId>,
        view: CounterView,
        learns: bool,
        now: Timestamp,
    ) -> Outcome {
        if let Some(outcome) = reporter.and_then(|reporter| self.renew(reporter, view, now)) {
            return outcome;
        }
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
        let Assigned { changed, is_complete } = self.assign(&active, &targets, now);
        let converged_after = self.converged_after(!changed.is_empty(), is_complete, now);
        let mut outcome = Outcome { converged_after, ..Outcome::default() };
        for (index, (id, subscriber)) in self.each.iter_mut().enumerate() {
            // What a newcomer may have from an earlier divider stays until it is measured.
            let is_known = !learns || subscriber.demand.is_measured();
            if is_known && (reporter == Some(id) || changed.contains(&index)) {
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

    /// What a subscriber that asks for it gets at least.
    fn floor(&self, number: usize) -> f64 {
        (self.rate.per_second as f64 / FLOOR_DIVISOR / number.max(1) as f64).max(1.0)
    }

    /// The shares that these subscribers should have.
    fn targets(&self, active: &[usize], now: Timestamp) -> Vec<u64> {
        let (rate, floor) = (self.rate.per_second as f64, self.floor(active.len()));
        let callers = self.callers.per_second();
        let needed: f64 =
            callers * HEADROOM + active.iter().map(|index| self.each.states()[*index].needs()).sum::<f64>();
        let idle = active.iter().filter(|index| self.each.states()[**index].is_idle()).count();
        let claim = |subscriber: &Subscriber| {
            let (demand, given) = (subscriber.demand, subscriber.given.per_second as f64);
            match demand.is_measured() {
                true if demand.per_second() > 0.0 => (HEADROOM * demand.per_second()).max(floor),
                // All that ask for nothing have a tenth of the rate at most.
                true => floor.min(rate / 10.0 / idle as f64),
                false if given > 0.0 => given,
                false => floor.max((rate - needed) / 2.0),
            }
        };
        // Weights divide what is left after one hit a second for each that asks, or after half of the rate.
        let asking = active.len() - idle + usize::from(callers > 0.0);
        let least = (rate / 2.0 / asking.max(1) as f64).min(1.0);
        let mut claims: Vec<Claim> = active
            .iter()
            .map(|index| {
                let subscriber = &self.each.states()[*index];
                let (own, least) = (subscriber.floor(), if subscriber.is_idle() { 0.0 } else { least });
                let weight = f64::from(subscriber.terms.weight.get());
                Claim { hits: claim(subscriber).max(own), weight, floor: own.max(least) }
            })
            .collect();
        if callers > 0.0 {
            claims.push(Claim { hits: HEADROOM * callers, weight: 1.0, floor: least });
        }
        let mut parts = divide(rate, &claims);
        // What remains is for more of the same.
        let rest = (rate - parts.iter().sum::<f64>()).max(0.0);
        let asked = |index: &usize| self.each.states()[*index].demand.per_second();
        let all = callers + active.iter().map(asked).sum::<f64>();
        if all > 0.0 {
            for (index, (part, claim)) in active.iter().zip(parts.iter_mut().zip(&mut claims)) {
                let more = rest * asked(index) / all;
                *part += more;
                claim.hits += more;
            }
        }
        if callers > 0.0 {
            parts.pop();
            claims.pop();
        }
        let mut targets = whole(self.rate.per_second, &parts, &claims, &self.order(active, &parts, now));
        targets.iter_mut().for_each(|target| *target = (*target).min(SHARE_MAX));
        targets
    }

    /// Confirms the rates that pass already, and adds at most the floor to each.
    fn learn(&self, active: &[usize], targets: &mut [u64]) {
        let floor = self.floor(active.len());
        for (index, target) in active.iter().zip(targets) {
            let subscriber = &self.each.states()[*index];
            let confirmed = subscriber.allowed.per_second().max(floor).ceil() as u64;
            *target = if subscriber.demand.is_measured() { (*target).min(confirmed) } else { 0 };
        }
    }

    /// The order in which what is left over of fractions is given: first to those that would have nothing, by turns.
    fn order(&self, active: &[usize], parts: &[f64], now: Timestamp) -> Vec<usize> {
        let rank = |(index, part): (&usize, &f64)| {
            let subscriber = &self.each.states()[*index];
            let keeps = subscriber.given.per_second > 0 && now < subscriber.since.after(ROTATION);
            ((*part >= 1.0, subscriber.is_idle(), !keeps, subscriber.since), part.fract())
        };
        let ranks: Vec<_> = active.iter().zip(parts).map(rank).collect();
        let mut order: Vec<usize> = (0..active.len()).collect();
        order.sort_by(|one, other| {
            let ((one, fraction), (other, other_fraction)) = (&ranks[*one], &ranks[*other]);
            one.cmp(other).then(other_fraction.total_cmp(fraction))
        });
        order
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
        let (mut changed, mut is_complete) = (Vec::new(), true);
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
                changed.push(active[index]);
            }
        }
        Assigned { changed, is_complete }
    }
}

/// The part of the burst for a share of the rate.
fn burst_of(share: u64, rate: HitRate) -> u64 {
    let part = u128::from(rate.burst) * u128::from(share) / u128::from(rate.per_second.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(SHARE_MAX)
}
