//! HTTP headers of replies: the limits, and when to retry.

use tollgate_limiter::limiter::{ActiveView, Answer, Modes, Request, Retry};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

mod policies;
mod retry;
mod settings;
mod structured;
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
}

#[cfg(test)]
mod tests;
