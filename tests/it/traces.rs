//! Spans, as a collector in this process receives them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message;
use tokio::{net::TcpListener, time::timeout};
use tollgate::{api::proto::envoy::service::ratelimit::v3::RateLimitRequest, telemetry::traces};
use tonic::{
    Code, Request, Response,
    transport::{Identity, ServerTlsConfig, server::TcpIncoming},
};

use crate::{
    certificates::Authority,
    harness::{Service, one},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}
";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// What a collector has received.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// A collector and where it listens.
    async fn start() -> (Self, String) {
        let (collector, port) = Self::start_as(tonic::transport::Server::builder()).await;
        (collector, format!("http://127.0.0.1:{port}"))
    }

    async fn start_as(mut server: tonic::transport::Server) -> (Self, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let collector = Self::default();
        let service = TraceServiceServer::new(collector.clone());
        tokio::spawn(server.add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        (collector, port)
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().unwrap().clone();
        let resources = received.into_iter().flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

async fn traced(rules: &str, endpoint: String) -> Service {
    let traces = traces::Settings { endpoint, certificate: None };
    Service::start_changed(rules, &[], |settings| settings.traces = Some(traces)).await
}

/// Asks with these headers; the code of the answer.
async fn ask(service: &Service, request: RateLimitRequest, headers: &[(&'static str, String)]) -> Code {
    let mut request = Request::new(request);
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    let answer = service.client().await.should_rate_limit(request).await;
    answer.err().map_or(Code::Ok, |status| status.code())
}

/// Makes the service leave, and so send what is left.
async fn leave(service: Service) {
    service.leave.send(()).await.unwrap();
    service.ended.await.unwrap().unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

#[tokio::test]
async fn a_collector_over_tls_is_trusted_by_its_authority_and_no_other() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let pair = authority.server();
    let identity = Identity::from_pem(&pair.cert, &pair.key);
    let server = tonic::transport::Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
    let (collector, port) = Collector::start_as(server.unwrap()).await;
    for (trusted, spans) in [(&other, 0), (&authority, 1)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &trusted.pem).unwrap();
        let endpoint = format!("https://localhost:{port}");
        let traces = traces::Settings { endpoint, certificate: Some(file.path().to_owned()) };
        let service = Service::start_changed(RULES, &[], |settings| settings.traces = Some(traces)).await;
        ask(&service, one("shop", "user", "x"), &[]).await;
        leave(service).await;
        assert_eq!(collector.spans().len(), spans);
    }
}

#[tokio::test]
async fn a_call_is_a_span_of_its_callers_trace() {
    let several = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")];
    for headers in [
        vec![("traceparent", format!("00-{TRACE}-{SPAN}-01"))],
        vec![("b3", format!("{TRACE}-{SPAN}-1"))],
        several.map(|(name, value)| (name, value.to_owned())).to_vec(),
    ] {
        let (collector, endpoint) = Collector::start().await;
        let service = traced(RULES, endpoint).await;
        service.until_http("/readyz", 200).await;
        assert_eq!(ask(&service, one("shop", "user", "ada"), &headers).await, Code::Ok);
        leave(service).await;
        let spans = collector.spans();
        assert_eq!(spans.len(), 1, "{headers:?}");
        assert_eq!((hex(&spans[0].trace_id).as_str(), hex(&spans[0].parent_span_id).as_str()), (TRACE, SPAN));
    }
}

#[tokio::test]
async fn a_span_tells_the_call_and_its_answer_but_no_value() {
    let (collector, endpoint) = Collector::start().await;
    let service = traced(RULES, endpoint).await;
    service.until_http("/readyz", 200).await;
    for _ in 0..2 {
        assert_eq!(ask(&service, one("shop", "user", "ada"), &[]).await, Code::Ok);
    }
    leave(service).await;

    let spans = collector.spans();
    assert_eq!(spans.len(), 2);
    for (span, code) in spans.iter().zip(["OK", "OVER_LIMIT"]) {
        assert_eq!(span.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        assert_eq!(span.kind(), SpanKind::Server);
        let expected = [
            ("rpc.grpc.status_code", "0"),
            ("rpc.method", "ShouldRateLimit"),
            ("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
            ("rpc.system", "grpc"),
            ("tollgate.code", code),
            ("tollgate.descriptors", "1"),
            ("tollgate.domain", "shop"),
        ];
        assert_eq!(named(&span.attributes), expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }
    assert_ne!(spans[0].trace_id, spans[1].trace_id, "each without a caller's trace begins one");
    let received = collector.0.lock().unwrap().clone();
    let resource = received[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(resource.attributes.iter().filter(|attribute| attribute.key == "service.name").count(), 1);
    let sent: Vec<u8> = received.iter().flat_map(Message::encode_to_vec).collect();
    assert!(!sent.windows(3).any(|bytes| bytes == b"ada"), "what was asked about is not told");
}

#[tokio::test]
async fn a_parent_that_is_not_sampled_sends_no_span() {
    let (collector, endpoint) = Collector::start().await;
    let service = traced(RULES, endpoint).await;
    service.until_http("/readyz", 200).await;
    for header in [
        ("traceparent", format!("00-{TRACE}-{SPAN}-00")),
        ("b3", format!("{TRACE}-{SPAN}-0")),
        ("b3", "0".to_owned()),
        ("x-b3-sampled", "0".to_owned()),
    ] {
        assert_eq!(ask(&service, one("shop", "user", "ada"), &[header]).await, Code::Ok);
    }
    leave(service).await;
    assert_eq!(collector.spans(), []);
}

#[tokio::test]
async fn a_call_without_an_answer_is_a_span_with_its_code() {
    let (collector, endpoint) = Collector::start().await;
    let service = traced("domain: [", endpoint).await;
    assert_eq!(ask(&service, one("", "user", "ada"), &[]).await, Code::InvalidArgument);
    assert_eq!(ask(&service, one("shop", "user", "ada"), &[]).await, Code::Unavailable);
    leave(service).await;
    let told: Vec<_> = collector
        .spans()
        .into_iter()
        .map(|span| {
            let status = span.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
            (named(&span.attributes)["rpc.grpc.status_code"].clone(), status)
        })
        .collect();
    assert_eq!(told, [("3".to_owned(), StatusCode::Unset), ("14".to_owned(), StatusCode::Error)]);
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_sent() {
    let (collector, _endpoint) = Collector::start().await;
    let service = Service::start(RULES).await;
    let header = ("traceparent", format!("00-{TRACE}-{SPAN}-01"));
    assert_eq!(ask(&service, one("shop", "user", "ada"), &[header]).await, Code::Ok);
    leave(service).await;
    assert!(collector.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_up_neither_calls_nor_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = traced(RULES, format!("http://{}", silent.local_addr().unwrap())).await;
    service.until_http("/readyz", 200).await;
    assert_eq!(ask(&service, one("shop", "user", "ada"), &[]).await, Code::Ok);
    timeout(Duration::from_secs(8), leave(service)).await.expect("flushing has a bound");
}
