//! `Reserve`, `Settle` and `Cancel` over real sockets.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_wire::proto::tollgate::v1::{
    CancelRequest, Descriptor, Limit, PeekRequest, Request, ReserveRequest, ReserveResponse, SettleRequest,
    SettleResponse, SettledLimit, answer::Verdict, limit::Unit, rate_limiter_client::RateLimiterClient,
    reserve_request::OnExpiry, settled_limit::Outcome,
};
use tonic::{Code, Status, transport::Channel};

use crate::{
    api_v1::{client, descriptor, duration, reason_of, remaining},
    harness::{Service, http},
    program::{printed, tollgate},
};

mod cluster;
mod expiry;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: tokens, rate_limit: {name: tokens, unit: day, requests_per_unit: 1000, algorithm: fixed_window}}
  - {key: debt, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: token_bucket, overdraft: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: places, rate_limit: {algorithm: concurrency, max_in_flight: 2, hold_max: 1s}}
";

fn with_hits(descriptor: Descriptor, hits: u64) -> Descriptor {
    Descriptor { hits: Some(hits), ..descriptor }
}

/// A reservation of `amount` for descriptors of the domain `shop`.
fn hold(descriptors: &[Descriptor], amount: u64, id: &str) -> ReserveRequest {
    ReserveRequest {
        domain: "shop".into(),
        descriptors: descriptors.to_vec(),
        amount,
        reservation_id: id.into(),
        ..ReserveRequest::default()
    }
}

/// The settlement of `actual` hits for the same descriptors.
fn used(descriptors: &[Descriptor], actual: u64, id: &str) -> SettleRequest {
    let (domain, descriptors, reservation_id) = ("shop".into(), descriptors.to_vec(), id.into());
    SettleRequest { domain, descriptors, reservation_id, actual }
}

/// A caller with its own connection.
struct Caller(RateLimiterClient<Channel>);

impl Caller {
    async fn new(service: &Service) -> Self {
        Self(client(service).await)
    }

    async fn reserve(&mut self, call: ReserveRequest) -> Result<ReserveResponse, Status> {
        self.0.reserve(call).await.map(tonic::Response::into_inner)
    }

    async fn settle(&mut self, call: SettleRequest) -> Result<SettleResponse, Status> {
        self.0.settle(call).await.map(tonic::Response::into_inner)
    }

    /// Settles a reservation of one descriptor with a limit.
    async fn settle_one(&mut self, call: SettleRequest) -> SettledLimit {
        let SettleResponse { mut limits, unknown } = self.settle(call).await.unwrap();
        assert_eq!(limits.len(), 1);
        let limit = limits.remove(0);
        assert_eq!(unknown, limit.outcome() == Outcome::Unknown);
        limit
    }

    /// The hits that are left for each descriptor.
    async fn left(&mut self, descriptors: &[Descriptor]) -> Vec<u64> {
        let (domain, descriptors) = ("shop".into(), descriptors.to_vec());
        let requests = vec![Request { domain, descriptors, ..Request::default() }];
        let answers = self.0.peek(PeekRequest { requests }).await.unwrap().into_inner().answers;
        remaining(&answers).remove(0)
    }
}

fn tokens() -> [Descriptor; 1] {
    [descriptor("tokens", "ann")]
}

fn is_held(response: &ReserveResponse, id: &str) -> bool {
    let verdict = response.answer.as_ref().unwrap().verdict();
    assert_eq!(verdict == Verdict::Allowed, response.reservation_id == id, "{response:?}");
    verdict == Verdict::Allowed
}

