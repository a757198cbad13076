//! The trace span of a call. It has no values of descriptors.

use axum::http::HeaderMap;
use opentelemetry::{
    KeyValue,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span;
use tonic::Code;

use crate::{
    api::{
        Error,
        rls::{Reply, Request},
    },
    telemetry::traces::Traces,
};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const METHOD: &str = "ShouldRateLimit";
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Maximum length of a domain in a span, in bytes.
const DOMAIN_BYTES_MAX: usize = 128;

/// The span of a call; none if the call is not sampled.
// Boxed, because most calls have none.
#[derive(Debug)]
pub struct CallSpan(Option<Box<Span>>);

impl CallSpan {
    /// Begins the span of a call with this metadata.
    pub(super) fn begin(traces: Option<&Traces>, metadata: Option<&HeaderMap>) -> Self {
        let Some((traces, metadata)) = traces.zip(metadata) else { return Self(None) };
        let mut span = traces.serving(NAME, metadata).filter(Span::is_recording).map(Box::new);
        if let Some(span) = &mut span {
            span.set_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", SERVICE),
                KeyValue::new("rpc.method", METHOD),
            ]);
        }
        Self(span)
    }

    /// Adds attributes of the request.
    pub(super) fn describe(&mut self, request: &Request<'_>) {
        let (Some(span), domain) = (&mut self.0, request.domain) else { return };
        let descriptors = i64::try_from(request.descriptor_views().count()).unwrap_or(i64::MAX);
        let domain = domain[..domain.floor_char_boundary(DOMAIN_BYTES_MAX)].to_owned();
        span.set_attributes([
            KeyValue::new("tollgate.domain", domain),
            KeyValue::new("tollgate.descriptors", descriptors),
        ]);
    }

    /// Adds the decision or the error, and ends the span.
    pub(super) fn end(self, decided: &Result<Reply, Error>) {
        let Some(mut span) = self.0 else { return };
        let code = match decided {
            Ok(reply) => {
                let code = if reply.passes { "OK" } else { "OVER_LIMIT" };
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
}
