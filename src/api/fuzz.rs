//! Fuzz targets of JSON, `/check` and admin requests, and what the targets of this layer and of servers share.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    Router,
    body::{self, Body},
    extract::ConnectInfo,
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header::CONTENT_TYPE},
};
use prost::Message as _;
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
};
use tollgate_counter::{
    descriptor::Secret,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::{ActiveRules, Rules};
use tollgate_sources::{RuleSource, RuleSourceKind};
use tollgate_store::{Memory, OnFull};
use tollgate_wire::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::codegen::Service as _;

use crate::api::{
    admin::{
        self,
        alerts::{MetricReader, MetricValues},
        state::{AdminState, Certificates, Readiness},
    },
    call::Method,
    cross_site::Hosts,
    forward_auth, headers, http, json,
    reader::RequestReader,
    service::{Api, ApiSettings},
};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

pub(super) const NOW: Timestamp = Timestamp::from_nanos(1_790_000_040_123_456_789);

const RULES: &str = "
domain: d
denial_body: problem
descriptors:
  - {key: user, rate_limit: {name: each, unit: hour, requests_per_unit: 3}}
  - {key: user, value: vip, rate_limit: {unlimited: true}}
  - key: path
    rate_limit: {name: paths, unit: day, requests_per_unit: 5, algorithm: token_bucket, denial_body: {json: '{rule}'}}
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 5000000000, algorithm: sliding_window}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 3}}
  - {key: log, rate_limit: {unit: second, requests_per_unit: 2, algorithm: sliding_log}}
  - {key: zone, value: eu*, share_threshold: true, rate_limit: {unit: week, requests_per_unit: 4}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: each}]}}
";

static ACTIVE_RULES: LazyLock<Arc<ActiveRules>> = LazyLock::new(|| {
    let active_rules = active_rules();
    active_rules.set_secret(Secret::from_bytes([7; 16]));
    active_rules
});

/// The rules of the targets, with a random secret.
pub(super) fn active_rules() -> Arc<ActiveRules> {
    Arc::new(ActiveRules::from_rules(Rules::parse("fuzz", RULES).expect("the rules are valid"), NOW))
}

/// A limiter with fresh counters.
fn limiter() -> (Limiter, Arc<Memory>) {
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny).with_slots(16));
    (Limiter::new(ACTIVE_RULES.clone(), memory.clone(), Clock::manual(NOW)), memory)
}

/// A service with every part of a reply.
pub(super) fn api_of(limiter: Limiter) -> Api {
    let headers = headers::HeaderSettings {
        x_ratelimit: true,
        ietf: Some(headers::Listed::All),
        window_max: Duration::from_secs(3_600),
        partition_key: true,
        retry_after: true,
        ai_retry: true,
        ..Default::default()
    };
    let settings = ApiSettings { dynamic_metadata: true, exact_reset: true, ..ApiSettings::default() };
    Api { headers: Arc::new(headers), ..Api::new(limiter, settings) }
}

/// A service with fresh counters.
pub(crate) fn api() -> Api {
    api_of(limiter().0)
}

/// The routes of the HTTP API, with fresh counters.
pub(super) fn http_router() -> Router {
    let reader = RequestReader::new(ApiSettings::default().bounds(), 1 << 24);
    let open = watch::channel(true).1;
    http::router(
        api(),
        Ready,
        reader,
        forward_auth::ForwardAuthSettings::default(),
        Hosts::default(),
        8,
        open,
    )
}

/// A runtime whose time passes when it is idle.
pub(crate) fn runtime() -> Runtime {
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("the machine has resources for a runtime")
}

/// Splits off the lines before the first empty one: `name: value` each. Other lines are ignored.
pub(super) fn headers_and_rest(bytes: &[u8]) -> (HeaderMap, &[u8]) {
    let mut headers = HeaderMap::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        if let Some((name, value)) = colon.and_then(|colon| line.split_at_checked(colon))
            && let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name), HeaderValue::from_bytes(value[1..].trim_ascii()))
        {
            headers.append(name, value);
        }
    }
    (headers, rest)
}