#[tokio::test]
async fn reservation_counts_at_once_and_settlement_gives_the_rest_back() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let held = caller.reserve(hold(&tokens(), 800, "a")).await.unwrap();
    let answer = held.answer.as_ref().unwrap();
    assert_eq!((held.reservation_id.as_str(), answer.verdict()), ("a", Verdict::Allowed));
    assert_eq!((answer.limits[0].remaining, &*answer.limits[0].rule), (200, "tokens"));
    let refused = caller.reserve(hold(&tokens(), 201, "b")).await.unwrap();
    let answer = refused.answer.unwrap();
    assert_eq!((refused.reservation_id.as_str(), answer.verdict()), ("", Verdict::Denied));
    assert!(answer.limits[0].refused && answer.retry_after.is_some());
    let settled = caller.settle_one(used(&tokens(), 300, "a")).await;
    assert_eq!((settled.outcome(), settled.reserved, settled.not_charged), (Outcome::Open, 800, 0));
    assert_eq!((settled.remaining, &*settled.rule), (700, "tokens"));
    assert!(duration(settled.reset_after) > Some(Duration::ZERO));
    assert_eq!(caller.left(&tokens()).await, [700]);
}

#[tokio::test]
async fn reservation_over_several_limits_holds_all_or_nothing() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let no_rule = descriptor("no", "rule");
    let all =
        |user| [with_hits(descriptor("user", "ann"), user), no_rule.clone(), descriptor("tokens", "ann")];
    // A classic rule charges what it refuses, except for reservations.
    assert!(!is_held(&caller.reserve(hold(&all(4), 10, "a")).await.unwrap(), "a"));
    assert_eq!(caller.left(&[descriptor("user", "ann"), descriptor("tokens", "ann")]).await, [3, 1000]);
    assert!(is_held(&caller.reserve(hold(&all(1), 10, "a")).await.unwrap(), "a"));
    assert_eq!(caller.left(&[descriptor("user", "ann"), descriptor("tokens", "ann")]).await, [2, 990]);
    let settled = caller.settle(used(&all(1), 4, "a")).await.unwrap();
    let each = settled.limits.iter().map(|limit| (limit.descriptor_index, limit.reserved, limit.remaining));
    assert_eq!(each.collect::<Vec<_>>(), [(0, 1, 2), (2, 10, 996)]);
}

#[tokio::test]
async fn more_than_reserved_is_charged_as_far_as_the_limit_goes() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    caller.reserve(hold(&tokens(), 800, "a")).await.unwrap();
    let settled = caller.settle_one(used(&tokens(), 900, "a")).await;
    assert_eq!((settled.reserved, settled.not_charged, settled.remaining), (800, 0, 100));
    caller.reserve(hold(&tokens(), 50, "b")).await.unwrap();
    let settled = caller.settle_one(used(&tokens(), 500, "b")).await;
    assert_eq!((settled.reserved, settled.not_charged, settled.remaining), (50, 400, 0));
}

#[tokio::test]
async fn more_than_reserved_becomes_a_debt_with_overdraft() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let debt = [descriptor("debt", "ann")];
    caller.reserve(hold(&debt, 800, "a")).await.unwrap();
    let settled = caller.settle_one(used(&debt, 2_000, "a")).await;
    assert_eq!((settled.not_charged, settled.remaining), (0, 0));
    service.advance(Duration::from_secs(86_400));
    assert_eq!(caller.left(&debt).await, [0], "the debt is as large as the limit");
    service.advance(Duration::from_secs(86_400));
    assert_eq!(caller.left(&debt).await, [1_000]);
}

#[tokio::test]
async fn canceled_reservation_gives_all_back_whatever_hits_are_sent() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let [tokens] = tokens();
    let descriptors = vec![with_hits(tokens, 900)];
    caller.reserve(hold(&descriptors, 1, "a")).await.unwrap();
    assert_eq!(caller.left(&self::tokens()).await, [100]);
    let domain = "shop".to_owned();
    let cancel = CancelRequest { domain, descriptors, reservation_id: "a".into() };
    let canceled = caller.0.cancel(cancel).await.unwrap().into_inner();
    assert_eq!((canceled.limits[0].reserved, canceled.limits[0].remaining), (900, 1000));
    assert_eq!((canceled.limits[0].outcome(), canceled.unknown), (Outcome::Open, false));
    assert_eq!(caller.left(&self::tokens()).await, [1000]);
}

