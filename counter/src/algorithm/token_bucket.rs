//! The token bucket: hits take tokens, time adds them evenly, a full bucket holds the burst.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation,
        gcra::{DebtCounter, DebtReceipt, Rate, debt_at_rate},
        granted::{HitRate, STILL_NANOS},
        held::{ChargePosition, HeldCharge},
    },
    time::timestamp::Timestamp,
};

/// At most `burst` hits at once and `rate` in the long run: in any span, at most the burst plus what the rate adds in
/// that span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBucket {
    /// The refill rate.
    pub rate: Rate,
    /// How many tokens a full bucket holds; 0 lets nothing pass.
    pub burst: u64,
    /// What happens to a charge larger than what is left. A debt is paid before any token comes back.
    pub excess: Excess,
}

impl TokenBucket {
    /// What is left when `debt` is owed, in units.
    fn left(&self, debt: u128) -> u128 {
        self.rate.cost(self.burst).saturating_sub(debt)
    }

    /// The largest debt that charges can make, in units.
    fn debt_max(&self) -> u128 {
        match self.excess {
            Excess::Refuse => self.rate.cost(self.burst),
            // Bounded by a second burst, so that a client that stops is admitted again.
            Excess::Count => self.rate.cost(self.burst).saturating_mul(2),
            Excess::Overdraft(most) => self.rate.cost(self.burst.saturating_add(most)),
        }
    }

    /// Whether `hits` pass with this `debt`, and the debt afterwards.
    // `inline(always)`: part of every decision.
    #[inline(always)]
    fn charge(&self, debt: u128, hits: u64) -> (bool, u128) {
        let owed = debt.saturating_add(self.rate.cost(hits));
        if owed <= self.rate.cost(self.burst) || hits == 0 {
            return (true, owed);
        }
        match self.excess {
            Excess::Refuse => (false, debt),
            Excess::Count => (false, owed.min(self.debt_max()).max(debt)),
            Excess::Overdraft(_) if self.left(debt) < self.rate.cost(1) => (false, debt),
            Excess::Overdraft(_) => (true, owed.min(self.debt_max())),
        }
    }

    /// Keeps the hits that are owed under the rate of `before`, at most `most`.
    pub(crate) fn keep_debt(&self, counter: &mut DebtCounter, before: &Self, most: u64, now: Timestamp) {
        if before.rate != self.rate {
            let owed = self.rate.cost_of(counter.debt(before.rate, now), before.rate);
            counter.owe(self.rate, now, owed.min(self.rate.cost(most)));
        }
    }

    /// The units to be paid before `hits` pass; `None` if they never pass.
    fn missing(&self, debt: u128, hits: u64) -> Option<u128> {
        let needed = self.excess.needed(hits);
        let owed = debt.saturating_add(self.rate.cost(needed));
        (needed <= self.burst).then(|| owed.saturating_sub(self.rate.cost(self.burst)))
    }
}

impl Algorithm for TokenBucket {
    debt_at_rate!();

    // `inline(always)`: part of every decision.
    #[inline(always)]
    fn decide(
        &self,
        counter: &mut DebtCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<DebtReceipt> {
        let before = counter.debt(self.rate, now);
        let (hits, passes, debt) = match operation {
            Operation::Peek => (1, self.rate.cost(1) <= self.left(before), before),
            Operation::Charge(hits) => {
                let (passes, debt) = self.charge(before, hits);
                (hits, passes, debt)
            }
            Operation::Refund(hits) => (0, true, before.saturating_sub(self.rate.cost(hits))),
        };
        let full_after =
            if debt == before { self.rate.time_for(debt) } else { counter.owe(self.rate, now, debt) };
        let remaining = self.rate.hits_in(self.left(debt));
        // An overdraft charge is never taken back.
        let receipt = match operation {
            Operation::Charge(hits) if passes && self.rate.cost(hits) <= self.left(before) => {
                Some(counter.receipt(now, hits))
            }
            Operation::Charge(_) | Operation::Peek | Operation::Refund(_) => None,
        };
        let retry_after = || self.missing(debt, hits).map(|units| self.rate.time_for(units));
        Decision::new(passes, receipt, remaining, full_after, retry_after)
    }

    fn undo(&self, counter: &mut DebtCounter, receipt: DebtReceipt, now: Timestamp) {
        counter.undo(self.rate, receipt, now);
    }

    fn clamp_ahead(&self, counter: &mut DebtCounter, at: Timestamp, now: Timestamp) {
        counter.clamp_ahead(self.rate, self.debt_max(), at, now);
    }

    fn weight(&self, counter: &DebtCounter, _place: ChargePosition, now: Timestamp) -> u128 {
        counter.debt(self.rate, now)
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn passing_debt_max(&self) -> u64 {
        self.rate.nanos_in(self.left(self.rate.cost(1)))
    }

    // Without a burst nothing passes, whatever the rate is.
    fn hits_per_period(&self) -> u64 {
        if self.burst == 0 { 0 } else { self.rate.hits() }
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::new(self.hits_per_period(), self.rate.nanos(), self.burst)
    }

    fn reduce(&mut self, part: HitRate) {
        let hits = part.hits_in(self.rate.nanos());
        self.rate = match NonZeroU64::new(self.rate.hits().saturating_sub(hits)) {
            Some(_) => self.rate.with_hits(|all| all - hits),
            None => Rate::new(NonZeroU64::MIN, STILL_NANOS),
        };
        self.burst = self.burst.saturating_sub(part.burst);
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        self.rate = self.rate.with_hits(&number);
        (self.burst, self.excess) = (number(self.burst), excess(self.excess));
    }
}
