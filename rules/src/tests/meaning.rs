use std::time::Duration;

use jiff::civil::Weekday;
use serde_json::json;

use super::rules;
use tollgate_counter::{
    algorithm::{
        AlgorithmName, Calendar, CalendarUnit, Classic, Concurrency, Excess, FixedWindow, LeakyQueue, Limit,
        Operation, Rate, SlidingLog, SlidingWindow, Span, SteppedBucket, TokenBucket, Verdict, Window,
    },
    time::{SECOND, Timestamp},
};

use crate::{
    OnDenied, OnOwnerUnavailable, Unit,
    prefix_tree::TreeNode,
    rule::{Allowance, Rule, RuleOptions},
    rule_set::{Domain, Rules},
    unit::DisplayedLimit,
};

fn only_rule(text: &str) -> Rule {
    let rules = rules(text);
    assert_eq!(rules.len(), 1);
    let rule = rules.domains().flat_map(Domain::rules).next().unwrap();
    Rule::clone(rule)
}

fn limit(limit: &str) -> Rule {
    only_rule(&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n"))
}

fn limited(limit: Limit) -> Allowance {
    Allowance::Limited(limit)
}

fn window(seconds: u64) -> Window {
    Window::from_nanos(seconds * SECOND).unwrap()
}

fn pace(hits: u64, seconds: u64) -> Rate {
    Rate::new(hits.try_into().unwrap(), (seconds * SECOND).try_into().unwrap())
}

fn warnings(rules: &Rules) -> Vec<String> {
    rules.warnings().iter().map(ToString::to_string).collect()
}

#[test]
fn rule_without_algorithm_is_classic() {
    let rule = limit("unit: Minute, requests_per_unit: 1_000");
    assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(1_000, window(60)))));
    assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 1_000, unit: Some(Unit::Minute) });
}

#[test]
fn units_have_fixed_lengths() {
    let lengths = Unit::ALL.map(|unit| (unit.name(), unit.seconds(), unit.span().nanos() / SECOND));
    let expected = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
        ("week", 604_800),
        ("month", 2_592_000),
        ("year", 31_536_000),
    ];
    assert_eq!(lengths, expected.map(|(name, seconds)| (name, seconds, u64::from(seconds))));
    for unit in Unit::ALL {
        let rule = limit(&format!("unit: {}, requests_per_unit: 9", unit.name().to_uppercase()));
        assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 9, unit: Some(unit) });
    }
}

#[test]
fn multiplied_unit_and_window_are_displayed_without_unit() {
    let rule = limit("unit: minute, unit_multiplier: 5, requests_per_unit: 9");
    assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(9, window(300)))));
    assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 9, unit: None });
    for (text, seconds) in [("90s", 90), ("1h 30m", 5_400), ("'60s'", 60), ("PT2M", 120)] {
        let rule = limit(&format!("window: {text}, requests_per_unit: 9"));
        assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(9, window(seconds)))));
        assert_eq!(rule.displayed_limit.unit, None);
    }
    let millisecond = Window::from_nanos(SECOND / 1_000).unwrap();
    let rule = limit("window: 1ms, requests_per_unit: 9");
    assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(9, millisecond))));
    assert_eq!(
        limit("unit: day, unit_multiplier: 1, requests_per_unit: 9").displayed_limit.unit,
        Some(Unit::Day)
    );
}

#[test]
fn a_named_rule_has_its_algorithm_and_its_excess() {
    let base = "unit: hour, requests_per_unit: 10";
    let fixed =
        |excess| limited(Limit::FixedWindow(FixedWindow { limit: 10, window: window(3_600), excess }));
    let bucket =
        |burst, excess| limited(Limit::TokenBucket(TokenBucket { rate: pace(10, 3_600), burst, excess }));
    for (more, allowance) in [
        ("algorithm: fixed_window", fixed(Excess::Refuse)),
        ("algorithm: fixed_window, count_denied: true", fixed(Excess::Count)),
        ("algorithm: fixed_window, overdraft: true", fixed(Excess::Overdraft(10))),
        ("algorithm: fixed_window, overdraft: true, overdraft_limit: 3", fixed(Excess::Overdraft(3))),
        ("algorithm: fixed_window, overdraft: no, count_denied: off", fixed(Excess::Refuse)),
        ("algorithm: token_bucket", bucket(10, Excess::Refuse)),
        ("algorithm: token_bucket, burst: 50", bucket(50, Excess::Refuse)),
        ("algorithm: token_bucket, burst: 50, overdraft: on", bucket(50, Excess::Overdraft(10))),
    ] {
        assert_eq!(limit(&format!("{base}, {more}")).allowance, allowance, "{more}");
    }
}

