//! HTTP headers of replies: the limits, and when to retry.

use std::time::Duration;

use tollgate_limiter::limiter::{ActiveView, Answer, Modes, Request, Retry};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

mod policies;
mod settings;
mod visible;

pub use settings::{HeaderSettings, Listed};

use visible::{VisibleLimit, header, seconds, visible};

impl HeaderSettings {
    /// The headers of a reply, with the time that [`HeaderSettings::retry`] has returned.
    #[inline]
    pub(super) fn of(
        &self,
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        modes: Modes,
        retry: Option<Retry>,
    ) -> Vec<HeaderValue> {
        if self.shows_limits() || self.shows_retry() && retry.is_some() {
            self.of_any(view, request, answer, modes, retry)
        } else {
            Vec::new()
        }
    }

    pub(in crate::api) fn shows_limits(&self) -> bool {
        self.x_ratelimit || self.ratelimit || self.ietf.is_some()
    }

    fn shows_retry(&self) -> bool {
        self.retry_after || self.ai_retry
    }

    // `inline(never)`: keeps the stack frame of replies without headers small.
    #[inline(never)]
    fn of_any(
        &self,
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        modes: Modes,
        retry: Option<Retry>,
    ) -> Vec<HeaderValue> {
        let mut headers = Vec::new();
        if let Some(tightest) = visible(answer).min_by_key(|limit| limit.rank(modes)) {
            let VisibleLimit { limit, status, reset_after, .. } = tightest;
            // A request that never passes waits for nothing.
            let reset = (retry != Some(Retry::Never)).then(|| seconds(reset_after));
            let numbers = [Some(limit.requests_per_unit), Some(status.remaining), reset];
            let mut three = |names: [&str; 3]| {
                let numbers = names.iter().zip(numbers);
                headers.extend(numbers.filter_map(|(name, number)| Some(header(name, number?.to_string()))));
            };
            if self.x_ratelimit {
                three(["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]);
            }
            if self.ratelimit {
                three([&self.limit_name, &self.remaining_name, &self.reset_name]);
            }
            let listed = match self.ietf {
                None => Vec::new(),
                Some(Listed::Tightest) => vec![tightest],
                Some(Listed::All) => policies::distinct(visible(answer), modes),
            };
            headers.extend(self.policies(&listed, view, request, answer, modes).into_iter().flatten());
        }
        headers.extend(retry.into_iter().flat_map(|retry| self.retry_headers(retry)));
        headers
    }

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
    fn retry_headers(&self, retry: Retry) -> impl Iterator<Item = HeaderValue> {
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

#[cfg(test)]
mod tests;
