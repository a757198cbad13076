//! Envoy's rate limit service: from the bytes of a request to the bytes of its reply.

use tollgate_limiter::limiter::{ActiveView, Answer, DecidedElsewhere, Elsewhere, Retry};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

use crate::api::{
    Api, Error,
    call::{Call, CallReply, ResetPrecision},
    denial_body::{Body, When},
    span::CallSpan,
};

mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod headers;
mod metadata;

pub use decode::{RlsRequest, decode};

use encode::encode;

impl Api {
    /// Decides a call whose counters are here, or answers one that is `decided`. If its counters are elsewhere, they
    /// are `planned`, and the error is [`Error::ELSEWHERE`].
    #[inline]
    pub(super) fn decide(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        decided: Option<DecidedElsewhere<'_>>,
        span: &mut CallSpan,
        planned: &mut Option<Box<Elsewhere>>,
    ) -> Result<CallReply, Error> {
        let mut decoded = RlsRequest::default();
        decoded.read(call.message, self.settings.bounds())?;
        if decided.is_none() {
            span.describe(decoded.domain, || decoded.descriptor_views().count());
        }
        let timeout = decided.map_or_else(|| call.timeout(), |decided| decided.planned.timeout());
        let request = decoded.limiter_request(timeout)?;
        let decided = match decided {
            None => view.decide_or_plan(&request, planned),
            Some(decided) => view.answer(&request, decided),
        };
        // Borrowed, because an answer is large to move.
        let answer = decided.as_ref().map_err(|error| *error)?;
        self.observe(&request, view, answer);
        let modes = self.limiter.modes();
        let retry = self.headers.retry(answer, modes, &request);
        let mut headers = self.headers.of(view, &request, answer, modes, retry);
        let never = answer.never_because(modes, &request);
        let when = When { retry_after: retry.and_then(Retry::after), never_because: never.as_deref() };
        let body = self.denial_bodies.of(decoded.domain, view.rules(), answer, modes, when);
        headers.extend(body.as_ref().map(content_type));
        let metadata = self
            .settings
            .dynamic_metadata
            .then(|| metadata::metadata(&decoded, request.descriptors(), answer));
        let body = body.as_ref().map_or(&[][..], |body| body.text.as_bytes());
        let frame = encode(answer, &headers, body, metadata.as_ref(), call.precision);
        Ok(CallReply { frame, passes: Some(answer.passes), delay: answer.delay })
    }
}

/// The reply to a request that passes, without headers and metadata.
pub(super) fn reply_to_pass(answer: &Answer<'_>, precision: ResetPrecision) -> CallReply {
    let frame = encode(answer, &[], &[], None, precision);
    CallReply { frame, passes: Some(answer.passes), delay: answer.delay }
}

/// The header that names the content type of a body.
fn content_type(body: &Body<'_>) -> HeaderValue {
    HeaderValue { key: "Content-Type".to_owned(), value: body.content_type.to_owned(), raw_value: Vec::new() }
}

#[cfg(test)]
mod tests;
