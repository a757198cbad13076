//! A lead that a clock gave up.

use tollgate_counter::time::{ClockComparison, ClockStep, Timestamp};

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
    pub(super) fn and(self, other: Self) -> Self {
        Self { at: self.at.max(other.at), until: self.until.max(other.until) }
    }

    /// The lead that a clock gives up when it follows the wall clock.
    pub fn given_up(comparison: &ClockComparison) -> Option<Self> {
        let is_given_up = matches!(comparison.long_step(), Some(ClockStep::Back(_)));
        is_given_up.then(|| Self { at: comparison.wall(), until: comparison.shown() })
    }
}
