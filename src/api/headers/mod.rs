//! HTTP headers of replies: the limits, and when to retry. `RateLimit-Policy` and `RateLimit` are those of
//! draft-ietf-httpapi-ratelimit-headers-11.

use std::{cmp::Reverse, collections::HashMap, fmt::Write as _, time::Duration};

use sfv::{ListSerializer, key_ref};
use tollgate_counter::algorithm::{Admission, Limit};
use tollgate_limiter::limiter::{ActiveView, Answer, Modes, Request, Retry, Status};
use tollgate_rules::{DisplayedLimit, Rule};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

/// The most limits in a header. Of more, the tightest ones are listed.
const LISTED_MAX: usize = 32;

/// Which headers replies have. The default is none.
#[derive(Clone, Debug, Default)]
pub struct HeaderSettings {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, or headers with the configured names.
    pub ratelimit: bool,
    /// Name of the limit header.
    pub limit_name: String,
    /// Name of the remaining header.
    pub remaining_name: String,
    /// Name of the reset header.
    pub reset_name: String,
    /// The limits in `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers-11; `None` for
    /// neither.
    pub ietf: Option<Listed>,
    /// The longest time in `RateLimit` and `RateLimit-Policy`; longer ones are left out.
    pub window_max: Duration,
    /// Whether `RateLimit` and `RateLimit-Policy` have a hash of the key of the counter.
    pub partition_key: bool,
    /// `Retry-After`, on denials that end.
    pub retry_after: bool,
    /// The most that is added at random to the time to retry.
    pub retry_jitter: Duration,
    /// `retry-after-ms` and `x-should-retry` on denials, for clients of AI services.
    pub ai_retry: bool,
    /// The longest wait after which these clients are to retry.
    pub ai_retry_max: Duration,
}

/// The limits of a call in `RateLimit` and `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Only the tightest limit of the call.
    Tightest,
    /// All limits of the call.
    All,
}

/// A limit that clients may see.
#[derive(Clone, Copy, Debug)]
struct VisibleLimit<'s> {
    /// The index of the descriptor.
    descriptor: usize,
    status: &'s Status<'s>,
    limit: DisplayedLimit,
    reset_after: Duration,
}

impl HeaderSettings {
    /// The headers of a reply, with the time that [`HeaderSettings::retry`] has returned.
    #[inline]
    pub(super) fn for_reply(
        &self,
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        modes: Modes,
        retry: Option<Retry>,
    ) -> Vec<HeaderValue> {
        if self.shows_limits() || self.shows_retry() && retry.is_some() {
            self.reply_headers(view, request, answer, modes, retry)
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
    fn reply_headers(
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
                Some(Listed::All) => distinct(visible(answer), modes),
            };
            headers.extend(self.policies(&listed, view, request, answer, modes).into_iter().flatten());
        }
        headers.extend(retry.into_iter().flat_map(|retry| self.retry_headers(retry)));
        headers
    }

