//! The layer in servers of axum and tonic.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, routing};
use tokio::net::TcpListener;
use tollgate_client::{
    Check, Descriptor, OnNoAnswer, Options, Outcome, Prepaid, RateLimitLayer, Request, Slices,
};
use tonic::{
    Code, Status,
    codegen::http,
    metadata::MetadataMap,
    transport::{Channel, Server as GrpcServer, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

use crate::harness::{FREE, HOUR, PATIENCE, Response, Server, client, counted, eventually, get, options};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: none
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_queue, burst: 5}
  - key: call
    descriptors:
      - key: method
        rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
";
const DEFAULTS: [(OnNoAnswer, bool); 2] = [(OnNoAnswer::Allow, true), (OnNoAnswer::Deny, false)];
/// Nothing listens there.
const NO_SERVER: &str = "127.0.0.1:1";

fn header<'a, B>(request: &'a http::Request<B>, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok()
}

async fn limited(target: impl AsRef<str>, options: Options) -> SocketAddr {
    limited_by(client(target, options)).await
}

/// Starts a server of axum that is limited by Tollgate. It limits the header `user` by the key of the path.
async fn limited_by(checker: impl Check + Clone + 'static) -> SocketAddr {
    let layer = RateLimitLayer::new(checker, |request: &http::Request<_>| {
        let user = header(request, "user")?;
        let key = &request.uri().path()[1..];
        // An empty domain is not valid.
        let domain = if key == "invalid" { "" } else { "edge" };
        Some(Request::new(domain, [Descriptor::new([(key, user)])]))
    });
    let app = Router::new().route("/{key}", routing::get(|| async { "hello" })).layer(layer);
    let listener = TcpListener::bind(FREE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn get_as_ann(address: SocketAddr, path: &str) -> Response {
    get(address, path, &[("user", "ann")]).await
}

#[tokio::test]
async fn request_over_its_limit_is_refused_with_headers() {
    let server = Server::start(RULES).await;
    let address = limited(server.target(), options()).await;
    for remaining in ["1", "0"] {
        let passed = get_as_ann(address, "/user").await;
        assert_eq!((passed.status, passed.body.as_str()), (200, "hello"));
        let headers =
            ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"].map(|name| passed.header(name));
        assert_eq!(headers, [Some("2"), Some(remaining), Some("3600")]);
        assert_eq!(passed.header("retry-after"), None);
    }

    let refused = get_as_ann(address, "/user").await;

    assert_eq!((refused.status, refused.body.as_str()), (429, ""));
    assert_eq!(refused.header("ratelimit-remaining"), Some("0"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&wait), "{wait}");
    assert_eq!(refused.header("ratelimit-reset"), refused.header("retry-after"));
    assert_eq!(get(address, "/user", &[("user", "bob")]).await.status, 200);
}

#[tokio::test]
async fn request_without_description_is_not_limited() {
    let server = Server::start(RULES).await;
    let address = limited(server.target(), options()).await;
    for _ in 0..3 {
        let passed = get(address, "/user", &[]).await;
        assert_eq!((passed.status, passed.header("ratelimit-limit")), (200, None));
    }
}

#[tokio::test]
async fn layer_of_slices_spends_them() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let slices = Slices { hits: 10, ttl: HOUR, ..Slices::default() };
    let prepaid = Arc::new(Prepaid::new(client(server.target(), options), slices).unwrap());
    let address = limited_by(prepaid.clone()).await;
    eventually("a request spends a slice", async || {
        let passed = get_as_ann(address, "/group").await;
        assert_eq!((passed.status, passed.header("ratelimit-limit")), (200, Some("100")));
        counts.of(Outcome::Prepaid) > 0
    })
    .await;
    prepaid.close().await;
}

#[tokio::test]
async fn request_that_never_passes_has_no_retry_after() {
    let server = Server::start(RULES).await;
    let refused = get_as_ann(limited(server.target(), options()).await, "/none").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    assert_eq!(refused.header("ratelimit-limit"), Some("0"));
}

#[tokio::test]
async fn request_of_a_queue_waits_for_its_turn() {
    let server = Server::start(RULES).await;
    let address = limited(server.target(), options()).await;
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(get_as_ann(address, "/turn").await.status, 200);
    }
    // The first one goes at once, and one each 100 ms after it.
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn invalid_description_is_an_error_of_the_server() {
    let server = Server::start(RULES).await;
    let failed = get_as_ann(limited(server.target(), options()).await, "/invalid").await;
    assert_eq!((failed.status, failed.body.as_str()), (500, ""));
}

#[tokio::test]
async fn request_without_tollgate_gets_the_default() {
    for (on_no_answer, allowed) in DEFAULTS {
        let address = limited(NO_SERVER, Options { on_no_answer, ..options() }).await;
        let response = get_as_ann(address, "/user").await;
        assert_eq!(response.status, if allowed { 200 } else { 429 });
        assert_eq!((response.header("retry-after"), response.header("ratelimit-limit")), (None, None));
    }
}

/// Starts the health service of tonic, limited by Tollgate, and returns a client. It limits each user of the metadata,
/// for each method.
async fn limited_health(target: impl AsRef<str>, options: Options) -> HealthClient<Channel> {
    let layer = RateLimitLayer::new(client(target, options), |request: &http::Request<_>| {
        let user = header(request, "user")?;
        let domain = if user == "invalid" { "" } else { "edge" };
        let entries = [("call", user), ("method", request.uri().path())];
        Some(Request::new(domain, [Descriptor::new(entries)]))
    });
    let (_, service) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::bind(FREE.parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(GrpcServer::builder().layer(layer).add_service(service).serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    HealthClient::new(channel)
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Unary,
    Streaming,
}

/// Makes a call and returns the metadata of its response.
async fn call(
    health: &HealthClient<Channel>,
    method: Method,
    user: Option<&str>,
) -> Result<MetadataMap, Status> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    if let Some(user) = user {
        request.metadata_mut().insert("user", user.parse().unwrap());
    }
    request.set_timeout(PATIENCE);
    let mut health = health.clone();
    match method {
        Method::Unary => Ok(health.check(request).await?.into_parts().0),
        Method::Streaming => Ok(health.watch(request).await?.into_parts().0),
    }
}

fn limit_in(metadata: &MetadataMap) -> [Option<&str>; 2] {
    ["ratelimit-limit", "ratelimit-remaining"].map(|name| metadata.get(name)?.to_str().ok())
}

#[tokio::test]
async fn call_over_its_limit_is_refused_with_retry_info() {
    let server = Server::start(RULES).await;
    let health = limited_health(server.target(), options()).await;
    for method in [Method::Unary, Method::Streaming] {
        let passed = call(&health, method, Some("ann")).await.unwrap();
        assert_eq!(limit_in(&passed), [Some("1"), Some("0")], "{method:?}");

        let refused = call(&health, method, Some("ann")).await.unwrap_err();

        assert_eq!(refused.code(), Code::ResourceExhausted, "{method:?}");
        assert_eq!(limit_in(refused.metadata()), [Some("1"), Some("0")]);
        let wait = refused.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(wait > HOUR / 2 && wait <= HOUR, "{wait:?}");
    }
}

#[tokio::test]
async fn call_without_description_is_not_limited() {
    let server = Server::start(RULES).await;
    let health = limited_health(server.target(), options()).await;
    for method in [Method::Unary, Method::Streaming, Method::Unary, Method::Streaming] {
        let passed = call(&health, method, None).await.unwrap();
        assert_eq!(limit_in(&passed), [None, None], "{method:?}");
    }
}

#[tokio::test]
async fn invalid_description_of_a_call_is_an_internal_error() {
    let server = Server::start(RULES).await;
    let health = limited_health(server.target(), options()).await;
    assert_eq!(call(&health, Method::Unary, Some("invalid")).await.unwrap_err().code(), Code::Internal);
}

#[tokio::test]
async fn call_without_tollgate_gets_the_default() {
    for (on_no_answer, allowed) in DEFAULTS {
        let health = limited_health(NO_SERVER, Options { on_no_answer, ..options() }).await;
        match call(&health, Method::Unary, Some("ann")).await {
            Ok(metadata) => assert!(allowed && limit_in(&metadata) == [None, None]),
            Err(status) => {
                assert!(!allowed && status.code() == Code::ResourceExhausted, "{status:?}");
                assert!(status.get_details_retry_info().is_none());
            }
        }
    }
}
