//! The token bucket: hits take tokens, time brings them back evenly, a full bucket holds the burst.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Algorithm, Ask, Decision, Excess, Pace, PaceCounter, PaceReceipt, Verdict},
    time::Timestamp,
};

/// At most `burst` hits at once and `pace` in the long run: in any span, at most the burst plus what the pace
/// brings in that span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBucket {
    /// How fast tokens come back.
    pub pace: Pace,
    /// How many tokens a full bucket holds; 0 lets nothing pass.
    pub burst: u64,
    /// What happens to a charge larger than what is left. A debt is paid before any token comes back.
    pub excess: Excess,
}

impl TokenBucket {
    /// The longest time until it is full, in nanoseconds, at which a hit still passes.
    pub(crate) fn refused_from(&self) -> u64 {
        self.pace.nanos_in(self.left(self.pace.cost(1)))
    }

    /// What is left when `debt` is owed, in units.
    fn left(&self, debt: u128) -> u128 {
        self.pace.cost(self.burst).saturating_sub(debt)
    }

    /// The largest debt that charges lead to, in units.
    fn debt_max(&self) -> u128 {
        match self.excess {
            Excess::Refuse => self.pace.cost(self.burst),
            // Bounded, so that who stops asking is let in again: a second burst at most.
            Excess::Count => self.pace.cost(self.burst).saturating_mul(2),
            Excess::Overdraft(most) => self.pace.cost(self.burst.saturating_add(most)),
        }
    }

    /// Whether `hits` pass when `debt` is owed, and what is owed then.
    fn charge(&self, debt: u128, hits: u64) -> (bool, u128) {
        let owed = debt.saturating_add(self.pace.cost(hits));
        if owed <= self.pace.cost(self.burst) || hits == 0 {
            return (true, owed);
        }
        match self.excess {
            Excess::Refuse => (false, debt),
            Excess::Count => (false, owed.min(self.debt_max()).max(debt)),
            Excess::Overdraft(_) if self.left(debt) < self.pace.cost(1) => (false, debt),
            Excess::Overdraft(_) => (true, owed.min(self.debt_max())),
        }
    }

    /// The units that must be paid before `hits` pass; `None` where they never would.
    fn missing(&self, debt: u128, hits: u64) -> Option<u128> {
        let needed = match self.excess {
            Excess::Refuse | Excess::Count => hits,
            // Any charge passes once there is a whole token.
            Excess::Overdraft(_) => hits.min(1),
        };
        let owed = debt.saturating_add(self.pace.cost(needed));
        (needed <= self.burst).then(|| owed.saturating_sub(self.pace.cost(self.burst)))
    }
}

impl Algorithm for TokenBucket {
    type Counter = PaceCounter;
    type Receipt = PaceReceipt;

    fn decide(&self, counter: &mut PaceCounter, now: Timestamp, ask: Ask) -> Decision<PaceReceipt> {
        let before = counter.debt(self.pace, now);
        let (hits, passes, debt) = match ask {
            Ask::Look => (1, self.pace.cost(1) <= self.left(before), before),
            Ask::Charge(hits) => {
                let (passes, debt) = self.charge(before, hits);
                (hits, passes, debt)
            }
            Ask::Refund(hits) => (0, true, before.saturating_sub(self.pace.cost(hits))),
        };
        if debt != before {
            counter.owe(self.pace, now, debt);
        }
        let full_after = self.pace.time_for(debt);
        let remaining = self.pace.hits_in(self.left(debt));
        if passes {
            // A charge that passed by overdraft is never taken back.
            let receipt = match ask {
                Ask::Charge(hits) if self.pace.cost(hits) <= self.left(before) => {
                    Some(counter.receipt(now, hits))
                }
                Ask::Charge(_) | Ask::Look | Ask::Refund(_) => None,
            };
            return Decision { verdict: Verdict::Pass, remaining, reset_after: full_after, receipt };
        }
        let retry_after = self.missing(debt, hits).map(|units| self.pace.time_for(units));
        let reset_after = retry_after.unwrap_or(full_after);
        Decision { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt: None }
    }

    fn undo(&self, counter: &mut PaceCounter, receipt: PaceReceipt, now: Timestamp) {
        counter.undo(self.pace, receipt, now);
    }

    fn idle_at(&self, counter: &PaceCounter) -> Timestamp {
        counter.idle_at()
    }

    fn since(&self, counter: &PaceCounter, base: &PaceCounter, now: Timestamp) -> PaceCounter {
        counter.since(base, self.pace, now)
    }

    fn absorb(&self, counter: &mut PaceCounter, other: &PaceCounter, now: Timestamp) {
        counter.absorb(other, self.pace, now);
    }

    fn cut_ahead(&self, counter: &mut PaceCounter, at: Timestamp, now: Timestamp) {
        counter.cut_ahead(self.pace, self.debt_max(), at, now);
    }
}
