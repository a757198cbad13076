//! Rules and their limits as text, for operators.

use std::time::Duration;

use tollgate_counter::{
    algorithm::{Admission, AlgorithmName, CalendarUnit, Excess, Limit, Window},
    printable::escaped,
};

use crate::{
    limit::value::{algorithm_keys, time_text},
    rule::Rule,
    unit::Unit,
};

/// A limit with its options: `10 per minute, algorithm: token_bucket, burst: 20`.
pub fn limit(limit: &Limit, unit: Option<Unit>) -> String {
    let period = match (unit, limit.window()) {
        (Some(unit), _) => Some(unit.name().to_owned()),
        (None, Some(Window::Calendar(calendar))) => Some(Unit::from(calendar.unit()).name().to_owned()),
        (None, Some(Window::Aligned(_)) | None) => limit.period().map(time_text),
    };
    let mut text = match (limit.admission(), period) {
        (Admission::InFlight, _) => format!("{} in flight", limit.allowance()),
        (Admission::AtOnce | Admission::Delayed, Some(period)) => {
            format!("{} per {period}", limit.hits_per_period())
        }
        // The keys of the algorithm say how hits come back.
        (Admission::AtOnce | Admission::Delayed, None) => limit.allowance().to_string(),
    };
    // The period is said already.
    for (key, value) in own_keys(limit, unit).into_iter().filter(|(key, _)| !["unit", "window"].contains(key))
    {
        text.extend([", ", key, ": ", &value]);
    }
    text
}

/// The keys of a rule of which networks are counted: `remote_address by {ipv4: 24, ipv6: 64}`.
pub fn groups(rule: &Rule) -> Vec<String> {
    rule.options().groups.iter().map(ToString::to_string).collect()
}

/// How the limit of a rule is divided over buckets: `tenant: acme {weight: 3, floor: 0}`.
pub fn quotas(rule: &Rule) -> Vec<String> {
    rule.options().quotas.iter().map(|quota| escaped(&quota.to_string())).collect()
}

/// The kind of the counter of a limit. Limits of one kind share counters.
pub fn kind(limit: &Limit) -> String {
    let over = match limit.window() {
        Some(Window::Calendar(calendar)) => calendar_words(calendar.unit(), calendar.zone()),
        Some(Window::Aligned(_)) | None => time_text(Duration::from_nanos(limit.kind().window_nanos())),
    };
    format!("{} over {over}", algorithm(limit))
}

