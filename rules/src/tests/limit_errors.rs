//! What is wrong with a `rate_limit`, and how it is reported.

use super::{problems, rules};
use tollgate_counter::algorithm::AlgorithmName;

use crate::keys::{AppliesTo, KEYS, KeySection};

/// A file with one rule whose `rate_limit` is `limit`, one key to a line from line 4, column 7.
fn with_limit(limit: &[&str]) -> String {
    let lines: String = limit.iter().map(|line| format!("      {line}\n")).collect();
    format!("domain: d\ndescriptors:\n  - {{key: a, rate_limit: {{\n{}}}}}\n", lines.replace('\n', ",\n"))
}

fn limit_problems(limit: &[&str]) -> String {
    problems(&with_limit(limit))
}

fn quoted(algorithms: &[AlgorithmName]) -> String {
    algorithms.iter().map(|algorithm| format!("`{}`", algorithm.name())).collect::<Vec<_>>().join(", ")
}

/// The algorithms that have a key of `rate_limit`, as messages list them. docs/rules.md is compared with the same table.
fn algorithms_of(name: &str) -> String {
    let key = KEYS.iter().find(|key| key.section == KeySection::RateLimit && key.name == name).unwrap();
    match key.applies_to {
        AppliesTo::Only(algorithms) => quoted(algorithms),
        AppliesTo::ClassicOr(algorithms) => format!("{} or none", quoted(algorithms)),
        AppliesTo::Any | AppliesTo::Limited | AppliesTo::Named => panic!("`{name}` belongs to no algorithm"),
    }
}

#[test]
fn request_count_that_is_not_a_64_bit_integer_is_refused() {
    for (value, shown) in [
        ("-1", "the number `-1`"),
        ("18446744073709551616", "the number `18446744073709551616`"),
        ("'5'", "the text `5` in quotes"),
        ("1.5", "the number `1.5`"),
        ("1e3", "the number `1e3`"),
        ("ten", "the text `ten`"),
        ("yes", "the boolean `yes`"),
        ("[1]", "a list"),
    ] {
        let expected = format!(
            "f:5:26: `requests_per_unit` takes a whole number from 0 to 18446744073709551615, without quotes, not {shown}"
        );
        assert_eq!(limit_problems(&["unit: day", &format!("requests_per_unit: {value}")]), expected);
    }
}

#[test]
fn missing_request_count_is_refused() {
    let what = "`requests_per_unit` is missing; 0 lets nothing pass, `unlimited: true` everything";
    assert_eq!(limit_problems(&["unit: day"]), format!("f:3:26: {what}"));
    assert_eq!(limit_problems(&["unit: day", "requests_per_unit: "]), format!("f:3:26: {what}"));
}

#[test]
fn algorithm_keys_without_algorithm_are_refused() {
    let base = ["unit: day", "requests_per_unit: 1"];
    for key in ["count_denied: true", "overdraft: true", "burst: 2", "sub_windows: 2", "max_delay: 1s"] {
        let name = key.split(':').next().unwrap();
        let algorithms = algorithms_of(name);
        let expected = format!("f:6:7: `{name}` needs an `algorithm` that has it: {algorithms}");
        assert_eq!(limit_problems(&[base[0], base[1], key]), expected);
    }
}

#[test]
fn key_of_another_algorithm_is_refused() {
    for (algorithm, key) in [
        ("fixed_window", "burst: 2"),
        ("sliding_window", "burst: 2"),
        ("sliding_log", "burst: 2"),
        ("token_bucket", "sub_windows: 2"),
        ("sliding_log", "sub_windows: 2"),
        ("leaky_bucket", "refill_amount: 2"),
        ("leaky_bucket", "refill_interval: 1s"),
        ("leaky_bucket", "max_delay: 1s"),
        ("leaky_queue", "count_denied: true"),
        ("leaky_queue", "overdraft: true"),
        ("sliding_window", "calendar: {timezone: UTC}"),
        ("token_bucket", "calendar: {timezone: UTC}"),
    ] {
        let name = key.split(':').next().unwrap();
        let algorithms = algorithms_of(name);
        let reported =
            limit_problems(&["unit: day", "requests_per_unit: 1", &format!("algorithm: {algorithm}"), key]);
        let expected =
            format!("f:7:7: `{name}` cannot be used with `algorithm: {algorithm}`, only with {algorithms}");
        assert!(reported.lines().any(|line| line == expected), "{reported}");
    }
}

