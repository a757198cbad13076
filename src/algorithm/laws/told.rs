//! What the laws are told of each algorithm.

use super::*;

/// What the laws are told of an algorithm besides its own functions.
pub(super) trait Law:
    Algorithm<Counter: Clone + PartialEq + std::fmt::Debug, Receipt: Clone> + std::fmt::Debug
{
    /// The most hits that may be admitted in any span of this length (overdrafts aside).
    fn bound(&self, span: u64) -> u128;
    /// Hits that pass when nothing was counted.
    fn allowance(&self) -> u64;
    fn excess(&self) -> Excess;
    /// Hits that may have come back too early because of a charge that was then taken back.
    fn early(&self) -> u64 {
        0
    }
    /// Whether a charge taken back is as if it had never been. A debt keeps what others may have paid meanwhile.
    fn undoes_all(&self) -> bool {
        true
    }
    /// Whether one hit given back may make room for several.
    fn opens_at_once(&self) -> bool {
        false
    }
}

impl Law for FixedWindow {
    fn bound(&self, span: u64) -> u128 {
        // The shortest window that laws know is a second less than a day long; calendars have their own tests.
        let Window::Aligned(window) = self.window else { return u128::MAX };
        u128::from(self.limit) * (2 + u128::from(span / window.nanos()))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingWindow {
    fn bound(&self, span: u64) -> u128 {
        u128::from(self.limit) * (2 + u128::from(span / self.span.nanos()))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for SlidingLog {
    fn bound(&self, span: u64) -> u128 {
        // Hits a grain less than a window apart never exceed the limit together; each such span adds one.
        let exact = self.span.nanos() - (self.grain.get() - 1);
        u128::from(self.limit) * (1 + u128::from(span / exact))
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }
}

impl Law for TokenBucket {
    fn bound(&self, span: u64) -> u128 {
        let paid = u128::from(span) * u128::from(self.pace.hits()) / u128::from(self.pace.nanos());
        u128::from(self.burst) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for SteppedBucket {
    fn bound(&self, span: u64) -> u128 {
        let steps = 1 + u128::from(span / self.interval);
        u128::from(self.burst) + steps * u128::from(self.amount.get())
    }

    fn allowance(&self) -> u64 {
        self.burst
    }

    fn excess(&self) -> Excess {
        self.excess
    }
    // The step that a charge began has passed for those behind it, too.
    fn early(&self) -> u64 {
        self.amount.get()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}

impl Law for LeakyQueue {
    fn bound(&self, span: u64) -> u128 {
        let paid = u128::from(span) * u128::from(self.pace.hits()) / u128::from(self.pace.nanos());
        u128::from(self.allowance()) + paid + 1
    }

    fn allowance(&self) -> u64 {
        self.burst.map_or(0, |burst| burst.saturating_add(1))
    }

    fn excess(&self) -> Excess {
        Excess::Refuse
    }

    // Nothing is let in until the delay is short enough; then all that is behind fits.
    fn opens_at_once(&self) -> bool {
        self.max_delay.is_some()
    }

    fn undoes_all(&self) -> bool {
        false
    }
}
