//! What HTTP and gRPC callers are told of a decision.

use std::time::Duration;

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

use crate::{Decision, Source};

/// The time after which a request may pass that is denied because the server gave no answer.
const NO_ANSWER_WAIT: Duration = Duration::from_secs(1);

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

/// The response to a denied request. Its body is the reason if the request never passes.
pub(crate) fn refusal(decision: &Decision) -> Response<Option<String>> {
    let is_default = decision.source == Source::Default;
    let mut response = Response::new(decision.never_because.clone());
    *response.status_mut() =
        if is_default { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
    add_limit(response.headers_mut(), decision);
    if let Some(wait) = wait_of(decision) {
        response.headers_mut().insert(RETRY_AFTER, seconds(wait).into());
    }
    if decision.never_because.is_some() {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    }
    response
}

/// Whole seconds, rounded up: a caller that waits for them is not refused for waiting too short.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
