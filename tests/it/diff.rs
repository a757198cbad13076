//! `tollgate diff`, by running the program.

use std::{fs, process::Output};

use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{harness::TIMEOUT, program::PROGRAM};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: fixed_window}
  - key: path
    value: /api/*
    rate_limit: {unit: minute, requests_per_unit: 5}
  - key: plan
    descriptors:
      - key: member
        rate_limit: {unit: day, requests_per_unit: 100, algorithm: token_bucket}
";

/// Runs the program on these two texts, as files `old.yaml` and `new.yaml`.
async fn diff(old: &str, new: &str, flags: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("old.yaml"), old).unwrap();
    fs::write(folder.path().join("new.yaml"), new).unwrap();
    run(folder.path().to_str().unwrap(), &[&["old.yaml", "new.yaml"], flags].concat()).await
}

async fn run(folder: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("diff").args(arguments).current_dir(folder).kill_on_drop(true);
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap()
}

/// The differences of rules that differ.
async fn differences(old: &str, new: &str) -> Vec<Value> {
    let output = diff(old, new, &["--json"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["equal"], false);
    report["differences"].as_array().unwrap().clone()
}

/// The only difference after replacing a part of [`RULES`].
async fn only_difference(part: &str, by: &str) -> Value {
    assert!(RULES.contains(part), "{part}");
    let mut found = differences(RULES, &RULES.replace(part, by)).await;
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn counters(difference: &Value) -> &str {
    difference["counters"].as_str().unwrap()
}

#[tokio::test]
async fn rules_in_other_words_and_order_are_equal() {
    let other = "
# A comment, and domains, descriptors and keys in another order.
descriptors:
- key: plan
  descriptors: [{key: member, rate_limit: {algorithm: token_bucket, requests_per_unit: 100, unit: day}}]
- {key: path, value: /api/*, rate_limit: {requests_per_unit: 5, unit: minute}}
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: fixed_window}}
domain: edge
";
    let output = diff(RULES, other, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "equal: no limit changes for any descriptor\n");
    let output = diff(RULES, RULES, &["--json"]).await;
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["equal"], &report["old"]), (&Value::Bool(true), &report["new"]));
}

#[tokio::test]
async fn changed_limit_names_both_values_and_places() {
    let output = diff(RULES, &RULES.replace("requests_per_unit: 10,", "requests_per_unit: 20,"), &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "edge: user: changed\n  \
         applies to values of user that nothing else matches\n  \
         limit: 10 per minute, algorithm: fixed_window -> 20 per minute, algorithm: fixed_window\n  \
         counters: are kept: what was counted counts against the new limit\n  \
         at old.yaml:4:5, now new.yaml:4:5\n\n\
         1 difference\n"
    );
}

#[tokio::test]
async fn counters_are_kept_unless_algorithm_or_window_changes() {
    for (part, by, kept) in [
        ("requests_per_unit: 100,", "requests_per_unit: 100, burst: 7,", true),
        ("requests_per_unit: 5}", "requests_per_unit: 6}", true),
        ("requests_per_unit: 5}", "requests_per_unit: 5, algorithm: sliding_log}", false),
        ("unit: day, requests_per_unit: 100", "unit: hour, requests_per_unit: 100", false),
    ] {
        let difference = only_difference(part, by).await;
        assert_eq!(counters(&difference).starts_with("are kept"), kept, "{difference}");
        assert_eq!(counters(&difference).starts_with("begin empty"), !kept, "{difference}");
    }
    let difference = only_difference("requests_per_unit: 100,", "requests_per_unit: 200,").await;
    assert!(counters(&difference).contains("same fraction"), "{difference}");
    let difference =
        only_difference("    value: /api/*", "    value: /api/*\n    share_threshold: true").await;
    assert!(counters(&difference).starts_with("begin empty"), "{difference}");
}

#[tokio::test]
async fn every_key_of_a_rule_is_compared() {
    for (part, by, key, new) in [
        ("fixed_window}", "fixed_window, name: per_user}", "name", "per_user"),
        ("fixed_window}", "fixed_window, replaces: [{name: a}, {name: b}]}", "replaces", "a, b"),
        ("fixed_window}", "fixed_window, lease: false}", "lease", "false"),
        ("fixed_window}", "fixed_window, headers: false}", "headers", "false"),
        ("fixed_window}", "fixed_window, quota_unit: tokens}", "quota_unit", "tokens"),
        ("fixed_window}", "fixed_window, on_owner_unavailable: deny}", "on_owner_unavailable", "deny"),
        ("fixed_window}", "fixed_window, denial_body: problem}", "denial_body", "problem"),
        (
            "fixed_window}",
            "fixed_window, candidate: {unit: hour, requests_per_unit: 3}}",
            "candidate",
            "3 per 1h",
        ),
        (
            "unit: minute, requests_per_unit: 5}",
            "window: 60s, requests_per_unit: 5}",
            "shown in responses",
            "5 per unknown",
        ),
        ("  - key: user", "  - key: user\n    shadow_mode: true", "shadow_mode", "true"),
        ("  - key: user", "  - key: user\n    quota_mode: true", "quota_mode", "true"),
        ("  - key: user", "  - key: user\n    detailed_metric: true", "detailed_metric", "true"),
        ("  - key: user", "  - key: user\n    value_to_metric: true", "value_to_metric", "true"),
        ("domain: edge", "domain: edge\non_denied: charge_none", "on_denied", "charge_none"),
    ] {
        let difference = only_difference(part, by).await;
        assert_eq!(difference["change"], "changed", "{difference}");
        let keys = difference["keys"].as_array().unwrap();
        assert_eq!(keys.len(), 1, "{difference}");
        assert_eq!(keys[0]["key"], key);
        assert!(keys[0]["new"].as_str().unwrap().starts_with(new), "{difference}");
    }
}

#[tokio::test]
async fn added_descriptor_names_the_limit_that_it_takes_over() {
    let more = "  - {key: user, value: bob, rate_limit: {unit: minute, requests_per_unit: 99, algorithm: fixed_window}}\n";
    let mut found = differences(RULES, &(RULES.to_owned() + more)).await;
    let added = found.remove(0);
    assert!(found.is_empty());
    assert_eq!((&added["change"], &added["path"]), (&"added".into(), &"user=bob".into()));
    assert_eq!(added["before"]["rule"], "edge.user");
    assert_eq!(added["new_at"], "new.yaml:13:5");
    assert!(
        counters(&added).starts_with("are kept"),
        "the key of a counter is the entries and the kind: {added}"
    );
    let mut found = differences(&(RULES.to_owned() + more), RULES).await;
    let removed = found.remove(0);
    assert_eq!((&removed["change"], &removed["after"]["rule"]), (&"removed".into(), &"edge.user".into()));
    assert_eq!(removed["old_at"], "old.yaml:13:5");
}

#[tokio::test]
async fn added_descriptor_without_limit_is_a_difference_if_it_hides_one() {
    let hides = RULES.to_owned() + "  - {key: user, value: bob}\n";
    let found = differences(RULES, &hides).await;
    assert_eq!((&found[0]["path"], &found[0]["before"]["rule"]), (&"user=bob".into(), &"edge.user".into()));
    assert!(counters(&found[0]).starts_with("are not used any more"));
    let groups = RULES.to_owned() + "  - {key: group}\n";
    assert_eq!(diff(RULES, &groups, &[]).await.status.code(), Some(0), "there was no limit before either");
}

#[tokio::test]
async fn network_is_compared_by_an_address_that_only_it_matches() {
    let network = |value: &str, limit: u32| {
        format!(
            "  - {{key: ip, value: {value}, match: cidr, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n"
        )
    };
    let old = format!("{RULES}{}{}", network("10.0.0.0/8", 5), network("10.0.0.0/16", 6));
    let found = differences(&old, &(old.clone() + &network("10.1.0.0/16", 7))).await;
    let [added] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&added["path"], &added["change"]), (&"ip=10.1.0.0/16".into(), &"added".into()));
    assert_eq!(added["before"]["rule"], "edge.ip_10.0.0.0/8");
    assert!(counters(added).starts_with("are kept"), "{added}");
    let found =
        differences(&old, &old.replace("day, requests_per_unit: 5", "day, requests_per_unit: 9")).await;
    let [changed] = &found[..] else { panic!("{found:?}") };
    assert_eq!(changed["path"], "ip=10.0.0.0/8");
    assert_eq!((&changed["before"], &changed["after"]), (&Value::Null, &Value::Null), "{changed}");
    let plain = old.replace("10.0.0.0/16, match: cidr", "10.0.0.0/16");
    let found = differences(&old, &plain).await;
    assert_eq!(
        (&found[0]["keys"][0]["key"], &found[0]["keys"][0]["new"]),
        (&"match".into(), &"text".into()),
        "{found:?}"
    );
}

#[tokio::test]
async fn another_group_is_another_counter() {
    let with = |group: &str| {
        let rule = "rate_limit: {unit: day, requests_per_unit: 1}";
        format!("domain: edge\ndescriptors: [{{key: ip, {group} descriptors: [{{key: path, {rule}}}]}}]\n")
    };
    for (old, new) in [("", "group: {ipv6: 64},"), ("group: {ipv6: 64},", "group: {ipv6: 56},")] {
        let found = differences(&with(old), &with(new)).await;
        let [changed] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&changed["path"], &changed["keys"][0]["key"]), (&"ip, path".into(), &"group".into()));
        assert!(counters(changed).starts_with("begin empty"), "{changed}");
    }
}

#[tokio::test]
async fn order_of_patterns_is_compared() {
    let pattern = |value| {
        format!("- {{key: path, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n")
    };
    let rules = |first, second| format!("domain: edge\ndescriptors:\n{}{}", pattern(first), pattern(second));
    let found = differences(&rules("/a*", "/*"), &rules("/*", "/a*")).await;
    assert_eq!(found[0]["change"], "reordered", "{found:?}");
    assert_eq!(found[0]["keys"][0]["new"], "path_/*, path_/a*");
}

#[tokio::test]
async fn folders_are_compared_with_their_domains() {
    let folder = tempfile::tempdir().unwrap();
    for (name, domain) in [("old/a.yaml", "edge"), ("new/a.yaml", "edge"), ("new/b.yaml", "shop")] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, RULES.replace("domain: edge", &format!("domain: {domain}"))).unwrap();
    }
    let output = run(folder.path().to_str().unwrap(), &["old", "new", "--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["differences"].as_array().unwrap();
    assert_eq!(found.len(), 4, "the domain and its three limits: {report}");
    assert!(found.iter().all(|one| one["domain"] == "shop" && one["change"] == "added"), "{report}");
}

#[tokio::test]
async fn errors_exit_with_2_and_name_the_problem() {
    let output = diff("domain: edge\ndescriptor: []\n", "domain: ''\n", &[]).await;
    assert_eq!(output.status.code(), Some(2));
    let problems = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(problems.contains("old.yaml:2:1: ") && problems.contains("new.yaml:1:"), "{problems}");
    for (arguments, code) in
        [(&["nowhere.yaml", "nowhere.yaml"][..], 2), (&["only-one"], 64), (&["a", "b", "--no-such-flag"], 64)]
    {
        let output = run(".", arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[tokio::test]
async fn changed_quotas_of_a_rule_are_a_difference() {
    let rules = |quotas: &str| {
        let limit = format!("{{unit: day, requests_per_unit: 70{quotas}}}");
        format!(
            "{{domain: d, descriptors: [{{key: zone, value: 'eu*', share_threshold: true, rate_limit: {limit}}}]}}"
        )
    };
    let quotas = ", quotas: [{key: zone, value: eu-1, weight: 3, floor: 2}]";
    let found = differences(&rules(""), &rules(quotas)).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("zone: eu-1 {weight: 3, floor: 2}"), "{found:?}");
}

#[tokio::test]
async fn narrowed_bounds_of_own_limits_are_a_warning() {
    let rules = |algorithm: &str, own: &str| {
        format!(
            "domain: d\ndescriptors:\n- key: user\n  rate_limit:\n    {{algorithm: {algorithm}, unit: minute, \
             requests_per_unit: 9, burst: 9{own}}}\n"
        )
    };
    let wide =
        rules("token_bucket", ", own: {requests_per_unit: {max: 90}, burst: {max: 90}, unlimited: true}");
    for (new, expected) in [
        (rules("token_bucket", ""), "all keys have the numbers of the rule until it has `own` again"),
        (
            rules("token_bucket", ", own: {requests_per_unit: {max: 50}}"),
            "a `requests_per_unit` above 50 is cut to 50, `burst` is that of the rule, unlimited keys have the \
             numbers of the rule",
        ),
        (
            rules("leaky_bucket", ", own: {burst: {max: 90}}"),
            "they belong to the counters of before, and are dropped a day after the algorithm or window has \
             changed; `tollgate limits export` them first, and import them \
             afterwards",
        ),
    ] {
        let found = differences(&wide, &new).await;
        assert_eq!((found.len(), &found[0]["own_limits"]), (1, &Value::from(expected)));
        let text = String::from_utf8(diff(&wide, &new, &[]).await.stdout).unwrap();
        assert!(text.contains(&format!("\n  warning: limits of their own: {expected}\n")), "{text}");
        // Wider bounds cut nothing.
        let found = differences(&new, &wide).await;
        assert_eq!(found[0]["own_limits"].is_null(), !new.contains("leaky"), "{found:?}");
    }
}
