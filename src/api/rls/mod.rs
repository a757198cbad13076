//! Envoy's rate limit service, from an encoded request to an encoded reply, independent of the transport.
//!
//! Calls that are read together share one view of rules, secret and time. [`Batch::handle`] decides calls whose
//! counters are local without waiting; [`Api::handle`] decides any call.

use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry_sdk::trace::Span;

use crate::{
    api::{Api, Error},
    cluster::OpenForwards,
    limiter::{self, ActiveView, Answer, LimiterError},
};

mod decode;
mod encode;
pub mod headers;
mod metadata;
mod span;
mod timeout;

pub use decode::{DecodeError, Request, decode};
pub use encode::FRAME_PREFIX_BYTES;

use encode::encode;

/// How durations until reset are rounded. Always up, so that a client does not retry too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetPrecision {
    /// Whole seconds, at least one: Envoy truncates to whole seconds.
    Seconds,
    /// Whole milliseconds.
    Millis,
    /// Nanoseconds.
    Nanos,
}

/// A call to decide.
#[derive(Clone, Copy, Debug)]
pub struct Call<'m> {
    /// The encoded `RateLimitRequest`.
    pub message: &'m [u8],
    /// Metadata of a gRPC call; `None` for other protocols.
    pub metadata: Option<&'m HeaderMap>,
    /// How the reply rounds durations.
    pub precision: ResetPrecision,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// A gRPC frame with a `RateLimitResponse`.
    pub frame: Vec<u8>,
    /// Whether the request passes.
    pub passes: bool,
    /// Time to wait before the reply is sent: see [`Api::wait`].
    pub delay: Duration,
}

impl Reply {
    /// The encoded `RateLimitResponse`.
    pub fn message(&self) -> &[u8] {
        &self.frame[FRAME_PREFIX_BYTES..]
    }
}

/// Result of [`Batch::handle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The call is decided.
    Ready(Reply),
    /// The call needs another replica and has had no effect yet: use [`Api::handle`].
    Remote,
}

/// Calls that are read together and decided by the same rules at the same instant.
#[derive(Debug)]
pub struct Batch<'a> {
    api: &'a Api,
    // Taken at the first call.
    view: Option<ActiveView<'a>>,
    decided: u32,
}

impl Batch<'_> {
    /// Rounding of durations over gRPC.
    pub fn precision(&self) -> ResetPrecision {
        self.api.precision()
    }

    /// Decides a call if its counters are local.
    pub fn handle(&mut self, call: Call<'_>) -> Result<Handled, Error> {
        // A span includes the wait for other replicas.
        if self.api.traces.is_some() {
            return Ok(Handled::Remote);
        }
        let view = self.view.get_or_insert_with(|| self.api.limiter.view());
        let decided = self.api.decide(call, view);
        if let Err(Error::LimiterError(LimiterError::Remote)) = decided {
            return Ok(Handled::Remote);
        }
        let reply = decided.inspect_err(|error| self.api.metrics.unanswered(*error))?;
        self.decided += 1;
        Ok(Handled::Ready(reply))
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some(view) = &self.view {
            self.api.metrics.duration.record_mean(view.age(), self.decided);
        }
    }
}

impl Api {
    /// Starts a batch of calls that are read together.
    pub fn batch(&self) -> Batch<'_> {
        Batch { api: self, view: None, decided: 0 }
    }

    /// Decides a call of `connection`, locally or through the owner. The reply may have a delay.
    pub async fn handle(&self, call: Call<'_>, connection: &OpenForwards) -> Result<Reply, Error> {
        let mut span = self.span(call);
        let handled = self.handle_in_span(call, connection, span.as_mut()).await;
        let handled = handled.inspect_err(|error| self.metrics.unanswered(*error));
        span::end(span, handled.as_ref().map(|reply| reply.passes));
        handled
    }

    async fn handle_in_span(
        &self,
        call: Call<'_>,
        connection: &OpenForwards,
        span: Option<&mut Span>,
    ) -> Result<Reply, Error> {
        let view = self.limiter.view();
        let decided = match self.decide(call, &view) {
            Err(Error::LimiterError(LimiterError::Remote)) => {
                let request = decode(call.message, self.settings.bounds())?;
                let descriptors = request.descriptors()?;
                let limiter_request =
                    request.limiter_request(&descriptors, call.metadata.and_then(timeout::of));
                let answer = view.decide_remote(&limiter_request, connection).await?;
                Ok(self.reply(call, &request, &limiter_request, &view, &answer))
            }
            decided => decided,
        };
        if let Some(span) = span
            && let Ok(request) = decode(call.message, self.settings.bounds())
        {
            span::describe(span, &request);
        }
        self.metrics.duration.record(view.age());
        decided
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

    #[inline]
    fn decide(&self, call: Call<'_>, view: &ActiveView<'_>) -> Result<Reply, Error> {
        let request = decode(call.message, self.settings.bounds())?;
        let descriptors = request.descriptors()?;
        let limiter_request = request.limiter_request(&descriptors, call.metadata.and_then(timeout::of));
        let answer = view.decide(&limiter_request)?;
        Ok(self.reply(call, &request, &limiter_request, view, &answer))
    }

    fn reply(
        &self,
        call: Call<'_>,
        request: &Request<'_>,
        limiter_request: &limiter::Request<'_>,
        view: &ActiveView<'_>,
        answer: &Answer<'_>,
    ) -> Reply {
        if let Some(denials) = &self.denials {
            denials.log(limiter_request, answer, view.now());
        }
        let headers = self.headers.of(answer, self.limiter.modes());
        let metadata = self.settings.dynamic_metadata.then(|| metadata::of(request, answer));
        let frame = encode(answer, &headers, metadata.as_ref(), call.precision);
        Reply { frame, passes: answer.passes, delay: answer.delay }
    }

    fn span(&self, call: Call<'_>) -> Option<Span> {
        span::begin(self.traces.as_ref()?, call.metadata?)
    }
}

#[cfg(test)]
mod tests;
