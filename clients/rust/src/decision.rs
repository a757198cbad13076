//! What a caller is told.

use std::time::Duration;

use tonic::{Code, Status};

use crate::{
    Unit,
    headers::{self, RefusalFormat},
    v1,
};

/// What to do with a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Whether the request may pass.
    pub allowed: bool,
    /// Where the decision comes from.
    pub source: Source,
    /// The time that an allowed request waits before it goes on; see [`Decision::wait`].
    pub delay: Duration,
    /// The time until a denied request would pass. None if it never would, or without an answer.
    pub retry_after: Option<Duration>,
    /// The limits that apply, in the order of the descriptors.
    pub limits: Vec<LimitStatus>,
    /// Whether the server decided a limit without the owner of its counter, which it could not reach.
    pub degraded: bool,
    /// Why the source is the default, if it is.
    pub no_answer: Option<NoAnswer>,
    /// Why a denied request would never pass, with the largest amount that can. None if it may pass later.
    pub never_because: Option<String>,
}

/// Where a decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server.
    Server,
    /// The key was refused earlier, and the time of its retry-after is not over.
    DenyCache,
    /// A slice of [`PrepaidSlices`](crate::PrepaidSlices).
    Prepaid,
    /// [`Options::on_no_answer`](crate::Options::on_no_answer).
    Default,
}

/// Why the server gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server gave no answer: {code:?}: {message}")]
pub struct NoAnswer {
    /// The code of a gRPC status, of the server or of this client.
    pub code: Code,
    /// The message of a gRPC status, of the server or of this client.
    pub message: String,
}

/// One limit of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// The index of the descriptor in the request.
    pub descriptor: usize,
    /// The name of the rule, or its path. Empty for a limit that the caller sent.
    pub rule: String,
    /// Hits that pass in one unit.
    pub requests_per_unit: u64,
    /// The window of the limit.
    pub unit: Unit,
    /// Hits that are left.
    pub remaining: u64,
    /// The time until the limit is unused. If the limit refuses: until the refused hits pass, zero if they never do.
    pub reset_after: Duration,
    /// The time until the refused hits pass, if the limit refuses; None if they never do.
    pub retry_after: Option<Duration>,
    /// Whether the limit refuses the request. In shadow mode the request may be allowed nevertheless.
    pub refused: bool,
    /// Whether the limit would refuse the request, but its rule is in shadow mode.
    pub refused_in_shadow: bool,
    /// Whether the candidate of the rule would refuse the request.
    pub refused_by_candidate: bool,
    /// Whether the limit was decided without the owner of the counter, which could not be reached.
    pub degraded: bool,
}

impl Decision {
    /// The decision without an answer.
    pub(crate) fn default_of(allowed: bool, reason: NoAnswer) -> Self {
        let (source, no_answer) = (Source::Default, Some(reason));
        let (delay, limits) = (Duration::ZERO, Vec::new());
        Self {
            allowed,
            source,
            delay,
            retry_after: None,
            limits,
            degraded: false,
            no_answer,
            never_because: None,
        }
    }

    /// The limit to report in headers: a limit that denies the request comes first, then the one with the fewest
    /// remaining hits, then, of those that deny, the one with the longest wait. None if no limit applies.
    pub fn tightest(&self) -> Option<&LimitStatus> {
        self.limits.iter().min_by_key(|limit| {
            let denies = !self.allowed && limit.refused;
            let wait = if denies { limit.reset_after } else { Duration::ZERO };
            (!denies, limit.remaining, std::cmp::Reverse(wait))
        })
    }

    /// The response to a denied HTTP request with these headers: 429, with `Retry-After` if the same request passes
    /// later; 503, with `Retry-After` of a second, if the source is the default. It has the headers of the tightest
    /// limit. The body says why, as a text, or as a problem (RFC 9457) if the request accepts one.
    pub fn refusal<B: From<String>>(&self, request: &http::HeaderMap) -> http::Response<B> {
        headers::refusal(self, RefusalFormat::accepted(request)).map(B::from)
    }

    /// Waits for the delay of the decision: an allowed request goes on afterwards.
    pub async fn wait(&self) {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }

    /// The decision of this source, which repeats that of the server when this time has passed.
    pub(crate) fn later(&self, source: Source, elapsed: Duration) -> Self {
        let later = |wait: Option<Duration>| wait.map(|wait| wait.saturating_sub(elapsed));
        let mut decision = self.clone();
        decision.source = source;
        decision.retry_after = later(decision.retry_after);
        for limit in &mut decision.limits {
            limit.reset_after = limit.reset_after.saturating_sub(elapsed);
            limit.retry_after = later(limit.retry_after);
        }
        decision
    }

    /// Translates an answer. An answer without a verdict is an error.
    pub(crate) fn from_answer(answer: v1::Answer) -> Result<Self, Status> {
        use v1::answer::Verdict;

        let allowed = match answer.verdict() {
            Verdict::Allowed => true,
            Verdict::Denied => false,
            Verdict::Undecided => {
                return Err(answer.error.map_or_else(
                    || Status::internal("the server answered without a verdict"),
                    |error| Status::new(Code::from_i32(error.code), error.message),
                ));
            }
        };
        Ok(Self {
            allowed,
            source: Source::Server,
            delay: duration(answer.delay),
            retry_after: answer.retry_after.map(|wait| duration(Some(wait))),
            limits: answer.limits.into_iter().map(LimitStatus::from_message).collect(),
            degraded: answer.degraded,
            no_answer: None,
            never_because: Some(answer.never_because).filter(|reason| !reason.is_empty()),
        })
    }
}

impl LimitStatus {
    fn from_message(limit: v1::LimitStatus) -> Self {
        Self {
            descriptor: limit.descriptor_index as usize,
            // A newer server may know more of them.
            unit: limit.unit(),
            requests_per_unit: limit.requests_per_unit,
            remaining: limit.remaining,
            reset_after: duration(limit.reset_after),
            retry_after: limit.retry_after.map(|wait| duration(Some(wait))),
            refused: limit.refused,
            refused_in_shadow: limit.refused_in_shadow,
            refused_by_candidate: limit.refused_by_candidate,
            degraded: limit.degraded,
            rule: limit.rule,
        }
    }
}

impl From<Status> for NoAnswer {
    fn from(status: Status) -> Self {
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

/// Absent and negative times are zero.
pub(crate) fn duration(message: Option<prost_types::Duration>) -> Duration {
    message.and_then(|time| Duration::try_from(time).ok()).unwrap_or_default()
}
