//! The leaky bucket as a queue: a hit passes after the delay that keeps hits one interval apart, and is refused if the
//! queue is full.
//!
//! There is no queue in memory. The debt of a [`DebtCounter`] is the time until all admitted hits have left, so it is
//! the delay of the next one. The caller waits for that delay.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Admission, Algorithm, Decision, Excess, Operation, Verdict,
        gcra::{DebtCounter, DebtReceipt, Rate, debt_at_rate},
        held::{ChargePosition, HeldCharge},
    },
    time::timestamp::Timestamp,
};

/// Hits leave at `rate`. The first leaves at once, at most `burst` more wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeakyQueue {
    /// How fast hits leave.
    pub rate: Rate,
    /// How many hits wait behind the one that leaves; `None` lets nothing pass.
    pub burst: Option<u64>,
    /// The longest delay; a hit with a longer one is refused.
    pub max_delay: Option<Duration>,
    /// The timeout of the current caller. A hit with a longer delay is refused with that delay as `retry_after`. Rules
    /// never set it.
    pub timeout: Option<Duration>,
}

impl LeakyQueue {
    /// The largest debt, in units, at which `hits` are admitted; `None` if they never are.
    fn room(&self, hits: u64) -> Option<u128> {
        let places = self.rate.cost(self.burst?).saturating_add(self.rate.cost(1));
        let room = places.checked_sub(self.rate.cost(hits))?;
        Some(self.max_delay.map_or(room, |longest| room.min(self.rate.paid_in(longest))))
    }

    /// Whether the delay of `debt` is within the timeout of the caller.
    fn waits(&self, debt: u128) -> bool {
        self.timeout.is_none_or(|longest| self.rate.time_for(debt) <= longest)
    }

    /// Hits that would be admitted now, with or without delay.
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
    debt_at_rate!();

    const ADMISSION: Admission = Admission::Delayed;

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
        let reset_after =
            if debt == before { self.rate.time_for(debt) } else { counter.owe(self.rate, now, debt) };
        let (verdict, receipt) = match operation {
            Operation::Charge(hits) => {
                let advance = self.rate.time_for(before);
                let verdict = if advance.is_zero() { Verdict::Pass } else { Verdict::Delay(advance) };
                (verdict, Some(counter.receipt(now, hits)))
            }
            Operation::Peek | Operation::Refund(_) => (Verdict::Pass, None),
        };
        Decision { verdict, remaining: self.left(debt), reset_after, receipt }
    }

    fn undo(&self, counter: &mut DebtCounter, receipt: DebtReceipt, now: Timestamp) {
        // Later hits were admitted with their delays, so only the last place can be given back.
        if *counter == receipt.after {
            counter.undo(self.rate, receipt, now);
        }
    }

    fn clamp_ahead(&self, counter: &mut DebtCounter, at: Timestamp, now: Timestamp) {
        counter.clamp_ahead(self.rate, self.rate.cost(self.allowance()), at, now);
    }

    fn position(&self, counter: &DebtCounter, _now: Timestamp) -> ChargePosition {
        ChargePosition::Instant(counter.paid_at)
    }

    // Later hits were admitted with their delays, so only the last place can be given back.
    fn weight(&self, counter: &DebtCounter, position: ChargePosition, now: Timestamp) -> u128 {
        if position == ChargePosition::Instant(counter.paid_at) { counter.debt(self.rate, now) } else { 0 }
    }

    fn allowance(&self) -> u64 {
        self.burst.map_or(0, |burst| burst.saturating_add(1))
    }

    fn passing_debt_max(&self) -> u64 {
        self.rate.nanos_in(self.room(1).unwrap_or_default())
    }

    // Without a burst nothing passes, whatever the rate is.
    fn hits_per_period(&self) -> u64 {
        self.burst.map_or(0, |_| self.rate.hits())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, _: impl Fn(Excess) -> Excess) {
        self.rate = self.rate.with_hits(&number);
        // The hit that leaves at once is counted together with those that wait.
        self.burst = self.burst.map(|burst| number(burst.saturating_add(1)).saturating_sub(1));
    }
}
