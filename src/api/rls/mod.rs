//! Envoy's rate limit service: from the bytes of a request to the bytes of its reply.

use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::{ActiveView, Answer, AnswerOrPlan, Plan, Request, Retry};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

use crate::api::{
    call::{Call, CallReply, Handled, ResetPrecision},
    denial_body::{Body, When},
    error::Error,
    service::Api,
    span::CallSpan,
};

mod decode;
mod encode;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod metadata;

pub use decode::{RlsRequest, decode};

use decode::SentHits;
use encode::encode;

/// The text of the error of a message that is not one of the service.
pub(super) const MALFORMED: &str = "the message is not a valid RateLimitRequest";

/// A request whose counters are elsewhere.
#[derive(Debug)]
pub(super) struct PlannedRequest {
    plan: Box<Plan>,
    format: ReplyFormat,
}

/// How a reply is written.
#[derive(Debug)]
struct ReplyFormat {
    precision: ResetPrecision,
    // What dynamic metadata repeat of the message.
    sent: Option<Box<SentHits>>,
}

impl Api {
    /// Decides a call of Envoy's service, unless its counters are elsewhere.
    #[inline]
    pub(super) fn should_rate_limit(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        span: &mut CallSpan,
    ) -> Result<Handled<CallReply, PlannedRequest>, Error> {
        let mut decoded = RlsRequest::default();
        let read = decoded.read(call.message, self.settings.bounds());
        read.map_err(Error::with_malformed_text(MALFORMED))?;
        span.describe(decoded.descriptors.domain, || decoded.descriptors.each.len());
        let request = decoded.limiter_request(call.timeout())?;
        let sent = self.settings.dynamic_metadata.then(|| Box::new(decoded.sent_hits()));
        let format = ReplyFormat { precision: call.precision, sent };
        let decided = view.decide(&request);
        match decided {
            // Borrowed, because an answer is large to move.
            Ok(AnswerOrPlan::Answer(ref answer)) => {
                Ok(Handled::Ready(self.rls_reply(view, &request, answer, &format)))
            }
            Ok(AnswerOrPlan::Plan(plan)) => Ok(Handled::Waiting(PlannedRequest { plan, format })),
            Err(error) => Err(error.into()),
        }
    }

    /// The reply to an answered request.
    #[inline]
    fn rls_reply(
        &self,
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        format: &ReplyFormat,
    ) -> CallReply {
        self.observe(request, view, answer);
        let modes = self.limiter.modes();
        let retry = self.headers.retry(answer, modes, request);
        let mut headers = self.headers.for_reply(view, request, answer, modes, retry);
        let never = answer.never_because(modes, request);
        let when = When { retry_after: retry.and_then(Retry::after), never_because: never.as_deref() };
        let body = self.denial_bodies.body_of(request.domain(), view.rules(), answer, modes, when);
        headers.extend(body.as_ref().map(content_type));
        let metadata = format.sent.as_ref().map(|sent| metadata::metadata(sent, request, answer));
        let body = body.as_ref().map_or(&[][..], |body| body.text.as_bytes());
        let frame = encode(answer, &headers, body, metadata.as_ref(), format.precision);
        CallReply { frame, passes: Some(answer.passes), delay: answer.delay }
    }
}

impl PlannedRequest {
    /// The reply, once the counters have answered.
    pub(super) async fn reply(self, api: &Api, caller: &Caller) -> Result<CallReply, Error> {
        let Self { mut plan, format } = self;
        let outcomes = plan.outcomes(&api.limiter, caller).await?;
        Ok(plan.answer(&api.limiter, &outcomes, |view, request, held| {
            api.rls_reply(view, request, &held.answer, &format)
        }))
    }
}

/// The header that names the content type of a body.
fn content_type(body: &Body<'_>) -> HeaderValue {
    HeaderValue { key: "Content-Type".to_owned(), value: body.content_type.to_owned(), raw_value: Vec::new() }
}

#[cfg(test)]
mod tests;
