//! The token bucket with stepwise refill: `amount` tokens every `interval`.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation,
        granted::{HitRate, STILL_NANOS},
        held::{ChargePosition, HeldCharge},
    },
    time::timestamp::Timestamp,
};

/// At most `burst` hits at once, and `amount` more with each `interval` that passes. A partial interval is retained,
/// but a full bucket begins its next interval at its next charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteppedBucket {
    /// Tokens added in each step.
    pub amount: NonZeroU64,
    /// Nanoseconds from one step to the next.
    pub interval: NonZeroU64,
    /// How many tokens a full bucket holds; 0 lets nothing pass.
    pub burst: u64,
    /// What happens to a charge larger than what is left. A debt is paid before any token comes back.
    pub excess: Excess,
}

/// A debt of whole steps, stored as the instant of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCounter {
    /// The step at which the bucket is full again.
    pub(crate) full_at: Timestamp,
    /// Tokens of the last step that do not fit into the bucket.
    pub(crate) spare: u64,
}

/// A charge in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReceipt {
    step: Timestamp,
    hits: u64,
    // Whether the bucket was full, so that this charge opened the step.
    opened_step: bool,
}

/// The state of a [`StepCounter`] at one instant.
#[derive(Clone, Copy)]
struct StepLevel {
    /// The start of the current step.
    step: Timestamp,
    /// Wider than any bucket: at a time long before the charges, many steps are still to come.
    missing: u128,
}

impl SteppedBucket {
    fn level(&self, counter: &StepCounter, now: Timestamp) -> StepLevel {
        let steps = counter.full_at.nanos_since(now).div_ceil(self.interval.get());
        if steps == 0 {
            return StepLevel { step: now, missing: 0 };
        }
        let step = counter.full_at.minus(steps.saturating_mul(self.interval.get()));
        // After a change of `amount`, spare tokens may exceed one step: they are cut to less.
        let spare = counter.spare.min(self.amount.get() - 1);
        StepLevel { step, missing: u128::from(steps) * self.brought() - u128::from(spare) }
    }

    /// Keeps the tokens that are missing under the steps of `before`, at most `most`. A step of another length begins
    /// now.
    pub(crate) fn keep_missing(&self, counter: &mut StepCounter, before: &Self, most: u64, now: Timestamp) {
        let StepLevel { step, missing } = before.level(counter, now);
        let step = if before.interval == self.interval { step } else { now };
        *counter = self.counter(StepLevel { step, missing: missing.min(most.into()) });
    }

    /// Gives tokens back. Another charge opens the step, at the latest now, if these had `opened_step`.
    fn give_back(&self, counter: &mut StepCounter, tokens: u128, opened_step: bool, now: Timestamp) {
        let level = self.level(counter, now);
        let step = if opened_step { level.step.max(now) } else { level.step };
        *counter = self.counter(StepLevel { step, missing: level.missing.saturating_sub(tokens) });
    }

    fn counter(&self, level: StepLevel) -> StepCounter {
        let brought = level.missing.div_ceil(self.brought()).saturating_mul(self.brought());
        // Less than one step adds, so it fits.
        let spare = (brought - level.missing) as u64;
        StepCounter { full_at: self.back_at(level, level.missing), spare }
    }

    /// The instant at which `tokens` have been added.
    fn back_at(&self, level: StepLevel, tokens: u128) -> Timestamp {
        let steps = u64::try_from(tokens.div_ceil(self.brought())).unwrap_or(u64::MAX);
        level.step.plus(self.interval.get().saturating_mul(steps))
    }

    /// Tokens that one step adds.
    fn brought(&self) -> u128 {
        self.amount.get().into()
    }

    fn left(&self, level: StepLevel) -> u64 {
        u64::try_from(level.missing).map_or(0, |missing| self.burst.saturating_sub(missing))
    }

    /// The largest number of tokens that charges can take.
    fn missing_max(&self) -> u128 {
        match self.excess {
            Excess::Refuse => self.burst.into(),
            // Bounded by a second burst, so that a client that stops is admitted again.
            Excess::Count => u128::from(self.burst) * 2,
            Excess::Overdraft(debt) => u128::from(self.burst) + u128::from(debt),
        }
    }

    /// Whether `hits` pass, and the number of missing tokens afterwards.
    fn charge(&self, level: StepLevel, hits: u64) -> (bool, u128) {
        let (passes, counted) = self.excess.admitted(hits, self.left(level));
        let missing = level.missing.saturating_add(counted.into());
        (passes, missing.min(self.missing_max()).max(level.missing))
    }
}

impl Algorithm for SteppedBucket {
    type Counter = StepCounter;
    type Receipt = StepReceipt;

