//! Traces: a span for each call, sent to an OpenTelemetry collector over gRPC.

use std::{path::PathBuf, time::Duration};

use axum::http::HeaderMap;
use opentelemetry::{
    Context, Key, KeyValue,
    trace::{SpanBuilder, SpanKind, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider, Span},
};
use tollgate_counter::files;
use tonic::transport::{Certificate, ClientTlsConfig};
use tracing::warn;

use crate::parent_span::ParentSpan;

/// The name of the service in traces.
const PROGRAM: &str = "tollgate";

/// The maximum time to send the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The maximum size of a CA file, in bytes.
const CERTIFICATE_BYTES_MAX: u64 = 1024 * 1024;

/// The destination of spans. OpenTelemetry's library reads the other variables itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The collector: `http://` or `https://`, a host and a port.
    pub endpoint: String,
    /// The CA certificates for `https://`, in PEM; `None` for those of the system.
    pub certificate: Option<PathBuf>,
}

impl TraceSettings {
    fn tls(&self) -> Result<ClientTlsConfig, String> {
        let Some(path) = &self.certificate else { return Ok(ClientTlsConfig::new().with_native_roots()) };
        let read = files::read(path, CERTIFICATE_BYTES_MAX)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read)))
    }
}

/// Creates spans and sends them to the collector.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Starts the exporter; must be called within a runtime. Connects when the first spans are sent. Spans that the
    /// collector does not accept are dropped from a bounded queue.
    pub fn start(settings: &TraceSettings) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(&settings.endpoint);
        if settings.endpoint.starts_with("https://") {
            exporter = exporter.with_tls_config(settings.tls()?);
        }
        let exporter = exporter.build().map_err(|error| error.to_string())?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let tracer = provider.tracer(PROGRAM);
        Ok(Self { provider, tracer })
    }

    /// Creates spans that are dropped when they end.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn discarded() -> Self {
        let provider = SdkTracerProvider::builder().build();
        let tracer = provider.tracer(PROGRAM);
        Self { provider, tracer }
    }

    /// A server span for a call, as a child of the span in its headers. `None` if the caller forbids tracing. The
    /// span ends when it is dropped.
    pub fn serving(&self, name: &'static str, headers: &HeaderMap) -> Option<Span> {
        let context = match ParentSpan::from_headers(headers) {
            ParentSpan::None => Context::new(),
            ParentSpan::Denied => return None,
            ParentSpan::Span(span) => Context::new().with_remote_span_context(span),
        };
        let span = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        Some(self.tracer.build_with_context(span, &context))
    }

    /// Sends the remaining spans, for at most 2 s, and ends tracing.
    pub async fn finish(self) {
        let finish = move || self.provider.shutdown_with_timeout(FLUSH_MAX);
        match tokio::task::spawn_blocking(finish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "could not send the last spans"),
            Err(panic) => warn!(error = %panic, "could not send the last spans"),
        }
    }
}

/// The resource: from the environment, with this program's name as the default service name.
fn resource() -> Resource {
    const NAME: Key = Key::from_static_str("service.name");
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = Resource::builder().build();
    let is_named = named.get(&NAME).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let resource = Resource::builder().with_attribute(version);
    if is_named { resource.build() } else { resource.with_service_name(PROGRAM).build() }
}
