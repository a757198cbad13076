//! Instants of the clock of counters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Nanoseconds since the Unix epoch, up to the year 2554. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, before everything that is counted.
    pub const EPOCH: Self = Self(0);
    /// The last representable instant.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `nanos` later, at most the last one.
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The instant `time` later, at most the last one.
    pub fn after(self, time: Duration) -> Self {
        self.plus(nanos(time))
    }

    /// The instant `time` earlier, at least the epoch.
    pub fn before(self, time: Duration) -> Self {
        self.minus(nanos(time))
    }

    /// The instant `nanos` earlier, at least the epoch.
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this instant; 0 if `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The time from this instant to the next tick of work that is done every `interval`: the first multiple of the
    /// interval since the epoch that is at least half an interval away. So one wake-up serves all such work of a process,
    /// and what replicas with the same time send each other arrives together.
    pub fn until_tick(self, interval: Duration) -> Duration {
        let interval = nanos(interval);
        let earliest = self.plus(interval / 2);
        earliest.0.checked_next_multiple_of(interval).map_or(Self::MAX, Self).since(self)
    }
}

/// The nanoseconds of a duration, at most 2^64 - 1.
pub(super) fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(SECOND).saturating_add(duration.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_multiples_at_least_half_an_interval_away() {
        let interval = Duration::from_millis(100);
        let start = Timestamp(3_600 * SECOND);
        for (millis, until) in [(0, 100), (1, 99), (50, 50), (51, 149), (99, 101)] {
            let now = start.after(Duration::from_millis(millis));
            assert_eq!(now.until_tick(interval), Duration::from_millis(until));
        }
        assert_eq!(Timestamp::MAX.until_tick(interval), Duration::ZERO);
    }
}
