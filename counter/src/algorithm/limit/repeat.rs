//! When a charge that has passed would pass again.

use std::time::Duration;

use crate::algorithm::{Excess, Limit, Operation};

impl Limit {
    /// The time after which `operation`, which has just passed with this much `remaining` and this `reset_after`, passes
    /// again without further charges: zero if it passes at once, otherwise an upper bound. `None` if none is known.
    pub fn repeats_after(
        &self,
        operation: Operation,
        remaining: u64,
        reset_after: Duration,
    ) -> Option<Duration> {
        let hits = self.hits_needed(operation);
        if hits <= remaining {
            return Some(Duration::ZERO);
        }
        let debt_max = match self.excess() {
            Excess::Refuse | Excess::Count => 0,
            Excess::Overdraft(debt) => debt,
        };
        match self {
            // A debt is paid by whole windows, of which those of a calendar differ in length.
            Self::Classic(_) | Self::FixedWindow(_) if debt_max == 0 => Some(reset_after),
            Self::Classic(_) | Self::FixedWindow(_) => {
                let windows = u32::try_from(debt_max.div_ceil(self.allowance().max(1))).ok()?;
                reset_after.checked_add(self.period()?.checked_mul(windows)?)
            }
            Self::SlidingWindow(window) => Some(window.repeats_after(hits, debt_max, reset_after)),
            // The oldest entry has at least one hit.
            Self::SlidingLog(_) if debt_max == 0 && hits - remaining == 1 => Some(reset_after),
            Self::SlidingLog(log) => Some(log.retention()),
            // Everything has come back then.
            Self::TokenBucket(_) | Self::SteppedBucket(_) | Self::LeakyBucket(_) | Self::LeakyQueue(_) => {
                Some(reset_after)
            }
            // A charge that has passed ends a row of refusals.
            Self::Penalized(both) => both.limit().repeats_after(operation, remaining, reset_after),
            // Places are freed when their callers say so.
            Self::Concurrency(_) => None,
        }
    }

    /// Whether `operation` passes when nothing was charged. Otherwise it never passes.
    pub fn can_pass(&self, operation: Operation) -> bool {
        match operation {
            Operation::Peek => self.allowance() > 0,
            Operation::Charge(_) => self.hits_needed(operation) <= self.allowance(),
            Operation::Refund(_) => true,
        }
    }

    /// How many hits must be left for `operation` to pass again. A peek that has passed has changed nothing.
    fn hits_needed(&self, operation: Operation) -> u64 {
        match operation {
            Operation::Peek | Operation::Refund(_) => 0,
            Operation::Charge(hits) => self.excess().needed(hits),
        }
    }
}
