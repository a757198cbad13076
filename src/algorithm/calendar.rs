//! Windows as people count them: days, weeks, months and years of a place on earth.

use jiff::{
    ToSpan,
    civil::{Date, Weekday},
    tz::TimeZone,
};
use siphasher::sip::SipHasher13;

use crate::time::Timestamp;

/// Windows that turn at midnight in a time zone, however long their days are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    code: u64,
}

/// How long a window of a calendar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From midnight to midnight: 23 to 25 hours.
    Day,
    /// Seven days, from midnight of the given one.
    Week(Weekday),
    /// 28 to 31 days, from the first.
    Month,
    /// 365 or 366 days, from the first of January.
    Year,
}

impl Calendar {
    /// Windows of `unit` in the time zone of that name, such as `Europe/Berlin`; `None` where there is no such.
    pub fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let code = SipHasher13::new().hash(format!("{zone} {unit:?}").as_bytes());
        Some(Self { unit, zone: TimeZone::get(zone).ok()?, code })
    }

    /// A number for its unit and zone, the same on all replicas.
    pub(crate) fn code(&self) -> u64 {
        self.code
    }

    /// The start of the window that holds `now`.
    pub(crate) fn start(&self, now: Timestamp) -> Timestamp {
        let date = self.date(now);
        let first = match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Week(first) => date.saturating_sub(i32::from(date.weekday().since(first)).days()),
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
        };
        self.midnight(first).min(now)
    }

    /// The end of the window that starts at `start`, or of the one `later` windows after it.
    pub(crate) fn end(&self, start: Timestamp, later: u64) -> Timestamp {
        // More windows than a span can say reach past the end of time anyway.
        let units = i32::try_from(later.saturating_add(1)).unwrap_or(i32::MAX);
        let span = match self.unit {
            CalendarUnit::Day => 1.day(),
            CalendarUnit::Week(_) => 1.week(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Year => 1.year(),
        };
        let end = span.checked_mul(units.into()).and_then(|span| self.date(start).checked_add(span));
        end.map_or(Timestamp::MAX, |date| self.midnight(date)).max(start.plus(1))
    }

    /// How many windows lie between two starts.
    pub(crate) fn turns(&self, from: Timestamp, to: Timestamp) -> u64 {
        let (from, to) = (self.date(from), self.date(to));
        let days = || i64::from((to - from).get_days());
        let months = || {
            let years = i64::from(to.year()) - i64::from(from.year());
            years * 12 + i64::from(to.month()) - i64::from(from.month())
        };
        let turns = match self.unit {
            CalendarUnit::Day => days(),
            CalendarUnit::Week(_) => days() / 7,
            CalendarUnit::Month => months(),
            CalendarUnit::Year => months() / 12,
        };
        turns.max(0).unsigned_abs()
    }

    fn date(&self, instant: Timestamp) -> Date {
        let nanos = i128::from(instant.as_nanos());
        // The last instant there is lies in the year 2554, which is within any calendar.
        jiff::Timestamp::from_nanosecond(nanos)
            .unwrap_or(jiff::Timestamp::MAX)
            .to_zoned(self.zone.clone())
            .date()
    }

    /// The first instant of a day; where that day is left out, of the next.
    fn midnight(&self, date: Date) -> Timestamp {
        let start = date.to_zoned(self.zone.clone()).and_then(|zoned| zoned.start_of_day());
        let nanos = start.map_or(i128::MAX, |start| start.timestamp().as_nanosecond());
        // Before the epoch is the epoch, after the end of time its end.
        Timestamp::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}
