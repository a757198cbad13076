//! What keeps callers and components from harming each other: the use of each caller, the budget of a call, the circuit
//! breaker, and delays between attempts. Time and randomness are arguments.

use std::time::Duration;

use crate::time::timestamp::Timestamp;

mod caller;
mod ids;

pub use caller::{CALLER_SHARE, SharedUse};
pub use caller::{Caller, CallerAccess, CallerOrigin, CallerRegistry};
pub use ids::IdRecord;

/// How long a call may wait for a remote decision: half of the caller's timeout, so that the answer still arrives, and
/// at most `max`.
pub fn budget(timeout: Option<Duration>, max: Duration) -> Duration {
    timeout.map_or(max, |timeout| (timeout / 2).min(max))
}

/// Too many checks wait for a remote decision: of one call, of its connection, or of this replica. No check of the call
/// was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many checks wait for a remote decision")]
pub struct Overloaded;

/// Stops calling a component that fails repeatedly, so that callers do not wait for it.
#[derive(Clone, Copy, Debug)]
pub struct CircuitBreaker {
    failures_max: u32,
    open_for: Duration,
    failures: u32,
    // Set if there were `failures_max` failures in a row.
    open_until: Option<Timestamp>,
}

/// Whether the component is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// The component is called.
    Closed,
    /// The component is not called.
    Open,
    /// The component is called again; the next failure opens the breaker, the next success closes it.
    HalfOpen,
}

impl CircuitBreaker {
    /// A closed breaker, which opens for `open_for` after `failures_max` failures in a row.
    pub const fn new(failures_max: u32, open_for: Duration) -> Self {
        Self { failures_max, open_for, failures: 0, open_until: None }
    }

    /// The state at `now`.
    pub fn state(&self, now: Timestamp) -> BreakerState {
        match self.open_until {
            None => BreakerState::Closed,
            Some(until) if now < until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        }
    }

    /// Records a success.
    pub fn on_success(&mut self) {
        (self.failures, self.open_until) = (0, None);
    }

    /// Records a failure. Returns whether it opens the breaker.
    pub fn on_failure(&mut self, now: Timestamp) -> bool {
        // What was asked before the breaker opened is no new evidence.
        if self.state(now) == BreakerState::Open {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let opens = self.failures >= self.failures_max;
        if opens {
            self.open_until = Some(now.after(self.open_for));
        }
        opens
    }
}

/// Growing delays between attempts.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Delays from `first`, doubled each time, up to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first }
    }

    /// The next delay: between half of its nominal length and all of it, as `random` (0 to 1) says, so that replicas
    /// do not try at the same moments.
    pub fn next_delay(&mut self, random: f64) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.max);
        nominal.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Starts again with the first delay.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn budget_is_half_of_timeout_up_to_maximum() {
        let max = Duration::from_millis(500);
        assert_eq!(budget(None, max), max);
        assert_eq!(budget(Some(Duration::from_millis(20)), max), Duration::from_millis(10));
        assert_eq!(budget(Some(10 * SECOND), max), max);
    }

    #[test]
    fn breaker_opens_after_failures_in_a_row_only() {
        let mut breaker = CircuitBreaker::new(2, SECOND);
        let now = Timestamp::from_nanos(5);
        assert!(!breaker.on_failure(now));
        breaker.on_success();
        assert!(!breaker.on_failure(now));
        assert_eq!(breaker.state(now), BreakerState::Closed);
        assert!(breaker.on_failure(now));
        assert_eq!(breaker.state(now), BreakerState::Open);
    }

    #[test]
    fn breaker_half_opens_then_next_outcome_decides() {
        let mut breaker = CircuitBreaker::new(1, SECOND);
        let now = Timestamp::from_nanos(5);
        assert!(breaker.on_failure(now));
        let later = now.after(SECOND);
        assert_eq!(breaker.state(later.minus(1)), BreakerState::Open);
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
        assert!(!breaker.on_failure(later.minus(1)), "it is open");
        assert_eq!(breaker.state(later), BreakerState::HalfOpen, "a failure while it is open is ignored");
        assert!(breaker.on_failure(later), "it opens again");
        assert_eq!(breaker.state(later), BreakerState::Open);
        breaker.on_success();
        assert_eq!(breaker.state(later), BreakerState::Closed);
    }

    #[test]
    fn delays_double_up_to_maximum_and_start_again() {
        let mut backoff = Backoff::new(SECOND, 3 * SECOND);
        assert_eq!([1.0, 1.0, 1.0, 1.0].map(|random| backoff.next_delay(random).as_secs()), [1, 2, 3, 3]);
        backoff.reset();
        assert_eq!(backoff.next_delay(0.0), SECOND / 2);
    }
}
