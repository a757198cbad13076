//! Time windows, and the count of hits in one window.

use serde::{Deserialize, Serialize};

use crate::{algorithm::calendar::Calendar, time::timestamp::Timestamp};

/// A length of time, from a millisecond to a hundred years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Span {
    // Invariant: within the bounds below.
    nanos: u64,
}

/// Consecutive time windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Window {
    /// Windows of one length that begin at its multiples since the Unix epoch.
    Aligned(Span),
    /// Days, weeks, months or years of a time zone.
    Calendar(Calendar),
}

impl Span {
    /// The shortest span: a millisecond.
    pub const NANOS_MIN: u64 = 1_000_000;
    /// The longest span: a hundred years of 365 days.
    pub const NANOS_MAX: u64 = 100 * 365 * 86_400 * crate::time::SECOND;

    /// A span of `nanos`, or `None` where that is out of bounds.
    pub const fn from_nanos(nanos: u64) -> Option<Self> {
        if nanos < Self::NANOS_MIN || nanos > Self::NANOS_MAX { None } else { Some(Self { nanos }) }
    }

    /// A span of a number of seconds, known to be within bounds.
    pub const fn from_seconds(seconds: u32) -> Self {
        assert!(seconds > 0 && seconds as u64 <= Self::NANOS_MAX / crate::time::SECOND);
        Self { nanos: seconds as u64 * crate::time::SECOND }
    }

    /// The length of the span in nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.nanos
    }

    /// The last multiple of the span that is not after `now`.
    pub(crate) const fn start(self, now: Timestamp) -> Timestamp {
        now.minus(now.as_nanos() % self.nanos)
    }

    /// The first multiple of the span after `now`.
    pub(crate) const fn end(self, now: Timestamp) -> Timestamp {
        self.start(now).plus(self.nanos)
    }
}

impl From<Span> for u64 {
    fn from(span: Span) -> Self {
        span.nanos
    }
}

impl TryFrom<u64> for Span {
    type Error = String;

    fn try_from(nanos: u64) -> Result<Self, String> {
        Self::from_nanos(nanos).ok_or_else(|| format!("a span of {nanos} ns is out of bounds"))
    }
}

impl Window {
    /// Windows of `nanos`, or `None` where that is out of bounds.
    pub const fn from_nanos(nanos: u64) -> Option<Self> {
        match Span::from_nanos(nanos) {
            Some(span) => Some(Self::Aligned(span)),
            None => None,
        }
    }

    /// An upper bound of the length of one window, less than that of two, in nanoseconds.
    pub(crate) fn nanos_max(&self) -> u64 {
        match self {
            Self::Aligned(span) => span.nanos,
            Self::Calendar(calendar) => calendar.nanos_max(),
        }
    }

    /// The length of each window in nanoseconds, if all have the same.
    pub(crate) fn period(&self) -> Option<u64> {
        match self {
            Self::Aligned(span) => Some(span.nanos),
            Self::Calendar(_) => None,
        }
    }

    /// The start of the window that holds `now`.
    pub(crate) fn start(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::Aligned(span) => span.start(now),
            Self::Calendar(calendar) => calendar.start(now),
        }
    }

    /// The end of the window that holds `now`.
    pub(crate) fn end(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::Aligned(span) => span.end(now),
            Self::Calendar(calendar) => calendar.end(calendar.start(now), 0),
        }
    }

    /// The end of the window that comes `windows` after the one that ends at `end`.
    pub(crate) fn end_after(&self, end: Timestamp, windows: u64) -> Timestamp {
        match self {
            Self::Aligned(span) => end.plus(span.nanos.saturating_mul(windows)),
            Self::Calendar(_) if windows == 0 => end,
            Self::Calendar(calendar) => calendar.end(end, windows - 1),
        }
    }

    /// How many windows lie between two boundaries of windows.
    pub(crate) fn windows_between(&self, from: Timestamp, to: Timestamp) -> u64 {
        match self {
            Self::Aligned(span) => to.nanos_since(from) / span.nanos,
            Self::Calendar(calendar) => calendar.windows_between(from, to),
        }
    }
}

/// Hits counted in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowCounter {
    /// The end of the window: until then, a decision needs no division.
    pub(crate) end: Timestamp,
    /// The hits in the window. May exceed the limit.
    pub(crate) count: u64,
}

/// A charge to one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowReceipt {
    pub(super) end: Timestamp,
    pub(super) hits: u64,
}
