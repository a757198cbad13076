//! Timestamps and clocks. The only module that reads a clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

mod clock_mapping;
mod monotonic;
mod system_clock;
pub(crate) mod timestamp;

pub use clock_mapping::LEAD_MAX;
use monotonic::Monotonic;
pub use monotonic::Stopwatch;
use system_clock::SystemClock;
pub use system_clock::{ClockReading, ClockStep, FOLLOW_EVERY, Lead};
pub use timestamp::{SECOND, Timestamp};

/// The start of the year 2500. Windows of years and everything that outlives them end before the last instant, in 2554.
const LAST_START: Timestamp = Timestamp::from_nanos(16_725_225_600 * SECOND);

/// The wall clock shows a time that no server can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the clock of this machine is not between the years 1970 and 2499: set it, then start again")]
pub struct ClockOutOfRange;

/// A source of time. Clones share one clock.
#[derive(Clone, Debug)]
pub struct Clock(TimeSource);

#[derive(Clone, Debug)]
enum TimeSource {
    System(Arc<SystemClock>),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The clock of this machine: the wall time at the start, advanced by the monotonic clock.
    pub fn system() -> Self {
        Self(TimeSource::System(Arc::new(SystemClock::start())))
    }

    /// A clock that shows `now` until [`Clock::set`] moves it.
    pub fn manual(now: Timestamp) -> Self {
        Self(TimeSource::Manual(Arc::new(AtomicU64::new(now.as_nanos()))))
    }

    /// Whether this is a manual clock.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, TimeSource::Manual(_))
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        self.read().now
    }

    /// The current instant, with a monotonic reading to measure what follows.
    #[inline]
    pub fn read(&self) -> ClockReading {
        match &self.0 {
            TimeSource::System(clock) => clock.read(),
            TimeSource::Manual(nanos) => {
                let now = Timestamp::from_nanos(nanos.load(Ordering::SeqCst));
                ClockReading { now, at: Monotonic::default(), must_follow: false }
            }
        }
    }

    /// The time since `reading`, independent of changes of the wall clock; zero for a manual clock.
    pub fn since(&self, reading: &ClockReading) -> Duration {
        let since = |clock: &SystemClock| clock.monotonic.now().nanos_since(reading.at);
        Duration::from_nanos(self.as_system().map_or(0, since))
    }

    /// The time between two readings, independent of changes of the wall clock; `None` for a manual clock.
    pub fn between(&self, earlier: &ClockReading, later: &ClockReading) -> Option<Duration> {
        self.as_system().map(|_| Duration::from_nanos(later.at.nanos_since(earlier.at)))
    }

    /// The wall clock. Certificates are issued and verified by it, as replicas and clients verify by theirs.
    pub fn wall(&self) -> Timestamp {
        self.as_system().map_or_else(|| self.now(), SystemClock::wall)
    }

    /// Fails unless the wall clock is in the years 1970 to 2499.
    pub fn require_in_range(&self) -> Result<(), ClockOutOfRange> {
        // Any time before 1970 reads as 1970.
        let wall = self.wall();
        if Timestamp::EPOCH < wall && wall < LAST_START { Ok(()) } else { Err(ClockOutOfRange) }
    }

    /// Sets a manual clock to `now`. A system clock ignores this.
    pub fn set(&self, now: Timestamp) {
        match &self.0 {
            TimeSource::System(_) => {}
            TimeSource::Manual(nanos) => nanos.store(now.as_nanos(), Ordering::SeqCst),
        }
    }

    /// For tests: makes a system clock see the wall clock `nanos` ahead of (negative: behind) what it shows, as if the
    /// clock of the machine were set. A manual clock ignores this.
    pub fn set_wall_ahead(&self, nanos: i64) {
        if let Some(clock) = self.as_system() {
            clock.wall_ahead.store(nanos, Ordering::SeqCst);
        }
    }

    /// Follows the wall clock: with a step if the wall clock is ahead or more than [`LEAD_MAX`] behind, otherwise by
    /// running 1 % slower. Call this every [`FOLLOW_EVERY`]. Passes a lead that it gives up to `give_up`, before the
    /// clock is corrected. Returns the step if it is longer than [`LEAD_MAX`]; `None` for a manual clock.
    pub fn follow(&self, give_up: impl FnOnce(Lead)) -> Option<ClockStep> {
        self.as_system()?.follow(give_up)
    }

    /// The number of steps forward longer than [`LEAD_MAX`].
    pub fn long_steps_forward(&self) -> u64 {
        self.as_system().map_or(0, |clock| clock.steps_forward.load(Ordering::Relaxed))
    }

    /// The number of steps back longer than [`LEAD_MAX`].
    pub fn long_steps_back(&self) -> u64 {
        self.as_system().map_or(0, |clock| clock.steps_back.load(Ordering::Relaxed))
    }

    fn as_system(&self) -> Option<&SystemClock> {
        match &self.0 {
            TimeSource::System(clock) => Some(clock),
            TimeSource::Manual(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_follows_wall_that_jumps_and_is_put_right() {
        const DAYS: i64 = 3 * 24 * 3_600 * SECOND as i64;
        let clock = Clock::system();
        let follow = || {
            let step = clock.follow(|_| ());
            (step, clock.wall().since(clock.now()), clock.now().since(clock.wall()))
        };
        let start = clock.now();
        clock.set_wall_ahead(DAYS);
        assert!(clock.now().since(start) < LEAD_MAX, "only the wall clock has moved");
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(ClockStep::Forward(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && clock.now().since(start) > LEAD_MAX);
        assert_eq!(follow().0, None);
        clock.set_wall_ahead(0);
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(ClockStep::Back(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && clock.now().since(start) < LEAD_MAX);
    }

    #[test]
    fn clock_is_in_range_from_1970_to_2499() {
        let last = jiff::civil::date(2500, 1, 1).to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
        assert_eq!(LAST_START.as_nanos(), last.as_nanosecond() as u64);
        assert_eq!(Clock::system().require_in_range(), Ok(()));
        let clock = Clock::system();
        clock.set_wall_ahead(i64::MIN);
        assert_eq!(clock.require_in_range(), Err(ClockOutOfRange), "a clock that was never set");
        for (at, expected) in [
            (Timestamp::EPOCH.plus(1), Ok(())),
            (LAST_START.minus(1), Ok(())),
            (LAST_START, Err(ClockOutOfRange)),
            (Timestamp::MAX, Err(ClockOutOfRange)),
        ] {
            assert_eq!(Clock::manual(at).require_in_range(), expected, "{at:?}");
        }
    }

    #[test]
    fn manual_clock_stands_still_until_set() {
        let clock = Clock::manual(Timestamp::from_nanos(5));
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp::from_nanos(5));
        other.set(Timestamp::from_nanos(3));
        assert_eq!(clock.now(), Timestamp::from_nanos(3));
    }
}
