//! Decisions of several limits together, and the modes of rules and of the limiter.

use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    harness::{Service, descriptor, request, request_for, with_hits},
    responses::{RULES, codes},
};

fn special(on_denied: &str) -> String {
    let limits = "
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}";
    format!("domain: shop\non_denied: {on_denied}\ndescriptors:{limits}\n")
}

#[tokio::test]
async fn refused_call_charges_other_limits_as_on_denied_says() {
    for (on_denied, left) in [("charge_none", 7), ("charge_all", 5)] {
        let service = Service::start(&special(on_denied)).await;
        let call = request("shop", vec![descriptor(&[("group", "g")]), descriptor(&[("user", "u")])]);
        let mut passed = 0;
        for _ in 0..5 {
            passed += i32::from(service.call(call.clone()).await.unwrap().overall_code() == Code::Ok);
        }
        assert_eq!(passed, 3);
        let group = service.status(with_hits(request_for("shop", "group", "g"), 0)).await;
        assert_eq!(group.limit_remaining, left, "{on_denied}");
    }
}

#[tokio::test]
async fn racing_256_callers_admit_exactly_the_limit() {
    let rules = "
domain: shop
on_denied: charge_none
descriptors:
  - key: tight
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}
  - key: wide
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: fixed_window}
";
    let service = Service::start(rules).await;
    let client = service.client().await;
    let call = request("shop", vec![descriptor(&[("wide", "w")]), descriptor(&[("tight", "t")])]);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..256 {
        let (mut client, call) = (client.clone(), call.clone());
        calls.spawn(async move { client.should_rate_limit(call).await.unwrap().into_inner().overall_code() });
    }
    let codes = calls.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == Code::Ok).count(), 100);
    let wide = service.status(with_hits(request_for("shop", "wide", "w"), 0)).await;
    assert_eq!(wide.limit_remaining, 900, "refused calls did not charge the other limit");
}

#[tokio::test]
async fn replacing_rule_drops_replaced_rule_in_any_order() {
    let rules = "
domain: shop
descriptors:
  - key: all
    rate_limit: {unit: hour, requests_per_unit: 1, name: everyone}
  - key: vip
    rate_limit: {unlimited: true, replaces: [{name: everyone}]}
";
    let service = Service::start(rules).await;
    let both = request("shop", vec![descriptor(&[("all", "")]), descriptor(&[("vip", "x")])]);
    for _ in 0..3 {
        let answer = service.call(both.clone()).await.unwrap();
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!((answer.statuses[0].current_limit.clone(), answer.statuses[0].limit_remaining), (None, 0));
    }
    assert_eq!(
        service.status(request_for("shop", "all", "")).await.code(),
        Code::Ok,
        "the counter was not charged"
    );
}

#[tokio::test]
async fn quota_mode_rules_refuse_only_together() {
    let rules = "
domain: shop
descriptors:
  - key: plain
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: quota
    value: large
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1000}
";
    let service = Service::start(rules).await;
    for used in ["plain", "quota"] {
        service.status(request_for("shop", used, "")).await;
    }
    let (plain, fresh) = (("plain", ""), ("plain", "fresh"));
    let (quota, large) = (("quota", ""), ("quota", "large"));
    let table = [
        (vec![plain, large], Code::OverLimit),
        (vec![fresh, quota], Code::OverLimit),
        (vec![("plain", "other"), large], Code::Ok),
        (vec![quota, quota], Code::OverLimit),
        (vec![quota, large], Code::Ok),
    ];
    for (entries, code) in table {
        let descriptors = entries.iter().map(|entry| descriptor(&[*entry])).collect();
        let answer = service.call(request("shop", descriptors)).await.unwrap();
        assert_eq!(answer.overall_code(), code, "{entries:?}");
    }
}

#[tokio::test]
async fn candidate_has_own_counter_and_decides_nothing() {
    let rules = "
domain: shop
descriptors:
  - key: user
    rate_limit:
      unit: minute
      requests_per_unit: 5
      candidate: {unit: minute, requests_per_unit: 2}
  - key: free
    rate_limit:
      unlimited: true
      candidate: {unit: minute, requests_per_unit: 1, algorithm: token_bucket}
";
    let service = Service::start(rules).await;
    for (key, left) in [("user", [4, 3, 2]), ("free", [u32::MAX; 3])] {
        for left in left {
            let status = service.status(request_for("shop", key, "x")).await;
            assert_eq!((status.code(), status.limit_remaining), (Code::Ok, left), "{key}");
        }
    }
    assert_eq!(service.status(with_hits(request_for("shop", "user", "x"), 3)).await.code(), Code::OverLimit);
}

#[tokio::test]
async fn global_shadow_mode_passes_calls_and_keeps_statuses() {
    let service = Service::start_with(RULES, &[("limiter.shadow_mode", "true")]).await;
    let answer = service.call(request_for("shop", "banned", "x")).await.unwrap();
    assert_eq!((answer.overall_code(), codes(&answer)), (Code::Ok, vec![Code::OverLimit]));
}

#[tokio::test]
async fn global_quota_mode_refuses_only_if_all_descriptors_refuse() {
    let service = Service::start_with(RULES, &[("limiter.quota_mode", "true")]).await;
    let table = [
        (vec!["banned", "user"], Code::Ok),
        (vec!["banned"], Code::OverLimit),
        (vec!["banned", "unknown"], Code::Ok),
        (vec!["banned", "free"], Code::OverLimit),
    ];
    for (keys, code) in table {
        let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
        let answer = service.call(request("shop", descriptors)).await.unwrap();
        assert_eq!(answer.overall_code(), code, "{keys:?}");
    }
}
