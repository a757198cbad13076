//! Denials in the log.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    harness::{Service, descriptor, request, request_for, with_hits},
    log::Log,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {name: each_user, unit: minute, requests_per_unit: 1, algorithm: fixed_window}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: plan
    descriptors:
      - key: seat
        rate_limit: {unit: minute, requests_per_unit: 0}
";

/// A field of each denial in the log; null where it is missing.
fn field(log: &Log, name: &str) -> Vec<Value> {
    log.events("denied").iter().map(|event| event[name].clone()).collect()
}

#[tokio::test]
async fn denial_log_has_rule_descriptor_limit_and_retry_after() {
    let log = Log::json("info");
    let service = Service::start_on_this_thread(RULES, &[("log.denials", "10/s")]).await;
    service.call(with_hits(request_for("shop", "user", "ada\nx"), 1)).await.unwrap();
    assert!(field(&log, "rule").is_empty(), "a passing call is not logged");
    service.call(with_hits(request_for("shop", "user", "ada\nx"), 1)).await.unwrap();
    service.call(request("shop", vec![descriptor(&[("plan", "a"), ("seat", "1")])])).await.unwrap();

    for (name, user, seat) in [
        ("domain", json!("shop"), json!("shop")),
        ("rule", json!("each_user (shop.user)"), json!("shop.plan.seat")),
        ("descriptor", json!(r"user=ada\nx"), json!("plan=a,seat=1")),
        ("limit", json!(1), json!(0)),
        ("call_passes", json!(false), json!(false)),
        ("left_out", json!(0), json!(0)),
        ("retry_after", json!(36.0), Value::Null),
    ] {
        assert_eq!(field(&log, name), [user, seat], "{name}");
    }
}

#[tokio::test]
async fn denial_log_keeps_its_rate_limit() {
    let log = Log::json("info");
    let service = Service::start_on_this_thread(RULES, &[("log.denials", "2/s")]).await;
    let mut client = service.client().await;
    for _ in 0..2 {
        for _ in 0..6 {
            client.should_rate_limit(with_hits(request_for("shop", "user", "ada"), 1)).await.unwrap();
        }
        service.advance(Duration::from_secs(1));
    }
    assert_eq!(field(&log, "left_out"), [0, 0, 3, 0], "of 5 denials, then of 6");
}

#[tokio::test]
async fn denial_log_marks_shadow_mode_and_skips_shadow_rules() {
    let log = Log::json("info");
    let overrides = [("log.denials", "10/s"), ("limiter.shadow_mode", "true")];
    let service = Service::start_on_this_thread(RULES, &overrides).await;
    service.call(request_for("shop", "trial", "x")).await.unwrap();
    service.call(with_hits(request_for("shop", "user", "ada"), 2)).await.unwrap();
    assert_eq!(field(&log, "call_passes"), [true]);
    assert_eq!(field(&log, "retry_after"), [Value::Null], "two hits never pass");
}

#[tokio::test]
async fn denial_log_is_off_by_default() {
    let log = Log::json("info");
    let service = Service::start_on_this_thread(RULES, &[]).await;
    service.call(with_hits(request_for("shop", "user", "ada"), 2)).await.unwrap();
    assert!(field(&log, "rule").is_empty());
}
