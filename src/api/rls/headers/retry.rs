//! When to retry a refused request.

use std::time::Duration;

use tollgate_limiter::limiter::{Answer, Modes, Request, Retry};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

use crate::api::rls::headers::{
    settings::HeaderSettings,
    visible::{header, seconds},
};

impl HeaderSettings {
    /// When a refused request may be sent again, as clients are told: not before it would pass. `None` if it passes.
    #[inline]
    pub(in crate::api::rls) fn retry(
        &self,
        answer: &Answer<'_>,
        modes: Modes,
        request: &Request<'_>,
    ) -> Option<Retry> {
        if answer.passes { None } else { Some(self.jittered(answer.retry(modes, request))) }
    }

    /// A later time, at random, so that clients that were refused together do not return together.
    fn jittered(&self, retry: Retry) -> Retry {
        match retry {
            Retry::After(wait) if !self.retry_jitter.is_zero() => {
                Retry::After(wait.saturating_add(self.retry_jitter.mul_f64(rand::random())))
            }
            Retry::After(_) | Retry::Unknown | Retry::Never => retry,
        }
    }

    /// The headers of a refusal.
    pub(super) fn retry_headers(&self, retry: Retry) -> impl Iterator<Item = HeaderValue> {
        let (wait, is_useless) = match retry {
            Retry::After(wait) => (Some(wait), wait > self.ai_retry_max),
            Retry::Unknown => (None, false),
            Retry::Never => (None, true),
        };
        let seconds = wait.filter(|_| self.retry_after).map(seconds);
        let millis = wait.filter(|_| self.ai_retry).map(millis);
        let headers = [
            seconds.map(|seconds| header("Retry-After", seconds.to_string())),
            millis.map(|millis| header("retry-after-ms", millis.to_string())),
            (self.ai_retry && is_useless).then(|| header("x-should-retry", "false".to_owned())),
        ];
        headers.into_iter().flatten()
    }
}

/// Whole milliseconds, rounded up, at least one: clients ignore zero.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000).max(1)
}
