//! Responses of the rate limit service over gRPC.

use tollgate::api::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
};
use tonic::Code as GrpcCode;

use crate::harness::{Service, descriptor, request, request_for, until, with_hits};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10, name: per user}
  - key: bucket
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 5}
  - key: window
    rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: huge
    rate_limit: {unit: week, requests_per_unit: 30000000000}
  - key: five_minutes
    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 10}
";

fn refund(mut request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(hits);
        descriptor.is_negative_hits = true;
    }
    request
}

fn with_override(requests_per_unit: u32, unit: i32, entry: (&str, &str)) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit });
    RateLimitDescriptor { limit, ..descriptor(&[entry]) }
}

fn codes(answer: &RateLimitResponse) -> Vec<Code> {
    answer.statuses.iter().map(DescriptorStatus::code).collect()
}

fn reset(status: &DescriptorStatus) -> (i64, i32) {
    let reset = status.duration_until_reset.expect("a limited descriptor has a reset");
    (reset.seconds, reset.nanos)
}

#[tokio::test]
async fn status_shows_limit_remaining_and_reset() {
    let service = Service::start(RULES).await;
    let status = service.status(request_for("shop", "user", "alice")).await;
    let limit = status.current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (10, Unit::Minute, "per user"));
    assert_eq!((status.code(), status.limit_remaining, reset(&status)), (Code::Ok, 9, (36, 0)));
}

#[tokio::test]
async fn statuses_keep_descriptor_order_and_one_refusal_refuses_call() {
    let service = Service::start(RULES).await;
    let names = ["free", "user", "banned", "unknown"];
    let answer =
        service.call(request("shop", names.map(|name| descriptor(&[(name, "x")])).to_vec())).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(codes(&answer), [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok]);
    let limits: Vec<_> = answer.statuses.iter().map(|status| status.current_limit.is_some()).collect();
    assert_eq!(limits, [false, true, true, false]);
    assert_eq!(answer.statuses[0].limit_remaining, u32::MAX, "an unlimited rule reports the maximum");
}

#[tokio::test]
async fn request_addend_0_charges_1_and_descriptor_addend_0_peeks() {
    let service = Service::start(RULES).await;
    let user = request_for("shop", "user", "alice");
    assert_eq!(service.status(user.clone()).await.limit_remaining, 9);
    assert_eq!(service.status(with_hits(user.clone(), 0)).await.limit_remaining, 9);
    assert_eq!(service.status(RateLimitRequest { hits_addend: 3, ..user.clone() }).await.limit_remaining, 6);
    let own = with_hits(RateLimitRequest { hits_addend: 3, ..user.clone() }, 2);
    assert_eq!(service.status(own).await.limit_remaining, 4);
}

#[tokio::test]
async fn descriptor_hits_addend_overrides_request_hits_addend() {
    let service = Service::start(RULES).await;
    let mut mixed = request("shop", vec![descriptor(&[("user", "a")]), descriptor(&[("user", "b")])]);
    mixed.hits_addend = 2;
    mixed.descriptors[1].hits_addend = Some(5);
    let answer = service.call(mixed).await.unwrap();
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [8, 5]);
}

#[tokio::test]
async fn refund_always_passes_and_restores_at_most_the_limit() {
    let service = Service::start(RULES).await;
    for key in ["user", "window"] {
        let call = request_for("shop", key, "alice");
        assert_eq!(service.status(refund(call.clone(), 3)).await.limit_remaining, 10);
        assert_eq!(service.status(with_hits(call.clone(), 10)).await.limit_remaining, 0);
        assert_eq!(service.status(call.clone()).await.code(), Code::OverLimit);
        assert_eq!(service.status(refund(call.clone(), 4)).await.code(), Code::Ok);
        let back = service.status(refund(call, u64::MAX)).await;
        assert_eq!((back.code(), back.limit_remaining), (Code::Ok, 10));
    }
}

#[tokio::test]
async fn override_replaces_rule_and_its_limit_is_not_part_of_key() {
    let service = Service::start(RULES).await;
    let call = |limit| request("shop", vec![with_override(limit, 2, ("anything", "x"))]);
    for _ in 0..5 {
        assert_eq!(service.status(call(5)).await.code(), Code::Ok);
    }
    assert_eq!(service.status(call(5)).await.code(), Code::OverLimit);
    let raised = service.status(call(100)).await;
    assert_eq!((raised.code(), raised.limit_remaining), (Code::Ok, 93));
    assert_eq!(service.status(call(0)).await.code(), Code::OverLimit);
}

#[tokio::test]
async fn override_shares_counter_with_classic_rule_of_same_unit() {
    let service = Service::start(RULES).await;
    service.status(with_hits(request_for("shop", "user", "alice"), 4)).await;
    let call = request("shop", vec![with_override(20, 2, ("user", "alice"))]);
    assert_eq!(service.status(call).await.limit_remaining, 15);
}

