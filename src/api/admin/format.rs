//! Formats limits, counters and times for operators.

use std::time::Duration;

use tollgate_limiter::{
    algorithm::{AlgorithmName, CalendarUnit, Excess, Limit, Span, Window},
    descriptor::Key,
    rules::Unit,
    time::Timestamp,
};

/// An instant in RFC 3339.
pub(crate) fn instant(instant: Timestamp) -> String {
    let nanos = i128::from(instant.as_nanos());
    jiff::Timestamp::from_nanosecond(nanos).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// `text` as one word of a POSIX shell, whatever its characters.
pub(crate) fn shell_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A key in hexadecimal.
pub(crate) fn key(key: Key) -> String {
    format!("{:016x}{:016x}", key.high(), key.low())
}

/// A limit with its options: `10 per minute, algorithm: token_bucket, burst: 20`.
pub(crate) fn limit(limit: &Limit, unit: Option<Unit>) -> String {
    let mut text = match (limit, unit) {
        (Limit::SteppedBucket(bucket), _) => bucket.burst.to_string(),
        (Limit::Concurrency(limit), _) => format!("{} in flight", limit.max_in_flight),
        (_, Some(unit)) => format!("{} per {}", limit.hits_per_period(), unit.name()),
        (_, None) => match limit.window() {
            Some(Window::Calendar(calendar)) => {
                format!("{} per {}", limit.hits_per_period(), calendar_unit(calendar.unit()))
            }
            Some(Window::Aligned(_)) | None => {
                let time = limit.period().map(time).unwrap_or_default();
                format!("{} per {time}", limit.hits_per_period())
            }
        },
    };
    for (key, value) in own_keys(limit, unit).into_iter().filter(|(key, _)| *key != "window") {
        text.extend([", ", key, ": ", &value]);
    }
    text
}

/// The kind of its counter. Limits of the same kind share counters.
pub(crate) fn kind(limit: &Limit) -> String {
    let over = match (limit.window(), limit) {
        (Some(Window::Calendar(calendar)), _) => calendar_words(calendar.unit(), calendar.zone()),
        (_, Limit::SteppedBucket(bucket)) => time(Duration::from_nanos(bucket.interval.get())),
        (_, Limit::Concurrency(limit)) => time(Duration::from_nanos(limit.hold_max.nanos())),
        (Some(Window::Aligned(_)) | None, _) => limit.period().map(time).unwrap_or_default(),
    };
    format!("{} over {over}", algorithm(limit))
}

/// The keys of a rule that envoyproxy/ratelimit does not have.
pub(crate) fn own_keys(limit: &Limit, unit: Option<Unit>) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if !limit.is_classic() {
        keys.push(("algorithm", algorithm(limit).to_owned()));
    }
    match (limit.window(), limit) {
        (Some(Window::Calendar(calendar)), _) => {
            keys.push(("calendar", calendar_words(calendar.unit(), calendar.zone())));
        }
        (Some(Window::Aligned(_)) | None, _) if unit.is_none() => {
            keys.extend(limit.period().map(|period| ("window", time(period))));
        }
        (Some(Window::Aligned(_)) | None, _) => {}
    }
    match limit {
        Limit::Classic(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_) => {}
        Limit::SlidingLog(limit) => {
            let sub_windows = || ("sub_windows", (limit.span.nanos() / limit.sub_window).to_string());
            keys.extend(limit.has_sub_windows().then(sub_windows));
        }
        Limit::TokenBucket(limit) | Limit::LeakyBucket(limit) => {
            keys.push(("burst", limit.burst.to_string()));
        }
        Limit::SteppedBucket(limit) => {
            keys.push(("burst", limit.burst.to_string()));
            keys.push(("refill_amount", limit.amount.to_string()));
            keys.push(("refill_interval", time(Duration::from_nanos(limit.interval.get()))));
        }
        Limit::LeakyQueue(limit) => {
            keys.extend(limit.burst.map(|burst| ("burst", burst.to_string())));
            keys.extend(limit.max_delay.map(|longest| ("max_delay", time(longest))));
        }
        Limit::Concurrency(limit) => {
            keys.push(("max_in_flight", limit.max_in_flight.to_string()));
            keys.push(("hold_max", time(Duration::from_nanos(limit.hold_max.nanos()))));
        }
    }
    match limit.excess() {
        // A classic limit always counts denied hits.
        _ if limit.is_classic() => {}
        Excess::Refuse => {}
        Excess::Count => keys.push(("count_denied", "true".to_owned())),
        Excess::Overdraft(most) => {
            keys.push(("overdraft", "true".to_owned()));
            keys.push(("overdraft_limit", most.to_string()));
        }
    }
    keys
}

fn algorithm(limit: &Limit) -> &'static str {
    limit.algorithm().map_or("classic", AlgorithmName::name)
}

fn calendar_words(unit: CalendarUnit, zone: &str) -> String {
    match unit {
        CalendarUnit::Week(first) => format!("week from {first:?} in {zone}"),
        CalendarUnit::Day | CalendarUnit::Month | CalendarUnit::Year => {
            format!("{} in {zone}", calendar_unit(unit))
        }
    }
}

fn calendar_unit(unit: CalendarUnit) -> &'static str {
    match unit {
        CalendarUnit::Day => "day",
        CalendarUnit::Week(_) => "week",
        CalendarUnit::Month => "month",
        CalendarUnit::Year => "year",
    }
}

/// A duration as written in rule files.
fn time(time: Duration) -> String {
    const DAY: u64 = Span::NANOS_MAX / (100 * 365);
    // Whole days are more readable than hours.
    let days = time.as_nanos() / u128::from(DAY);
    if days > 0 && time.as_nanos().is_multiple_of(u128::from(DAY)) {
        return format!("{days}d");
    }
    jiff::SignedDuration::try_from(time).map_or_else(|_| format!("{time:?}"), |time| format!("{time:#}"))
}
