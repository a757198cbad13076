//! Requests delayed by a `leaky_queue`.

use std::{sync::Arc, time::Duration};

use axum::http::HeaderMap;
use prost::Message as _;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tollgate::api::{self, Api, ApiKind, Call, Method, ResetPrecision};
use tollgate_counter::{resilience::Caller, time::Clock};
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull};
use tollgate_wire::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
};

use crate::{
    harness::{START, Service, TIMEOUT, descriptor, request, request_for, until},
    metrics::{page, value},
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  # A turn each millisecond.
  - key: fast
    rate_limit: {algorithm: leaky_queue, unit: second, requests_per_unit: 1000, burst: 20000}
  # A turn each 20 ms.
  - key: calm
    rate_limit: {algorithm: leaky_queue, unit: second, requests_per_unit: 50, burst: 9}
  # A turn each minute.
  - key: slow
    rate_limit: {algorithm: leaky_queue, unit: minute, requests_per_unit: 1, burst: 10000}
  - key: bounded
    rate_limit: {algorithm: leaky_queue, unit: minute, requests_per_unit: 1, burst: 9, max_delay: 90s}
  - key: shadow
    shadow_mode: true
    rate_limit: {algorithm: leaky_queue, unit: minute, requests_per_unit: 1, burst: 9}
  - key: window
    rate_limit: {algorithm: fixed_window, unit: minute, requests_per_unit: 1}
";

/// The service without sockets, so that a test can pause time.
fn api() -> Api {
    let rules = Rules::parse("rules.yaml", RULES).unwrap_or_else(|problems| panic!("{problems}"));
    let active_rules = Arc::new(ActiveRules::from_rules(rules, START));
    let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny));
    let limiter = Limiter::new(active_rules, memory, Clock::manual(START));
    Api::new(limiter, api::ApiSettings { exact_reset: true, ..api::ApiSettings::default() })
}

fn request_of(key: &str) -> RateLimitRequest {
    request_for("shop", key, "x")
}

/// A response and its latency.
async fn timed(
    api: &Api,
    request: RateLimitRequest,
    timeout: Option<Duration>,
) -> (RateLimitResponse, Duration) {
    let start = Instant::now();
    let answer = answer(api, &request, timeout).await;
    (answer, start.elapsed())
}

/// The reply to a request of a caller that waits for `timeout`, when it is sent.
async fn answer(api: &Api, request: &RateLimitRequest, timeout: Option<Duration>) -> RateLimitResponse {
    let mut metadata = HeaderMap::new();
    if let Some(timeout) = timeout {
        metadata.insert("grpc-timeout", format!("{}m", timeout.as_millis()).parse().unwrap());
    }
    let message = request.encode_to_vec();
    let call = Call {
        method: Method::ShouldRateLimit,
        message: &message,
        metadata: Some(&metadata),
        precision: ResetPrecision::Nanos,
        api: ApiKind::Envoy,
    };
    let reply = api.handle(call, &Caller::default()).await.unwrap();
    if !reply.delay.is_zero() {
        api.wait(reply.delay).await;
    }
    RateLimitResponse::decode(reply.message()).unwrap()
}

fn reset_ms(answer: &RateLimitResponse) -> u128 {
    let reset = answer.statuses[0].duration_until_reset.unwrap();
    Duration::try_from(reset).unwrap().as_millis()
}

/// The resolution of timers.
const TICK: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn queued_calls_10k_on_one_thread_leave_in_order_and_on_time() {
    let (api, start) = (api(), Instant::now());
    let mut waiting = JoinSet::new();
    for index in 0..10_000_u32 {
        let api = api.clone();
        waiting.spawn(async move {
            let answer = answer(&api, &request_of("fast"), None).await;
            assert_eq!(answer.overall_code(), Code::Ok);
            (index, start.elapsed())
        });
    }
    let mut left = 0;
    while let Some(answered) = waiting.join_next().await {
        let (index, after) = answered.unwrap();
        let turn = TICK * index;
        assert_eq!(index, left, "first come, first served");
        assert!((turn..=turn + 2 * TICK).contains(&after), "{index} after {after:?}");
        left += 1;
    }
    assert_eq!(left, 10_000);
}