/// The body of a `/json` request: what is a request in JSON remains the same one after another conversion, and the
/// answer is JSON or names the caller's error.
pub fn json(body: &[u8]) {
    let bounds = ApiSettings::default().bounds();
    if let Ok(message) = json::request(Method::ShouldRateLimit, body, bounds) {
        let decode =
            |message: &[u8]| RateLimitRequest::decode(message).expect("JSON becomes a valid request");
        let request = decode(&message);
        let text = json::request_text(&request).expect("a request can be converted to JSON");
        let again = json::request(Method::ShouldRateLimit, text.as_bytes(), bounds)
            .expect("a converted request is valid");
        assert_eq!(decode(&again), request);
    }
    let request =
        Request::post("http://localhost/json").body(Body::from(body.to_vec())).expect("it is valid");
    let (status, _, body) = answer(http_router(), request);
    match status {
        StatusCode::OK | StatusCode::TOO_MANY_REQUESTS => {
            let body: serde_json::Value = serde_json::from_slice(&body).expect("the answer is JSON");
            assert!(body.is_object());
        }
        _ => assert_eq!(status, StatusCode::BAD_REQUEST),
    }
}

/// A template of descriptors in a line, and the headers of a request to `/check`. Descriptors have keys, and no address
/// that a client puts in front of `X-Forwarded-For` changes what counts by default.
pub fn check(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(end);
    let (headers, _) = headers_and_rest(rest.get(1..).unwrap_or_default());
    let check = |template: &str| {
        let descriptors = forward_auth::HeaderTemplate::try_from(template.to_owned()).ok();
        forward_auth::ForwardAuthSettings { domain: Some("d".to_owned()), descriptors, ..Default::default() }
            .check()
    };
    if let Some(check) = str::from_utf8(line).ok().and_then(check)
        && let Ok(Some(message)) = check.request(&headers)
    {
        let request = RateLimitRequest::decode(&*message).expect("headers become a valid request");
        let mut descriptors = request.descriptors.iter();
        assert!(descriptors.all(|one| one.entries.iter().all(|entry| !entry.key.is_empty())));
    }
    let check = check("address={x-forwarded-for}").expect("the template is valid");
    if let Ok(counted) = check.request(&headers) {
        let mut extended = HeaderMap::from_iter([(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1"))]);
        headers.iter().for_each(|(name, value)| {
            extended.append(name, value.clone());
        });
        assert_eq!(check.request(&extended), Ok(counted));
    }
}

/// An admin request: a line with method and URI, headers up to an empty line, and the body. The answer is never a
/// fault of the server, and JSON if it says so.
pub fn admin(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(end);
    let (headers, body) = headers_and_rest(rest.get(1..).unwrap_or_default());
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(uri), None) = (words.next(), words.next(), words.next()) else { return };
    let request = Request::builder().method(method).uri(uri).body(Body::from(body.to_vec()));
    let Ok(mut request) = request else { return };
    *request.headers_mut() = headers;
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 1))));
    let state = admin_state();
    let live = Arc::<admin::page::Live>::default();
    // Otherwise a stream of samples would not end.
    live.end();
    let more = admin::page::router(live);
    let (status, headers, body) = answer(admin::router(state, None, more), request);
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR);
    if status.is_success() && headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json") {
        serde_json::from_slice::<serde_json::Value>(&body).expect("the answer is JSON");
    }
}

/// What admin endpoints read, with fresh counters.
pub(super) fn admin_state() -> AdminState {
    let (limiter, memory) = limiter();
    AdminState {
        cluster: None,
        shared_store: None,
        rule_source: RuleSource::new(RuleSourceKind::Files, "rules.yaml"),
        active_rules: ACTIVE_RULES.clone(),
        memory,
        api: api_of(limiter),
        quotas: None,
        reader: RequestReader::new(ApiSettings::default().bounds(), 1 << 24),
        settings: Arc::default(),
        logs: Default::default(),
        metrics: Arc::new(Ready),
        history: Arc::default(),
        certificates: Arc::new(Ready),
        readiness: Arc::new(Ready),
        clock: Clock::manual(NOW),
        started: Timestamp::EPOCH,
        alone: None,
    }
}

fn answer(mut router: Router, request: Request<Body>) -> (StatusCode, HeaderMap, body::Bytes) {
    runtime().block_on(async {
        let Ok(response) = router.call(request).await;
        let (head, body) = response.into_parts();
        let body = body::to_bytes(body, usize::MAX).await.expect("the body is in memory");
        (head.status, head.headers, body)
    })
}

/// A process that answers, without certificates and without metrics.
#[derive(Clone, Debug)]
pub(super) struct Ready;

impl Readiness for Ready {
    fn ready(&self) -> Result<String, String> {
        Ok("OK".to_owned())
    }
}

impl Certificates for Ready {
    fn expiries(&self) -> Vec<(&'static str, Timestamp)> {
        Vec::new()
    }

    fn refused(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

impl MetricReader for Ready {
    fn series(&self, _metrics: &[&str]) -> MetricValues {
        MetricValues::new()
    }
}
