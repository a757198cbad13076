//! Charges with a `request_id` count once.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_wire::proto::tollgate::v1::{
    Answer, CheckRequest, PeekRequest, RefundRequest, Request, answer::Verdict,
    rate_limiter_client::RateLimiterClient,
};
use tonic::Code;

use crate::{
    api_v1::{
        check, client, descriptor, each, reason, reason_of, remaining, request, together, verdicts, with_hits,
    },
    harness::{Service, cluster_view, replica, until, until_linked},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window}}
  - {key: few, rate_limit: {unit: day, requests_per_unit: 2, algorithm: token_bucket}}
  - {key: places, rate_limit: {algorithm: concurrency, max_in_flight: 10}}
";

fn once(request: Request, request_id: &str) -> Request {
    Request { request_id: request_id.into(), ..request }
}

/// The answer to one request.
async fn answer(service: &Service, request: Request) -> Answer {
    check(service, each(vec![request])).await.remove(0)
}

async fn left(service: &Service, key: &str) -> u64 {
    let requests = vec![request(key, "ann")];
    let answers = client(service).await.peek(PeekRequest { requests }).await.unwrap().into_inner().answers;
    remaining(&answers)[0][0]
}

#[tokio::test]
async fn repeated_charge_is_answered_as_the_first_and_counts_once() {
    let service = Service::start(RULES).await;
    for key in ["user", "places"] {
        let first = answer(&service, once(with_hits(request(key, "ann"), 3), "a")).await;
        assert_eq!((first.verdict(), first.limits[0].remaining), (Verdict::Allowed, 7));
        assert_eq!(answer(&service, with_hits(request(key, "ann"), 2)).await.limits[0].remaining, 5);
        assert_eq!(answer(&service, once(with_hits(request(key, "ann"), 3), "a")).await, first);
        assert_eq!(left(&service, key).await, 5, "{key}");
        let another = answer(&service, once(request(key, "ann"), "b")).await;
        assert_eq!(another.limits[0].remaining, 4, "{key}");
    }
}

#[tokio::test]
async fn charge_is_remembered_for_its_window_and_then_counts_again() {
    const MINUTE: Duration = Duration::from_secs(60);
    let expect = async |settings: &[(&str, &str)], window: Duration| {
        let service = Service::start_with(RULES, settings).await;
        let [older, newer] = ["a", "b"].map(|id| once(request("user", "ann"), id));
        let charge = async |charge: &Request| answer(&service, charge.clone()).await.limits[0].remaining;
        assert_eq!(charge(&older).await, 9);
        // A charge is remembered for a minute longer than promised.
        service.advance(MINUTE);
        assert_eq!(charge(&newer).await, 8);
        service.advance(window);
        // Charges are forgotten from time to time, all of one counter at once.
        until(async || (charge(&older).await == 7).then_some(())).await;
        assert_eq!(charge(&newer).await, 8, "{window:?}");
        assert_eq!(left(&service, "user").await, 7, "{window:?}");
    };
    tokio::join!(
        expect(&[], MINUTE),
        expect(&[("api.request_id_window", "10m")], 10 * MINUTE),
        expect(&[("api.request_id_window", "5s")], Duration::from_secs(5)),
    );
}

/// Asks for one refund.
async fn refunded(service: &Service, request: Request) -> Answer {
    let requests = vec![request];
    client(service).await.refund(RefundRequest { requests }).await.unwrap().into_inner().answers.remove(0)
}

#[tokio::test]
async fn repeated_refund_is_answered_as_the_first_and_counts_once() {
    let service = Service::start(RULES).await;
    for key in ["user", "places"] {
        // A charge with the same id is another one.
        answer(&service, once(with_hits(request(key, "ann"), 6), "a")).await;
        let refund = once(with_hits(request(key, "ann"), 2), "a");
        let first = refunded(&service, refund.clone()).await;
        assert_eq!((first.verdict(), first.limits[0].remaining), (Verdict::Allowed, 6));
        assert_eq!(refunded(&service, refund).await, first);
        assert_eq!(left(&service, key).await, 6, "{key}");
        let another = refunded(&service, once(request(key, "ann"), "b")).await;
        assert_eq!(another.limits[0].remaining, 7, "{key}");
    }
}

#[tokio::test]
async fn charge_over_several_limits_is_all_or_nothing_and_once() {
    let service = Service::start(RULES).await;
    let both = |hits| Request {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", "ann"), descriptor("few", "ann")],
        hits,
        request_id: "a".into(),
        ..Request::default()
    };
    assert_eq!(answer(&service, both(3)).await.verdict(), Verdict::Denied);
    assert_eq!((left(&service, "user").await, left(&service, "few").await), (10, 2));
    // A refusal is not remembered.
    let first = answer(&service, both(2)).await;
    assert_eq!(
        (first.verdict(), remaining(std::slice::from_ref(&first))),
        (Verdict::Allowed, vec![vec![8, 0]])
    );
    assert_eq!(answer(&service, both(2)).await, first);
    assert_eq!((left(&service, "user").await, left(&service, "few").await), (8, 0));
}

