//! Decides calls: the one handler of every method.
//!
//! Calls that are read together share one view of rules, secret and time. [`Batch::handle`] decides calls whose
//! counters are local without waiting; [`Api::handle`] decides any call.

use std::time::Duration;

use tollgate_limiter::{
    limiter::{ActiveView, LimiterError},
    resilience::Caller,
};

use crate::api::{
    Api, Error,
    call::{Call, Method, Reply, ResetPrecision, SingleMethod},
    metrics::Uncounted,
    span::CallSpan,
    v1::{Decided, Partial},
};

/// Result of [`Batch::handle`].
#[derive(Debug)]
pub enum Handled {
    /// The call is decided.
    Ready(Reply),
    /// The call must wait: use [`Api::finish`].
    Unfinished(Unfinished),
}

/// A call that waits for another replica, for the shared store or for a file.
#[derive(Debug)]
pub struct Unfinished {
    span: CallSpan,
    // What is decided already.
    partial: Option<Partial>,
}

/// Calls that are read together and decided by the same rules at the same instant.
#[derive(Debug)]
pub struct Batch<'a> {
    api: &'a Api,
    // Taken at the first call.
    view: Option<ActiveView<'a>>,
    answered: Uncounted,
}

impl Batch<'_> {
    /// Rounding of durations over gRPC.
    pub fn precision(&self) -> ResetPrecision {
        self.api.precision()
    }

    /// Decides a call if its counters are local.
    pub fn handle(&mut self, call: Call<'_>) -> Result<Handled, Error> {
        let mut span = CallSpan::begin(self.api.traces.as_ref(), call);
        if call.method == Method::ShouldRateLimit && self.api.limiter.has_no_counters() {
            return Ok(Handled::Unfinished(Unfinished { span, partial: None }));
        }
        let view = self.view.get_or_insert_with(|| self.api.limiter.view());
        let decided = match call.method {
            Method::ShouldRateLimit => self.api.decide(call, view, &mut span),
            Method::Decide(verb) => match self.api.decide_v1(verb, call.message, call.timeout(), view) {
                Ok(Decided::Whole(frame)) => Ok(Reply::of_frame(frame)),
                Ok(Decided::Part(partial)) => {
                    return Ok(Handled::Unfinished(Unfinished { span, partial: Some(partial) }));
                }
                Err(error) => Err(error),
            },
            Method::Single(_) => {
                return Ok(Handled::Unfinished(Unfinished { span, partial: None }));
            }
        };
        if let Err(Error::LimiterError(LimiterError::Remote)) = decided {
            return Ok(Handled::Unfinished(Unfinished { span, partial: None }));
        }
        self.answered.add(call.api);
        Ok(Handled::Ready(self.api.end(span, decided)?))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(view) = &self.view {
            self.api.metrics.answered_together(&self.answered, view.age());
        }
    }
}

impl Api {
    /// Starts a batch of calls that are read together.
    pub fn batch(&self) -> Batch<'_> {
        Batch { api: self, view: None, answered: Uncounted::default() }
    }

    /// Decides a call of `connection`, locally or elsewhere. The reply may have a delay.
    pub async fn handle(&self, call: Call<'_>, connection: &Caller) -> Result<Reply, Error> {
        let handled = self.batch().handle(call)?;
        match handled {
            Handled::Ready(reply) => Ok(reply),
            Handled::Unfinished(unfinished) => self.finish(call, connection, unfinished).await,
        }
    }

    /// Continues [`Handled::Unfinished`]. In a cluster this decodes the message again, because a decoded call borrows its
    /// bytes: 1,600 instructions for two entries, where a local call takes 34,000 in all.
    pub async fn finish(
        &self,
        call: Call<'_>,
        connection: &Caller,
        Unfinished { mut span, partial }: Unfinished,
    ) -> Result<Reply, Error> {
        let refused = match call.method {
            Method::Single(SingleMethod::Reset) => Box::pin(self.may_reset(call)).await.err(),
            Method::ShouldRateLimit | Method::Decide(_) | Method::Single(SingleMethod::Hold(_)) => None,
        };
        let view = self.limiter.view();
        if let Some(error) = refused {
            self.metrics.answered(call.api, view.age());
            return self.end(span, Err(error));
        }
        let decided = match (call.method, partial) {
            (Method::ShouldRateLimit, _) => self.decide_waiting(call, &view, connection, &mut span).await,
            (Method::Decide(verb), partial) => {
                let partial = partial.unwrap_or_default();
                let finished = self.finish_v1(verb, call.message, call.timeout(), partial, &view, connection);
                Box::pin(finished).await.map(Reply::of_frame)
            }
            (Method::Single(method), _) => Box::pin(self.single_v1(method, call, &view, connection)).await,
        };
        self.metrics.answered(call.api, view.age());
        self.end(span, decided)
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
    fn end(&self, span: CallSpan, decided: Result<Reply, Error>) -> Result<Reply, Error> {
        span.end(&decided);
        decided.inspect_err(|error| self.metrics.unanswered(*error))
    }
}
