//! Hits, divided into slices that are granted once.
//!
//! Of each subscriber the ledger knows `used`, what it has reported, and `bound`, the most that it can have let pass. The
//! difference is granted: it counts as charged until a report proves that it was used, or cannot be used any more.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Granted, QuotaTerms},
    time::Timestamp,
};

use crate::{
    divider::{
        assignment::{Assignment, DivisionOutcome, SubscriberUsage, UNCERTAIN, end_of_assignment, moved},
        demand::SubscriberDemand,
        max_min::{SubscriberClaim, divide, whole},
        roster::SubscriberRoster,
    },
    memory::grants::{CounterView, Turn},
    subscribers::{LimitPart, SubscriberId, SubscriberState},
};

mod subscriber;

use subscriber::{SLICE_SECONDS, SettledHits, SliceSubscriber};

/// The part of the limit for a newcomer: one of so many.
const NEWCOMER_DIVISOR: u64 = 25;
/// The largest slice that Envoy takes.
const SLICE_MAX: u64 = u32::MAX as u64;
/// A hit that is left to callers is theirs for this long.
const CALLERS_TURN: Duration = Duration::from_secs(1);
/// Callers have a turn for this long if it is not known when the hit comes: two reports.
const CALLERS_TURN_MAX: Duration = Duration::from_secs(10);
/// The time between two turns while hits come one by one.
const NEXT_HIT_EVERY: Duration = Duration::from_millis(200);
/// The shortest time between two turns without a report.
const PAUSE: Duration = Duration::from_millis(20);

/// The subscribers of a limit that is divided into slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Slices {
    allowance: u64,
    pub(super) each: SubscriberRoster<SliceSubscriber>,
    // Of callers that ask for each request.
    pub(super) callers: SubscriberDemand,
    // Of hits that come one by one.
    next_hit: NextHit,
    // Hits that subscribers have used since the last turn, to be charged.
    used: u64,
    beyond_grant: u64,
}

/// A slice that is to be granted.
struct DueSlice {
    id: SubscriberId,
    hits: u64,
    reason: SliceReason,
}

/// Where the next hit goes while there is none for each subscriber that waits, and callers ask. Subscribers and callers
/// take turns, because otherwise the faster ones would get each hit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum NextHit {
    /// The hit is reserved for a subscriber.
    Subscriber,
    /// The hit is left to callers, until some time after it comes. That time is not known while slices are out.
    Callers { since: Timestamp, until: Option<Timestamp> },
}

impl NextHit {
    /// Where the next hit goes at `now`, if `free` hits are free and `left` are in slices.
    fn updated(self, free: u64, left: u64, view: CounterView, now: Timestamp) -> Self {
        let Self::Callers { since, until } = self else { return self };
        let comes_after = match (free, left) {
            (0, 0) => view.free_after,
            (0, _) => None,
            (_, _) => Some(Duration::ZERO),
        };
        let until = until.or(comes_after.map(|after| now.after(after + CALLERS_TURN)));
        let is_over = until.unwrap_or(since.after(CALLERS_TURN_MAX)) <= now;
        if is_over { Self::Subscriber } else { Self::Callers { since, until } }
    }
}

/// Why a slice is granted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SliceReason {
    /// The last one is used up soon.
    Due,
    /// The last one is much too large.
    Spare,
}

impl Slices {
    pub(super) fn new(allowance: u64, now: Timestamp) -> Self {
        Self {
            allowance,
            each: SubscriberRoster::default(),
            callers: SubscriberDemand::new(now),
            next_hit: NextHit::Callers { since: now, until: None },
            used: 0,
            beyond_grant: 0,
        }
    }

    /// What each subscriber has.
    pub(super) fn states(&self, now: Timestamp) -> impl Iterator<Item = SubscriberState> {
        self.each.iter().filter(move |(_, subscriber)| now < subscriber.expires_at).map(
            move |(id, subscriber)| SubscriberState {
                id,
                demand: subscriber.demand.per_second(),
                part: LimitPart::Slice {
                    hits: subscriber.slice.map_or(0, |slice| slice.hits),
                    left: subscriber.left(),
                },
                ends_after: subscriber.expires_at.since(now),
                has_ended: subscriber.has_ended,
            },
        )
    }

    pub(super) fn set_allowance(&mut self, allowance: u64) {
        self.allowance = allowance;
    }

    pub(super) fn leave(&mut self, id: SubscriberId) {
        self.each.leave(id);
    }

    /// Ends the subscribers of a replica.
    pub(super) fn leave_all(&mut self, replica: u64) {
        self.each.leave_all(replica);
    }

    /// Moves all instants to another clock.
    pub(super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.callers.move_to(from, to);
        for subscriber in self.each.states_mut() {
            subscriber.demand.move_to(from, to);
            subscriber.since = moved(subscriber.since, from, to);
            subscriber.reported_at = moved(subscriber.reported_at, from, to);
            subscriber.expires_at = moved(subscriber.expires_at, from, to);
            if let Some(slice) = &mut subscriber.slice {
                slice.given_at = moved(slice.given_at, from, to);
            }
        }
        if let NextHit::Callers { since, until } = &mut self.next_hit {
            *since = moved(*since, from, to);
            *until = until.map(|until| moved(until, from, to));
        }
    }

