//! Traces: a span for each call, sent to an OpenTelemetry collector over gRPC.

use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::{
    Context, Key, KeyValue,
    trace::{SpanBuilder, SpanKind, TraceContextExt, Tracer, TracerProvider},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider, Span},
};
use tracing::warn;

use crate::telemetry::parent::Parent;

/// How long the last spans may take to leave.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Where spans go. The rest of what OpenTelemetry's variables say is read by its library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The collector: `http://`, a host and a port.
    pub endpoint: String,
}

/// Makes spans and sends them.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Starts sending, within a runtime; connects when there is something to send. What the collector does not take
    /// is dropped, by a bounded queue.
    pub fn start(settings: &Settings) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&settings.endpoint).build()?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        let tracer = provider.tracer(env!("CARGO_PKG_NAME"));
        Ok(Self { provider, tracer })
    }

    /// A span of a call that we serve, part of the trace that its headers tell. `None` where the caller wants none.
    /// It ends when it is dropped.
    pub fn serving(&self, name: &'static str, headers: &HeaderMap) -> Option<Span> {
        let context = match Parent::of(headers) {
            Parent::None => Context::new(),
            Parent::Denied => return None,
            Parent::Span(span) => Context::new().with_remote_span_context(span),
        };
        let span = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        Some(self.tracer.build_with_context(span, &context))
    }

    /// Sends what is left, for two seconds at most, and makes no more spans.
    pub async fn finish(self) {
        let finish = move || self.provider.shutdown_with_timeout(FLUSH_MAX);
        match tokio::task::spawn_blocking(finish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the last spans are lost"),
            Err(panic) => warn!(error = %panic, "the last spans are lost"),
        }
    }
}

/// Who sends: what the environment says, and our name where it says none.
fn resource() -> Resource {
    const NAME: Key = Key::from_static_str("service.name");
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let named = Resource::builder().build();
    let is_named = named.get(&NAME).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let resource = Resource::builder().with_attribute(version);
    if is_named { resource.build() } else { resource.with_service_name(env!("CARGO_PKG_NAME")).build() }
}
