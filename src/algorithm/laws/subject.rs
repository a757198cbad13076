//! Parameters of the laws for each algorithm.

use super::*;

/// What the laws need of an algorithm besides its own functions.
pub(super) trait Law:
    Algorithm<Counter: Clone + PartialEq + std::fmt::Debug, Receipt: Clone> + std::fmt::Debug
{
    /// The most hits that may be admitted between two instants, both included, without overdrafts.
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128;
    /// Hits that pass when nothing was counted.
    fn allowance(&self) -> u64;
    fn excess(&self) -> Excess;
    /// The latest instant until which hits charged under a lead may refuse others, without overdrafts.
    fn refilled_at(&self, now: Timestamp) -> Timestamp;
    /// Hits that may have come back too early because of a charge that was taken back.
    fn early(&self) -> u64 {
        0
    }
    /// Whether undo restores the state before the charge. With a debt, other charges may have been paid meanwhile.
    fn undoes_all(&self) -> bool {
        true
    }
    /// Whether the refund of one hit may make room for several.
    fn can_free_several(&self) -> bool {
        false
    }
}

impl Law for FixedWindow {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let windows_between = self.window.windows_between(self.window.start(from), self.window.start(to));
        u128::from(self.limit) * (1 + u128::from(windows_between))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        self.window.end(self.window.start(now), 1)
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingWindow {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let windows_between = self.span.start(to).nanos_since(self.span.start(from)) / self.span.nanos();
        u128::from(self.limit) * (1 + u128::from(windows_between))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        self.span.start(now).plus(3 * self.span.nanos())
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingLog {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        // Hits less than a window minus a grain apart never exceed the limit together; each such span adds one limit.
        let exact = self.span.nanos() - (self.grain.get() - 1);
        u128::from(self.limit) * (1 + u128::from(span / exact))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.span.nanos())
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for TokenBucket {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let paid = u128::from(span) * u128::from(self.rate.hits()) / u128::from(self.rate.nanos());
        u128::from(self.burst) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.after(self.rate.time_for(self.rate.cost(self.burst)))
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for SteppedBucket {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let steps = 1 + u128::from(span / self.interval);
        u128::from(self.burst) + steps * u128::from(self.amount.get())
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.interval.get().saturating_mul(self.burst.div_ceil(self.amount.get())))
    }

    fn excess(&self) -> Excess {
        self.excess
    }
    // The step that the charge opened has passed for later charges, too.
    fn early(&self) -> u64 {
        self.amount.get()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for LeakyQueue {
    fn bound(&self, from: Timestamp, to: Timestamp) -> u128 {
        let span = to.nanos_since(from);
        let paid = u128::from(span) * u128::from(self.rate.hits()) / u128::from(self.rate.nanos());
        u128::from(self.allowance()) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst.map_or(0, |burst| burst.saturating_add(1))
    }

    fn refilled_at(&self, now: Timestamp) -> Timestamp {
        now.after(self.rate.time_for(self.rate.cost(self.allowance())))
    }

    fn excess(&self) -> Excess {
        Excess::Refuse
    }

    // Nothing is admitted until the delay is short enough; then everything behind it fits.
    fn can_free_several(&self) -> bool {
        self.max_delay.is_some()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}