    /// When a refused request may be sent again, as clients are told: not before it would pass. `None` if it passes.
    #[inline]
    pub(super) fn retry(&self, answer: &Answer<'_>, modes: Modes, request: &Request<'_>) -> Option<Retry> {
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

    /// The two headers for the limits that are `listed`; none without limits.
    fn policies(
        &self,
        listed: &[VisibleLimit<'_>],
        view: &ActiveView<'_>,
        request: &Request<'_>,
        answer: &Answer<'_>,
        modes: Modes,
    ) -> Option<[HeaderValue; 2]> {
        if listed.is_empty() {
            return None;
        }
        let retry = answer.retry(modes, request);
        let mut policies = ListSerializer::new();
        let mut limits = ListSerializer::new();
        for visible in listed {
            let name = string(visible.status.name())?;
            let unit = string(visible.quota_unit())?;
            let partition = self.partition_key.then(|| view.partition_key(request, visible.descriptor));
            let partition = partition.flatten();
            let mut policy = policies.bare_item(&name);
            policy = policy.parameter(key_ref("q"), integer(visible.limit.requests_per_unit));
            if let Some(window) = visible.window().filter(|window| *window <= self.window_max) {
                policy = policy.parameter(key_ref("w"), integer(seconds(window)));
            }
            policy = policy.parameter(key_ref("qu"), &unit);
            let mut limit = limits.bare_item(&name);
            limit = limit.parameter(key_ref("r"), integer(visible.status.remaining));
            let reset = visible.resets_after(answer, retry).map(seconds);
            if let Some(reset) = reset.filter(|reset| *reset <= self.window_max.as_secs()) {
                limit = limit.parameter(key_ref("t"), integer(reset));
            }
            if let Some(key) = &partition {
                policy.parameter(key_ref("pk"), &key[..]);
                limit.parameter(key_ref("pk"), &key[..]);
            }
        }
        Some([header("RateLimit-Policy", policies.finish()?), header("RateLimit", limits.finish()?)])
    }
}

impl VisibleLimit<'_> {
    /// The smaller, the tighter: of denied descriptors the one with the longest wait, otherwise the one with the fewest
    /// remaining hits.
    fn rank(&self, modes: Modes) -> (bool, u64, Reverse<Duration>) {
        let refuses = self.status.refuses_alone(modes);
        (!refuses, self.status.remaining, Reverse(if refuses { self.reset_after } else { Duration::ZERO }))
    }

    /// The window, if it is a whole number of seconds. Places in flight have none.
    fn window(&self) -> Option<Duration> {
        if let Some(unit) = self.limit.unit {
            return Some(Duration::from_secs(unit.seconds().into()));
        }
        let limit = self.rule_limit().filter(|limit| limit.admission() != Admission::InFlight);
        limit.and_then(Limit::period).filter(|period| period.subsec_nanos() == 0)
    }

    /// What the limit counts.
    fn quota_unit(&self) -> &str {
        let named = self.status.rule.and_then(|rule| rule.options().quota_unit.as_deref());
        named.unwrap_or_else(|| match self.rule_limit().map(Limit::admission) {
            Some(Admission::InFlight) => "concurrent-requests",
            Some(Admission::AtOnce | Admission::Delayed) | None => "requests",
        })
    }

    /// A time after which the request passes if it is sent again, as far as one is known. After a refusal it is that of
    /// the request, and limits that have not refused have none: it must be neither earlier nor later than
    /// `Retry-After`.
    fn resets_after(&self, answer: &Answer<'_>, retry: Retry) -> Option<Duration> {
        match retry {
            Retry::After(wait) if answer.passes => Some(self.reset_after.max(wait)),
            Retry::After(wait) if !self.status.passes => Some(wait),
            Retry::After(_) | Retry::Unknown | Retry::Never => None,
        }
    }

    fn rule_limit(&self) -> Option<&Limit> {
        self.status.rule.and_then(Rule::limit)
    }
}

/// The limits that apply, but those that are hidden.
fn visible<'s>(answer: &'s Answer<'_>) -> impl Iterator<Item = VisibleLimit<'s>> {
    answer.statuses.iter().enumerate().filter(|(_, status)| !status.is_hidden()).filter_map(
        |(descriptor, status)| {
            let limit = status.limit?;
            let reset_after = status.reset_after?;
            Some(VisibleLimit { descriptor, status, limit, reset_after })
        },
    )
}

/// Whole seconds, rounded up, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }
}

/// The limits in their order, each name once. Of two with one name, the tighter one.
fn distinct<'s>(visible: impl Iterator<Item = VisibleLimit<'s>>, modes: Modes) -> Vec<VisibleLimit<'s>> {
    let mut listed = Vec::<VisibleLimit<'s>>::new();
    let mut places = HashMap::new();
    for limit in visible {
        let place = *places.entry(limit.status.name()).or_insert(listed.len());
        match listed.get_mut(place) {
            None => listed.push(limit),
            Some(before) if limit.rank(modes) < before.rank(modes) => *before = limit,
            Some(_) => {}
        }
    }
    if listed.len() > LISTED_MAX {
        listed.sort_by_key(|limit| limit.rank(modes));
        listed.truncate(LISTED_MAX);
        listed.sort_by_key(|limit| limit.descriptor);
    }
    listed
}

/// Whole milliseconds, rounded up, at least one: clients ignore zero.
fn millis(time: Duration) -> u128 {
    time.as_nanos().div_ceil(1_000_000).max(1)
}

/// An integer of a structured field, which has at most 15 digits. Larger ones become the largest.
fn integer(number: u64) -> sfv::Integer {
    sfv::Integer::try_from(number).unwrap_or(sfv::Integer::MAX)
}

/// A string of a structured field. It can hold printable ASCII only, so the bytes of other characters, and `%`, are
/// written as `%XX`.
fn string(text: &str) -> Option<sfv::String> {
    let mut string = String::new();
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => string.push(char::from(byte)),
            _other => {
                // Writing to a string does not fail.
                let _ = write!(string, "%{byte:02X}");
            }
        }
    }
    // It has no other characters.
    sfv::String::from_string(string).ok()
}

#[cfg(test)]
mod tests;