#[tokio::test]
async fn unknown_domain_and_unmatched_descriptor_pass_unlimited() {
    let service = Service::start(RULES).await;
    let unmatched = [
        request_for("other", "user", "x"),
        request_for("shop", "none", "x"),
        request("shop", vec![descriptor(&[])]),
    ];
    for call in unmatched {
        let status = service.status(call).await;
        assert_eq!(
            (status.code(), status.current_limit, status.duration_until_reset),
            (Code::Ok, None, None)
        );
    }
}

#[tokio::test]
async fn requests_without_rules_are_unavailable_and_probe_says_why() {
    let service = Service::start_unready("domain: shop\ndescriptors: [{kee: x}]\n", &[]).await;
    assert_eq!(
        service.call(request_for("shop", "user", "x")).await.unwrap_err().code(),
        GrpcCode::Unavailable
    );
    until(async || {
        let (code, why) = service.http("GET", "/readyz", "").await;
        (code == 503 && why.contains("rules.yaml:2:")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn limit_is_enforced_until_window_ends() {
    let service = Service::start(RULES).await;
    let user = request_for("shop", "user", "alice");
    service.status(with_hits(user.clone(), 10)).await;
    let refused = service.status(user.clone()).await;
    assert_eq!((refused.code(), refused.limit_remaining, reset(&refused)), (Code::OverLimit, 0, (36, 0)));
    service.advance(std::time::Duration::from_nanos(36_000_000_000 - 1));
    let refused = service.status(user.clone()).await;
    assert_eq!((refused.code(), reset(&refused)), (Code::OverLimit, (1, 0)), "rounded up, at least one");
    service.advance(std::time::Duration::from_nanos(1));
    assert_eq!(service.status(user).await.code(), Code::Ok);
}

#[tokio::test]
async fn bucket_reset_is_time_to_full_or_time_until_hits_pass() {
    let service = Service::start_with(RULES, &[("api.exact_reset", "true")]).await;
    let bucket = request_for("shop", "bucket", "x");
    let status = service.status(with_hits(bucket.clone(), 4)).await;
    assert_eq!((status.limit_remaining, reset(&status)), (1, (4, 0)));
    service.advance(std::time::Duration::from_millis(500));
    let refused = service.status(with_hits(bucket.clone(), 3)).await;
    assert_eq!(
        (refused.code(), refused.limit_remaining, reset(&refused)),
        (Code::OverLimit, 1, (1, 500_000_000))
    );
    service.advance(std::time::Duration::from_millis(1_500));
    assert_eq!(service.status(with_hits(bucket, 3)).await.code(), Code::Ok);
}

#[tokio::test]
async fn each_status_has_reset_of_its_own_limit() {
    let service = Service::start(RULES).await;
    let mut both = request("shop", vec![descriptor(&[("window", "x")]), descriptor(&[("user", "x")])]);
    both.descriptors[1].hits_addend = Some(11);
    let answer = service.call(both).await.unwrap();
    assert_eq!(codes(&answer), [Code::Ok, Code::OverLimit]);
    let resets: Vec<_> = answer.statuses.iter().map(reset).collect();
    assert_eq!(resets[1], (36, 0), "the end of the minute");
    assert!(resets[0].0 > 36 && resets[0].0 <= 3_600, "the end of the hour");
}

#[tokio::test]
async fn shadow_rule_counts_but_never_refuses() {
    let service = Service::start(RULES).await;
    for left in [0, 0, 0] {
        let answer = service.call(request_for("shop", "shadow", "x")).await.unwrap();
        assert_eq!((answer.overall_code(), answer.statuses[0].limit_remaining), (Code::Ok, left));
    }
}

#[tokio::test]
async fn values_beyond_32_bits_are_clamped() {
    let service = Service::start(RULES).await;
    let status = service.status(request_for("shop", "huge", "x")).await;
    let limit = status.current_limit.clone().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), status.limit_remaining),
        (u32::MAX, Unit::Week, u32::MAX)
    );
    let status = service.status(with_hits(request_for("shop", "huge", "x"), u64::MAX)).await;
    assert_eq!(status.code(), Code::OverLimit);
}

#[tokio::test]
async fn window_without_matching_unit_has_unit_unknown() {
    let service = Service::start(RULES).await;
    let limit = service.status(request_for("shop", "five_minutes", "x")).await.current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (10, Unit::Unknown));
}

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
async fn dynamic_metadata_contains_request_and_merged_rule_metadata() {
    let rules = "
domain: shop
descriptors:
  - key: a
    metadata: {owner: {team: red}, tier: 1}
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: b
    metadata: {owner: {team: blue, mail: b@x}, tags: [x]}
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: c
    metadata: {refused: true}
    rate_limit: {unit: hour, requests_per_unit: 0}
";
    let service = Service::start_with(rules, &[("api.dynamic_metadata", "true")]).await;
    let body = r#"{"domain": "shop", "hitsAddend": 2, "descriptors": [{"entries": [{"key": "a", "value": "1"}]},
        {"entries": [{"key": "b"}], "hitsAddend": "1"}, {"entries": [{"key": "c", "value": "x"}]},
        {"entries": [{"key": "d"}], "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}}]}"#;
    for _ in 0..2 {
        let (code, json) = service.http("POST", "/json", body).await;
        assert_eq!(code, 429);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let expected = serde_json::json!({
            "domain": "shop",
            "hitsAddend": 2.0,
            "descriptors": [
                {"entries": ["a=1"]},
                {"entries": ["b="], "hitsAddend": 1.0},
                {"entries": ["c=x"]},
                {"entries": ["d="], "limit": "requests_per_unit:5 unit:MINUTE"},
            ],
            "metadata": {"owner": {"team": "red", "mail": "b@x"}, "tier": 1.0, "tags": ["x"]},
            "refused_by": "shop.c",
            "refused": [{"rule": "shop.c", "domain": "shop", "why": "banned"}],
        });
        assert_eq!(json["dynamicMetadata"], expected);
    }
}

#[tokio::test]
async fn dynamic_metadata_names_each_refusing_rule_and_reason() {
    let service = Service::start_with(RULES, &[("api.dynamic_metadata", "true")]).await;
    service.status(with_hits(request_for("shop", "user", "alice"), 10)).await;
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]},
        {"entries": [{"key": "bucket"}], "hitsAddend": "9"}]}"#;
    let (_, json) = service.http("POST", "/json", body).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let metadata = &json["dynamicMetadata"];
    assert_eq!(metadata["refused_by"], "per user,shop.bucket");
    let expected = serde_json::json!([
        {"rule": "per user", "domain": "shop", "why": "over limit", "retryAfterMillis": 36_000.0},
        {"rule": "shop.bucket", "domain": "shop", "why": "more hits than ever pass"},
    ]);
    assert_eq!(metadata["refused"], expected);
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

