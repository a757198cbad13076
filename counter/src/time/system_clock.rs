//! The clock of this machine: it follows the wall clock, but does not go back with it.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::time::{
    clock_mapping::{ClockMapping, LEAD_MAX, MappingCell},
    monotonic::{Monotonic, MonotonicClock},
    timestamp::{Timestamp, nanos},
};

/// The time between two comparisons with the wall clock. The drift of a machine's clock in between is negligible.
pub const FOLLOW_EVERY: Duration = Duration::from_millis(100);

const FOLLOW_NANOS: u64 = FOLLOW_EVERY.as_nanos() as u64;

/// The monotonic clock, and the active mapping from its time to the time that the clock shows.
#[derive(Debug)]
pub(super) struct SystemClock {
    pub(super) monotonic: MonotonicClock,
    mapping: MappingCell,
    // In nanoseconds; 0 except in tests.
    pub(super) wall_ahead: AtomicI64,
    /// Steps longer than [`LEAD_MAX`].
    pub(super) steps_forward: AtomicU64,
    pub(super) steps_back: AtomicU64,
}

/// One reading of a clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// What the clock showed.
    pub now: Timestamp,
    /// Whether a system clock was compared with the wall clock longer than [`FOLLOW_EVERY`] ago.
    pub must_follow: bool,
    pub(super) at: Monotonic,
}

/// A step of a clock, with its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// The wall clock jumped ahead, or the machine was suspended.
    Forward(Duration),
    /// The clock gives up its lead over a wall clock that was set back.
    Back(Duration),
}

impl SystemClock {
    pub(super) fn start() -> Self {
        let monotonic = MonotonicClock::start();
        let mapping = ClockMapping { from: monotonic.now(), shown: wall(), slewing: false };
        Self {
            monotonic,
            mapping: MappingCell::new(mapping),
            wall_ahead: AtomicI64::new(0),
            steps_forward: AtomicU64::new(0),
            steps_back: AtomicU64::new(0),
        }
    }

    pub(super) fn wall(&self) -> Timestamp {
        Timestamp::from_nanos(
            wall().as_nanos().saturating_add_signed(self.wall_ahead.load(Ordering::Relaxed)),
        )
    }

    #[inline]
    pub(super) fn read(&self) -> ClockReading {
        let at = self.monotonic.now();
        let mapping = self.mapping.get();
        let must_follow = at.nanos_since(mapping.from) >= FOLLOW_NANOS;
        ClockReading { now: mapping.at(at), must_follow, at }
    }

    pub(super) fn follow(&self, give_up: impl FnOnce(Lead)) -> Option<ClockStep> {
        let mapping = self.mapping.get();
        let at = self.monotonic.now();
        let (shown, wall) = (mapping.at(at), self.wall());
        let (ahead, behind) = (shown.since(wall), wall.since(shown));
        let step = if ahead > LEAD_MAX {
            give_up(Lead { at: wall, until: shown });
            self.steps_back.fetch_add(1, Ordering::Relaxed);
            Some(ClockStep::Back(ahead))
        } else if behind > LEAD_MAX {
            self.steps_forward.fetch_add(1, Ordering::Relaxed);
            Some(ClockStep::Forward(behind))
        } else {
            None
        };
        self.mapping.set(mapping.next(at, wall));
        step
    }
}

/// A lead that a clock gave up: the clock continued from `at` although it had shown `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// When the lead was given up, by the corrected clock.
    pub at: Timestamp,
    /// The latest instant that the clock had shown. From then on, no counter is ahead of the clock.
    pub until: Timestamp,
}

impl Lead {
    /// A lead that covers this one and `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { at: self.at.max(other.at), until: self.until.max(other.until) }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    // A wall clock before 1970 reads as 1970.
    Timestamp::from_nanos(nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}
