//! The token bucket whose tokens come back in steps: so many at once, every so often.

use std::num::NonZeroU64;

use crate::{
    algorithm::{Algorithm, Ask, Decision, Excess, Verdict},
    time::Timestamp,
};

/// At most `burst` hits at once, and `amount` more with each `interval` that passes. A part of an interval that
/// has passed is kept; but a full bucket begins its next interval at its next charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteppedBucket {
    /// Tokens that come back at once.
    pub amount: NonZeroU64,
    /// Nanoseconds from one step to the next.
    pub interval: NonZeroU64,
    /// How many tokens a full bucket holds; 0 lets nothing pass.
    pub burst: u64,
    /// What happens to a charge larger than what is left. A debt is paid before any token comes back.
    pub excess: Excess,
}

/// Tokens that are missing, and since when the current step lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounter {
    /// The start of the current step.
    pub(crate) step: Timestamp,
    pub(crate) missing: u64,
}

/// A charge in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepReceipt {
    charge: StepCounter,
    // Whether the bucket was full, so that this charge began its step.
    began: bool,
}

impl SteppedBucket {
    /// The counter after all steps until `now`.
    fn refilled(&self, counter: &StepCounter, now: Timestamp) -> StepCounter {
        let steps = now.nanos_since(counter.step) / self.interval;
        let missing = counter.missing.saturating_sub(steps.saturating_mul(self.amount.get()));
        if missing == 0 {
            return StepCounter { step: counter.step.max(now), missing };
        }
        StepCounter { step: counter.step.plus(steps * self.interval.get()), missing }
    }

    /// The instant at which `tokens` have come back.
    fn back_at(&self, counter: &StepCounter, tokens: u64) -> Timestamp {
        counter.step.plus(self.interval.get().saturating_mul(tokens.div_ceil(self.amount.get())))
    }

    fn left(&self, counter: &StepCounter) -> u64 {
        self.burst.saturating_sub(counter.missing)
    }

    /// Whether `hits` pass, and how many tokens are missing then.
    fn charge(&self, counter: &StepCounter, hits: u64) -> (bool, u64) {
        let (left, missing) = (self.left(counter), counter.missing.saturating_add(hits));
        match self.excess {
            _ if hits <= left => (true, missing),
            Excess::Refuse => (false, counter.missing),
            // Bounded, so that who stops asking is let in again: a second burst at most.
            Excess::Count => (false, missing.min(self.burst.saturating_mul(2)).max(counter.missing)),
            Excess::Overdraft(_) if left == 0 => (false, counter.missing),
            Excess::Overdraft(debt) => (true, missing.min(self.burst.saturating_add(debt))),
        }
    }
}

impl Algorithm for SteppedBucket {
    type Counter = StepCounter;
    type Receipt = StepReceipt;

    fn decide(&self, counter: &mut StepCounter, now: Timestamp, ask: Ask) -> Decision<StepReceipt> {
        let before = self.refilled(counter, now);
        let (hits, passes, missing) = match ask {
            Ask::Look => (1, 0 < self.left(&before), before.missing),
            Ask::Charge(hits) => {
                let (passes, missing) = self.charge(&before, hits);
                (hits, passes, missing)
            }
            Ask::Refund(hits) => (0, true, before.missing.saturating_sub(hits)),
        };
        let after = StepCounter { missing, ..before };
        if ask.changes(passes, self.excess) {
            *counter = after;
        }
        let full_after = self.back_at(&after, missing).since(now);
        let remaining = self.left(&after);
        if passes {
            // A charge that passed by overdraft is never taken back.
            let receipt = match ask {
                Ask::Charge(hits) if hits <= self.left(&before) => {
                    let charge = StepCounter { step: before.step, missing: hits };
                    Some(StepReceipt { charge, began: before.missing == 0 })
                }
                Ask::Charge(_) | Ask::Look | Ask::Refund(_) => None,
            };
            return Decision { verdict: Verdict::Pass, remaining, reset_after: full_after, receipt };
        }
        let needed = match self.excess {
            Excess::Refuse | Excess::Count => hits,
            Excess::Overdraft(_) => hits.min(1),
        };
        let retry_after = self.burst.checked_sub(needed).map(|room| {
            let tokens = missing.saturating_sub(room);
            self.back_at(&after, tokens).since(now)
        });
        let reset_after = retry_after.unwrap_or(full_after);
        Decision { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt: None }
    }

    fn undo(&self, counter: &mut StepCounter, receipt: StepReceipt, now: Timestamp) {
        // Whatever else was charged, all steps since may have paid for this charge alone.
        let unpaid = self.refilled(&receipt.charge, now).missing;
        let refilled = self.refilled(counter, now);
        // Without it the step would have begun with a later charge, at the latest now.
        let step = if receipt.began { refilled.step.max(now) } else { refilled.step };
        *counter = StepCounter { step, missing: refilled.missing.saturating_sub(unpaid) };
    }

    fn idle_at(&self, counter: &StepCounter) -> Timestamp {
        if counter.missing == 0 { counter.step } else { self.back_at(counter, counter.missing) }
    }

    fn since(&self, counter: &StepCounter, base: &StepCounter, now: Timestamp) -> StepCounter {
        let (counter, base) = (self.refilled(counter, now), self.refilled(base, now));
        StepCounter { missing: counter.missing.saturating_sub(base.missing), ..counter }
    }

    fn absorb(&self, counter: &mut StepCounter, other: &StepCounter, now: Timestamp) {
        let (one, other) = (self.refilled(counter, now), self.refilled(other, now));
        *counter = match (one.missing, other.missing) {
            (_, 0) => one,
            (0, _) => other,
            // The later step: nothing comes back before it would have.
            (here, there) => {
                StepCounter { step: one.step.max(other.step), missing: here.saturating_add(there) }
            }
        };
    }
}