async fn headers(service: &Service, keys: &[&str]) -> Vec<String> {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
    let answer = service.call(request("shop", descriptors)).await.unwrap();
    let headers = answer.response_headers_to_add.iter();
    headers.map(|header| format!("{}: {}", header.key, header.value)).collect()
}

#[tokio::test]
async fn headers_are_off_by_default() {
    let service = Service::start(RULES).await;
    assert_eq!(headers(&service, &["user"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn headers_show_refusing_limit_first_then_tightest() {
    let overrides = [
        ("headers.x_ratelimit", "true"),
        ("headers.ratelimit", "true"),
        ("headers.reset_name", "X-Again-In"),
        ("headers.retry_after", "true"),
    ];
    let service = Service::start_with(RULES, &overrides).await;
    let expected = [
        "X-RateLimit-Limit: 60",
        "X-RateLimit-Remaining: 4",
        "X-RateLimit-Reset: 1",
        "RateLimit-Limit: 60",
        "RateLimit-Remaining: 4",
        "X-Again-In: 1",
    ];
    assert_eq!(headers(&service, &["user", "bucket", "free", "unknown"]).await, expected);
    service.status(with_hits(request_for("shop", "user", "x"), 9)).await;
    let refused = headers(&service, &["bucket", "user"]).await;
    assert_eq!(refused[..3], ["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 36"]);
    assert_eq!(refused[6], "Retry-After: 36");
    // A ban never ends, so there is no Retry-After.
    assert_eq!(headers(&service, &["banned"]).await.len(), 6);
    assert_eq!(headers(&service, &["unknown"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn ratelimit_headers_have_their_configured_names() {
    let service = Service::start_with(RULES, &[("headers.ratelimit", "true")]).await;
    let default = ["RateLimit-Limit: 10", "RateLimit-Remaining: 9", "RateLimit-Reset: 36"];
    assert_eq!(headers(&service, &["user"]).await, default);
    let named = [
        ("headers.ratelimit", "true"),
        ("headers.limit_name", "X-Limit"),
        ("headers.remaining_name", "X-Left"),
        ("headers.reset_name", "X-Again-In"),
    ];
    let service = Service::start_with(RULES, &named).await;
    assert_eq!(headers(&service, &["user"]).await, ["X-Limit: 10", "X-Left: 9", "X-Again-In: 36"]);
}

#[tokio::test]
async fn ietf_headers_list_every_policy_and_tightest_remaining() {
    let service = Service::start_with(RULES, &[("headers.ietf", "true")]).await;
    let expected = [
        r#"RateLimit-Policy: "per user";q=10;w=60, "shop.bucket";q=60;w=60, "shop.five_minutes";q=10;w=300"#,
        r#"RateLimit: "shop.bucket";r=4;t=1"#,
    ];
    assert_eq!(headers(&service, &["user", "bucket", "five_minutes"]).await, expected);
}
