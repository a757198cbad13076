//! Decides calls: the one handler of every method.
//!
//! Calls that are read together share one view of rules, secret and time. [`ReadBatch::handle`] decides calls whose
//! counters are local without waiting; [`Api::handle`] decides any call.

use std::time::Duration;

use tollgate_counter::resilience::Caller;
use tollgate_limiter::limiter::{ActiveView, DecidedElsewhere, Elsewhere};

use crate::api::{
    Api, Error,
    call::{Call, CallReply, Method, ResetPrecision, SingleMethod},
    metrics::Uncounted,
    rls,
    span::CallSpan,
    v1::PartialDecision,
};

/// Result of [`ReadBatch::handle`].
#[derive(Debug)]
pub enum Handled {
    /// The call is decided.
    Ready(CallReply),
    /// The call must wait: use [`Api::finish`].
    Unfinished(UnfinishedCall),
}

/// A call that waits for another replica, for the shared store or for a file.
#[derive(Debug)]
pub struct UnfinishedCall {
    span: CallSpan,
    // What the counters of a call of `ShouldRateLimit` are asked.
    planned: Option<Box<Elsewhere>>,
    // What is decided already of a call of `tollgate.v1`.
    partial: Option<PartialDecision>,
}

impl UnfinishedCall {
    /// Whether [`Api::finish`] needs the metadata of the call. The plan has what it needs of them.
    pub fn needs_metadata(&self) -> bool {
        self.planned.is_none()
    }
}

/// Calls that are read together and decided by the same rules at the same instant.
#[derive(Debug)]
pub struct ReadBatch<'a> {
    api: &'a Api,
    // Taken at the first call.
    view: Option<ActiveView<'a>>,
    answered: Uncounted,
}

impl ReadBatch<'_> {
    /// Rounding of durations over gRPC.
    pub fn precision(&self) -> ResetPrecision {
        self.api.precision()
    }

    /// Decides a call if its counters are local.
    pub fn handle(&mut self, call: Call<'_>) -> Result<Handled, Error> {
        let span = CallSpan::begin(self.api.traces.as_ref(), call);
        let mut unfinished = UnfinishedCall { span, planned: None, partial: None };
        let is_planned = matches!(call.method, Method::ShouldRateLimit);
        if !is_planned && self.api.limiter.has_no_counters() {
            return Ok(Handled::Unfinished(unfinished));
        }
        let view = self.view.get_or_insert_with(|| self.api.limiter.view());
        let tried = Error::unless_elsewhere(self.api.answer_call(call, view, None, &mut unfinished));
        let Some(decided) = tried else { return Ok(Handled::Unfinished(unfinished)) };
        self.answered.add(call.api);
        Ok(Handled::Ready(self.api.end(unfinished.span, decided)?))
    }
}

impl Drop for ReadBatch<'_> {
    fn drop(&mut self) {
        if let Some(view) = &self.view {
            self.api.metrics.answered_together(&self.answered, view.age());
        }
    }
}

impl Api {
    /// Starts a batch of calls that are read together.
    pub fn batch(&self) -> ReadBatch<'_> {
        ReadBatch { api: self, view: None, answered: Uncounted::default() }
    }

    /// Decides a call of `connection`, locally or elsewhere. The reply may have a delay.
    pub async fn handle(&self, call: Call<'_>, connection: &Caller) -> Result<CallReply, Error> {
        let handled = self.batch().handle(call)?;
        match handled {
            Handled::Ready(reply) => Ok(reply),
            Handled::Unfinished(unfinished) => self.finish(call, connection, unfinished).await,
        }
    }

    /// Continues [`Handled::Unfinished`]. If the answer needs the request, the message is decoded again, because a
    /// decoded call borrows its bytes and is large while it waits.
    pub async fn finish(
        &self,
        call: Call<'_>,
        connection: &Caller,
        mut unfinished: UnfinishedCall,
    ) -> Result<CallReply, Error> {
        let Some(planned) = unfinished.planned.take() else {
            // Boxed, because it is larger.
            return Box::pin(self.finish_v1(call, connection, unfinished)).await;
        };
        let outcomes = planned.decide(&self.limiter, connection).await;
        let view = planned.view(&self.limiter);
        let decided = outcomes.map_err(Error::from).and_then(|outcomes| {
            let decided = DecidedElsewhere { planned: &planned, outcomes: &outcomes };
            if !self.needs_requests()
                && let Some(answer) = view.answer_planned(decided)
            {
                return Ok(rls::reply_to_pass(&answer, call.precision));
            }
            let UnfinishedCall { span, planned, .. } = &mut unfinished;
            self.decide(call, &view, Some(decided), span, planned)
        });
        self.metrics.answered(call.api, view.age());
        self.end(unfinished.span, decided)
    }

    async fn finish_v1(
        &self,
        call: Call<'_>,
        connection: &Caller,
        mut unfinished: UnfinishedCall,
    ) -> Result<CallReply, Error> {
        let refused = match call.method {
            Method::Single(SingleMethod::Reset) => self.may_reset(call).await.err(),
            Method::ShouldRateLimit | Method::Decide(_) | Method::Single(SingleMethod::Hold(_)) => None,
        };
        let view = self.limiter.view();
        let decided = match refused {
            None => self.answer_call(call, &view, Some(connection), &mut unfinished).await,
            Some(error) => Err(error),
        };
        self.metrics.answered(call.api, view.age());
        self.end(unfinished.span, decided)
    }

    /// Answers a call whose counters are here, or of `tollgate.v1` `elsewhere` what is unfinished.
    #[inline]
    async fn answer_call(
        &self,
        call: Call<'_>,
        view: &ActiveView<'_>,
        elsewhere: Option<&Caller>,
        unfinished: &mut UnfinishedCall,
    ) -> Result<CallReply, Error> {
        match (call.method, elsewhere) {
            (Method::ShouldRateLimit, _) => {
                let UnfinishedCall { span, planned, .. } = unfinished;
                self.decide(call, view, None, span, planned)
            }
            (Method::Decide(verb), _) => {
                let partial = &mut unfinished.partial;
                let decided = self.decide_v1(verb, call.message, call.timeout(), view, elsewhere, partial);
                decided.await.map(CallReply::from_frame)
            }
            (Method::Single(_), None) => Err(Error::ELSEWHERE),
            (Method::Single(method), Some(connection)) => {
                Box::pin(self.single_v1(method, call, view, connection)).await
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
        decided.inspect_err(|error| self.metrics.unanswered(*error))
    }
}
