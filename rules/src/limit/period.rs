//! The period of a limit.

use std::num::NonZeroU64;

use jiff::SignedDuration;
use tollgate_counter::algorithm::{Calendar, CalendarUnit, Span, Window};

use crate::{
    Unit,
    diagnostics::Diagnostics,
    key_values::LimitDraft,
    keys::{self, WEEKDAYS},
    yaml::{Located, Mark, quote},
};

/// A period and the unit of the same length, if there is one.
pub(super) struct Period {
    pub(super) span: Span,
    pub(super) unit: Option<Unit>,
    /// If set, `span` is only the approximate length of a window.
    calendar: Option<Calendar>,
}

impl Period {
    /// Reads `unit`, `unit_multiplier`, `window` and `calendar`.
    pub(super) fn read(draft: LimitDraft<'_>) -> Option<Self> {
        if draft.given("window").is_some() {
            let nanos = time(draft, "window", [NANOS_MIN, NANOS_MAX], None)?;
            return Some(Self { span: Span::from_nanos(nanos)?, unit: None, calendar: None });
        }
        if draft.given("unit").is_none() {
            let names = keys::quoted_list(Unit::ALL.iter().map(|unit| unit.name()));
            draft.report(draft.mark, format!("`unit` is missing; it is one of {names}, or give a `window`"));
            return None;
        }
        let unit = draft.choice("unit", &Unit::NAMED)?;
        if draft.given("calendar").is_some() {
            let keys = draft.mapping("calendar")?;
            let calendar = calendar(&unit, LimitDraft { keys, ..draft })?;
            return Some(Self { span: unit.value.span(), unit: None, calendar: Some(calendar) });
        }
        multiplied(draft, unit.value)
    }

    pub(super) fn nanos(&self) -> NonZeroU64 {
        // A span is at least 1 ms long.
        NonZeroU64::new(self.span.nanos()).unwrap_or(NonZeroU64::MIN)
    }

    /// The windows of this period.
    pub(super) fn into_window(self) -> Window {
        self.calendar.map_or(Window::Aligned(self.span), Window::Calendar)
    }
}

fn multiplied(draft: LimitDraft<'_>, unit: Unit) -> Option<Period> {
    match (draft.integer("unit_multiplier"), draft.given("unit_multiplier")) {
        (None, Some(_reported)) => None,
        (None, None) | (Some(Located { value: 1, .. }), _) => {
            Some(Period { span: unit.span(), unit: Some(unit), calendar: None })
        }
        (Some(Located { value, mark }), _) => {
            let span = Span::from_nanos(unit.span().nanos().saturating_mul(*value));
            if span.is_none() {
                draft.report(*mark, format!("`unit_multiplier` of {value} is out of range; it is at least 1, and the window at most 100 years"));
            }
            Some(Period { span: span?, unit: None, calendar: None })
        }
    }
}

/// The shortest time that most keys accept.
pub(super) const NANOS_MIN: u64 = Span::NANOS_MIN;
/// The longest time that most keys accept.
pub(super) const NANOS_MAX: u64 = Span::NANOS_MAX;

/// The nanoseconds of a key that takes a time in whole milliseconds, from `min` to `max`; the default if it is absent.
pub(super) fn time(
    draft: LimitDraft<'_>,
    key: &str,
    [min, max]: [u64; 2],
    default: Option<u64>,
) -> Option<u64> {
    const MILLISECOND: u64 = 1_000_000;
    let Some(text) = draft.text(key) else { return default.filter(|_| draft.given(key).is_none()) };
    let nanos = text
        .value
        .parse::<SignedDuration>()
        .ok()
        .and_then(|time| u64::try_from(time.as_nanos()).ok())
        .filter(|nanos| nanos.is_multiple_of(MILLISECOND) && (min..=max).contains(nanos));
    if nanos.is_none() {
        let min = min / MILLISECOND;
        let max = if max == NANOS_MAX { "100 years".to_owned() } else { format!("{} ms", max / MILLISECOND) };
        draft.report(
            text.mark,
            format!(
                "`{key}` cannot be {}; it is a time like `90s`, `250ms` or `1h 30m`, in whole milliseconds, \
                 from {min} ms to {max}",
                quote(&text.value)
            ),
        );
    }
    nanos
}

fn calendar(unit: &Located<Unit>, draft: LimitDraft<'_>) -> Option<Calendar> {
    let unit = calendar_unit(unit, draft);
    let zone = draft.text("timezone")?;
    // The unit does not matter for checking the zone.
    let calendar = Calendar::new(unit.unwrap_or(CalendarUnit::Day), &zone.value);
    if calendar.is_none() {
        unknown_zone(&zone.value, zone.mark, draft.diagnostics);
    }
    unit.and(calendar)
}

fn calendar_unit(unit: &Located<Unit>, draft: LimitDraft<'_>) -> Option<CalendarUnit> {
    if let Some(mark) = draft.given("week_start").filter(|_| unit.value != Unit::Week) {
        draft.report(mark, "`week_start` requires `unit: week`");
        return None;
    }
    match unit.value {
        Unit::Second | Unit::Minute | Unit::Hour => {
            let what = format!(
                "`unit: {}` is the same in every calendar; with `calendar` it is one of `day`, `week`, `month`, `year`",
                unit.value.name()
            );
            draft.report(unit.mark, what);
            None
        }
        Unit::Day => Some(CalendarUnit::Day),
        Unit::Week => match (draft.choice("week_start", &WEEKDAYS), draft.given("week_start")) {
            (Some(first), _) => Some(CalendarUnit::Week(first.value)),
            (None, None) => Some(CalendarUnit::Week(jiff::civil::Weekday::Monday)),
            (None, Some(_reported)) => None,
        },
        Unit::Month => Some(CalendarUnit::Month),
        Unit::Year => Some(CalendarUnit::Year),
    }
}

fn unknown_zone(zone: &str, mark: Mark, diagnostics: &Diagnostics<'_>) {
    diagnostics.add_with(mark, || {
        let known: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        let hint = keys::hint(zone, known.iter().map(String::as_str));
        let given = quote(zone);
        format!("`timezone` cannot be {given}; it is an IANA name such as `Europe/Berlin` or `UTC`{hint}")
    });
}
