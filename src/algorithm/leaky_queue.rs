//! The leaky bucket as a queue: a hit is let through at its turn, one each interval, and turned away where the
//! queue is full.
//!
//! No queue is kept. The debt of a [`DebtCounter`] is how long those before are still leaving, so it is the
//! delay of the next one; whoever is let in waits for that long outside.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Algorithm, DebtCounter, DebtReceipt, Decision, Operation, Rate, Verdict},
    time::Timestamp,
};

/// Hits leave at `pace` and no faster. The first leaves at once, `burst` more may wait behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakyQueue {
    /// How fast hits leave.
    pub rate: Rate,
    /// How many wait behind the one that leaves; `None` lets nothing pass.
    pub burst: Option<u64>,
    /// The longest that one waits; a turn after that is refused.
    pub max_delay: Option<Duration>,
    /// The longest that the caller at hand waits. Its turn after that is refused, and `retry_after` is then the
    /// wait that it would have needed. No rule has it.
    pub timeout: Option<Duration>,
}

impl LeakyQueue {
    /// The longest time until nobody leaves any more, in nanoseconds, at which a hit is still let in.
    pub(crate) fn passing_debt_max(&self) -> u64 {
        self.rate.nanos_in(self.room(1).unwrap_or_default())
    }

    /// What may be owed before `hits` so that they are let in, in units; `None` where they never are.
    fn room(&self, hits: u64) -> Option<u128> {
        let places = self.rate.cost(self.burst?).saturating_add(self.rate.cost(1));
        let room = places.checked_sub(self.rate.cost(hits))?;
        Some(self.max_delay.map_or(room, |longest| room.min(self.rate.paid_in(longest))))
    }

    /// Whether the caller at hand waits until `debt` is paid.
    fn waits(&self, debt: u128) -> bool {
        self.timeout.is_none_or(|longest| self.rate.time_for(debt) <= longest)
    }

    /// Hits that would be let in now, to leave at their turn.
    fn left(&self, debt: u128) -> u64 {
        match (self.burst, self.room(1)) {
            (Some(burst), Some(room)) if debt <= room && self.waits(debt) => {
                let places = self.rate.cost(burst).saturating_add(self.rate.cost(1));
                self.rate.hits_in(places - debt)
            }
            (Some(_) | None, Some(_) | None) => 0,
        }
    }
}

impl Algorithm for LeakyQueue {
    type Counter = DebtCounter;
    type Receipt = DebtReceipt;

    fn decide(
        &self,
        counter: &mut DebtCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<DebtReceipt> {
        let before = counter.debt(self.rate, now);
        let (hits, debt) = match operation {
            Operation::Peek => (1, before),
            Operation::Charge(hits) => (hits, before.saturating_add(self.rate.cost(hits))),
            Operation::Refund(hits) => (0, before.saturating_sub(self.rate.cost(hits))),
        };
        let room = self.room(hits);
        let passes = hits == 0 || room.is_some_and(|room| before <= room && self.waits(before));
        if !passes {
            let retry_after = room.map(|room| match before.checked_sub(room) {
                None | Some(0) => self.rate.time_for(before),
                Some(excess) => self.rate.time_for(excess),
            });
            let reset_after = retry_after.unwrap_or_else(|| self.rate.time_for(before));
            let remaining = self.left(before);
            return Decision {
                verdict: Verdict::Refuse { retry_after },
                remaining,
                reset_after,
                receipt: None,
            };
        }
        if debt != before {
            counter.owe(self.rate, now, debt);
        }
        let (verdict, receipt) = match operation {
            Operation::Charge(hits) => {
                let advance = self.rate.time_for(before);
                let verdict = if advance.is_zero() { Verdict::Pass } else { Verdict::Delay(advance) };
                (verdict, Some(counter.receipt(now, hits)))
            }
            Operation::Peek | Operation::Refund(_) => (Verdict::Pass, None),
        };
        Decision { verdict, remaining: self.left(debt), reset_after: self.rate.time_for(debt), receipt }
    }

    fn undo(&self, counter: &mut DebtCounter, receipt: DebtReceipt, now: Timestamp) {
        // Those who came later were told their turns: only the last place can be given away again.
        if counter.is_unchanged_since(receipt) {
            counter.undo(self.rate, receipt, now);
        }
    }

    fn idle_at(&self, counter: &DebtCounter) -> Timestamp {
        counter.idle_at()
    }

    fn since(&self, counter: &DebtCounter, base: &DebtCounter, now: Timestamp) -> DebtCounter {
        counter.since(base, self.rate, now)
    }

    fn absorb(&self, counter: &mut DebtCounter, other: &DebtCounter, now: Timestamp) {
        counter.absorb(other, self.rate, now);
    }

    fn clamp_ahead(&self, counter: &mut DebtCounter, at: Timestamp, now: Timestamp) {
        let places = self.burst.map_or(0, |burst| burst.saturating_add(1));
        counter.clamp_ahead(self.rate, self.rate.cost(places), at, now);
    }
}
