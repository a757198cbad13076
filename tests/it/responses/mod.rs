//! Responses of the rate limit service over gRPC.

use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
};
use tonic::Code as GrpcCode;

use crate::harness::{Service, descriptor, request, request_for, until, with_hits};

mod bodies;
mod extras;
mod modes;

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
