//! Decides calls: the one handler of every method.
//!
//! Calls that are read together share one view of rules, secret and time. [`ReadBatch::handle`] decides each at once, or
//! returns what waits for counters elsewhere; [`Api::handle`] also waits. A call is decoded once: what waits borrows
//! nothing of it.

use std::time::Duration;

use axum::http::HeaderMap;
use tollgate_counter::{resilience::Caller, time::ClockReading};
use tollgate_limiter::limiter::ActiveView;

use crate::api::{
    call::{ApiKind, Call, CallReply, Handled, Method, OperatorVerb, ResetPrecision},
    error::Error,
    metrics::Uncounted,
    rls::PlannedRequest,
    service::Api,
    span::CallSpan,
    v1::{decide::PlannedCheck, reservations::PlannedHold},
};

/// A call that waits.
#[derive(Debug)]
pub struct WaitingCall {
    span: CallSpan,
    api: ApiKind,
    // When it was read.
    begun: ClockReading,
    request: WaitingRequest,
}

/// The request of a call that waits.
#[derive(Debug)]
enum WaitingRequest {
    Rls(PlannedRequest),
    Check(PlannedCheck),
    Hold(PlannedHold),
    // The message, and the metadata that may have a token.
    Operator(OperatorVerb, Vec<u8>, Option<Box<HeaderMap>>),
}

/// Calls that are read together and decided by the same rules at the same instant.
#[derive(Debug)]
pub struct ReadBatch<'a> {
    api: &'a Api,
    caller: &'a Caller,
    // Taken at the first call.
    view: Option<ActiveView<'a>>,
    answered: Uncounted,
}

impl ReadBatch<'_> {
    /// Rounding of durations over gRPC.
    pub fn precision(&self) -> ResetPrecision {
        self.api.precision()
    }

    /// Decides a call, unless its counters are elsewhere.
    pub fn handle(&mut self, call: Call<'_>) -> Result<Handled<CallReply, WaitingCall>, Error> {
        let api = self.api;
        let mut span = CallSpan::begin(api.traces.as_ref(), call);
        let view = self.view.get_or_insert_with(|| api.limiter.view());
        let decided = match api.decide(call, view, self.caller, &mut span) {
            Ok(Handled::Ready(reply)) => Ok(reply),
            Ok(Handled::Waiting(request)) => {
                let begun = view.reading();
                return Ok(Handled::Waiting(WaitingCall { span, api: call.api, begun, request }));
            }
            Err(error) => Err(error),
        };
        self.answered.add(call.api);
        Ok(Handled::Ready(api.end(span, decided)?))
    }
}

impl Drop for ReadBatch<'_> {
    fn drop(&mut self) {
        if let Some(view) = &self.view {
            self.api.metrics.answered_together(&self.answered, view.age());
        }
    }
}

impl WaitingCall {
    /// The reply of the call, which may have a delay.
    pub async fn reply(self, api: &Api, caller: &Caller) -> Result<CallReply, Error> {
        let Self { span, api: kind, begun, request } = self;
        let decided = match request {
            WaitingRequest::Rls(planned) => planned.reply(api, caller).await,
            // Boxed, because they are larger.
            WaitingRequest::Check(planned) => {
                Box::pin(planned.reply(api, caller)).await.map(CallReply::from_frame)
            }
            WaitingRequest::Hold(planned) => Box::pin(planned.reply(api, caller)).await,
            WaitingRequest::Operator(verb, message, metadata) => {
                Box::pin(api.operate(verb, &message, metadata.as_deref(), caller)).await
            }
        };
        api.metrics.answered(kind, api.limiter.since(&begun));
        api.end(span, decided)
    }
}

impl Api {
    /// Starts a batch of calls that are read together from one caller.
    pub fn batch<'a>(&'a self, caller: &'a Caller) -> ReadBatch<'a> {
        ReadBatch { api: self, caller, view: None, answered: Uncounted::default() }
    }

    /// Decides a call, by counters here or elsewhere. The reply may have a delay.
    pub async fn handle(&self, call: Call<'_>, caller: &Caller) -> Result<CallReply, Error> {
        let handled = self.batch(caller).handle(call)?;
        match handled {
            Handled::Ready(reply) => Ok(reply),
            Handled::Waiting(waiting) => waiting.reply(self, caller).await,
        }
    }

    /// Decides a call of any method, unless its counters are elsewhere.
    #[inline]
    fn decide(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        caller: &Caller,
        span: &mut CallSpan,
    ) -> Result<Handled<CallReply, WaitingRequest>, Error> {
        match call.method {
            Method::ShouldRateLimit => {
                Ok(self.should_rate_limit(call, view, span)?.map(|reply| reply, WaitingRequest::Rls))
            }
            Method::Decide(verb) => {
                let decided = self.check(verb, call.message, call.timeout(), view, caller)?;
                Ok(decided.map(CallReply::from_frame, WaitingRequest::Check))
            }
            Method::Hold(verb) => {
                Ok(self.hold(verb, call, view, caller)?.map(|reply| reply, WaitingRequest::Hold))
            }
            Method::Operator(verb) => {
                let metadata = call.metadata.cloned().map(Box::new);
                Ok(Handled::Waiting(WaitingRequest::Operator(verb, call.message.to_vec(), metadata)))
            }
        }
    }

    /// Waits for the delay of a reply.
    pub async fn wait(&self, delay: Duration) {
        let _waiting = self.metrics.wait(delay);
        tokio::time::sleep(delay).await;
    }

    /// Rounding of durations over gRPC.
    pub fn precision(&self) -> ResetPrecision {
        if self.settings.exact_reset { ResetPrecision::Nanos } else { ResetPrecision::Seconds }
    }

    /// Counts an error and ends the span.
    #[inline]
    fn end(&self, span: CallSpan, decided: Result<CallReply, Error>) -> Result<CallReply, Error> {
        span.end(&decided);
        decided.inspect_err(|error| self.metrics.count_unanswered(error))
    }
}
