//! The admin pages, over HTTP and through the admin client of the command line.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tollgate::server::{Server, ServiceError};
use tollgate_counter::time::Clock;
use tollgate_telemetry::logs::LogControl;

use crate::{
    harness::{START, Service, request_for, send, settings, with_hits},
    log::Log,
};

mod access;
mod cluster;
mod denied_keys;
mod explain;
mod networks;
mod page;
pub mod record;

const RULES: &str = r#"
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: user
    value: a*
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 10, burst: 20}
  - key: user
    value: al*
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: path
    value: /api/*
    share_threshold: true
    shadow_mode: true
    rate_limit:
      {algorithm: fixed_window, window: 90s, requests_per_unit: 3, candidate: {unit: hour, requests_per_unit: 1}}
  - key: plan
    value: gold
    rate_limit:
      {name: gold, replaces: [{name: basic}], unit: day, requests_per_unit: 100, on_owner_unavailable: deny, lease: no,
       denial_body: {text: "{limit}"}}
  - key: basic
    rate_limit: {name: basic, unit: day, requests_per_unit: 1}
  - key: team
    descriptors:
      - key: member
        rate_limit: {unit: second, requests_per_unit: 1}
"#;

/// The code and body of a request to the admin listener.
async fn admin(service: &Service, method: &str, path: &str, body: &str) -> (u16, String) {
    admin_with(service, "", method, path, body).await
}

pub async fn admin_with(
    service: &Service,
    header: &str,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    let header = format!("host: localhost\r\n{header}");
    send(service.addresses.admin, &header, method, path, body).await
}

pub async fn ok_json(service: &Service, method: &str, path: &str, body: &str) -> Value {
    let (code, answer) = admin(service, method, path, body).await;
    assert_eq!(code, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

async fn explain_json(service: &Service, query: &str) -> Value {
    ok_json(service, "GET", &format!("/explain?domain=shop&{query}"), "").await
}

/// A service and the log that it writes.
async fn start_logging(level: &str) -> (Service, Log) {
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let log = Log::json(level);
    (start(rules, &[], log.control.clone()).await.unwrap(), log)
}

async fn start(
    rules: TempDir,
    overrides: &[(&str, &str)],
    log_control: LogControl,
) -> Result<Service, ServiceError> {
    let clock = Clock::manual(START);
    let server = Server::bind(settings(&rules, overrides), clock.clone()).await?.with_logs(log_control);
    let (addresses, counters) = (server.addresses().unwrap(), server.stats());
    let (shutdown, shutdown_signal) = mpsc::channel(2);
    let task = tokio::spawn(server.run(shutdown_signal));
    let service = Service { addresses, clock, shutdown, task, rules, counters };
    service.until_http("/readyz", 200).await;
    Ok(service)
}

#[tokio::test]
async fn list_of_endpoints_has_every_endpoint_and_each_exists() {
    let service = Service::start(RULES).await;
    let (code, list) = admin(&service, "GET", "/endpoints", "").await;
    assert_eq!(code, 200);
    let paths: Vec<_> = list.lines().map(|line| line.split_once(": ").unwrap().0).collect();
    assert!(paths.is_sorted() && paths.contains(&"/explain"), "{list}");
    // The stream of samples does not end.
    for path in paths.into_iter().filter(|path| *path != "/live") {
        let (code, body) = admin(&service, "GET", path, "").await;
        // A page without content says why.
        assert!(code != 404 || !body.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn rules_page_counts_rules_and_shows_warnings() {
    let rules = "domain: a\ndescriptors:\n  - {key: x, shadow_mode: true}\n  - {key: y, rate_limit: {unlimited: true}}\n";
    let service = Service::start(rules).await;
    let page = ok_json(&service, "GET", "/rules", "").await;
    assert_eq!(page["domains"], json!({"a": 1}));
    assert!(page["warnings"][0].as_str().unwrap().contains("rules.yaml:3:"), "{page}");
}

#[tokio::test]
async fn rlconfig_page_matches_envoyproxy_format_plus_own_keys() {
    let service = Service::start(RULES).await;
    let (code, lines) = admin(&service, "GET", "/rlconfig", "").await;
    let flags = "shadow_mode: false, quota_mode: false";
    let expected = [
        format!("shop.user: unit=MINUTE requests_per_unit=2, {flags}"),
        format!(
            "shop.user_a*: unit=MINUTE requests_per_unit=10, {flags}, algorithm: token_bucket, burst: 20"
        ),
        format!("shop.user_al*: unit=HOUR requests_per_unit=5, {flags}"),
        format!("shop.user_root: unit=UNKNOWN requests_per_unit=0, {flags}"),
        "shop.path_/api/*: unit=UNKNOWN requests_per_unit=3, shadow_mode: true, quota_mode: false, \
         algorithm: fixed_window, window: 1m 30s, candidate: {1 per 1h}"
            .to_owned(),
        format!(
            "shop.plan_gold: unit=DAY requests_per_unit=100, {flags}, on_owner_unavailable: deny, lease: false, \
             denial_body: text/plain; charset=utf-8: {{limit}}"
        ),
        format!("shop.basic: unit=DAY requests_per_unit=1, {flags}"),
        format!("shop.team.member: unit=SECOND requests_per_unit=1, {flags}"),
    ];
    assert_eq!(code, 200);
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn admin_pages_without_rules_are_empty_or_unavailable() {
    let service = Service::start_unready("nonsense", &[]).await;
    assert_eq!(admin(&service, "GET", "/rlconfig", "").await, (200, String::new()));
    assert_eq!(admin(&service, "GET", "/explain?domain=shop&key=user=x", "").await.0, 503);
    assert_eq!(admin(&service, "GET", "/counters?domain=shop&key=user=x", "").await.0, 503);
}

#[tokio::test]
async fn config_page_shows_value_and_source_of_each_setting() {
    let service = Service::start_with(RULES, &[("api.exact_reset", "true")]).await;
    let page = ok_json(&service, "GET", "/config", "").await;
    assert_eq!(
        (&page["settings"]["api.exact_reset"], &page["from"]["api.exact_reset"]),
        (&json!("true"), &json!("flag"))
    );
    assert_eq!(
        (&page["settings"]["log.level"], &page["from"]["log.level"]),
        (&json!("info"), &json!("default"))
    );
}

#[tokio::test]
async fn counter_is_shown_reset_and_set_and_changes_are_logged() {
    let (service, log) = start_logging("info").await;
    let page = "/counters?domain=shop&key=user=bob";
    let shown = ok_json(&service, "GET", page, "").await;
    assert_eq!(
        (&shown["kept"], &shown["remaining"], &shown["idle_at"]),
        (&json!(false), &json!(2), &Value::Null)
    );
    service.call(with_hits(request_for("shop", "user", "bob"), 2)).await.unwrap();
    let shown = ok_json(&service, "GET", page, "").await;
    assert_eq!(
        (&shown["remaining"], &shown["allowance"], &shown["reset_after_ms"]),
        (&json!(0), &json!(2), &json!(36_000))
    );
    assert_eq!((&shown["rule"], &shown["limit"]), (&json!("shop.user"), &json!("2 per minute")));
    assert!(shown["idle_at"].as_str().unwrap().ends_with(":00Z"));

    let reset = ok_json(&service, "DELETE", page, "").await;
    assert_eq!(
        (&reset["before"]["remaining"], &reset["remaining"], &reset["kept"]),
        (&json!(0), &json!(2), &json!(false))
    );
    assert_eq!(service.status(request_for("shop", "user", "bob")).await.limit_remaining, 1);
    let set = ok_json(&service, "PUT", page, r#"{"used": 2}"#).await;
    assert_eq!((&set["before"]["remaining"], &set["remaining"]), (&json!(1), &json!(0)));
    assert_eq!(service.status(request_for("shop", "user", "bob")).await.code, 2);

    let (resets, sets) = (log.events("reset a counter"), log.events("set a counter"));
    assert_eq!((resets.len(), sets.len()), (1, 1));
    let event = &sets[0];
    assert!(event["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{event}");
    assert_eq!(
        (&event["domain"], &event["descriptor"], &event["rule"]),
        (&json!("shop"), &json!("user=bob"), &json!("shop.user"))
    );
    assert_eq!((&event["remaining_before"], &event["remaining_after"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn counter_of_every_algorithm_can_be_set() {
    for (name, rule_text) in crate::counters::every_rule() {
        let rules = format!("domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{{}}}}}\n", rule_text(10));
        let service = Service::start(&rules).await;
        let page = "/counters?domain=d&key=k=v";
        for used in [4, 10, 25, 0, 3] {
            let set = ok_json(&service, "PUT", page, &json!({"used": used}).to_string()).await;
            assert_eq!(set["remaining"], 10_u64.saturating_sub(used), "{name} {set}");
            assert_eq!(set["kept"], used > 0, "{name} {set}");
            assert_eq!(set["note"].is_string(), used > 10, "{name} {set}");
            let status = service.status(with_hits(request_for("d", "k", "v"), 0)).await;
            assert_eq!(u64::from(status.limit_remaining), 10_u64.saturating_sub(used), "{name}");
        }
        let figures = ok_json(&service, "GET", "/store", "").await;
        let live = u64::from(crate::harness::is_store_in_memory());
        assert_eq!(figures["live"], live, "{name}");
    }
}

#[tokio::test]
async fn bucket_set_above_limit_refuses_until_debt_is_paid() {
    let rules = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 60}}\n";
    let service = Service::start(rules).await;
    ok_json(&service, "PUT", "/counters?domain=d&key=k=v", r#"{"used": 90}"#).await;
    service.advance(Duration::from_secs(30));
    assert_eq!(service.status(request_for("d", "k", "v")).await.code, 2);
    service.advance(Duration::from_secs(1));
    assert_eq!(service.status(request_for("d", "k", "v")).await.code, 1);
}

#[tokio::test]
async fn counters_page_rejects_unknown_counter_and_bad_input() {
    let service = Service::start(RULES).await;
    for (method, query, body, code, wrong) in [
        ("GET", "?domain=other&key=a=b", "", 404, "no rules for this domain"),
        ("GET", "?domain=shop&key=a=b", "", 404, "no rule matches"),
        ("DELETE", "?domain=shop&key=user=root", "", 404, "unlimited"),
        ("GET", "?domain=shop", "", 400, "key"),
        ("GET", "?domain=shop&key=user", "", 400, "no `=`"),
        ("GET", "?domain=shop&key=user=a&key=user=b", "", 400, "key"),
        ("PUT", "?domain=shop&key=user=a", "5", 400, r#"{"used": 5}"#),
        ("PUT", "?domain=shop&key=user=a", r#"{"used": -1}"#, 400, "used"),
        ("POST", "?domain=shop&key=user=a", r#"{"used": 1}"#, 405, ""),
    ] {
        let (answered, why) = admin(&service, method, &format!("/counters{query}"), body).await;
        assert_eq!(answered, code, "{method} {query}: {why}");
        assert!(why.contains(wrong), "{why}");
    }
}

#[tokio::test]
async fn log_level_changes_at_runtime_and_bad_level_is_rejected() {
    let (service, log) = start_logging("error").await;
    assert_eq!(admin(&service, "GET", "/log", "").await, (200, "error\n".to_owned()));
    admin(&service, "DELETE", "/counters?domain=shop&key=user=bob", "").await;
    assert_eq!(log.events("reset a counter").len(), 0);
    assert_eq!(admin(&service, "PUT", "/log", "warn,tollgate::api=info\n").await.0, 200);
    admin(&service, "DELETE", "/counters?domain=shop&key=user=bob", "").await;
    assert_eq!(log.events("reset a counter").len(), 1);
    for bad in ["", "inof", "info,tollgate::api=loud"] {
        let (code, why) = admin(&service, "PUT", "/log", bad).await;
        assert_eq!(code, 400);
        assert!(why.contains("allowed are error, warn"), "{why}");
    }
    assert_eq!(admin(&service, "GET", "/log", "").await.1, "warn,tollgate::api=info\n");
    let changes = log.events("changed the log level");
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (&changes[0]["before"], &changes[0]["after"]),
        (&json!("error"), &json!("warn,tollgate::api=info"))
    );
}