#[test]
fn limit_of_0_admits_nothing() {
    let rule = limit("unit: second, requests_per_unit: 0");
    assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(0, window(1)))));
    let rule = limit("unit: second, requests_per_unit: 0, algorithm: token_bucket, burst: 5");
    let Allowance::Limited(Limit::TokenBucket(bucket)) = rule.allowance else { panic!("a token bucket") };
    assert_eq!((bucket.burst, rule.displayed_limit.requests_per_unit), (0, 0));
    let queue = limit("unit: second, requests_per_unit: 0, algorithm: leaky_queue, burst: 5");
    let Allowance::Limited(Limit::LeakyQueue(queue)) = queue.allowance else { panic!("a leaky queue") };
    assert_eq!(queue.burst, None);
}

#[test]
fn limit_of_0_refuses_under_every_algorithm() {
    let calendar = "calendar: {timezone: Europe/Berlin}";
    let burst = "burst: 5";
    let texts = [
        ("fixed_window", calendar),
        ("fixed_window", "overdraft: true"),
        ("sliding_window", ""),
        ("sliding_window", "sub_windows: 24"),
        ("sliding_log", ""),
        ("token_bucket", burst),
        ("leaky_bucket", burst),
        ("leaky_queue", burst),
    ];
    let names = AlgorithmName::ALL.map(AlgorithmName::name).into_iter();
    // A concurrency limit has at least one place.
    let names = names.filter(|name| *name != AlgorithmName::Concurrency.name());
    let others = names.filter(|name| texts.iter().all(|(algorithm, _)| algorithm != name));
    for (algorithm, more) in texts.into_iter().chain(others.map(|name| (name, ""))) {
        let rule = limit(&format!("unit: day, requests_per_unit: 0, algorithm: {algorithm}, {more}"));
        let Allowance::Limited(limit) = rule.allowance else { panic!("{algorithm} limits") };
        let now = Timestamp::from_nanos(1_790_000_000 * SECOND);
        let decision = limit.decide(&mut limit.fresh(), now, Operation::Charge(1));
        assert_eq!(decision.verdict, Verdict::Refuse { retry_after: None }, "{algorithm} {more}");
        assert_eq!(decision.remaining, 0);
    }
}

#[test]
fn every_algorithm_name_yields_its_limit() {
    let span = Span::from_nanos(60 * SECOND).unwrap();
    let log = |sub_window: u64, excess| {
        let sub_window = sub_window.try_into().unwrap();
        SlidingLog { limit: 10, span, sub_window, excess }
    };
    let bucket = |burst, excess| TokenBucket { rate: pace(10, 60), burst, excess };
    let sliding = |excess| Limit::SlidingWindow(SlidingWindow { limit: 10, span, excess });
    let queue = |burst, max_delay| {
        Limit::LeakyQueue(LeakyQueue { rate: pace(10, 60), burst: Some(burst), max_delay, timeout: None })
    };
    for (text, expected) in [
        ("sliding_window", sliding(Excess::Refuse)),
        ("sliding_window, overdraft: true", sliding(Excess::Overdraft(10))),
        ("sliding_window, sub_windows: 60", Limit::SlidingLog(log(SECOND, Excess::Refuse))),
        ("sliding_log, count_denied: true", Limit::SlidingLog(log(1, Excess::Count))),
        ("leaky_bucket", Limit::LeakyBucket(bucket(10, Excess::Refuse))),
        ("leaky_bucket, burst: 1, count_denied: true", Limit::LeakyBucket(bucket(1, Excess::Count))),
        ("leaky_queue, burst: 0", queue(0, None)),
        ("leaky_queue, burst: 5, max_delay: 250ms", queue(5, Some(Duration::from_millis(250)))),
        ("leaky_queue, burst: 5, max_delay: 0s", queue(5, Some(Duration::ZERO))),
    ] {
        let rule = limit(&format!("unit: minute, requests_per_unit: 10, algorithm: {text}"));
        assert_eq!(rule.allowance, limited(expected), "{text}");
        assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 10, unit: Some(Unit::Minute) });
    }
}

#[test]
fn concurrency_is_displayed_by_its_places_without_unit() {
    for (more, seconds) in [("", 60), (", hold_max: 90s", 90)] {
        let rule = limit(&format!("algorithm: concurrency, max_in_flight: 7{more}"));
        let hold_max = Span::from_nanos(seconds * SECOND).unwrap();
        assert_eq!(rule.allowance, limited(Limit::Concurrency(Concurrency { max_in_flight: 7, hold_max })));
        assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 7, unit: None });
    }
}

