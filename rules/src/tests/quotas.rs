//! The key `quotas` of a rule.

use std::num::NonZeroU32;

use super::{keyed, problems, rules, with};
use tollgate_counter::algorithm::QuotaTerms;

use crate::{
    compile::compile_all,
    contents::{Contents, RuleInput},
    diagnostics::Problems,
    overlay::Overlay,
    rule_set::{Domain, Rules},
};

/// A rule of zones that share a counter; the text begins at line 4, column 3.
fn zones(limit: &str, quotas: &str) -> String {
    format!(
        "domain: d\ndescriptors:\n- {{key: zone, value: \"eu-*\", share_threshold: true, rate_limit: {{{limit}, quotas: [\n  \
         {quotas}]}}}}\n"
    )
}

const LIMIT: &str = "unit: second, requests_per_unit: 100";

fn terms(weight: u32, floor: u64) -> QuotaTerms {
    QuotaTerms { weight: NonZeroU32::new(weight).unwrap(), floor }
}

#[test]
fn bucket_has_the_terms_of_the_first_item_with_its_pair() {
    let rules = keyed(
        "domain: d\ndescriptors:\n- key: zone\n  value: '*'\n  share_threshold: true\n  descriptors:\n  - key: zzz\n    \
         rate_limit:\n      unit: second\n      requests_per_unit: 100\n      quotas:\n      - {key: zone, value: a, weight: 3, \
         floor: 20}\n      - {key: zone, value: b, floor: 7}\n",
    );
    let of = |zone: &str| {
        with(&rules, &[("zone", zone), ("zzz", "b")], |found, entries| {
            found.unwrap().rule.quota_terms(entries)
        })
    };
    assert_eq!(["a", "b", "c"].map(of), [terms(3, 20), terms(1, 7), terms(1, 0)]);
}

#[test]
fn invalid_items_are_reported_with_their_locations() {
    for (quotas, problem) in [
        ("{key: zone, value: eu-1}", "f:4:3: an item of `quotas` needs a `weight` or a `floor`"),
        ("{key: zone, value: eu-1, weight: 0}", "f:4:36: `weight` is from 1 to 1000, not 0"),
        ("{key: zone, value: eu-1, weight: 1001}", "f:4:36: `weight` is from 1 to 1000, not 1001"),
        ("{key: zone, value: eu-1, floor: 0}", "f:4:35: `floor` is from 1 to 4294967295, not 0"),
        (
            "{key: zone, value: eu-1, floor: some}",
            "f:4:35: `floor` takes a whole number from 0 to 18446744073709551615, without quotes, not the text `some`",
        ),
        (
            "{key: zone, floor: 1}",
            "f:4:3: `value` is missing; it is the value of a pair of a bucket and must not be empty",
        ),
        (
            "{key: zone, value: us-1, floor: 1}",
            "f:4:3: `quotas` names `zone: us-1`, which matches no descriptor of the rule with a `*` and \
             `share_threshold: true`; without it, buckets with this value have a counter of their own",
        ),
        (
            "{key: zone, value: eu-1, floor: 1}, {key: zone, value: eu-1, weight: 2}",
            "f:4:39: an item of `quotas` for `zone: eu-1` is already given at f:4:3",
        ),
    ] {
        assert_eq!(problems(&zones(LIMIT, quotas)), problem, "{quotas}");
    }
}

#[test]
fn quotas_of_values_with_own_counters_are_refused() {
    let text = "domain: d\ndescriptors:\n- key: zone\n  value: '*'\n  rate_limit:\n    unit: day\n    requests_per_unit: 5\n    \
                quotas:\n    - {key: zone, value: a, weight: 2}\n";
    let problems = problems(text);
    assert!(
        problems.starts_with("f:9:7: `quotas` names `zone: a`, which matches no descriptor"),
        "{problems}"
    );
}

#[test]
fn quotas_of_a_limit_that_is_not_divided_are_refused() {
    let item = "{key: zone, value: eu-1, weight: 2}";
    for (limit, problem) in [
        (
            "algorithm: sliding_log, unit: day, requests_per_unit: 9",
            "`quotas` cannot be used with `algorithm: sliding_log`",
        ),
        ("algorithm: concurrency, max_in_flight: 9", "`quotas` cannot be used with `algorithm: concurrency`"),
        (
            "algorithm: token_bucket, unit: day, requests_per_unit: 9, overdraft: true",
            "`overdraft` cannot be combined with `quotas`",
        ),
        ("unlimited: true", "`quotas` has no meaning with `unlimited: true`"),
    ] {
        let problems = problems(&zones(limit, item));
        assert!(problems.contains(problem), "{problems}");
    }
}

#[test]
fn overlay_adds_quotas_to_a_rule_whose_counter_is_shared() {
    let overlay = "overlay:\n- domain: d\n  rules:\n  - match: [zone: '*']\n    rate_limit: {quotas: [{key: zone, value: eu-1, weight: 2}]}\n";
    let overlay = Overlay::read("overlay.yaml", overlay.into()).unwrap();
    let with = |share_threshold: &str| {
        let text = format!(
            "domain: d\ndescriptors:\n- {{key: zone, value: 'eu-*', {share_threshold}rate_limit: {{{LIMIT}}}}}\n"
        );
        let contents = Contents { sources: vec![RuleInput::file("f", text)], problems: Problems::default() };
        compile_all(&contents, Some(&overlay)).unwrap()
    };
    let quotas =
        |rules: &Rules| rules.domains().flat_map(Domain::rules).next().unwrap().options().quotas.clone();
    assert_eq!(quotas(&with("share_threshold: true, "))[0].terms, terms(2, 0));
    let own_counters = with("");
    assert_eq!((quotas(&own_counters), own_counters.overlay_misfits), (vec![], 1));
}

#[test]
fn floor_above_the_limit_is_a_warning() {
    for (limit, most) in [(LIMIT, "100 a second"), ("unit: minute, requests_per_unit: 100", "100")] {
        let rules = rules(&zones(limit, "{key: zone, value: eu-1, floor: 101}"));
        let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
        let expected =
            format!("rules.yaml:4:3: the `floor` of `zone: eu-1` is 101, above the limit of {most}");
        assert_eq!(warnings, [expected]);
    }
}
