//! Calendar windows: days, weeks, months and years of a time zone.

use jiff::{
    ToSpan,
    civil::{Date, Weekday},
    tz::TimeZone,
};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

use crate::time::timestamp::{SECOND, Timestamp};

/// Windows that begin at midnight in a time zone. Their lengths differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "NamedCalendar", into = "NamedCalendar")]
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    /// A number that stands for the unit and the zone, the same on all replicas.
    pub(crate) code: u64,
}

/// How long a window of a calendar is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CalendarUnit {
    /// From midnight to midnight: 23 to 25 hours.
    Day,
    /// Seven days, from midnight of this day.
    Week(#[serde(with = "weekday")] Weekday),
    /// 28 to 31 days, from the first.
    Month,
    /// 365 or 366 days, from the first of January.
    Year,
}

/// The serialized form of a calendar: its unit, the name of its time zone, and its code.
type NamedCalendar = (CalendarUnit, String, u64);

impl From<Calendar> for NamedCalendar {
    fn from(calendar: Calendar) -> Self {
        (calendar.unit, calendar.zone().to_owned(), calendar.code)
    }
}

impl TryFrom<NamedCalendar> for Calendar {
    type Error = String;

    fn try_from((unit, zone, code): NamedCalendar) -> Result<Self, String> {
        let found = Self::new(unit, &zone).ok_or_else(|| format!("there is no time zone {zone:?} here"))?;
        // Keeps the code of the name as received: its case may differ from the canonical name of the zone.
        Ok(Self { code, ..found })
    }
}

