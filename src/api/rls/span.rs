//! The trace span of a call. It has no values of descriptors.

use axum::http::HeaderMap;
use opentelemetry::{
    KeyValue,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span;
use tonic::Code;

use crate::{
    api::{Error, rls::Request},
    telemetry::traces::Traces,
};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "ShouldRateLimit";
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Maximum length of a domain in a span, in bytes.
const DOMAIN_BYTES_MAX: usize = 128;

/// Begins a span; `None` if the call is not sampled.
pub(super) fn begin(traces: &Traces, metadata: &HeaderMap) -> Option<Span> {
    let mut span = traces.serving(NAME, metadata).filter(Span::is_recording)?;
    span.set_attributes([
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", SERVICE),
        KeyValue::new("rpc.method", METHOD),
    ]);
    Some(span)
}

/// Adds attributes of the request.
pub(super) fn describe(span: &mut Span, request: &Request<'_>) {
    let domain = request.domain;
    span.set_attributes([
        KeyValue::new("tollgate.domain", domain[..domain.floor_char_boundary(DOMAIN_BYTES_MAX)].to_owned()),
        KeyValue::new(
            "tollgate.descriptors",
            i64::try_from(request.descriptor_views().count()).unwrap_or(i64::MAX),
        ),
    ]);
}

/// Adds the decision or the error, and ends the span.
pub(super) fn end(span: Option<Span>, passes: Result<bool, &Error>) {
    let Some(mut span) = span else { return };
    let code = match passes {
        Ok(passes) => {
            let code = if passes { "OK" } else { "OVER_LIMIT" };
            span.set_attribute(KeyValue::new("tollgate.code", code));
            Code::Ok
        }
        Err(error) => tonic::Status::from(*error).code(),
    };
    span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
    // An invalid request is not an error of the server.
    if matches!(code, Code::Unavailable | Code::Internal) {
        span.set_status(Status::error(""));
    }
    span.end();
}