    /// Adds the subscribers of another division of the same hits. What either has assigned may be used.
    pub(super) fn add(&mut self, other: Self) {
        self.used = self.used.saturating_add(other.used);
        self.each.add(other.each, |known, subscriber| {
            known.bound = known.bound.saturating_add(subscriber.left());
            known.has_lost_report |= subscriber.has_lost_report;
            known.expires_at = known.expires_at.max(subscriber.expires_at);
        });
    }

    /// Lets everything that is assigned be in force for the longest time.
    pub(super) fn prolong(&mut self, now: Timestamp) {
        for subscriber in self.each.states_mut() {
            subscriber.expires_at = end_of_assignment(now);
        }
    }

    /// All that may still be used, and what was used and is not charged yet.
    pub(super) fn granted(&self) -> Granted {
        Granted { hits: self.left().saturating_add(self.used), ..Granted::default() }
    }

    /// Gives a subscriber the slice of one of the same caller that has ended, and whose last report was that of this
    /// client, or the one before if that was lost. Other subscribers may have reported at that time, so the most that
    /// any of them has left counts for it.
    pub(super) fn resume(&mut self, id: SubscriberId, usage: SubscriberUsage, now: Timestamp) {
        let has_ended = |each: &SliceSubscriber| each.has_ended && now.after(UNCERTAIN) < each.expires_at;
        let has_lost = |each: &SliceSubscriber| each.has_lost_report || each.reports_after(2, now);
        let could_be = |each: &SliceSubscriber| {
            has_ended(each) && (each.reports_after(1, now) || each.reports_after(2, now))
        };
        let ended = || self.each.of_caller(id.caller()).filter(|(_, each)| could_be(each));
        let Some(most) = ended().map(|(_, each)| each.left()).max() else { return };
        // The rest is that of the others, and none of these has less.
        let Some((other, _)) = ended().min_by_key(|(_, each)| each.left()) else { return };
        let has_lost_report = ended().any(|(_, each)| has_lost(each));
        if let Some(subscriber) = self.each.remove_if(other, |_| true) {
            let reported = usage.allowed_before;
            *self.each.get_or_insert_with(id, || SliceSubscriber::new(now)) =
                SliceSubscriber { has_lost_report, ..subscriber.resumed(most, reported) };
        }
    }

    pub(super) fn report(
        &mut self,
        id: SubscriberId,
        usage: SubscriberUsage,
        terms: QuotaTerms,
        now: Timestamp,
    ) {
        // A bucket that is sent again after its end would be full again, so what was left counts as used.
        let is_over = |each: &SliceSubscriber| each.has_ended || each.expires_at <= now.after(UNCERTAIN);
        if let Some(over) = self.each.remove_if(id, is_over) {
            self.used = self.used.saturating_add(over.left());
        }
        let subscriber = self.each.get_or_insert_with(id, || SliceSubscriber {
            reported: usage.allowed_before,
            ..SliceSubscriber::new(now)
        });
        // With those of reports that were lost.
        let allowed = usage.allowed_in_all().saturating_sub(subscriber.reported);
        let usage = SubscriberUsage { allowed, ..usage };
        subscriber.reported = subscriber.reported.saturating_add(allowed);
        (subscriber.terms, subscriber.reported_at) = (terms, now);
        subscriber.demand.add(usage.allowed.saturating_add(usage.denied), 0, now);
        let SettledHits { beyond, lost } = subscriber.settle(usage, now);
        (subscriber.expires_at, subscriber.is_owed) = (end_of_assignment(now), true);
        self.used = self.used.saturating_add(usage.allowed).saturating_add(lost);
        self.beyond_grant = self.beyond_grant.saturating_add(beyond);
    }

    /// Counts hits that callers have requested, while the hits are not divided.
    pub(super) fn note_requested(&mut self, requested: u64, now: Timestamp) {
        self.callers.add(requested, 0, now);
    }