#[tokio::test]
async fn many_charges_of_one_counter_are_remembered() {
    let rules = RULES.replace("requests_per_unit: 10", "requests_per_unit: 100000");
    let service = Service::start(&rules).await;
    let calls: Vec<CheckRequest> = (0..6)
        .map(|round| {
            let ids = (0..200).map(|id| once(request("user", "ann"), &format!("{round} {id}")));
            each(ids.collect())
        })
        .collect();
    for call in calls.iter().chain(&calls) {
        let answers = check(&service, call.clone()).await;
        assert!(verdicts(&answers).iter().all(|verdict| *verdict == Verdict::Allowed));
    }
    assert_eq!(left(&service, "user").await, 100_000 - 1_200);
}

#[tokio::test]
async fn id_of_reservation_is_another_than_that_of_charge() {
    let service = Service::start(RULES).await;
    answer(&service, once(request("user", "ann"), "a")).await;
    let reserve = tollgate_wire::proto::tollgate::v1::ReserveRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", "ann")],
        amount: 4,
        reservation_id: "a".into(),
        ..Default::default()
    };
    client(&service).await.reserve(reserve).await.unwrap();
    assert_eq!(left(&service, "user").await, 5);
}

#[tokio::test]
async fn misplaced_and_long_request_ids_are_refused() {
    let service = Service::start(RULES).await;
    let mut caller: RateLimiterClient<_> = client(&service).await;
    let requests = || vec![once(request("user", "ann"), "a")];
    let misplaced = "MISPLACED_REQUEST_ID";
    let error = caller.check(together(requests())).await.unwrap_err();
    assert_eq!((error.code(), &*reason_of(&error)), (Code::InvalidArgument, misplaced));
    let peeked = caller.peek(PeekRequest { requests: requests() }).await.unwrap().into_inner();
    assert_eq!(reason(peeked.answers[0].error.as_ref().unwrap()), misplaced);
    let long = answer(&service, once(request("user", "ann"), &"x".repeat(64))).await;
    assert_eq!(reason(long.error.as_ref().unwrap()), "INVALID_ID");
    assert_eq!(left(&service, "user").await, 10);
    let longest = answer(&service, once(request("user", "ann"), &"x".repeat(63))).await;
    assert_eq!(longest.verdict(), Verdict::Allowed);
}

#[tokio::test]
async fn charge_with_request_id_and_zero_hits_is_refused() {
    let service = Service::start(RULES).await;
    let mut zero = once(request("user", "ann"), "a");
    zero.descriptors[0].hits = Some(0);
    let refused = answer(&service, zero).await;
    assert_eq!(reason(refused.error.as_ref().unwrap()), "NOT_A_CHARGE");
}

#[tokio::test]
async fn charge_with_request_id_in_json_counts_once() {
    let service = Service::start(RULES).await;
    let entries = json!([{"key": "user", "value": "ann"}]);
    let call =
        json!({"requests": [{"domain": "shop", "descriptors": [{"entries": entries}], "requestId": "a"}]});
    for _ in 0..2 {
        let (code, body) = service.http("POST", "/v1/check", &call.to_string()).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((code, &body["answers"][0]["limits"][0]["remaining"]), (200, &json!("9")));
    }
    assert_eq!(left(&service, "user").await, 9);
}

#[tokio::test]
async fn charge_repeated_at_another_replica_counts_once() {
    let secret = tempfile::tempdir().unwrap();
    let rules = RULES.replace("day", "year");
    let first = replica(&rules, &secret, "off").await;
    let view = cluster_view(&first).await;
    let second = replica(&rules, &secret, view["members"][0]["address"].as_str().unwrap()).await;
    until_linked(&first).await;
    until_linked(&second).await;
    // Their counters are in both replicas.
    let users = (0..40).map(|user| descriptor("user", &user.to_string())).collect();
    let charge = Request {
        domain: "shop".into(),
        descriptors: users,
        hits: 3,
        request_id: "a".into(),
        ..Request::default()
    };
    let at_first = answer(&first, charge.clone()).await;
    assert_eq!(at_first.verdict(), Verdict::Allowed, "{at_first:?}");
    assert_eq!(remaining(&[at_first]), [[7; 40]]);
    assert_eq!(remaining(&[answer(&second, charge.clone()).await]), [[7; 40]]);
    let plain = Request { request_id: String::new(), hits: 1, ..charge };
    assert_eq!(remaining(&[answer(&second, plain).await]), [[6; 40]]);
}