    fn decide(
        &self,
        counter: &mut StepCounter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<StepReceipt> {
        let before = self.level(counter, now);
        let (hits, passes, missing) = match operation {
            Operation::Peek => (1, self.left(before) > 0, before.missing),
            Operation::Charge(hits) => {
                let (passes, missing) = self.charge(before, hits);
                (hits, passes, missing)
            }
            Operation::Refund(hits) => (0, true, before.missing.saturating_sub(hits.into())),
        };
        let after = StepLevel { missing, ..before };
        if operation.changes(passes, || self.excess) {
            *counter = self.counter(after);
        }
        let full_after = self.back_at(after, missing).since(now);
        let remaining = self.left(after);
        // An overdraft charge is never taken back.
        let receipt = match operation {
            Operation::Charge(hits) if hits <= self.left(before) => {
                Some(StepReceipt { step: before.step, hits, opened_step: before.missing == 0 })
            }
            Operation::Charge(_) | Operation::Peek | Operation::Refund(_) => None,
        };
        Decision::new(passes, receipt, remaining, full_after, || {
            let room = self.burst.checked_sub(self.excess.needed(hits))?;
            let tokens = missing.saturating_sub(room.into());
            Some(self.back_at(after, tokens).since(now))
        })
    }

    fn undo(&self, counter: &mut StepCounter, receipt: StepReceipt, now: Timestamp) {
        // All steps since may have paid for this charge alone.
        let steps = u128::from(now.nanos_since(receipt.step) / self.interval);
        let unpaid = u128::from(receipt.hits).saturating_sub(steps * self.brought());
        // Without this charge, a later one would have opened the step.
        self.give_back(counter, unpaid, receipt.opened_step, now);
    }

    fn idle_at(&self, counter: &StepCounter) -> Timestamp {
        counter.full_at
    }

    fn since(&self, counter: &StepCounter, base: &StepCounter, now: Timestamp) -> StepCounter {
        let level = self.level(counter, now);
        let base = self.level(base, now);
        self.counter(StepLevel { missing: level.missing.saturating_sub(base.missing), ..level })
    }

    fn absorb(&self, counter: &mut StepCounter, other: &StepCounter, now: Timestamp) {
        let one = self.level(counter, now);
        let other = self.level(other, now);
        *counter = self.counter(match (one.missing, other.missing) {
            (_, 0) => one,
            (0, _) => other,
            // The later step: no token is added earlier than on either side.
            (here, there) => {
                StepLevel { step: one.step.max(other.step), missing: here.saturating_add(there) }
            }
        });
    }

    fn clamp_ahead(&self, counter: &mut StepCounter, at: Timestamp, now: Timestamp) {
        let most = self.missing_max();
        if most < self.level(counter, now).missing {
            // A new step begins at `at`: the open one belongs to the time that was given up.
            *counter = self.counter(StepLevel { step: at, missing: most });
        }
    }

    fn weight(&self, counter: &StepCounter, _place: ChargePosition, now: Timestamp) -> u128 {
        self.level(counter, now).missing
    }

    fn lighten(&self, counter: &mut StepCounter, held: &HeldCharge, units: u128, now: Timestamp) {
        // Without these tokens the bucket was full at some time, and a later charge would have opened the step.
        self.give_back(counter, units, held.floor <= units, now);
    }

    fn converted(&self, units: u128, before: &Self) -> u128 {
        units / before.brought() * self.brought()
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn passing_debt_max(&self) -> u64 {
        let steps = self.burst.div_ceil(self.amount.get()).saturating_sub(1);
        self.interval.get().saturating_mul(steps)
    }

    fn charge_at(&self, counter: &mut StepCounter, hits: u64, at: Timestamp, _now: Timestamp) {
        let level = self.level(counter, at);
        *counter = self.counter(StepLevel { missing: level.missing.saturating_add(hits.into()), ..level });
    }

    fn hit_rate(&self) -> Option<HitRate> {
        HitRate::new(self.amount.get(), self.interval.get(), self.burst)
    }

    fn reduce(&mut self, part: HitRate) {
        let amount = self.amount.get().saturating_sub(part.hits_in(self.interval.get()));
        (self.amount, self.interval) = match NonZeroU64::new(amount) {
            Some(amount) => (amount, self.interval),
            None => (NonZeroU64::MIN, STILL_NANOS),
        };
        self.burst = self.burst.saturating_sub(part.burst);
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        self.amount = NonZeroU64::new(number(self.amount.get())).unwrap_or(NonZeroU64::MIN);
        (self.burst, self.excess) = (number(self.burst), excess(self.excess));
    }
}
