//! What HTTP and gRPC callers are told of a decision.

use std::time::Duration;

use http::{HeaderMap, header::RETRY_AFTER};

use crate::Decision;

/// Adds the headers of every response to a request with a limit: the tightest one, and what is left of it.
pub(crate) fn add_limit(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(limit) = decision.tightest() {
        headers.insert("ratelimit-limit", limit.requests_per_unit.into());
        headers.insert("ratelimit-remaining", limit.remaining.into());
        headers.insert("ratelimit-reset", seconds(limit.reset_after).into());
    }
}

/// Adds the time until a refused request would pass, if it ever would.
pub(crate) fn add_retry_after(headers: &mut HeaderMap, decision: &Decision) {
    if let Some(wait) = decision.retry_after.filter(|wait| !wait.is_zero()) {
        headers.insert(RETRY_AFTER, seconds(wait).into());
    }
}

/// Whole seconds, rounded up: a caller that waits for them is not refused for waiting too short.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
