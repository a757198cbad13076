//! Units of time as rule files name them, and limits as displayed by them.

use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{CalendarUnit, Span, Window},
    named,
};

named! {
    /// A unit of time, with its name in rule files. All windows are aligned to the Unix epoch: weeks begin on Thursday, a
    /// month is 30 days and a year 365 days.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Unit {
        /// 1 second.
        Second = "second",
        /// 60 seconds.
        Minute = "minute",
        /// 60 minutes.
        Hour = "hour",
        /// 24 hours.
        Day = "day",
        /// 7 days.
        Week = "week",
        /// 30 days.
        Month = "month",
        /// 365 days.
        Year = "year",
    }
}

impl Unit {
    /// The place of the unit among all units, from 1.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The unit at this place.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The length in seconds.
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// The length as a span.
    pub const fn span(self) -> Span {
        Span::from_seconds(self.seconds())
    }

    /// Aligned windows of this length.
    pub const fn window(self) -> Window {
        Window::Aligned(self.span())
    }
}

impl From<CalendarUnit> for Unit {
    fn from(unit: CalendarUnit) -> Self {
        match unit {
            CalendarUnit::Day => Self::Day,
            CalendarUnit::Week(_) => Self::Week,
            CalendarUnit::Month => Self::Month,
            CalendarUnit::Year => Self::Year,
        }
    }
}

/// A limit as displayed in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayedLimit {
    /// The number of requests, as in the rule file; 0 if the rule is unlimited.
    pub requests_per_unit: u64,
    /// The unit, as in the rule file; `None` if no unit has the length of the window.
    pub unit: Option<Unit>,
}
