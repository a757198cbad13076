//! What an overlay adds to rules.

use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    OnDenied, OnOwnerUnavailable,
    compile::compile_all,
    contents::{Contents, RuleInput},
    diagnostics::Problems,
    overlay::Overlay,
    rule::{Allowance, Rule},
    rule_set::Rules,
};

const TREE: &str = "
domain: edge
descriptors:
  - key: route
    value: a
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 5, name: n}
      - key: user
        value: ann
        rate_limit: {unit: hour, requests_per_unit: 9}
      - key: user
        value: root
        rate_limit: {unlimited: true}
";

fn overlay(rules: &str) -> Result<Overlay, Problems> {
    let text = format!("overlay:\n  - domain: edge\n    rules:\n{rules}");
    Overlay::read("overlay.yaml", text.into_bytes())
}

fn compiled(overlay: &Overlay) -> Rules {
    let contents =
        Contents { sources: vec![RuleInput::file("rules.yaml", TREE)], problems: Problems::default() };
    compile_all(&contents, Some(overlay)).unwrap()
}

fn rule(rules: &Rules, path: &str) -> Rule {
    rules.domain("edge").unwrap().rules().find(|rule| *rule.path == *path).unwrap().clone()
}

fn algorithm(rule: &Rule) -> Option<AlgorithmName> {
    match &rule.allowance {
        Allowance::Limited(limit) => limit.algorithm(),
        Allowance::Unlimited => None,
    }
}

fn warnings(rules: &Rules) -> Vec<String> {
    rules.warnings().iter().map(ToString::to_string).collect()
}

#[test]
fn first_matching_overlay_rule_adds_its_keys() {
    let overlay = overlay(
        "      - match: [{route: a}, {user: ann}]
        rate_limit: {algorithm: token_bucket, burst: 40, overdraft: true}
      - match: [route, user]
        rate_limit: {algorithm: fixed_window, on_owner_unavailable: deny, lease: false}
        metadata: {team: shop}
",
    );
    let rules = compiled(&overlay.unwrap());
    let ann = rule(&rules, "edge.route_a.user_ann");
    assert_eq!(algorithm(&ann), Some(AlgorithmName::TokenBucket));
    assert_eq!((ann.displayed_limit.requests_per_unit, &ann.options().metadata), (9, &None));
    assert_eq!(ann.options().overlay.as_ref().unwrap().to_string(), "overlay.yaml:4:9");
    let user = rule(&rules, "edge.route_a.user");
    assert_eq!(algorithm(&user), Some(AlgorithmName::FixedWindow));
    assert_eq!((user.on_owner_unavailable, user.lease), (OnOwnerUnavailable::Deny, false));
    assert_eq!((user.name(), &user.options().metadata.as_ref().unwrap()["team"]), ("n", &"shop".into()));
}

#[test]
fn overlay_lets_keys_have_limits_of_their_own() {
    let overlay = overlay(
        "      - match: [route, user]
        rate_limit: {own: {requests_per_unit: {max: 50}, unlimited: true}}
",
    );
    let rules = compiled(&overlay.unwrap());
    for path in ["edge.route_a.user", "edge.route_a.user_ann"] {
        let own = rule(&rules, path).options().own.clone().unwrap();
        assert_eq!(own.to_string(), "{requests_per_unit: {max: 50}, unlimited: true}", "{path}");
    }
}

#[test]
fn overlay_rule_that_does_not_fit_is_left_out_with_warning() {
    let overlay = overlay("      - match: [route, user*]\n        rate_limit: {burst: 40}\n").unwrap();
    let rules = compiled(&overlay);
    assert_eq!(rules.overlay_misfits, 3);
    let user = rule(&rules, "edge.route_a.user");
    assert_eq!(
        (algorithm(&user), user.displayed_limit.requests_per_unit, &user.options().overlay),
        (None, 5, &None)
    );
    let expected = "the overlay at overlay.yaml:4:9 does not fit this rule and is left out: `burst`";
    assert!(warnings(&rules).iter().all(|warning| warning.contains(expected)), "{:?}", warnings(&rules));
}

#[test]
fn overlay_rule_that_matches_nothing_is_a_warning() {
    let patterns = ["[user]", "[route]", "[route, user, more]", "[{route: b}, user]"];
    let rules: String = patterns
        .map(|pattern| format!("      - {{match: {pattern}, rate_limit: {{lease: false}}}}\n"))
        .concat();
    let rules = compiled(&overlay(&rules).unwrap());
    let expected: Vec<_> = (4..8)
        .map(|line| format!("overlay.yaml:{line}:9: this matches no rule of the control plane"))
        .collect();
    assert_eq!((warnings(&rules), rules.overlay_misfits), (expected, 0));
}

#[test]
fn overlay_sets_on_denied_of_a_domain_and_changes_the_hash() {
    let with = |on_denied: &str| {
        let text = format!("overlay: [{{domain: edge, on_denied: {on_denied}}}]");
        compiled(&Overlay::read("o", text.into_bytes()).unwrap())
    };
    let [all, none] = ["charge_all", "charge_none"].map(with);
    assert_eq!(all.domain("edge").unwrap().on_denied, Some(OnDenied::ChargeAll));
    assert_eq!(none.domain("edge").unwrap().on_denied, Some(OnDenied::ChargeNone));
    assert_ne!(all.hash(), none.hash());
}

#[test]
fn overlay_problems_have_their_places() {
    let problems = overlay(
        "      - match: [route, user]
        rate_limit: {unit: day, requests_per_unit: 1, burts: 3}
      - rate_limit: {lease: false}
      - match: [[a], {a: b, c: d}, '']
      - match: [a]
        key: b
",
    )
    .unwrap_err()
    .to_string();
    let lines: Vec<_> = problems.lines().collect();
    let expected = [
        "overlay.yaml:5:22: `unit` is the control plane's; an overlay cannot change it",
        "overlay.yaml:5:33: `requests_per_unit` is the control plane's; an overlay cannot change it",
        "overlay.yaml:5:55: unknown key `burts`; did you mean `burst`?",
        "overlay.yaml:6:9: `match` is missing or empty",
        "overlay.yaml:7:17: an item of `match` is `key` or `key: value`, not a list",
        "overlay.yaml:7:22: an item of `match` is `key` or `key: value`, not a mapping",
        "overlay.yaml:7:36: an item of `match` is `key` or `key: value`",
        "overlay.yaml:9:9: `key` does not belong in an item of `rules`",
    ];
    assert_eq!(lines.len(), expected.len(), "{problems}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}\n{expected}");
    }
}