#[test]
fn stepped_bucket_is_displayed_by_burst_without_unit() {
    let steps = "algorithm: token_bucket, refill_amount: 2, refill_interval: 1s, burst: 4";
    let bucket = |excess| {
        let [amount, interval] = [2, SECOND].map(|number| number.try_into().unwrap());
        limited(Limit::SteppedBucket(SteppedBucket { amount, interval, burst: 4, excess }))
    };
    let rule = limit(steps);
    assert_eq!(rule.allowance, bucket(Excess::Refuse));
    assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 4, unit: None });
    assert_eq!(limit(&format!("{steps}, overdraft: true")).allowance, bucket(Excess::Overdraft(4)));
}

#[test]
fn calendar_applies_to_classic_rules_and_fixed_windows() {
    for (text, unit) in [
        ("unit: day, calendar: {timezone: Europe/Berlin}", CalendarUnit::Day),
        ("unit: week, calendar: {timezone: Europe/Berlin}", CalendarUnit::Week(Weekday::Monday)),
        (
            "unit: week, calendar: {timezone: Europe/Berlin, week_start: sunday}",
            CalendarUnit::Week(Weekday::Sunday),
        ),
        ("unit: MONTH, calendar: {timezone: Europe/Berlin}", CalendarUnit::Month),
        ("unit: year, calendar: {timezone: Europe/Berlin}", CalendarUnit::Year),
    ] {
        let window = Window::Calendar(Calendar::new(unit, "Europe/Berlin").unwrap());
        let rule = limit(&format!("{text}, requests_per_unit: 7"));
        assert_eq!(rule.allowance, limited(Limit::Classic(Classic::new(7, window.clone()))));
        assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 7, unit: None });
        let rule = limit(&format!("{text}, requests_per_unit: 7, algorithm: fixed_window"));
        let fixed = FixedWindow { limit: 7, window, excess: Excess::Refuse };
        assert_eq!(rule.allowance, limited(Limit::FixedWindow(fixed)));
    }
}

#[test]
fn unlimited_rule_ignores_its_request_count() {
    let rule = limit("unlimited: yes, requests_per_unit: 5, name: free, replaces: [{name: other}]");
    assert_eq!(rule.allowance, Allowance::Unlimited);
    assert_eq!(rule.displayed_limit, DisplayedLimit { requests_per_unit: 0, unit: None });
    assert_eq!((rule.name(), &*rule.options().replaces), ("free", &["other".to_owned()][..]));
}

#[test]
fn numbers_and_booleans_are_accepted_as_text() {
    let values = ["010", "yes", "1.5", "true", "5", "99999999999999999999", "2026-01-01"];
    let items: String = values
        .iter()
        .map(|value| format!("  - {{key: a, value: {value}, rate_limit: {{unlimited: true}}}}\n"))
        .collect();
    let rules = rules(&format!("domain: 7\ndescriptors:\n{items}"));
    let paths: Vec<_> = rules.domain("7").unwrap().rules().map(|rule| rule.path.to_string()).collect();
    assert_eq!(paths, values.map(|value| format!("7.a_{value}")));
}

#[test]
fn options_beside_a_limit_are_kept_in_the_rule() {
    let text = "domain: d\non_denied: charge_none\ndescriptors:\n  - key: a\n    shadow_mode: on\n    quota_mode: true\n    \
                detailed_metric: true\n    metadata: {tier: gold, cost: {per: 0x10}}\n    rate_limit: {unit: day, requests_per_unit: 1}\n";
    assert_eq!(rules(text).domain("d").unwrap().on_denied, Some(OnDenied::ChargeNone));
    let rule = only_rule(text);
    assert!(rule.shadow_mode && rule.quota_mode && rule.detailed_metric);
    assert_eq!(json!(rule.options().metadata), json!({"tier": "gold", "cost": {"per": 16}}));
    assert_eq!(rule.location.to_string(), "rules.yaml:9:17");
}

/// What a file of many rules takes is mostly these.
#[test]
fn rule_and_descriptor_without_options_are_small() {
    let rule = limit("unit: hour, requests_per_unit: 1");
    assert_eq!((rule.options(), rule.options.is_none()), (&RuleOptions::default(), true));
    assert!(limit("unit: hour, requests_per_unit: 1, name: a").options.is_some());
    assert!(size_of::<Rule>() <= 160 && size_of::<TreeNode>() <= 80);
}

