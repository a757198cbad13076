//! Time that only goes forward, since a clock or a stopwatch was started.

use std::time::{Duration, Instant};

#[cfg(not(feature = "tsc"))]
use crate::time::timestamp::nanos;

/// Measures elapsed time, independent of clock changes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

#[expect(clippy::disallowed_methods, reason = "this is a clock too")]
impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.0)
    }
}

/// The monotonic clock of the system. With the feature `tsc`, that of the processor: its time stamp counter, where that
/// is stable. It may drift from the wall clock more than that of the system does; following the wall clock corrects that.
#[derive(Debug)]
pub(super) struct MonotonicClock {
    #[cfg(not(feature = "tsc"))]
    started: Instant,
    #[cfg(feature = "tsc")]
    counter: quanta::Clock,
    #[cfg(feature = "tsc")]
    started: u64,
}

/// Nanoseconds since a clock was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Monotonic(pub(super) u64);

#[cfg(not(feature = "tsc"))]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl MonotonicClock {
    pub(super) fn start() -> Self {
        Self { started: Instant::now() }
    }

    #[inline]
    pub(super) fn now(&self) -> Monotonic {
        Monotonic(nanos(Instant::now().saturating_duration_since(self.started)))
    }
}

#[cfg(feature = "tsc")]
impl MonotonicClock {
    pub(super) fn start() -> Self {
        let counter = quanta::Clock::new();
        let started = counter.raw();
        Self { counter, started }
    }

    #[inline]
    pub(super) fn now(&self) -> Monotonic {
        // The counter of another core may be a little behind that of the start.
        let raw = self.counter.raw().max(self.started);
        Monotonic(self.counter.delta_as_nanos(self.started, raw))
    }
}

impl Monotonic {
    pub(super) fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
