//! The trace span of a call. It has no values of descriptors.

use opentelemetry::{
    KeyValue,
    trace::{Span as _, Status},
};
use opentelemetry_sdk::trace::Span;
use tollgate_telemetry::traces::Traces;
use tonic::Code;

use crate::api::{
    call::{Call, CallReply},
    error::Error,
};

/// Maximum length of a domain in a span, in bytes.
const DOMAIN_BYTES_MAX: usize = 128;

/// The span of a call; none if the call is not sampled.
// Boxed, because most calls have none.
#[derive(Debug)]
pub struct CallSpan(Option<Box<Span>>);

impl CallSpan {
    /// Begins the span of a call with metadata.
    #[inline]
    pub(super) fn begin(traces: Option<&Traces>, call: Call<'_>) -> Self {
        let Some((traces, metadata)) = traces.zip(call.metadata) else { return Self(None) };
        // Without the slash at its beginning.
        let name = &call.method.path()[1..];
        let mut span = traces.serving(name, metadata).filter(Span::is_recording).map(Box::new);
        if let Some(span) = &mut span {
            span.set_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", call.method.service()),
                KeyValue::new("rpc.method", call.method.name()),
            ]);
        }
        Self(span)
    }

    /// Adds attributes of the request.
    #[inline]
    pub(super) fn describe(&mut self, domain: &str, descriptors: impl FnOnce() -> usize) {
        let Some(span) = &mut self.0 else { return };
        let descriptors = i64::try_from(descriptors()).unwrap_or(i64::MAX);
        let domain = domain[..domain.floor_char_boundary(DOMAIN_BYTES_MAX)].to_owned();
        span.set_attributes([
            KeyValue::new("tollgate.domain", domain),
            KeyValue::new("tollgate.descriptors", descriptors),
        ]);
    }

    /// Adds the decision or the error, and ends the span.
    pub(super) fn end(self, decided: &Result<CallReply, Error>) {
        let Some(mut span) = self.0 else { return };
        let code = match decided {
            Ok(reply) => {
                if let Some(passes) = reply.passes {
                    let code = if passes { "OK" } else { "OVER_LIMIT" };
                    span.set_attribute(KeyValue::new("tollgate.code", code));
                }
                Code::Ok
            }
            Err(error) => error.code,
        };
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(i32::from(code))));
        // An invalid request is not an error of the server.
        if matches!(code, Code::Unavailable | Code::Internal) {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}
