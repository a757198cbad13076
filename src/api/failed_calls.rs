//! Calls that are answered with an error: counted by method and reason, logged within a bound, and told to operators.
//!
//! Envoy lets requests pass whose call has failed, so such calls must not go unnoticed.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    sync::Mutex,
};

use tollgate_counter::{
    lock::lock,
    printable,
    time::{SECOND, Timestamp},
};
use tollgate_telemetry::{logs, sampler::Sampler};
use tollgate_wire::code_name;
use tonic::Code;
use tracing::warn;

use crate::api::{
    call::{CHECK_PATH, CHECK_STREAM_PATH, Method},
    error::Error,
};

const SECONDS: u64 = 60;
/// What is logged of a path or a message, in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// The method of the version before, which Envoy speaks with an old `transport_api_version`.
const V2_PATH: &str = "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit";
/// The reason of a request to `/check` without a header.
pub(super) const BAD_HEADER: &str = "BAD_HEADER";
/// The name of all methods that are not served, and of services such as health.
const OTHER: &str = "other";

/// The failed calls of one method with one reason in the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentFailures {
    pub(super) method: &'static str,
    pub(super) code: Code,
    pub(super) reason: &'static str,
    pub(super) calls: u64,
    /// The caller of the last one.
    pub(super) peer: Option<IpAddr>,
}

/// Failed calls so far.
#[derive(Debug)]
pub struct FailedCalls {
    // By method and reason, both of which the program knows, so their number is bounded.
    each: Mutex<BTreeMap<(&'static str, &'static str), Failures>>,
    sampler: Sampler,
}

#[derive(Debug)]
struct Failures {
    total: u64,
    code: Code,
    peer: Option<IpAddr>,
    // The seconds with calls, and how many each had. Invariant: seconds increase.
    last_minute: VecDeque<(u64, u64)>,
}

impl Default for FailedCalls {
    fn default() -> Self {
        Self { each: Mutex::default(), sampler: Sampler::new(NonZeroU16::MIN) }
    }
}

impl FailedCalls {
    /// Counts a call of the method at `path` that fails at `now`, and logs the first one of each second. `peer` is the
    /// address of the caller; `None` over a Unix socket.
    #[cold]
    pub(super) fn add(&self, path: &str, peer: Option<SocketAddr>, error: &Error, now: Timestamp) {
        let Error { code, reason, .. } = *error;
        let method = method_of(path);
        let second = second_of(now);
        let ip = peer.map(|peer| peer.ip());
        let mut each = lock(&self.each);
        let failures = each.entry((method, reason)).or_insert_with(|| Failures {
            total: 0,
            code,
            peer: ip,
            last_minute: VecDeque::new(),
        });
        failures.total += 1;
        (failures.code, failures.peer) = (code, ip);
        failures.forget(second);
        match failures.last_minute.back_mut() {
            // The clock may have been set back.
            Some((last, calls)) if *last >= second => *calls += 1,
            Some(_) | None => failures.last_minute.push_back((second, 1)),
        }
        drop(each);
        if let Some(left_out) = self.sampler.take(second) {
            warn!(
                name: logs::UNLIMITED,
                // Strings are quoted and escaped, so that a client cannot forge log lines.
                method = cut(path).as_str(),
                code = code_name(code),
                reason,
                message = cut(&error.message).as_str(),
                peer = peer.map(tracing::field::display),
                left_out,
                "call answered with an error"
            );
        }
    }

    /// Method, reason and number of failed calls.
    pub(super) fn totals(&self) -> Vec<([&'static str; 2], u64)> {
        lock(&self.each)
            .iter()
            .map(|((method, reason), failures)| ([*method, *reason], failures.total))
            .collect()
    }

    /// The failures of the last minute, the most frequent ones first.
    pub(super) fn recent(&self, now: Timestamp) -> Vec<RecentFailures> {
        let mut recent = Vec::new();
        for (&(method, reason), failures) in &mut *lock(&self.each) {
            failures.forget(second_of(now));
            let Failures { code, peer, ref last_minute, .. } = *failures;
            let calls = last_minute.iter().map(|(_, calls)| calls).sum();
            if calls > 0 {
                recent.push(RecentFailures { method, code, reason, calls, peer });
            }
        }
        recent.sort_by_key(|failures| std::cmp::Reverse(failures.calls));
        recent
    }
}

impl Failures {
    /// Forgets the seconds that are a minute old at `second`.
    fn forget(&mut self, second: u64) {
        while self.last_minute.front().is_some_and(|(past, _)| past + SECONDS <= second) {
            self.last_minute.pop_front();
        }
    }
}

fn second_of(now: Timestamp) -> u64 {
    now.as_nanos() / SECOND
}

/// The path by which a call is counted.
fn method_of(path: &str) -> &'static str {
    let served = Method::ALL.iter().flat_map(|method| [method.path(), method.json_path()]);
    let others = [CHECK_STREAM_PATH, tollgate_quota::STREAM_PATH, CHECK_PATH, V2_PATH];
    served.chain(others).find(|known| *known == path).unwrap_or(OTHER)
}

/// The begin of a text, without hidden characters.
fn cut(text: &str) -> String {
    printable::escaped(&text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    fn fail(failures: &FailedCalls, path: &str, reason: &'static str, now: Timestamp) {
        failures.add(path, None, &Error::invalid(reason, "why"), now);
    }

    #[test]
    fn failures_are_recent_for_a_minute_and_counted_for_ever() {
        let failures = FailedCalls::default();
        let path = Method::ShouldRateLimit.path();
        let calls_at = |seconds| {
            let recent = failures.recent(NOW.after(Duration::from_secs(seconds)));
            recent.iter().map(|failures| failures.calls).collect::<Vec<_>>()
        };
        for second in [0, 0, 1, 59] {
            fail(&failures, path, "NO_DESCRIPTORS", NOW.after(Duration::from_secs(second)));
        }
        fail(&failures, path, "UNKNOWN_UNIT", NOW);
        assert_eq!(calls_at(59), [4, 1]);
        assert_eq!(calls_at(60), [2]);
        assert_eq!(calls_at(61), [1]);
        assert_eq!(calls_at(119), [] as [u64; 0]);
        assert_eq!(failures.totals(), [([path, "NO_DESCRIPTORS"], 4), ([path, "UNKNOWN_UNIT"], 1)]);
    }

    #[test]
    fn paths_of_clients_are_counted_as_one_method() {
        let failures = FailedCalls::default();
        for number in 0..1_000 {
            fail(&failures, &format!("/any/{number}"), "UNKNOWN_METHOD", NOW);
        }
        fail(&failures, V2_PATH, "UNKNOWN_METHOD", NOW);
        let expected = [([V2_PATH, "UNKNOWN_METHOD"], 1), ([OTHER, "UNKNOWN_METHOD"], 1_000)];
        assert_eq!(failures.totals(), expected);
    }
}
