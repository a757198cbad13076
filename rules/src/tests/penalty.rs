//! The key `penalty` of a rule.

use super::{problems, rules};
use tollgate_counter::algorithm::{AlgorithmName, Limit, Penalty, Span};

use crate::{limit::value::algorithm_keys, rule_set::Domain};

const RULE: &str = "unit: minute, requests_per_unit: 5";

fn with(limit: &str) -> String {
    format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{\n  {limit}}}}}]\n")
}

fn limit(text: &str) -> Limit {
    let rules = rules(&with(text));
    let rule = rules.domains().flat_map(Domain::rules).next().unwrap();
    rule.limit().unwrap().clone()
}

/// The problems of a bucket with this penalty.
fn problems_of(penalty: &str) -> String {
    problems(&with(&format!("algorithm: token_bucket, {RULE},\n  penalty: {penalty}")))
}

#[test]
fn penalty_of_every_algorithm_leaves_the_limit_as_it_is() {
    for name in AlgorithmName::ALL.map(AlgorithmName::name) {
        let keys = match name {
            "concurrency" => "max_in_flight: 5".to_owned(),
            "leaky_queue" => format!("{RULE}, burst: 3"),
            _ => RULE.to_owned(),
        };
        let alone = limit(&format!("algorithm: {name}, {keys}"));
        let penalized = limit(&format!("algorithm: {name}, {keys}, penalty: {{after: 3, first: 90s}}"));
        assert_eq!((penalized.plain(), penalized.kind()), (&alone, alone.kind()));
        let [first, max, forget_after] = [90, 3_600, 86_400].map(Span::from_seconds);
        let expected = Penalty { after: 3, first, factor: 2, max, forget_after };
        assert_eq!(penalized.penalized().map(|both| *both.penalty()), Some(expected));
        assert!(!penalized.is_leasable());
    }
}

#[test]
fn shown_penalty_is_what_a_rule_file_takes() {
    let penalized = limit(&format!(
        "algorithm: token_bucket, {RULE}, penalty: {{after: 5, first: 2m 500ms, factor: 3, max: 1h, forget_after: 48h}}"
    ));
    let keys = algorithm_keys(&penalized);
    let (_, shown) = keys.iter().find(|(key, _)| *key == "penalty").unwrap();
    assert_eq!(limit(&format!("algorithm: token_bucket, {RULE}, penalty: {shown}")), penalized, "{shown}");
}

#[test]
fn penalty_needs_an_algorithm_and_excludes_leases() {
    let penalty = "penalty: {after: 5, first: 2m}";
    assert_eq!(problems(&with(&format!("{RULE},\n  {penalty}"))), "f:4:3: `penalty` needs an `algorithm`");
    assert_eq!(
        problems(&with(&format!("algorithm: token_bucket, {RULE}, {penalty},\n  lease: false"))),
        "f:4:3: `lease` cannot be combined with `penalty`; remove one of them"
    );
    assert_eq!(
        problems(&with(&format!("unlimited: true,\n  {penalty}"))),
        "f:4:3: `penalty` has no meaning with `unlimited: true`; remove one of them"
    );
}

#[test]
fn penalty_may_be_tried_by_a_candidate() {
    let candidate = format!("{{algorithm: token_bucket, {RULE}, penalty: {{after: 5, first: 2m}}}}");
    let rules = rules(&with(&format!("algorithm: token_bucket, {RULE}, candidate: {candidate}")));
    let rule = rules.domains().flat_map(Domain::rules).next().unwrap();
    assert!(rule.options().candidate.as_ref().is_some_and(|limit| limit.penalized().is_some()));
}

#[test]
fn penalty_without_its_numbers_is_refused() {
    assert_eq!(
        problems_of("{}"),
        "f:4:12: `after` is missing in `penalty`; it is the number of refusals in a row after which a penalty begins\n\
         f:4:12: `first` is missing in `penalty`; it is the length of the first penalty"
    );
    assert_eq!(
        problems_of("{after: 5, first: 2m, facter: 2}"),
        "f:4:34: unknown key `facter`; did you mean `factor`?"
    );
    assert_eq!(problems_of("5"), "f:4:12: expected a mapping, not the number `5`");
}

#[test]
fn penalty_out_of_bounds_is_refused() {
    let number = |key, most, value| format!("`{key}` cannot be {value}; it is a number from 1 to {most}");
    for value in [0, 1_000_001, u64::from(u32::MAX) + 2] {
        let expected = format!("f:4:20: {}", number("after", 1_000_000, value));
        assert_eq!(problems_of(&format!("{{after: {value}, first: 2m}}")), expected);
    }
    for value in [0, 1_001] {
        let expected = format!("f:4:42: {}", number("factor", 1_000, value));
        assert_eq!(problems_of(&format!("{{after: 5, first: 2m, factor: {value}}}")), expected);
    }
    for time in ["0s", "1us", "2", "soon", "-1s"] {
        let found = problems_of(&format!("{{after: 5, first: {time}}}"));
        assert!(
            found.starts_with(&format!("f:4:30: `first` cannot be `{time}`; it is a time like")),
            "{found}"
        );
    }
    for (penalty, expected) in [
        ("first: 2h", "f:4:12: `max` of a penalty is at least as long as `first`, but 1h is shorter than 2h"),
        (
            "first: 2m, max: 1m",
            "f:4:39: `max` of a penalty is at least as long as `first`, but 1m is shorter than 2m",
        ),
        (
            "first: 2m, forget_after: 59m",
            "f:4:48: `forget_after` of a penalty is at least as long as `max`, but 59m is shorter than 1h",
        ),
    ] {
        assert_eq!(problems_of(&format!("{{after: 5, {penalty}}}")), expected);
    }
    let least = "{after: 1, first: 1ms, factor: 1, max: 1ms, forget_after: 1ms}";
    assert!(limit(&format!("algorithm: token_bucket, {RULE}, penalty: {least}")).penalized().is_some());
}