#[test]
fn on_owner_unavailable_and_lease_are_read() {
    let rule = |keys: &str| {
        let limit = format!("{{unit: day, requests_per_unit: 1{keys}}}");
        only_rule(&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]\n"))
    };
    let plain = rule("");
    assert_eq!((plain.on_owner_unavailable, plain.lease), (OnOwnerUnavailable::LocalShare, true));
    for what in OnOwnerUnavailable::ALL {
        let keys = format!(", on_owner_unavailable: {}, lease: no", what.name());
        for keys in [keys.clone(), keys + ", algorithm: token_bucket"] {
            let rule = rule(&keys);
            assert_eq!((rule.on_owner_unavailable, rule.lease), (what, false));
        }
    }
}

#[test]
fn headers_and_quota_unit_are_read() {
    let rule = |keys: &str| {
        let limit = format!("{{unit: day, requests_per_unit: 1{keys}}}");
        only_rule(&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]\n"))
    };
    let plain = rule("");
    assert_eq!((plain.is_hidden, &plain.options().quota_unit), (false, &None));
    assert!(!rule(", headers: true").is_hidden && rule(", headers: no").is_hidden);
    assert_eq!(rule(", quota_unit: tokens").options().quota_unit.as_deref(), Some("tokens"));
}

#[test]
fn rules_are_in_file_order() {
    let text = "domain: d\ndescriptors:\n  - key: z\n    rate_limit: {unlimited: true}\n    descriptors:\n      \
                - {key: y, rate_limit: {unlimited: true}}\n  - {key: a, rate_limit: {unlimited: true}}\n";
    let rules = rules(text);
    let paths: Vec<_> = rules.domain("d").unwrap().rules().map(|rule| &*rule.path).collect();
    assert_eq!(paths, ["d.z", "d.z.y", "d.a"]);
}

#[test]
fn domain_without_rules_is_valid_and_null_counts_as_absent() {
    for text in [
        "domain: d\n",
        "domain: d\ndescriptors:\n",
        "domain: d\ndescriptors: [{key: a, value: , rate_limit: }]\n---\n",
    ] {
        let rules = rules(text);
        assert_eq!((rules.len(), rules.domain("d").map(|domain| domain.on_denied)), (0, Some(None)));
    }
}

#[test]
fn empty_value_is_a_warning_and_matches_any_value() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    for empty in ["", "~", "''", "\"\""] {
        let rules = rules(&format!("domain: d\ndescriptors:\n  - key: a\n    value: {empty}\n    {limit}\n"));
        assert_eq!(
            warnings(&rules),
            ["rules.yaml:4:5: `value` is empty, so any value matches; give a value, or leave the key out"],
            "{empty:?}"
        );
        assert_eq!(rules.len(), 1);
    }
    for given in ["", "    value: b\n", "    value: false\n"] {
        let rules = rules(&format!("domain: d\ndescriptors:\n  - key: a\n{given}    {limit}\n"));
        assert_eq!(warnings(&rules), Vec::<String>::new(), "{given:?}");
    }
}

#[test]
fn domain_without_descriptors_is_a_warning() {
    for text in ["domain: d", "domain: d\ndescriptors: []", "domain: d\ndescriptors:"] {
        let expected = "rules.yaml:1:1: domain `d` has no descriptors, so it limits nothing";
        assert_eq!(warnings(&rules(text)), [expected], "{text}");
    }
    let in_another_document = "domain: d\non_denied: charge_none\n---\ndomain: d\ndescriptors: [{key: a}]\n";
    assert_eq!(warnings(&rules(in_another_document)), Vec::<String>::new());
}

#[test]
fn replacing_an_unknown_limit_is_a_warning() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n      unlimited: true\n      replaces: [{name: b}, {name: gone}]\n  \
                - {key: b, rate_limit: {unlimited: true, name: b}}\n";
    assert_eq!(
        warnings(&rules(text)),
        ["rules.yaml:6:29: no limit of domain `d` has the name `gone`; this replaces nothing"]
    );
}

#[test]
fn mode_without_a_limit_is_a_warning() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    shadow_mode: true\n    quota_mode: false\n    metadata: {}\n";
    assert_eq!(
        warnings(&rules(text)),
        [
            "rules.yaml:4:18: `shadow_mode` has no effect without a `rate_limit` beside it",
            "rules.yaml:6:15: `metadata` has no effect without a `rate_limit` beside it",
        ]
    );
}

#[test]
fn aliases_and_merges_are_expanded() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: &base {unit: day, requests_per_unit: 1}\n  \
                - {key: b, rate_limit: *base}\n  - {key: c, rate_limit: {<<: *base, requests_per_unit: 2}}\n";
    let rules = rules(text);
    let limits: Vec<_> =
        rules.domain("d").unwrap().rules().map(|rule| rule.displayed_limit.requests_per_unit).collect();
    assert_eq!(limits, [1, 1, 2]);
}