#[tokio::test]
async fn repeated_calls_answer_as_the_first_and_change_nothing() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let held = caller.reserve(hold(&tokens(), 800, "a")).await.unwrap();
    assert_eq!(caller.reserve(hold(&tokens(), 800, "a")).await.unwrap(), held);
    assert_eq!(caller.left(&tokens()).await, [200]);
    let settled = caller.settle(used(&tokens(), 300, "a")).await.unwrap();
    assert_eq!(caller.settle(used(&tokens(), 900, "a")).await.unwrap(), settled);
    let again = caller.reserve(hold(&tokens(), 800, "a")).await.unwrap();
    assert_eq!(again, ReserveResponse { ended: true, ..held });
    assert_eq!(caller.left(&tokens()).await, [700]);
}

#[tokio::test]
async fn repeated_reservation_says_that_it_has_ended() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let ttl = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let on_expiry = OnExpiry::Charge.into();
    let released = ReserveRequest { ttl, ..hold(&tokens(), 100, "released") };
    let charged = ReserveRequest { ttl, on_expiry, ..hold(&tokens(), 50, "charged") };
    for call in [&released, &charged] {
        assert!(!caller.reserve(call.clone()).await.unwrap().ended, "the first call");
        assert!(!caller.reserve(call.clone()).await.unwrap().ended, "it is open");
    }
    service.advance(Duration::from_secs(2));
    for call in [released, charged] {
        let again = caller.reserve(call).await.unwrap();
        assert!(again.ended && again.answer.unwrap().verdict() == Verdict::Allowed);
    }
    assert_eq!(caller.left(&tokens()).await, [950], "nothing more is held");
    let body = json!({
        "domain": "shop",
        "descriptors": [{"entries": [{"key": "tokens", "value": "ann"}]}],
        "reservation_id": "released",
    });
    let (_, answer) = service.http("POST", "/v1/reserve", &body.to_string()).await;
    assert!(answer.contains(r#""ended":true"#), "{answer}");
}

#[tokio::test]
async fn ids_of_the_server_differ_and_are_settled() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(caller.reserve(hold(&tokens(), 0, "")).await.unwrap().reservation_id);
    }
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 32), "{ids:?}");
    assert_eq!(caller.left(&tokens()).await, [998], "an amount of 0 is 1");
    for (id, left) in ids.iter().zip([999, 1000]) {
        let settled = caller.settle_one(used(&tokens(), 0, id)).await;
        assert_eq!((settled.outcome(), settled.remaining), (Outcome::Open, left));
    }
}

#[tokio::test]
async fn unknown_id_is_charged_and_named() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let settled = caller.settle_one(used(&tokens(), 30, "never")).await;
    assert_eq!((settled.outcome(), settled.reserved, settled.remaining), (Outcome::Unknown, 0, 970));
}

#[tokio::test]
async fn reservation_without_limits_is_held_and_settled() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    for (domain, key) in [("shop", "no"), ("other", "tokens")] {
        let call = ReserveRequest { domain: domain.into(), ..hold(&[descriptor(key, "x")], 5, "a") };
        let held = caller.reserve(call).await.unwrap();
        assert!(is_held(&held, "a") && held.answer.unwrap().limits.is_empty());
        let call = SettleRequest { domain: domain.into(), ..used(&[descriptor(key, "x")], 5, "a") };
        assert_eq!(caller.settle(call).await.unwrap(), SettleResponse::default());
    }
}

#[tokio::test]
async fn limit_in_reservation_replaces_rule() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let [mut sent] = tokens();
    sent.limit = Some(Limit { requests_per_unit: 5, unit: Unit::Week.into() });
    let sent = [sent];
    assert!(is_held(&caller.reserve(hold(&sent, 4, "a")).await.unwrap(), "a"));
    assert!(!is_held(&caller.reserve(hold(&sent, 4, "b")).await.unwrap(), "b"));
    let settled = caller.settle_one(used(&sent, 1, "a")).await;
    assert_eq!((settled.outcome(), settled.remaining, &*settled.rule), (Outcome::Open, 4, ""));
}

