//! What HTTP and gRPC callers are told of a decision.

use std::time::Duration;

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
};

use crate::{Decision, Source};

/// The time after which a request may pass that is denied because the server gave no answer.
const NO_ANSWER_WAIT: Duration = Duration::from_secs(1);

const PROBLEM: &str = "application/problem+json";

/// The time after which a caller of a denied request tries again, if it ever would pass.
pub(crate) fn wait_of(decision: &Decision) -> Option<Duration> {
    let is_default = decision.source == Source::Default;
    let wait = if is_default { Some(NO_ANSWER_WAIT) } else { decision.retry_after };
    wait.filter(|wait| !wait.is_zero())
}

/// Adds the headers of every response to a request with a limit: the tightest one, and what is left of it.
pub(crate) fn add_limit(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(limit) = decision.tightest() {
        headers.insert("ratelimit-limit", limit.requests_per_unit.into());
        headers.insert("ratelimit-remaining", limit.remaining.into());
        // A request that never passes waits for nothing.
        if decision.never_because.is_none() {
            headers.insert("ratelimit-reset", seconds(limit.reset_after).into());
        }
    }
}

/// Why a request is denied, in one line.
pub(crate) fn reason(decision: &Decision) -> &str {
    match decision.source {
        Source::Default => "the rate limiter gave no answer",
        Source::Server | Source::DenyCache | Source::Prepaid => {
            decision.never_because.as_deref().unwrap_or("rate limit exceeded")
        }
    }
}

/// The format of the body of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalFormat {
    Text,
    /// RFC 9457.
    Problem,
}

impl RefusalFormat {
    /// The format for a request with these headers.
    pub(crate) fn accepted(request: &HeaderMap) -> Self {
        let mut accepted = request.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_problem = accepted.any(|value| value.to_ascii_lowercase().contains(PROBLEM));
        if is_problem { Self::Problem } else { Self::Text }
    }
}

/// The response to a denied request. Its body says why.
pub(crate) fn refusal(decision: &Decision, format: RefusalFormat) -> Response<String> {
    let is_default = decision.source == Source::Default;
    let status = if is_default { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
    let reason = reason(decision);
    let (content_type, body) = match format {
        RefusalFormat::Text => ("text/plain; charset=utf-8", reason.to_owned()),
        RefusalFormat::Problem => (PROBLEM, problem(status, reason)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    add_limit(response.headers_mut(), decision);
    if let Some(wait) = wait_of(decision) {
        response.headers_mut().insert(RETRY_AFTER, seconds(wait).into());
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn problem(status: StatusCode, detail: &str) -> String {
    let mut escaped = String::new();
    for character in detail.chars() {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '\0'..' ' => escaped += &format!("\\u{:04x}", u32::from(character)),
            other => escaped.push(other),
        }
    }
    let title = status.canonical_reason().unwrap_or_default();
    format!(r#"{{"title":"{title}","status":{},"detail":"{escaped}"}}"#, status.as_u16())
}

/// Whole seconds, rounded up: a caller that waits for them is not refused for waiting too short.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
