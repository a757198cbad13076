//! The layer in servers of axum and tonic.

use axum::{Router, routing};
use tokio::net::TcpListener;
use tollgate_client::{Descriptor, Outcome, PrepaidSlices, RateLimitLayer, Request, SliceOptions};
use tonic::{
    Code, Status,
    codegen::http,
    metadata::MetadataMap,
    transport::{Channel, Server as GrpcServer, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

use crate::harness::{FREE, HOUR, PATIENCE, Server, client, counted, eventually, get, options};

const RULES: &str = "
domain: edge
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: method
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
";

fn describe<B>(key: &str, request: &http::Request<B>) -> Option<Request> {
    Some(Request::new("edge", [Descriptor::new([(key, request.uri().path())])]))
}

#[tokio::test]
async fn layer_of_slices_spends_them() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let slices = SliceOptions { hits: 10, ttl: HOUR, ..SliceOptions::default() };
    let slices = PrepaidSlices::new(client(server.target(), options), slices).unwrap();
    let layer = RateLimitLayer::new(slices.clone(), |request: &http::Request<_>| describe("path", request));
    let app = Router::new().route("/hello", routing::get(|| async { "hello" })).layer(layer);
    let listener = TcpListener::bind(FREE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    eventually("a request spends a slice", async || {
        let passed = get(address, "/hello", &[]).await;
        assert_eq!((passed.status, passed.header("ratelimit-limit")), (200, Some("100")));
        counts.of(Outcome::Prepaid) > 0
    })
    .await;
    slices.close().await;
}

#[derive(Clone, Copy, Debug)]
enum Method {
    Unary,
    Streaming,
}

/// Makes a call and returns the metadata of its response.
async fn call(mut health: HealthClient<Channel>, method: Method) -> Result<MetadataMap, Status> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.set_timeout(PATIENCE);
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
    let checker = client(server.target(), options());
    let layer = RateLimitLayer::new(checker, |request: &http::Request<_>| describe("method", request));
    let (_, service) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::bind(FREE.parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    tokio::spawn(GrpcServer::builder().layer(layer).add_service(service).serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let health = HealthClient::new(channel);
    for method in [Method::Unary, Method::Streaming] {
        let passed = call(health.clone(), method).await.unwrap();
        assert_eq!(limit_in(&passed), [Some("1"), Some("0")], "{method:?}");

        let refused = call(health.clone(), method).await.unwrap_err();

        assert_eq!(refused.code(), Code::ResourceExhausted, "{method:?}");
        assert_eq!(limit_in(refused.metadata()), [Some("1"), Some("0")]);
        let wait = refused.get_details_retry_info().unwrap().retry_delay.unwrap();
        assert!(wait > HOUR / 2 && wait <= HOUR, "{wait:?}");
    }
}