#[test]
fn quota_unit_is_one_word_of_visible_ascii() {
    for unit in ["''", "'two words'", "é", &"x".repeat(65)] {
        let problems = limit_problems(&["unit: day", "requests_per_unit: 1", &format!("quota_unit: {unit}")]);
        assert!(problems.contains("`quota_unit` has 1 to 64 visible ASCII characters"), "{problems}");
    }
}

#[test]
fn concurrency_excludes_rates_leases_and_excess() {
    let base = ["algorithm: concurrency", "max_in_flight: 3"];
    for key in ["requests_per_unit: 1", "unit: day", "unit_multiplier: 2", "window: 1s", "lease: false"] {
        let name = key.split(':').next().unwrap();
        let expected = format!("f:6:7: `{name}` cannot be combined with `max_in_flight`; remove one of them");
        assert_eq!(limit_problems(&[base[0], base[1], key]), expected);
    }
    for key in ["count_denied: true", "overdraft: true", "overdraft_limit: 1", "burst: 2", "max_delay: 1s"] {
        let name = key.split(':').next().unwrap();
        let algorithms = algorithms_of(name);
        let expected =
            format!("f:6:7: `{name}` cannot be used with `algorithm: concurrency`, only with {algorithms}");
        assert_eq!(limit_problems(&[base[0], base[1], key]), expected);
    }
    for key in ["max_in_flight: 2", "hold_max: 2s"] {
        let name = key.split(':').next().unwrap();
        let expected =
            format!("f:5:7: `{name}` cannot be used with `algorithm: token_bucket`, only with `concurrency`");
        let reported = limit_problems(&["algorithm: token_bucket", key]);
        assert!(reported.lines().any(|line| line == expected), "{reported}");
    }
}

#[test]
fn concurrency_needs_places_and_valid_hold_max() {
    let algorithm = "algorithm: concurrency";
    assert_eq!(
        limit_problems(&[algorithm]),
        "f:3:26: `max_in_flight` is missing; with `concurrency` it must say how many calls may be in flight"
    );
    for places in ["0", "10001"] {
        assert_eq!(
            limit_problems(&[algorithm, &format!("max_in_flight: {places}")]),
            format!("f:5:22: `max_in_flight` cannot be {places}; it is a number from 1 to 10000")
        );
    }
    for time in ["0s", "999ms", "24h 1s", "1500us", "soon"] {
        assert_eq!(
            limit_problems(&[algorithm, "max_in_flight: 1", &format!("hold_max: {time}")]),
            format!(
                "f:6:17: `hold_max` cannot be `{time}`; it is a time like `90s`, `250ms` or `1h 30m`, \
                 in whole milliseconds, from 1000 ms to 86400000 ms"
            )
        );
    }
    for fits in ["hold_max: 1s", "hold_max: 24h"] {
        rules(&with_limit(&[algorithm, "max_in_flight: 10000", fits]));
    }
}

#[test]
fn candidate_of_concurrency_is_concurrency() {
    let what = "`candidate` and its rule must both have `algorithm: concurrency`, or neither: a refund frees a \
                place in one, and gives a hit back in the other";
    let rate = ["unit: day", "requests_per_unit: 1", "candidate: {algorithm: concurrency, max_in_flight: 2}"];
    assert_eq!(limit_problems(&rate), format!("f:6:7: {what}"));
    let places = ["algorithm: concurrency", "max_in_flight: 3"];
    let candidate = "candidate: {unit: day, requests_per_unit: 1}";
    assert_eq!(limit_problems(&[places[0], places[1], candidate]), format!("f:6:7: {what}"));
    rules(&with_limit(&[places[0], places[1], "candidate: {algorithm: concurrency, max_in_flight: 2}"]));
}

#[test]
fn unknown_algorithm_is_refused_and_its_keys_are_not() {
    assert_eq!(
        limit_problems(&[
            "unit: day",
            "requests_per_unit: 1",
            "algorithm: tokenbucket",
            "burst: 2",
            "overdraft: true"
        ]),
        format!(
            "f:6:18: `algorithm` cannot be `tokenbucket`; it is one of {}; did you mean `token_bucket`?",
            quoted(&AlgorithmName::ALL)
        )
    );
}

