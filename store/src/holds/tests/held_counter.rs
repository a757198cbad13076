//! Tests of a counter with its holds, as every store has it.

use super::*;
use tollgate_counter::{
    algorithm::{Concurrency, SlidingLog, Span},
    packed_counter::Now,
};

use crate::{
    check::LimitOrigin,
    held_counter::{HeldCounter, Room},
    operation::{CounterOperation, OperationOutcome, UnknownId},
};

/// A counter with its holds, as every store has it.
struct Held<'l> {
    limit: &'l Limit,
    counter: HeldCounter,
    now: Timestamp,
}

impl Held<'_> {
    fn apply(&mut self, operation: &CounterOperation) -> OperationOutcome {
        let now = Now { now: self.now, given_up: None };
        self.counter.catch_up(self.limit, now);
        self.counter.apply(self.limit, LimitOrigin::Rule, operation, now, Room::OF_VALUE).0
    }

    fn decide(&mut self, operation: Operation) -> Decision {
        self.apply(&CounterOperation::Decide(operation)).decision
    }

    fn reserve(&mut self, number: u64, hits: u64, ttl: Duration, on_expiry: OnExpiry) -> bool {
        let terms = Box::new(terms(number, ttl, on_expiry));
        self.apply(&CounterOperation::Reserve { terms, hits }).decision.verdict.passes()
    }

    fn settle(&mut self, number: u64, actual: u64) {
        self.apply(&CounterOperation::Settle { id: id(number), actual, unknown: UnknownId::Remember });
    }
}

/// The number of a hold, its expiry and what happens then.
type Keeper = (u64, Timestamp, OnExpiry);

/// Places in flight as a list: instant of the charge, and the hold that keeps it.
#[derive(Default)]
struct Places {
    taken: Vec<(Timestamp, Option<Keeper>)>,
}

impl Places {
    fn advance(&mut self, now: Timestamp, hold_max: u64) {
        for (_, hold) in &mut self.taken {
            hold.take_if(|(_, expires_at, on_expiry)| *expires_at <= now && *on_expiry == OnExpiry::Charge);
        }
        self.taken.retain(|(at, hold)| match hold {
            Some((_, expires_at, _)) => now < *expires_at,
            None => now < at.plus(hold_max),
        });
    }

    /// Ends a hold with so many of its places kept.
    fn end(&mut self, number: u64, mut kept: u64) {
        self.taken.retain_mut(|(_, hold)| {
            if hold.is_none_or(|(held, ..)| held != number) {
                return true;
            }
            *hold = None;
            let is_kept = kept > 0;
            kept -= u64::from(is_kept);
            is_kept
        });
    }

    /// Frees the oldest charged places.
    fn refund(&mut self, mut hits: u64) {
        self.taken.sort_by_key(|(at, _)| *at);
        self.taken.retain(|(_, hold)| {
            let is_freed = hold.is_none() && hits > 0;
            hits -= u64::from(is_freed);
            !is_freed
        });
    }
}

proptest! {
    #[test]
    fn places_of_a_reservation_are_kept_until_it_ends(
        max_in_flight in 1..12_u64, history in history(), refunds in prop::collection::vec(0..4_u64, 30),
    ) {
        let hold_max = 20 * SECOND;
        let limit = Limit::Concurrency(Concurrency { max_in_flight, hold_max: Span::from_nanos(hold_max).unwrap() });
        let mut held = Held { limit: &limit, counter: HeldCounter::default(), now: NOW };
        let mut places = Places::default();
        let mut open: Vec<(u64, u64, Timestamp)> = Vec::new();
        for (index, (pause, event)) in history.into_iter().enumerate() {
            held.now = held.now.plus(pause);
            let now = held.now;
            places.advance(now, hold_max);
            open.retain(|(_, _, expires_at)| now < *expires_at);
            let free = max_in_flight - places.taken.len() as u64;
            prop_assert_eq!(held.decide(Operation::Peek).remaining, free);
            let number = index as u64;
            match event {
                Event::Reserve { hits, ttl, on_expiry } => {
                    prop_assert_eq!(held.reserve(number, hits, ttl, on_expiry), hits <= free);
                    if hits <= free {
                        let expires_at = now.after(ttl);
                        places.taken.extend((0..hits).map(|_| (now, Some((number, expires_at, on_expiry)))));
                        open.push((number, hits, expires_at));
                    }
                }
                Event::Settle { which, percent } if !open.is_empty() => {
                    let (number, hits, _) = open.remove(which % open.len());
                    let kept = hits * percent.min(100) / 100;
                    held.settle(number, kept);
                    places.end(number, kept);
                }
                Event::Settle { .. } => {
                    held.decide(Operation::Refund(refunds[index]));
                    places.refund(refunds[index]);
                }
                Event::Charge(hits) => {
                    prop_assert_eq!(held.decide(Operation::Charge(hits)).verdict.passes(), hits <= free);
                    if hits <= free {
                        places.taken.extend((0..hits).map(|_| (now, None)));
                    }
                }
                Event::Refund(_) => {}
            }
        }
    }

    #[test]
    fn refund_beside_holds_loses_no_room(
        history in prop::collection::vec((0..2_u64, 0..4_u64, 1..5_u64, 0..150_u64), 1..30),
    ) {
        let span = Span::from_nanos(HOUR).unwrap();
        let log = SlidingLog { limit: 40, span, sub_window: std::num::NonZeroU64::MIN, excess: Excess::Refuse };
        let limit = Limit::SlidingLog(log);
        let mut held = Held { limit: &limit, counter: HeldCounter::default(), now: NOW };
        let (mut charged, mut open): (u64, Vec<(u64, u64)>) = (0, Vec::new());
        for (number, (pause, kind, hits, percent)) in history.into_iter().enumerate() {
            held.now = held.now.plus(pause);
            let number = number as u64;
            match kind {
                0 if held.decide(Operation::Charge(hits)).verdict.passes() => charged += hits,
                1 if held.reserve(number, hits, Duration::from_secs(60), OnExpiry::Release) => open.push((number, hits)),
                2 => {
                    // Not more than was charged: what is held is not refunded.
                    let refunded = hits.min(charged);
                    held.decide(Operation::Refund(refunded));
                    charged -= refunded;
                }
                3 if !open.is_empty() => {
                    let (number, hits) = open.remove(0);
                    let kept = hits * percent.min(100) / 100;
                    held.settle(number, kept);
                    charged += kept;
                }
                _ => {}
            }
            let held_hits: u64 = open.iter().map(|(_, hits)| hits).sum();
            prop_assert_eq!(held.decide(Operation::Peek).remaining, 40 - charged - held_hits);
        }
    }
}
