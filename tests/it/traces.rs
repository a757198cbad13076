//! Exported spans, received by a collector in this process.

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
use tokio::{net::TcpListener, process::Command, time::timeout};
use tollgate_telemetry::traces;
use tollgate_wire::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::{
    Code, Request, Response,
    transport::{Identity, ServerTlsConfig, server::TcpIncoming},
};

use crate::{
    certificates::Authority,
    harness::{Service, request_for},
    program::{PROGRAM, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: fixed_window}
";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A collector that keeps received spans.
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
    /// A collector and its endpoint.
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

async fn start_traced(rules: &str, endpoint: String) -> Service {
    let traces = traces::TraceSettings { endpoint, certificate: None };
    Service::start_modified(rules, &[], |settings| settings.traces = Some(traces)).await
}

/// Sends a request with these headers, and returns the code of the response.
async fn call(service: &Service, request: RateLimitRequest, headers: &[(&'static str, String)]) -> Code {
    let mut request = Request::new(request);
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    let answer = service.client().await.should_rate_limit(request).await;
    answer.err().map_or(Code::Ok, |status| status.code())
}

/// Shuts the service down, which flushes its spans.
async fn shut_down(service: Service) {
    service.terminate().await;
    service.task.await.unwrap().unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes_of(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.clone().and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

#[tokio::test]
async fn tls_collector_is_trusted_only_by_its_authority() {
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    let pair = authority.server();
    let identity = Identity::from_pem(&pair.cert, &pair.key);
    let server = tonic::transport::Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
    let (collector, port) = Collector::start_as(server.unwrap()).await;
    for (trusted, spans) in [(&other, 0), (&authority, 1)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &trusted.pem).unwrap();
        let endpoint = format!("https://localhost:{port}");
        let traces = traces::TraceSettings { endpoint, certificate: Some(file.path().to_owned()) };
        let service = Service::start_modified(RULES, &[], |settings| settings.traces = Some(traces)).await;
        call(&service, request_for("shop", "user", "x"), &[]).await;
        shut_down(service).await;
        assert_eq!(collector.spans().len(), spans);
    }
}

#[tokio::test]
async fn call_span_continues_trace_of_caller() {
    let several = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")];
    for headers in [
        vec![("traceparent", format!("00-{TRACE}-{SPAN}-01"))],
        vec![("b3", format!("{TRACE}-{SPAN}-1"))],
        several.map(|(name, value)| (name, value.to_owned())).to_vec(),
    ] {
        let (collector, endpoint) = Collector::start().await;
        let service = start_traced(RULES, endpoint).await;
        service.until_http("/readyz", 200).await;
        assert_eq!(call(&service, request_for("shop", "user", "ada"), &headers).await, Code::Ok);
        shut_down(service).await;
        let spans = collector.spans();
        assert_eq!(spans.len(), 1, "{headers:?}");
        assert_eq!((hex(&spans[0].trace_id).as_str(), hex(&spans[0].parent_span_id).as_str()), (TRACE, SPAN));
    }
}

#[tokio::test]
async fn span_has_call_and_response_but_no_values() {
    let (collector, endpoint) = Collector::start().await;
    let service = start_traced(RULES, endpoint).await;
    service.until_http("/readyz", 200).await;
    for _ in 0..2 {
        assert_eq!(call(&service, request_for("shop", "user", "ada"), &[]).await, Code::Ok);
    }
    shut_down(service).await;

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
        assert_eq!(
            attributes_of(&span.attributes),
            expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }
    assert_ne!(spans[0].trace_id, spans[1].trace_id, "a call without a parent begins a trace");
    let received = collector.0.lock().unwrap().clone();
    let resource = received[0].resource_spans[0].resource.clone().unwrap();
    assert_eq!(resource.attributes.iter().filter(|attribute| attribute.key == "service.name").count(), 1);
    let sent: Vec<u8> = received.iter().flat_map(Message::encode_to_vec).collect();
    assert!(!sent.windows(3).any(|bytes| bytes == b"ada"), "values of entries are not exported");
}

#[tokio::test]
async fn unsampled_parent_sends_no_span() {
    let (collector, endpoint) = Collector::start().await;
    let service = start_traced(RULES, endpoint).await;
    service.until_http("/readyz", 200).await;
    for header in [
        ("traceparent", format!("00-{TRACE}-{SPAN}-00")),
        ("b3", format!("{TRACE}-{SPAN}-0")),
        ("b3", "0".to_owned()),
        ("x-b3-sampled", "0".to_owned()),
    ] {
        assert_eq!(call(&service, request_for("shop", "user", "ada"), &[header]).await, Code::Ok);
    }
    shut_down(service).await;
    assert_eq!(collector.spans(), []);
}

#[tokio::test]
async fn sampler_of_the_environment_decides_which_calls_are_spans() {
    const LOW: &str = "0af7651916cd43dd0000000000000001";
    const HIGH: &str = "0af7651916cd43ddffffffffffffffff";
    let parent = |trace: &str| [("traceparent", format!("00-{trace}-{SPAN}-01"))];
    for (sampler, argument, traces) in [
        ("always_off", "", vec![]),
        ("parentbased_always_off", "", vec![LOW, HIGH]),
        // A ratio keeps the low trace ids, whatever the caller decided.
        ("traceidratio", "0.5", vec![LOW]),
        ("parentbased_traceidratio", "0", vec![LOW, HIGH]),
    ] {
        let (collector, endpoint) = Collector::start().await;
        let mut command = Command::new(PROGRAM);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        command.env("OTEL_TRACES_SAMPLER", sampler).env("OTEL_TRACES_SAMPLER_ARG", argument);
        let mut program = Program::start_command(command, RULES, &["--drain-delay", "0s"]).await;
        let mut client = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();
        // A ratio of the traces that begin here would be left to chance.
        let begun: &[&[_]] = if sampler == "traceidratio" { &[] } else { &[&[]] };
        for headers in begun.iter().copied().chain([&parent(LOW)[..], &parent(HIGH)]) {
            let mut request = Request::new(request_for("shop", "user", "ada"));
            for (name, value) in headers {
                request.metadata_mut().insert(*name, value.parse().unwrap());
            }
            client.should_rate_limit(request).await.unwrap();
        }
        program.signal("TERM").await;
        assert_eq!(program.exit_code().await, Some(0));
        let sent: Vec<_> = collector.spans().iter().map(|span| hex(&span.trace_id)).collect();
        assert_eq!(sent, traces, "{sampler} {argument}");
    }
}

#[tokio::test]
async fn failed_call_is_a_span_with_its_code() {
    let (collector, endpoint) = Collector::start().await;
    let service = start_traced("domain: [", endpoint).await;
    assert_eq!(call(&service, request_for("", "user", "ada"), &[]).await, Code::InvalidArgument);
    assert_eq!(call(&service, request_for("shop", "user", "ada"), &[]).await, Code::Unavailable);
    shut_down(service).await;
    let codes: Vec<_> = collector
        .spans()
        .into_iter()
        .map(|span| {
            let status = span.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
            (attributes_of(&span.attributes)["rpc.grpc.status_code"].clone(), status)
        })
        .collect();
    assert_eq!(codes, [("3".to_owned(), StatusCode::Unset), ("14".to_owned(), StatusCode::Error)]);
}

#[tokio::test]
async fn no_endpoint_sends_no_spans() {
    let (collector, _endpoint) = Collector::start().await;
    let service = Service::start(RULES).await;
    let header = ("traceparent", format!("00-{TRACE}-{SPAN}-01"));
    assert_eq!(call(&service, request_for("shop", "user", "ada"), &[header]).await, Code::Ok);
    shut_down(service).await;
    assert!(collector.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn silent_collector_delays_neither_calls_nor_shutdown() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let service = start_traced(RULES, format!("http://{}", silent.local_addr().unwrap())).await;
    service.until_http("/readyz", 200).await;
    assert_eq!(call(&service, request_for("shop", "user", "ada"), &[]).await, Code::Ok);
    timeout(Duration::from_secs(8), shut_down(service)).await.expect("the final flush is bounded");
}