/// The keys of a rule that envoyproxy/ratelimit does not have, and the unit of a calendar, as rule files take them.
pub fn own_keys(limit: &Limit, unit: Option<Unit>) -> Vec<(&'static str, String)> {
    let mut keys = Vec::new();
    if !limit.is_classic() {
        keys.push(("algorithm", algorithm(limit).to_owned()));
    }
    match limit.window() {
        Some(Window::Calendar(calendar)) => {
            let week_start = match calendar.unit() {
                CalendarUnit::Week(first) => format!(", week_start: {first:?}").to_lowercase(),
                CalendarUnit::Day | CalendarUnit::Month | CalendarUnit::Year => String::new(),
            };
            keys.push(("unit", Unit::from(calendar.unit()).name().to_owned()));
            keys.push(("calendar", format!("{{timezone: {}{week_start}}}", calendar.zone())));
        }
        Some(Window::Aligned(_)) | None => {
            keys.extend(
                limit.period().filter(|_| unit.is_none()).map(|period| ("window", time_text(period))),
            );
        }
    }
    keys.extend(algorithm_keys(limit));
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
            format!("{} in {zone}", Unit::from(unit).name())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;
    use crate::rule_set::{Domain, Rules};

    /// The rule of a file whose `rate_limit` has these keys.
    fn rule(keys: &str) -> Rule {
        let file = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{keys}}}}}]\n");
        let rules = Rules::parse("rules.yaml", &file).unwrap_or_else(|problems| panic!("{file}{problems}"));
        Rule::clone(rules.domains().flat_map(Domain::rules).next().unwrap())
    }

    /// Times from a millisecond to a hundred years, with whole days and hours.
    fn any_millis() -> impl Strategy<Value = u64> {
        const DAY: u64 = 24 * 3_600_000;
        prop_oneof![
            1..100_000_u64,
            (1..1_000_u64).prop_map(|hours| hours * 3_600_000),
            (1..36_500_u64).prop_map(|days| days * DAY),
            Just(36_500 * DAY),
        ]
    }

    fn any_time() -> impl Strategy<Value = String> {
        any_millis().prop_map(|millis| format!("{millis}ms"))
    }

    /// The keys of a period: of windows that begin at multiples of their length, or with a calendar too.
    fn any_period() -> BoxedStrategy<String> {
        let units = select(Unit::ALL.to_vec()).prop_map(|unit| format!("unit: {}", unit.name()));
        let multiplied =
            (units.clone(), 1..50_u32).prop_map(|(unit, times)| format!("{unit}, unit_multiplier: {times}"));
        prop_oneof![units, multiplied, any_time().prop_map(|time| format!("window: {time}"))].boxed()
    }

    fn any_calendar() -> BoxedStrategy<String> {
        let zone = || select(vec!["UTC", "Europe/Berlin", "America/St_Johns"]);
        let days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
        prop_oneof![
            (select(vec!["day", "week", "month", "year"]), zone())
                .prop_map(|(unit, zone)| format!("unit: {unit}, calendar: {{timezone: {zone}}}")),
            (select(days.to_vec()), zone()).prop_map(|(day, zone)| format!(
                "unit: week, calendar: {{timezone: {zone}, week_start: {day}}}"
            )),
        ]
        .boxed()
    }

    fn any_excess() -> BoxedStrategy<String> {
        prop_oneof![
            Just(String::new()),
            Just(", count_denied: true".to_owned()),
            Just(", overdraft: true".to_owned()),
            (0..5_u32).prop_map(|most| format!(", overdraft: true, overdraft_limit: {most}")),
        ]
        .boxed()
    }

    fn any_penalty() -> BoxedStrategy<String> {
        let numbers = (1..9_u32, 1..9_u32, [any_millis(), any_millis(), any_millis()]);
        let penalty = numbers.prop_map(|(after, factor, mut times)| {
            times.sort_unstable();
            let [first, max, forget_after] = times.map(|millis| format!("{millis}ms"));
            format!(
                ", penalty: {{after: {after}, first: {first}, factor: {factor}, max: {max}, forget_after: {forget_after}}}"
            )
        });
        prop_oneof![2 => Just(String::new()), 1 => penalty].boxed()
    }

    /// The keys of a `rate_limit` of any algorithm, or of none.
    fn any_keys() -> BoxedStrategy<String> {
        let at_rate = |name: &'static str, more: BoxedStrategy<String>, period: BoxedStrategy<String>| {
            (period, 0..4_u64, more, any_penalty()).prop_map(move |(period, requests, more, penalty)| {
                format!("algorithm: {name}, requests_per_unit: {requests}, {period}{more}{penalty}")
            })
        };
        let windows = || prop_oneof![any_period(), any_calendar()].boxed();
        let sub_windows =
            (any_excess(), select(vec!["", ", sub_windows: 1"])).prop_map(|(one, two)| one + two);
        // A full burst comes back within a hundred years.
        let burst =
            (any_excess(), select(vec!["", ", burst: 1", ", burst: 2"])).prop_map(|(one, two)| one + two);
        let short = || (1..1_000_000_u64).prop_map(|millis| format!("window: {millis}ms")).boxed();
        let queue = (0..9_u32, prop::option::of(any_time())).prop_map(|(burst, delay)| {
            format!(", burst: {burst}")
                + &delay.map(|delay| format!(", max_delay: {delay}")).unwrap_or_default()
        });
        let stepped = (1..9_u64, 1..1_000_000_u64, 1..9_u64, any_excess(), any_penalty()).prop_map(
            |(amount, millis, burst, excess, penalty)| {
                format!(
                    "algorithm: token_bucket, refill_amount: {amount}, refill_interval: {millis}ms, burst: {burst}{excess}{penalty}"
                )
            },
        );
        let concurrency =
            (1..10_000_u64, 1_000..86_400_000_u64, any_penalty()).prop_map(|(most, hold, penalty)| {
                format!("algorithm: concurrency, max_in_flight: {most}, hold_max: {hold}ms{penalty}")
            });
        prop_oneof![
            (windows(), 0..4_u64)
                .prop_map(|(window, requests)| format!("requests_per_unit: {requests}, {window}")),
            at_rate("fixed_window", any_excess(), prop_oneof![short(), any_calendar()].boxed()),
            at_rate("sliding_window", sub_windows.boxed(), any_period()),
            at_rate("sliding_log", any_excess(), any_period()),
            at_rate("token_bucket", burst.clone().boxed(), short()),
            at_rate("leaky_bucket", burst.boxed(), short()),
            at_rate("leaky_queue", queue.boxed(), short()),
            stepped,
            concurrency,
        ]
        .boxed()
    }

    proptest! {
        #[test]
        fn displayed_keys_are_read_as_the_same_limit(keys in any_keys()) {
            let given = rule(&keys);
            let limit = given.limit().unwrap();
            let unit = given.displayed_limit.unit;
            let mut shown: Vec<_> = own_keys(limit, unit);
            shown.extend(unit.map(|unit| ("unit", unit.name().to_owned())));
            if shown.iter().any(|(key, _)| ["unit", "window"].contains(key)) {
                shown.push(("requests_per_unit", limit.hits_per_period().to_string()));
            }
            let shown: Vec<_> = shown.into_iter().map(|(key, value)| format!("{key}: {value}")).collect();
            let again = rule(&shown.join(", "));
            prop_assert_eq!(again.limit(), Some(limit), "{}", shown.join(", "));
            prop_assert_eq!(again.displayed_limit, given.displayed_limit);
        }
    }

    #[test]
    fn limit_is_displayed_with_the_keys_of_its_rule() {
        for (keys, text) in [
            ("unit: day, requests_per_unit: 9", "9 per day"),
            (
                "window: 48h, requests_per_unit: 9, algorithm: sliding_log",
                "9 per 48h, algorithm: sliding_log",
            ),
            (
                "algorithm: concurrency, max_in_flight: 5, hold_max: 24h",
                "5 in flight, algorithm: concurrency, max_in_flight: 5, hold_max: 24h",
            ),
            (
                "unit: week, requests_per_unit: 9, calendar: {timezone: UTC}",
                "9 per week, calendar: {timezone: UTC, week_start: monday}",
            ),
        ] {
            let rule = rule(keys);
            assert_eq!(limit(rule.limit().unwrap(), rule.displayed_limit.unit), text);
        }
    }
}