#[tokio::test]
async fn rule_in_shadow_mode_refuses_no_reservation() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let shadow = [descriptor("shadow", "x")];
    let held = caller.reserve(hold(&shadow, 4, "a")).await.unwrap();
    assert!(is_held(&held, "a") && held.answer.unwrap().limits[0].refused_in_shadow);
    let settled = caller.settle_one(used(&shadow, 2, "a")).await;
    assert_eq!((settled.reserved, settled.remaining), (0, 1));
}

#[tokio::test]
async fn reservation_is_not_held_by_shadow_mode_of_all_rules() {
    let service = Service::start_with(RULES, &[("limiter.shadow_mode", "true")]).await;
    let mut caller = Caller::new(&service).await;
    let passed = caller.reserve(hold(&tokens(), 1_001, "a")).await.unwrap();
    assert_eq!(passed.answer.unwrap().verdict(), Verdict::Allowed);
    assert_eq!(passed.reservation_id, "");
    assert_eq!(caller.left(&tokens()).await, [1000]);
}

#[tokio::test]
async fn bad_calls_are_refused_with_a_reason() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let ttl = |seconds, nanos| Some(prost_types::Duration { seconds, nanos });
    let good = hold(&tokens(), 5, "a");
    for (call, reason, message) in [
        (ReserveRequest { ttl: ttl(0, 999_999), ..good.clone() }, "INVALID_TTL", "from 1 ms to 24 h"),
        (ReserveRequest { ttl: ttl(0, 0), ..good.clone() }, "INVALID_TTL", "from 1 ms to 24 h"),
        (ReserveRequest { ttl: ttl(-1, 0), ..good.clone() }, "INVALID_TTL", "ttl: not a duration"),
        (ReserveRequest { ttl: ttl(86_400, 1), ..good.clone() }, "INVALID_TTL", "from 1 ms to 24 h"),
        (hold(&tokens(), 5, &"x".repeat(65)), "INVALID_ID", "65 bytes; at most 64"),
        (ReserveRequest { on_expiry: 2, ..good.clone() }, "UNKNOWN_ON_EXPIRY", "send RELEASE or CHARGE"),
        (ReserveRequest { domain: String::new(), ..good.clone() }, "EMPTY_DOMAIN", "domain"),
        (hold(&[], 5, "a"), "NO_DESCRIPTORS", "no descriptors"),
        (hold(&vec![descriptor("tokens", "x"); 257], 5, "a"), "TOO_LARGE", "more than 256 descriptors"),
    ] {
        let error = caller.reserve(call).await.unwrap_err();
        assert_eq!((error.code(), reason_of(&error)), (Code::InvalidArgument, reason.to_owned()));
        assert!(error.message().contains(message), "{error}");
    }
    for (id, message) in [(String::new(), "missing"), ("é".repeat(33), "66 bytes")] {
        let error = caller.settle(used(&tokens(), 5, &id)).await.unwrap_err();
        assert_eq!((error.code(), reason_of(&error)), (Code::InvalidArgument, "INVALID_ID".to_owned()));
        assert!(error.message().starts_with("reservation_id: ") && error.message().contains(message));
    }
    assert_eq!(caller.left(&tokens()).await, [1000]);
    let longest = "x".repeat(64);
    let call = ReserveRequest { ttl: ttl(86_400, 0), ..hold(&tokens(), 5, &longest) };
    assert!(is_held(&caller.reserve(call).await.unwrap(), &longest));
    let page = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().1;
    assert!(page.contains("tollgate_unanswered_requests_total{reason=\"invalid\"} 11\n"), "{page}");
}

#[tokio::test]
async fn too_many_reservations_of_a_counter_are_refused() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let many = vec![with_hits(descriptor("tokens", "ann"), 0); 250];
    for id in ["a", "b", "c", "d"] {
        assert!(is_held(&caller.reserve(hold(&many, 0, id)).await.unwrap(), id));
    }
    let error = caller.reserve(hold(&tokens(), 1, "e")).await.unwrap_err();
    let expected = (Code::ResourceExhausted, "TOO_MANY_RESERVATIONS".to_owned());
    assert_eq!((error.code(), reason_of(&error)), expected);
    assert_eq!(caller.left(&tokens()).await, [1000]);
    caller.settle(used(&many, 0, "a")).await.unwrap();
    assert!(is_held(&caller.reserve(hold(&tokens(), 1, "e")).await.unwrap(), "e"));
}