    /// Gives slices to subscribers that are due; those that have reported get an assignment in any case.
    pub(super) fn turn(&mut self, view: CounterView, learns: bool, now: Timestamp) -> DivisionOutcome {
        self.callers.add(view.requested, 0, now);
        self.expire(now);
        let mut outcome = DivisionOutcome::default();
        let mut free = view.free.saturating_sub(self.used).saturating_sub(self.left());
        let waiting = self.each.states().iter().filter(|each| each.is_waiting()).count() as u64;
        let is_one_by_one = !learns && self.callers.per_second() > 0.0 && free <= waiting && waiting > 0;
        if is_one_by_one {
            self.next_hit = self.next_hit.updated(free, self.left(), view, now);
            if self.next_hit != NextHit::Subscriber {
                free = free.saturating_sub(1);
            }
        }
        if !learns {
            for DueSlice { id, hits, reason } in self.parts(free, now) {
                let hits = hits.min(free);
                // What is spare ends also without a smaller slice.
                if (hits > 0 || reason == SliceReason::Spare)
                    && let Some(subscriber) = self.each.get_mut(id)
                {
                    free -= hits;
                    self.used = self.used.saturating_add(subscriber.grant(hits, now));
                    self.next_hit = NextHit::Callers { since: now, until: None };
                    let slice = if hits > 0 { Assignment::Slice(hits) } else { Assignment::Deny };
                    outcome.assignments.push((id, slice));
                }
            }
        }
        for (id, subscriber) in self.each.iter_mut() {
            // What it may have from an earlier divider, or over an earlier stream, stays until its end.
            let may_have_one = (learns || subscriber.left() > 0) && subscriber.slice.is_none();
            if std::mem::take(&mut subscriber.is_owed) && !may_have_one {
                outcome.assignments.push((id, subscriber.renewal()));
            }
        }
        let used = std::mem::take(&mut self.used);
        let mut granted = self.granted();
        let is_kept = is_one_by_one && self.next_hit == NextHit::Subscriber;
        granted.hits = granted.hits.saturating_add(is_kept.into());
        outcome.turn = Turn { used, granted, ..Turn::default() };
        outcome.beyond_grant = std::mem::take(&mut self.beyond_grant);
        let next_hit = is_one_by_one.then(|| now.after(NEXT_HIT_EVERY));
        outcome.next_at = self.next_at(view, now).into_iter().chain(next_hit).min();
        outcome
    }

    /// Charges what may have been used of assignments that are over.
    fn expire(&mut self, now: Timestamp) {
        let mut charged = 0_u64;
        self.each.retain(|subscriber| {
            let is_over = subscriber.expires_at <= now;
            if is_over {
                charged = charged.saturating_add(subscriber.left());
            }
            !is_over
        });
        self.used = self.used.saturating_add(charged);
    }

    fn left(&self) -> u64 {
        self.each.states().iter().fold(0, |sum, subscriber| sum.saturating_add(subscriber.left()))
    }

    /// The slices for those that are due, from what is free: first those below their floors, then the one that has
    /// waited longest.
    fn parts(&self, free: u64, now: Timestamp) -> Vec<DueSlice> {
        let newcomer = (self.allowance / NEWCOMER_DIVISOR).clamp(1, (free / 2).max(1));
        let active: Vec<(SubscriberId, &SliceSubscriber)> =
            self.each.iter().filter(|(_, subscriber)| !subscriber.has_ended).collect();
        let callers = self.callers.per_second() * SLICE_SECONDS;
        let mut claims: Vec<SubscriberClaim> = active
            .iter()
            .map(|(_, subscriber)| SubscriberClaim {
                hits: subscriber.claimed(newcomer) as f64,
                weight: f64::from(subscriber.terms.weight.get()),
                floor: subscriber.terms.floor as f64,
            })
            .collect();
        if callers > 0.0 {
            claims.push(SubscriberClaim { hits: callers, weight: 1.0, floor: 0.0 });
        }
        let is_scarce = claims.iter().map(|claim| claim.hits).sum::<f64>() > free as f64;
        let mut order = Vec::<usize>::new();
        let mut parts = Vec::new();
        // Without either nothing depends on the parts.
        if is_scarce || active.iter().any(|(_, subscriber)| subscriber.is_due()) {
            let pool = active.iter().fold(free, |sum, (_, each)| sum.saturating_add(each.left()));
            order.extend(0..active.len());
            order.sort_by_key(|index| {
                let subscriber = active[*index].1;
                (!subscriber.is_due(), !subscriber.lacks_floor(), subscriber.since)
            });
            parts = whole(pool, &divide(pool as f64, &claims), &claims, &order);
        }
        let spare = |index: usize| {
            let (id, subscriber) = active[index];
            let size =
                if is_scarce { parts[index].max(1) } else { subscriber.claimed(newcomer).max(newcomer) };
            let next = DueSlice { id, hits: size.min(SLICE_MAX), reason: SliceReason::Spare };
            subscriber.has_spare(size, now).then_some(next)
        };
        let due = |index: usize| {
            let (id, subscriber) = active[index];
            let next = DueSlice { id, hits: parts[index].min(SLICE_MAX), reason: SliceReason::Due };
            subscriber.is_due().then_some(next)
        };
        // What is spare comes back with the next report.
        (0..active.len()).filter_map(spare).chain(order.iter().copied().filter_map(due)).collect()
    }

    /// The next instant at which something changes without a report.
    fn next_at(&self, view: CounterView, now: Timestamp) -> Option<Timestamp> {
        let waits = self.each.states().iter().any(SliceSubscriber::is_waiting);
        let free = view.free_after.filter(|_| waits).map(|after| now.after(after.max(PAUSE)));
        let expire = self.each.states().iter().map(|subscriber| subscriber.expires_at).min();
        free.into_iter().chain(expire).min()
    }
}
