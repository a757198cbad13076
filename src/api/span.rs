//! What the span of a call tells: names and numbers, and nothing of the values that were asked about.

use opentelemetry::{
    KeyValue,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span;
use tonic::{Code, Request};

use crate::{
    api::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    telemetry::traces::Traces,
};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "ShouldRateLimit";
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// How much of a domain is told, in bytes.
const DOMAIN_MAX: usize = 128;

/// The span of a call; `None` where it is not sampled.
pub(super) fn of(traces: &Traces, request: &Request<RateLimitRequest>) -> Option<Span> {
    let mut span = traces.serving(NAME, request.metadata().as_ref()).filter(Span::is_recording)?;
    let RateLimitRequest { domain, descriptors, .. } = request.get_ref();
    span.set_attributes([
        KeyValue::new("rpc.system", "grpc"),
        KeyValue::new("rpc.service", SERVICE),
        KeyValue::new("rpc.method", METHOD),
        KeyValue::new("tollgate.domain", domain[..domain.floor_char_boundary(DOMAIN_MAX)].to_owned()),
        KeyValue::new("tollgate.descriptors", i64::try_from(descriptors.len()).unwrap_or(i64::MAX)),
    ]);
    Some(span)
}

/// Tells how the call was answered, and ends its span.
pub(super) fn end(span: Option<Span>, answered: Result<&RateLimitResponse, &tonic::Status>) {
    let Some(mut span) = span else { return };
    let code = match answered {
        Ok(response) => {
            span.set_attribute(KeyValue::new("tollgate.code", response.overall_code().as_str_name()));
            Code::Ok
        }
        Err(status) => status.code(),
    };
    span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
    // The caller's mistakes are no errors of the server.
    if matches!(code, Code::Unavailable | Code::Internal) {
        span.set_status(Status::error(""));
    }
    span.end();
}