#[tokio::test]
async fn reservations_in_json_are_answered_in_json() {
    let service = Service::start(RULES).await;
    let call = async |path: &str, rest: Value| {
        let entries = json!([{"key": "tokens", "value": "ann"}]);
        let mut body = json!({"domain": "shop", "descriptors": [{"entries": entries}]});
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let (code, body) = service.http("POST", path, &body.to_string()).await;
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    let ask = json!({"amount": "800", "ttl": "1.5s", "onExpiry": "CHARGE", "reservationId": "a"});
    let (code, held) = call("/v1/reserve", ask).await;
    assert_eq!((code, &held["answer"]["verdict"]), (200, &json!("ALLOWED")));
    assert_eq!(
        (&held["reservationId"], &held["answer"]["limits"][0]["remaining"]),
        (&json!("a"), &json!("200"))
    );
    let (code, refused) = call("/v1/reserve", json!({"amount": 300})).await;
    assert_eq!((code, &refused["answer"]["verdict"]), (200, &json!("DENIED")));
    assert_eq!(refused.get("reservationId"), None);
    service.advance(Duration::from_millis(1_500));
    let (code, mut settled) = call("/v1/settle", json!({"reservationId": "a", "actual": 300})).await;
    let limit = settled["limits"][0].as_object_mut().unwrap();
    assert!(limit.remove("resetAfter").is_some());
    let limit = json!({"rule": "tokens", "outcome": "CHARGED", "reserved": "800", "remaining": "700"});
    assert_eq!((code, settled), (200, json!({"limits": [limit]})));
    let (code, canceled) = call("/v1/cancel", json!({"reservationId": "b"})).await;
    assert_eq!(
        (code, &canceled["limits"][0]["outcome"], &canceled["unknown"]),
        (200, &json!("UNKNOWN"), &json!(true))
    );
    for (path, body, reason) in [
        ("/v1/settle", json!({}), "INVALID_ID"),
        ("/v1/reserve", json!({"ttl": "0.5ms"}), "MALFORMED"),
        ("/v1/reserve", json!({"ttl": "0.0005s"}), "INVALID_TTL"),
        ("/v1/reserve", json!({"onExpiry": "KEEP"}), "MALFORMED"),
        ("/v1/cancel", json!({"reservationId": "b", "actual": 1}), "MALFORMED"),
    ] {
        let (code, error) = call(path, body.clone()).await;
        assert_eq!((code, &error["details"][0]["reason"]), (400, &json!(reason)), "{path} {body}");
    }
}

#[tokio::test]
async fn operators_see_what_is_held_and_by_which_reservations() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    assert!(is_held(&caller.reserve(hold(&tokens(), 800, "job \u{1b}[1m")).await.unwrap(), "job \u{1b}[1m"));
    assert!(is_held(&caller.reserve(hold(&tokens(), 100, "b")).await.unwrap(), "b"));
    let (status, counter) =
        http(service.addresses.admin, "GET", "/counters?domain=shop&key=tokens=ann", "").await.unwrap();
    let counter: Value = serde_json::from_str(&counter).unwrap();
    assert_eq!(
        (status, &counter["held"]["reservations"], &counter["held"]["hits"]),
        (200, &json!(2), &json!(900))
    );
    let to = service.addresses.admin.to_string();
    let shown = printed(&tollgate(&["counters", "--to", &to, "shop", "tokens=ann"]).await);
    assert!(shown.contains("900 hits held by 2 reservations"), "{shown}");
    assert!(shown.contains("\\u{1b}[1m: 800 hits, expires in ") && shown.contains("b: 100 hits"), "{shown}");
}
