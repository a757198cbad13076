//! Formats limits, counters and times for operators.

use std::time::Duration;

use tollgate_limiter::{
    algorithm::{Admission, AlgorithmName, CalendarUnit, Excess, Limit, Window},
    descriptor::Key,
    printable::escaped,
    rules::{KeyValue, Rule, Unit, algorithm_keys},
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
    let period = match (unit, limit.window()) {
        (Some(unit), _) => Some(unit.name().to_owned()),
        (None, Some(Window::Calendar(calendar))) => Some(calendar_unit(calendar.unit()).to_owned()),
        (None, Some(Window::Aligned(_)) | None) => limit.period().map(time),
    };
    let mut text = match (limit.admission(), period) {
        (Admission::InFlight, _) => format!("{} in flight", limit.allowance()),
        (Admission::AtOnce | Admission::Delayed, Some(period)) => {
            format!("{} per {period}", limit.hits_per_period())
        }
        // The keys of the algorithm say how hits come back.
        (Admission::AtOnce | Admission::Delayed, None) => limit.allowance().to_string(),
    };
    for (key, value) in own_keys(limit, unit).into_iter().filter(|(key, _)| *key != "window") {
        text.extend([", ", key, ": ", &value]);
    }
    text
}

/// The keys of a rule of which networks are counted: `remote_address by {ipv4: 24, ipv6: 64}`.
pub(crate) fn groups(rule: &Rule) -> Vec<String> {
    rule.options().groups.iter().map(ToString::to_string).collect()
}

/// How its limit is divided over buckets: `tenant: acme {weight: 3, floor: 0}`.
pub(crate) fn quotas(rule: &Rule) -> Vec<String> {
    rule.options().quotas.iter().map(|quota| escaped(&quota.to_string())).collect()
}

/// The kind of its counter. Limits of the same kind share counters.
pub(crate) fn kind(limit: &Limit) -> String {
    let over = match limit.window() {
        Some(Window::Calendar(calendar)) => calendar_words(calendar.unit(), calendar.zone()),
        Some(Window::Aligned(_)) | None => time(Duration::from_nanos(limit.kind().window_nanos())),
    };
    format!("{} over {over}", algorithm(limit))
}

/// The keys of a rule that envoyproxy/ratelimit does not have.
pub(crate) fn own_keys(limit: &Limit, unit: Option<Unit>) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if !limit.is_classic() {
        keys.push(("algorithm", algorithm(limit).to_owned()));
    }
    match limit.window() {
        Some(Window::Calendar(calendar)) => {
            keys.push(("calendar", calendar_words(calendar.unit(), calendar.zone())));
        }
        Some(Window::Aligned(_)) | None => {
            keys.extend(limit.period().filter(|_| unit.is_none()).map(|period| ("window", time(period))));
        }
    }
    keys.extend(algorithm_keys(limit).into_iter().map(|(key, value)| (key, value.to_string())));
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
    KeyValue::Time(time).to_string()
}