#[tokio::test(start_paused = true)]
async fn cancelled_queued_call_does_not_delay_later_calls() {
    let api = api();
    let [mut first, second, mut third] = [0, 1, 2].map(|_| {
        let api = api.clone();
        tokio::spawn(async move { timed(&api, request_of("slow"), None).await.1 })
    });
    assert_eq!((&mut first).await.unwrap(), Duration::ZERO);
    second.abort();
    let after = (&mut third).await.unwrap();
    let turn = Duration::from_secs(120);
    assert!((turn..=turn + 2 * TICK).contains(&after), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn full_queue_or_delay_above_max_refuses_at_once() {
    let api = api();
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let api = api.clone();
        waiting.spawn(async move { timed(&api, request_of("calm"), None).await.0.overall_code() });
    }
    tokio::task::yield_now().await;
    let (refused, after) = timed(&api, request_of("calm"), None).await;
    assert_eq!((refused.overall_code(), after), (Code::OverLimit, Duration::ZERO));
    assert_eq!((refused.statuses[0].limit_remaining, reset_ms(&refused)), (0, 20));
    assert!(waiting.join_all().await.iter().all(|code| *code == Code::Ok));

    for turn in [0, 60] {
        let (passed, after) = timed(&api, request_of("bounded"), None).await;
        assert_eq!(passed.overall_code(), Code::Ok);
        assert!(after >= Duration::from_secs(turn));
    }
    let (refused, after) = timed(&api, request_of("bounded"), None).await;
    assert_eq!((refused.overall_code(), after), (Code::OverLimit, Duration::ZERO));
    assert_eq!(reset_ms(&refused), 30_000, "the delay is 120 s, and at most 90 s are allowed");
}

#[tokio::test(start_paused = true)]
async fn delay_beyond_deadline_is_refused_at_once_with_needed_delay() {
    let api = api();
    let within = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(
        timed(&api, request_of("slow"), within(0)).await.0.overall_code(),
        Code::Ok,
        "the first call has no delay"
    );
    for _ in 0..3 {
        let (refused, after) = timed(&api, request_of("slow"), within(59)).await;
        assert_eq!((refused.overall_code(), after), (Code::OverLimit, Duration::ZERO));
        assert_eq!((refused.statuses[0].limit_remaining, reset_ms(&refused)), (0, 60_000));
    }
    let (passed, after) = timed(&api, request_of("slow"), within(60)).await;
    assert_eq!(passed.overall_code(), Code::Ok, "refused calls do not take a place in the queue");
    assert!(after >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn racing_callers_with_deadline_admit_exactly_those_in_time() {
    let api = api();
    let mut racing = JoinSet::new();
    for _ in 0..500 {
        let api = api.clone();
        racing.spawn(async move {
            let timeout = Some(Duration::from_millis(100));
            timed(&api, request_of("fast"), timeout).await.0.overall_code()
        });
    }
    let codes = racing.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == Code::Ok).count(), 101, "one at once, then one per ms");
}

#[tokio::test(start_paused = true)]
async fn call_refused_by_other_rule_leaves_queue_without_delay() {
    let api = api();
    let both = request("shop", vec![descriptor(&[("slow", "x")]), descriptor(&[("window", "x")])]);
    assert_eq!(timed(&api, both.clone(), None).await.0.overall_code(), Code::Ok);
    for _ in 0..3 {
        let (refused, after) = timed(&api, both.clone(), None).await;
        assert_eq!((refused.overall_code(), after), (Code::OverLimit, Duration::ZERO));
        assert_eq!(
            refused.statuses[0].limit_remaining, 10_000,
            "only the first call has a place in the queue"
        );
    }
    // A call that is refused for its deadline does not charge the other rule either.
    let fresh = request("shop", vec![descriptor(&[("slow", "x")]), descriptor(&[("window", "y")])]);
    let refused = timed(&api, fresh, Some(Duration::from_secs(1))).await.0;
    let codes = refused.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    assert_eq!(codes.collect::<Vec<_>>(), [(Code::OverLimit, 0), (Code::Ok, 1)]);
}

#[tokio::test(start_paused = true)]
async fn shadow_queue_delays_no_call() {
    let api = api();
    for _ in 0..20 {
        let (answer, after) = timed(&api, request_of("shadow"), None).await;
        assert_eq!((answer.overall_code(), after), (Code::Ok, Duration::ZERO));
    }
}

#[tokio::test]
async fn grpc_queued_replies_come_in_order_and_not_early() {
    let service = Service::start(RULES).await;
    let client = service.client().await;
    let start = Instant::now();
    let mut waiting = JoinSet::new();
    for _ in 0..10 {
        let mut client = client.clone();
        waiting.spawn(async move {
            let answer = client.should_rate_limit(request_of("calm")).await.unwrap().into_inner();
            (answer.statuses[0].limit_remaining, start.elapsed())
        });
    }
    for place in 0..10_u32 {
        let (left, after) = waiting.join_next().await.unwrap().unwrap();
        assert_eq!(left, 9 - place, "replies come in the order of decisions");
        assert!(after >= Duration::from_millis(20) * place);
    }
}

#[tokio::test]
async fn thousands_of_queued_calls_do_not_block_their_connection() {
    const WAITING: u32 = 2_000;
    let service = Service::start_with(RULES, &[("grpc.max_concurrent_streams", "3000")]).await;
    let mut client = service.client().await;
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING {
        let mut client = client.clone();
        waiting.spawn(async move { client.should_rate_limit(request_of("slow")).await.is_ok() });
    }
    let mut look = request_of("slow");
    look.descriptors[0].hits_addend = Some(0);
    until(async || {
        let answer = client.should_rate_limit(look.clone()).await.unwrap().into_inner();
        (answer.statuses[0].limit_remaining == 10_001 - WAITING).then_some(())
    })
    .await;
    let other = timeout(TIMEOUT, client.should_rate_limit(request_of("window"))).await.unwrap().unwrap();
    assert_eq!(other.get_ref().overall_code(), Code::Ok);
    // All calls but the first are still delayed; after they are cancelled, other calls continue.
    let delayed = async || value(&page(&service).await, "tollgate_queue_waiting_requests");
    until(async || (delayed().await == f64::from(WAITING - 1)).then_some(())).await;
    waiting.abort_all();
    until(async || (delayed().await == 0.0).then_some(())).await;
    let answer = client.should_rate_limit(request_of("window")).await.unwrap();
    assert_eq!(answer.get_ref().overall_code(), Code::OverLimit);
}