#[test]
fn overdraft_excludes_count_denied_and_overdraft_limit_needs_it() {
    let base = ["unit: day", "requests_per_unit: 1", "algorithm: token_bucket"];
    assert_eq!(
        limit_problems(&[base[0], base[1], base[2], "count_denied: true", "overdraft: true"]),
        "f:8:7: `overdraft` cannot be combined with `count_denied`; remove one of them"
    );
    assert_eq!(
        limit_problems(&[base[0], base[1], base[2], "overdraft: false", "overdraft_limit: 5"]),
        "f:8:7: `overdraft_limit` needs `overdraft: true`"
    );
}

#[test]
fn window_excludes_unit_and_takes_whole_milliseconds() {
    assert_eq!(
        limit_problems(&["window: 90s", "requests_per_unit: 1", "unit: day", "unit_multiplier: 2"]),
        "f:6:7: `unit` cannot be combined with `window`; remove one of them\n\
         f:7:7: `unit_multiplier` cannot be combined with `window`; remove one of them"
    );
    for window in ["0s", "-5s", "500us", "1500us", "1 month", "90", "900000h", "soon", "''"] {
        let quoted = window.trim_matches('\'');
        assert_eq!(
            limit_problems(&[&format!("window: {window}"), "requests_per_unit: 1"]),
            format!(
                "f:4:15: `window` cannot be `{quoted}`; it is a time like `90s`, `250ms` or `1h 30m`, \
                 in whole milliseconds, from 1 ms to 100 years"
            )
        );
    }
}

#[test]
fn unit_multiplier_is_at_least_1_and_window_at_most_100_years() {
    for value in [0, 101, u64::MAX] {
        assert_eq!(
            limit_problems(&["unit: year", "requests_per_unit: 1", &format!("unit_multiplier: {value}")]),
            format!(
                "f:6:24: `unit_multiplier` of {value} is out of range; it is at least 1, \
                 and the window at most 100 years"
            )
        );
    }
}

#[test]
fn burst_is_at_least_1_and_refills_with_debt_within_100_years() {
    let base = ["unit: year", "requests_per_unit: 1", "algorithm: token_bucket"];
    assert_eq!(
        limit_problems(&[base[0], base[1], base[2], "burst: 0"]),
        "f:7:14: `burst` is at least 1; to let nothing pass, set `requests_per_unit: 0`"
    );
    let what = "a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it";
    assert_eq!(limit_problems(&[base[0], base[1], base[2], "burst: 101"]), format!("f:7:7: {what}"));
    let overdrawn = [base[0], base[1], base[2], "burst: 60", "overdraft: true", "overdraft_limit: 41"];
    assert_eq!(limit_problems(&overdrawn), format!("f:9:7: {what}"));
    rules(&with_limit(&[base[0], base[1], base[2], "burst: 100"]));
    let windows = [base[0], base[1], "algorithm: fixed_window", "overdraft: true", "overdraft_limit: 101"];
    assert_eq!(
        limit_problems(&windows),
        "f:8:7: a full `overdraft_limit` takes more than 100 years to be paid at this rate; lower it"
    );
}

#[test]
fn steps_need_both_keys_and_burst_and_exclude_rate_keys() {
    let bucket = "algorithm: token_bucket";
    assert_eq!(
        limit_problems(&[bucket, "refill_amount: 2"]),
        "f:5:7: `refill_amount` needs a `refill_interval`: so many tokens, each so often\n\
         f:5:7: `burst` is missing; with steps it must say how many tokens a full bucket holds"
    );
    assert_eq!(
        limit_problems(&[bucket, "refill_interval: 1s", "burst: 4"]),
        "f:5:7: `refill_interval` needs a `refill_amount`: so many tokens, each so often"
    );
    let steps = [bucket, "refill_amount: 2", "refill_interval: 1s", "burst: 4"];
    for key in ["unit: day", "unit_multiplier: 2", "window: 1s", "requests_per_unit: 4"] {
        let name = key.split(':').next().unwrap();
        let what = format!("f:8:7: `{name}` cannot be combined with `refill_amount`; remove one of them");
        assert_eq!(limit_problems(&[steps[0], steps[1], steps[2], steps[3], key]), what);
    }
    assert_eq!(
        limit_problems(&[bucket, "refill_amount: 0", "refill_interval: 500us", "burst: 0"]),
        "f:5:22: `refill_amount` is at least 1\n\
         f:6:24: `refill_interval` cannot be `500us`; it is a time like `90s`, `250ms` or `1h 30m`, \
         in whole milliseconds, from 1 ms to 100 years\n\
         f:7:14: `burst` is at least 1"
    );
    let years = "refill_interval: 8760h";
    assert_eq!(
        limit_problems(&[bucket, "refill_amount: 2", years, "burst: 201"]),
        "f:7:7: a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it"
    );
    rules(&with_limit(&[bucket, "refill_amount: 2", years, "burst: 200"]));
}