/// A day of the week as its number; Monday is 1.
mod weekday {
    use jiff::civil::Weekday;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(day: &Weekday, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i8(day.to_monday_one_offset())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Weekday, D::Error> {
        Weekday::from_monday_one_offset(i8::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Calendar {
    /// Windows of `unit` in the time zone of that name, such as `Europe/Berlin`; `None` where there is no such.
    pub fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let code = SipHasher13::new().hash(format!("{zone} {unit:?}").as_bytes());
        Some(Self { unit, zone: TimeZone::get(zone).ok()?, code })
    }

    /// How long the windows of the calendar are.
    pub fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The name of the time zone of the calendar.
    pub fn zone(&self) -> &str {
        // Time zones are looked up by name, so there is always a name.
        self.zone.iana_name().unwrap_or_default()
    }

    /// An upper bound of the length of one window, less than that of two, in nanoseconds.
    pub(crate) fn nanos_max(&self) -> u64 {
        let days = match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week(_) => 7,
            CalendarUnit::Month => 31,
            CalendarUnit::Year => 366,
        };
        // Clock changes are a few hours at most.
        (days * 24 + 6) * 3_600 * SECOND
    }

    /// The start of the window that holds `now`.
    pub(crate) fn start(&self, now: Timestamp) -> Timestamp {
        self.midnight(self.first_day(now)).min(now)
    }

    /// The end of the window that starts at `start`, or of the one `later` windows after it.
    pub(crate) fn end(&self, start: Timestamp, later: u64) -> Timestamp {
        // Larger counts reach past the last timestamp anyway.
        let units = i32::try_from(later.saturating_add(1)).unwrap_or(i32::MAX);
        let span = match self.unit {
            CalendarUnit::Day => 1.day(),
            CalendarUnit::Week(_) => 1.week(),
            CalendarUnit::Month => 1.month(),
            CalendarUnit::Year => 1.year(),
        };
        // Not from the date of `start`: the first window may have begun before the epoch, to which starts are clamped.
        let end = span.checked_mul(units.into()).and_then(|span| self.first_day(start).checked_add(span));
        end.map_or(Timestamp::MAX, |date| self.midnight(date)).max(start.plus(1))
    }

    /// How many windows lie between two starts.
    pub(crate) fn windows_between(&self, from: Timestamp, to: Timestamp) -> u64 {
        let from = self.date(from);
        let to = self.date(to);
        let days = || i64::from((to - from).get_days());
        let months = || {
            let years = i64::from(to.year()) - i64::from(from.year());
            years * 12 + i64::from(to.month()) - i64::from(from.month())
        };
        let windows_between = match self.unit {
            CalendarUnit::Day => days(),
            CalendarUnit::Week(_) => days() / 7,
            CalendarUnit::Month => months(),
            CalendarUnit::Year => months() / 12,
        };
        windows_between.max(0).unsigned_abs()
    }

    /// The first day of the window that holds `instant`.
    fn first_day(&self, instant: Timestamp) -> Date {
        let date = self.date(instant);
        match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Week(first) => date.saturating_sub(i32::from(date.weekday().since(first)).days()),
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
        }
    }

    fn date(&self, instant: Timestamp) -> Date {
        let nanos = i128::from(instant.as_nanos());
        // The last timestamp is in the year 2554, which every calendar can represent.
        jiff::Timestamp::from_nanosecond(nanos)
            .unwrap_or(jiff::Timestamp::MAX)
            .to_zoned(self.zone.clone())
            .date()
    }

    /// The first instant of a day, or of the next day where the zone skips this one.
    fn midnight(&self, date: Date) -> Timestamp {
        let start = date.to_zoned(self.zone.clone()).and_then(|zoned| zoned.start_of_day());
        let nanos = start.map_or(i128::MAX, |start| start.timestamp().as_nanosecond());
        // Clamps to the epoch and to the last timestamp.
        Timestamp::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{
        Algorithm, Excess, Operation,
        fixed_window::FixedWindow,
        window::{Window, WindowCounter},
    };

    const HOUR: u64 = 3_600 * SECOND;

    fn at(text: &str) -> Timestamp {
        let instant: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_nanos(instant.as_nanosecond().try_into().unwrap())
    }

    /// Asserts the start and the length in hours of the window that contains `now`.
    #[track_caller]
    fn assert_window(unit: CalendarUnit, zone: &str, now: &str, start: &str, hours: f64) {
        let calendar = Calendar::new(unit, zone).unwrap();
        let (first, end) = (at(start), at(start).plus((hours * HOUR as f64) as u64));
        assert_eq!(calendar.start(at(now)), first, "{now}");
        assert_eq!(calendar.end(first, 0), end, "{now}");
        for (instant, begins) in [(first, first), (end.minus(1), first), (end, end)] {
            assert_eq!(calendar.start(instant), begins, "{instant:?} in {zone}");
        }
        assert!(calendar.start(first.minus(1)) < first);
        assert_eq!(calendar.windows_between(first, end), 1);
    }

    #[test]
    fn calendar_day_has_the_length_of_its_local_day() {
        let new_york = "America/New_York";
        for (zone, now, start, hours) in [
            (new_york, "2026-03-07T12:00:00-05:00", "2026-03-07T00:00:00-05:00", 24.0),
            (new_york, "2026-03-08T12:00:00-04:00", "2026-03-08T00:00:00-05:00", 23.0),
            (new_york, "2026-11-01T12:00:00-05:00", "2026-11-01T00:00:00-04:00", 25.0),
            ("Australia/Lord_Howe", "2026-04-05T12:00:00+10:30", "2026-04-05T00:00:00+11:00", 24.5),
            ("Australia/Lord_Howe", "2026-10-04T12:00:00+11:00", "2026-10-04T00:00:00+10:30", 23.5),
            ("UTC", "2026-03-08T12:00:00Z", "2026-03-08T00:00:00Z", 24.0),
            ("Asia/Kathmandu", "2026-03-08T12:00:00Z", "2026-03-08T00:00:00+05:45", 24.0),
        ] {
            assert_window(CalendarUnit::Day, zone, now, start, hours);
        }
    }

    #[test]
    fn day_without_midnight_begins_with_its_first_instant() {
        let day = |now, start, hours| {
            assert_window(CalendarUnit::Day, "America/Sao_Paulo", now, start, hours);
        };
        day("2018-11-03T12:00:00-03:00", "2018-11-03T00:00:00-03:00", 24.0);
        day("2018-11-04T12:00:00-02:00", "2018-11-04T01:00:00-02:00", 23.0);
    }

    #[test]
    fn day_with_two_midnights_begins_with_the_first() {
        let day = |now| {
            assert_window(CalendarUnit::Day, "America/Havana", now, "2026-11-01T00:00:00-04:00", 25.0);
        };
        day("2026-11-01T00:30:00-04:00");
        day("2026-11-01T00:30:00-05:00");
    }

    #[test]
    fn skipped_day_has_no_window() {
        let (now, start) = ("2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00");
        let calendar = Calendar::new(CalendarUnit::Day, "Pacific/Apia").unwrap();
        assert_eq!(calendar.start(at(now)), at(start));
        assert_eq!(calendar.end(at(start), 0), at("2011-12-31T00:00:00+14:00"));
        assert_eq!(calendar.start(at("2011-12-31T00:00:00+14:00")), at("2011-12-31T00:00:00+14:00"));
    }

    #[test]
    fn month_window_has_28_to_31_days() {
        let month = |now, start, days| {
            assert_window(CalendarUnit::Month, "UTC", now, start, f64::from(days) * 24.0);
        };
        month("2026-02-14T07:00:00Z", "2026-02-01T00:00:00Z", 28);
        month("2028-02-29T23:59:59.999999999Z", "2028-02-01T00:00:00Z", 29);
        month("2100-02-28T07:00:00Z", "2100-02-01T00:00:00Z", 28);
        month("2026-04-30T07:00:00Z", "2026-04-01T00:00:00Z", 30);
        month("2026-12-31T07:00:00Z", "2026-12-01T00:00:00Z", 31);
        let berlin = |now, start, hours| {
            assert_window(CalendarUnit::Month, "Europe/Berlin", now, start, hours);
        };
        berlin("2026-03-31T12:00:00+02:00", "2026-03-01T00:00:00+01:00", 31.0 * 24.0 - 1.0);
        berlin("2026-10-01T00:00:00+02:00", "2026-10-01T00:00:00+02:00", 31.0 * 24.0 + 1.0);
    }

    #[test]
    fn year_window_has_365_or_366_days() {
        let year = |zone, now, start, days| {
            assert_window(CalendarUnit::Year, zone, now, start, f64::from(days) * 24.0);
        };
        year("UTC", "2026-07-01T00:00:00Z", "2026-01-01T00:00:00Z", 365);
        year("UTC", "2028-12-31T23:59:59Z", "2028-01-01T00:00:00Z", 366);
        year("UTC", "2100-03-01T00:00:00Z", "2100-01-01T00:00:00Z", 365);
        year("Europe/Berlin", "2025-12-31T23:30:00Z", "2026-01-01T00:00:00+01:00", 365);
    }

    #[test]
    fn week_begins_on_the_given_weekday() {
        let week = |first, now, start| {
            assert_window(CalendarUnit::Week(first), "UTC", now, start, 168.0);
        };
        // The 1st of July 2026 is a Wednesday.
        week(Weekday::Monday, "2026-07-01T12:00:00Z", "2026-06-29T00:00:00Z");
        week(Weekday::Sunday, "2026-07-01T12:00:00Z", "2026-06-28T00:00:00Z");
        week(Weekday::Wednesday, "2026-07-01T00:00:00Z", "2026-07-01T00:00:00Z");
        week(Weekday::Thursday, "2026-07-01T23:59:59Z", "2026-06-25T00:00:00Z");
        // Weeks across the new year, and across a clock change that removes an hour.
        week(Weekday::Monday, "2027-01-01T12:00:00Z", "2026-12-28T00:00:00Z");
        assert_window(
            CalendarUnit::Week(Weekday::Sunday),
            "America/New_York",
            "2026-03-10T12:00:00-04:00",
            "2026-03-08T00:00:00-05:00",
            167.0,
        );
    }

    #[test]
    fn window_that_began_before_1970_ends_in_its_turn() {
        for (unit, zone, end) in [
            (CalendarUnit::Week(Weekday::Sunday), "UTC", "1970-01-04T00:00:00Z"),
            (CalendarUnit::Month, "America/New_York", "1970-01-01T00:00:00-05:00"),
        ] {
            let calendar = Calendar::new(unit, zone).unwrap();
            assert_eq!(calendar.start(Timestamp::EPOCH), Timestamp::EPOCH);
            assert_eq!(calendar.end(Timestamp::EPOCH, 0), at(end));
            assert_eq!(calendar.start(at(end)), at(end));
        }
    }

    #[test]
    fn calendar_window_reset_is_exact() {
        let calendar = Calendar::new(CalendarUnit::Day, "America/New_York").unwrap();
        let limit = FixedWindow { limit: 2, window: Window::Calendar(calendar), excess: Excess::Refuse };
        let mut counter = WindowCounter::default();
        let before_the_change = at("2026-03-08T01:59:59-05:00");
        let decision = limit.decide(&mut counter, before_the_change, Operation::Charge(2));
        assert_eq!(decision.reset_after.as_secs(), 21 * 3_600 + 1);
        let midnight = at("2026-03-09T00:00:00-04:00");
        assert!(!limit.decide(&mut counter, midnight.minus(1), Operation::Charge(1)).verdict.passes());
        let next = limit.decide(&mut counter, midnight, Operation::Charge(1));
        assert!(next.verdict.passes());
        assert_eq!(next.reset_after.as_secs(), 24 * 3_600);
    }

    #[test]
    fn calendar_debt_is_paid_by_the_following_months() {
        let calendar = Calendar::new(CalendarUnit::Month, "Europe/Berlin").unwrap();
        let window = Window::Calendar(calendar);
        let limit = FixedWindow { limit: 10, window, excess: Excess::Overdraft(25) };
        let mut counter = WindowCounter::default();
        limit.decide(&mut counter, at("2027-12-15T00:00:00+01:00"), Operation::Charge(100));
        // 35 hits are counted: December and January pay ten each, which leaves five for February.
        let left = |counter: &mut WindowCounter, now: &str| {
            limit.decide(counter, at(now), Operation::Peek).remaining
        };
        assert_eq!(left(&mut counter, "2028-02-29T12:00:00+01:00"), 0);
        assert_eq!(left(&mut counter, "2028-03-01T00:00:00+01:00"), 5);
        assert_eq!(limit.idle_at(&counter), at("2028-04-01T00:00:00+02:00"));
    }

    #[test]
    fn calendar_at_the_last_timestamp_does_not_panic() {
        for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"] {
            for unit in [CalendarUnit::Day, CalendarUnit::Week(Weekday::Monday), CalendarUnit::Year] {
                let calendar = Calendar::new(unit, zone).unwrap();
                for now in [Timestamp::EPOCH, Timestamp::MAX, Timestamp::MAX.minus(1)] {
                    let start = calendar.start(now);
                    assert!(start <= now && now <= calendar.end(start, 0));
                    calendar.end(start, u64::MAX);
                }
                assert!(calendar.windows_between(Timestamp::EPOCH, Timestamp::MAX) >= 580);
            }
        }
        assert_eq!(Calendar::new(CalendarUnit::Day, "Europe/Atlantis"), None);
    }
}
