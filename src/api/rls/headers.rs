//! HTTP headers of replies: the tightest limit, and when to retry.

use std::{fmt::Write as _, time::Duration};

use tollgate_limiter::{
    limiter::{Answer, CurrentLimit, Modes, Status},
    rules::Allowance,
};

use crate::api::proto::envoy::config::core::v3::HeaderValue;

/// Which headers replies have. The default is none.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// The same three headers without `X-`, or with the names below.
    pub ratelimit: bool,
    /// Name of the limit header.
    pub limit_name: String,
    /// Name of the remaining header.
    pub remaining_name: String,
    /// Name of the reset header.
    pub reset_name: String,
    /// `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers-09.
    pub ietf: bool,
    /// `Retry-After`, on denials that end.
    pub retry_after: bool,
}

/// A descriptor with a limit.
struct LimitedDescriptor<'s> {
    status: &'s Status<'s>,
    limit: &'s CurrentLimit<'s>,
    reset: u64,
}

impl Settings {
    /// The headers of a reply; none if no limit applies.
    pub(super) fn of(&self, answer: &Answer<'_>, modes: Modes) -> Vec<HeaderValue> {
        let mut headers = Vec::new();
        let Some(tightest) = tightest(answer, modes) else { return headers };
        let numbers = [tightest.limit.requests_per_unit, tightest.status.remaining, tightest.reset];
        let mut three = |names: [&str; 3]| {
            headers.extend(names.iter().zip(numbers).map(|(name, number)| header(name, number.to_string())));
        };
        if self.x_ratelimit {
            three(["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]);
        }
        if self.ratelimit {
            three([&self.limit_name, &self.remaining_name, &self.reset_name]);
        }
        if self.ietf {
            let (left, reset) = (tightest.status.remaining, tightest.reset);
            let left = format!("{};r={left};t={reset}", quoted(tightest.status.name()));
            headers.push(header("RateLimit-Policy", policies(answer)));
            headers.push(header("RateLimit", left));
        }
        if let (true, Some(wait)) = (self.retry_after, answer.retry_after(modes)) {
            headers.push(header("Retry-After", seconds(wait).to_string()));
        }
        headers
    }
}

/// The limit to report: of denied descriptors the one with the longest wait, otherwise the one with the fewest
/// remaining hits. The first one wins a tie.
fn tightest<'s>(answer: &'s Answer<'_>, modes: Modes) -> Option<LimitedDescriptor<'s>> {
    limited(answer).reduce(|best, next| {
        let rank = |each: &LimitedDescriptor<'_>| (!each.status.refuses_alone(modes), each.status.remaining);
        let tighter = rank(&next) < rank(&best)
            || (rank(&next) == rank(&best) && next.status.refuses_alone(modes) && next.reset > best.reset);
        if tighter { next } else { best }
    })
}

fn limited<'s>(answer: &'s Answer<'_>) -> impl Iterator<Item = LimitedDescriptor<'s>> {
    answer.statuses.iter().filter_map(|status| {
        let reset = seconds(status.reset_after?);
        Some(LimitedDescriptor { status, limit: status.limit.as_ref()?, reset })
    })
}

/// All limits that apply, with their window if it is a whole number of seconds.
fn policies(answer: &Answer<'_>) -> String {
    let mut policies = String::new();
    for LimitedDescriptor { status, limit, .. } in limited(answer) {
        let separator = if policies.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(policies, "{separator}{};q={}", quoted(status.name()), limit.requests_per_unit);
        if let Some(window) = window(status, limit) {
            let _ = write!(policies, ";w={window}");
        }
    }
    policies
}

fn window(status: &Status<'_>, limit: &CurrentLimit<'_>) -> Option<u64> {
    let of_rule = || match &status.rule?.allowance {
        Allowance::Unlimited => None,
        Allowance::Limited(limit) => limit.period().filter(|period| period.subsec_nanos() == 0),
    };
    match limit.unit {
        Some(unit) => Some(unit.seconds().into()),
        None => of_rule().map(|period| period.as_secs()),
    }
}

/// A string of structured fields (RFC 9651), which is limited to printable ASCII: other characters become `?`.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _unprintable => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

/// Whole seconds, rounded up, at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }
}