#[test]
fn sub_windows_divide_the_window_into_parts_of_at_least_1_ms() {
    for (window, parts) in [("1m", 0), ("1m", 7), ("1h", 1_001), ("90ms", 100), ("10ms", 20)] {
        let what = format!(
            "f:7:20: `sub_windows` cannot be {parts}; it is a number from 1 to 1000 that cuts the window \
             into whole nanoseconds, at least 1 ms each"
        );
        let limit = [
            &format!("window: {window}"),
            "requests_per_unit: 1",
            "algorithm: sliding_window",
            &format!("sub_windows: {parts}"),
        ];
        assert_eq!(limit_problems(&limit), what);
    }
}

#[test]
fn queue_needs_burst_and_valid_max_delay() {
    let base = ["unit: second", "requests_per_unit: 1", "algorithm: leaky_queue"];
    assert_eq!(
        limit_problems(&base),
        "f:3:26: `burst` is missing; with `leaky_queue` it must say how many may wait; 0 lets no request wait"
    );
    for delay in ["-1s", "soon", "1500us", "5"] {
        assert_eq!(
            limit_problems(&[base[0], base[1], base[2], "burst: 1", &format!("max_delay: {delay}")]),
            format!(
                "f:8:18: `max_delay` cannot be `{delay}`; it is a time like `90s`, `250ms` or `1h 30m`, \
                 in whole milliseconds, from 0 ms to 100 years"
            )
        );
    }
    assert_eq!(
        limit_problems(&["unit: year", base[1], base[2], "burst: 100"]),
        "f:7:7: a full queue takes more than 100 years to leave at this rate; lower `burst`"
    );
    rules(&with_limit(&["unit: year", base[1], base[2], "burst: 99"]));
}

#[test]
fn leaky_bucket_drains_within_100_years() {
    let limit = ["unit: year", "requests_per_unit: 1", "algorithm: leaky_bucket", "burst: 101"];
    assert_eq!(
        limit_problems(&limit),
        "f:7:7: a full `burst` (with `overdraft_limit`) takes more than 100 years to come back at this rate; lower it"
    );
}

#[test]
fn calendar_needs_known_time_zone_and_a_calendar_unit() {
    let limit = |unit: &str, calendar: &str| {
        limit_problems(&[unit, "requests_per_unit: 1", &format!("calendar: {calendar}")])
    };
    assert_eq!(
        limit("unit: day", "{}"),
        "f:6:17: `timezone` is missing; it is an IANA name such as `Europe/Berlin`"
    );
    assert_eq!(
        limit("unit: day", "{timezone: Europe/Berln}"),
        "f:6:28: `timezone` cannot be `Europe/Berln`; it is an IANA name such as `Europe/Berlin` or `UTC`; \
         did you mean `Europe/Berlin`?"
    );
    assert_eq!(
        limit("unit: day", "{timezone: somewhere else}"),
        "f:6:28: `timezone` cannot be `somewhere else`; it is an IANA name such as `Europe/Berlin` or `UTC`"
    );
    assert_eq!(
        limit("unit: hour", "{timezone: UTC}"),
        "f:4:13: `unit: hour` is the same in every calendar; with `calendar` it is one of `day`, `week`, \
         `month`, `year`"
    );
    assert_eq!(
        limit("unit: month", "{timezone: UTC, week_start: monday}"),
        "f:6:33: `week_start` requires `unit: week`"
    );
    assert_eq!(
        limit("unit: week", "{timezone: UTC, week_start: mondy}"),
        "f:6:45: `week_start` cannot be `mondy`; it is one of `monday`, `tuesday`, `wednesday`, `thursday`, \
         `friday`, `saturday`, `sunday`; did you mean `monday`?"
    );
    assert_eq!(
        limit("window: 24h", "{timezone: UTC}"),
        "f:4:7: `window` cannot be combined with `calendar`; remove one of them"
    );
    assert_eq!(limit("unit: day", "UTC"), "f:6:17: expected a mapping, not the text `UTC`");
    assert_eq!(
        limit("unit: day", "{zone: UTC}").lines().next().unwrap(),
        "f:6:17: `timezone` is missing; it is an IANA name such as `Europe/Berlin`"
    );
}
