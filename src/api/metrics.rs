//! Metrics of requests over all protocols.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tollgate_counter::{
    metrics::{Histogram, MetricCounter, micros},
    named,
};
use tollgate_telemetry::metrics::metrics;

use crate::api::{
    ApiKind,
    error::{Error, Unanswered},
    failed_calls::FailedCalls,
};

const DURATION_BOUNDS: [Duration; 15] =
    micros([5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000]);
const DELAY_BOUNDS: [Duration; 14] = micros([
    1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000, 60_000_000,
]);

/// Counters and histograms of requests over all protocols.
#[derive(Debug)]
pub struct ApiMetrics {
    /// Time to decide.
    pub duration: Histogram,
    /// Delays that requests were given.
    pub delays: Histogram,
    /// Calls that were answered with an error.
    pub failed_calls: FailedCalls,
    /// Requests to `/check` that lack a header.
    pub(super) missing_headers: MetricCounter,
    // In the order of `OwnLimitResult`.
    own_limits: [MetricCounter; OwnLimitResult::ALL.len()],
    // In the order of `Unanswered`.
    unanswered: [MetricCounter; Unanswered::ALL.len()],
    // In the order of `ApiKind`.
    requests: [MetricCounter; ApiKind::ALL.len()],
    waiting: AtomicU64,
}

metrics! { METRICS: ApiMetrics;
    Counter "tollgate_unanswered_requests_total" ["reason"]
        "Requests answered with an error: no_rules before rules are loaded, joining before owners are known, overloaded by checks that wait for other replicas, owner_unreachable for reservations, invalid if malformed, wrong_token for resets."
        => |all, family| {
            for reason in Unanswered::ALL {
                family.sample(&[reason.name()], all.unanswered(reason));
            }
        };
    Counter "tollgate_failed_calls_total" ["method", "reason"]
        "Calls answered with an error, by the path of their method (other: not served, or of another service) and the reason of docs/api.md or docs/metrics.md."
        => |all, family| {
            for (labels, calls) in all.failed_calls.totals() {
                family.sample(&labels, calls);
            }
        };
    Histogram "tollgate_request_duration_seconds" []
        "Time from reading a request to its decision, without delays of a leaky_queue. Requests of one read batch count with their mean."
        => |all, family| family.buckets(&all.duration.buckets());
    Counter "tollgate_requests_total" ["api"]
        "Requests with a decision or an error, by API: envoy and tollgate.v1 (each question of a stream) over gRPC, json for both as JSON, forward_auth for gateways."
        => |all, family| {
            for api in ApiKind::ALL {
                family.sample(&[api.name()], all.requests(api));
            }
        };
    Counter "tollgate_forward_auth_bad_headers_total" ["reason"]
        "Requests to /check answered 400 because a header of check.descriptors is missing or empty."
        => |all, family| {
            family.sample(&["missing"], all.missing_headers.get());
        };
    Counter "tollgate_own_limit_changes_total" ["result"]
        "Changes of limits of their own: set, cleared, dropped a day after their rule or its window, or refused for this reason."
        => |all, family| {
            for result in OwnLimitResult::ALL {
                family.sample(&[result.name()], all.own_limits(result).get());
            }
        };
    Gauge "tollgate_queue_waiting_requests" []
        "Requests waiting for their turn in a leaky_queue."
        => |all, family| family.value(all.waiting());
    Histogram "tollgate_queue_delay_seconds" []
        "Delays of requests that waited in a leaky_queue."
        => |all, family| family.buckets(&all.delays.buckets());
}

named! {
    /// The result of a change of a limit of its own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OwnLimitResult {
        Set = "set",
        Cleared = "cleared",
        Dropped = "dropped",
        NoOwnLimits = "no_own_limits",
        OutOfBounds = "out_of_bounds",
        OtherVersion = "other_version",
        NoMemory = "no_memory",
        Other = "other",
    }
}

impl OwnLimitResult {
    /// The result of a change that is refused for this reason: they have one name, unless it is `other`.
    pub(super) fn refused(reason: &str) -> Self {
        Self::ALL.into_iter().find(|each| each.name().eq_ignore_ascii_case(reason)).unwrap_or(Self::Other)
    }
}

/// Requests with a reply or an error that are not counted yet.
#[derive(Debug, Default)]
pub(super) struct Uncounted([u32; ApiKind::ALL.len()]);

impl Uncounted {
    pub(super) fn add(&mut self, api: ApiKind) {
        self.0[api as usize] += 1;
    }
}

/// Counts a delayed request until it is dropped.
#[derive(Debug)]
pub(super) struct DelayedCall<'m>(&'m AtomicU64);

impl Default for ApiMetrics {
    fn default() -> Self {
        Self {
            duration: Histogram::new(&DURATION_BOUNDS),
            delays: Histogram::new(&DELAY_BOUNDS),
            failed_calls: FailedCalls::default(),
            missing_headers: MetricCounter::default(),
            own_limits: Default::default(),
            unanswered: Default::default(),
            requests: Default::default(),
            waiting: AtomicU64::new(0),
        }
    }
}

impl ApiMetrics {
    /// Requests of an API that had a reply or an error.
    pub fn requests(&self, api: ApiKind) -> u64 {
        self.requests[api as usize].get()
    }

    /// Counts a request that had a reply or an error after this time.
    pub(super) fn answered(&self, api: ApiKind, duration: Duration) {
        self.requests[api as usize].increase();
        self.duration.record(duration);
    }

    /// Counts requests that were decided together in this time.
    pub(super) fn answered_together(&self, Uncounted(requests): &Uncounted, duration: Duration) {
        for (counter, number) in self.requests.iter().zip(requests).filter(|(_, number)| **number > 0) {
            counter.add(u64::from(*number));
        }
        self.duration.record_mean(duration, requests.iter().sum());
    }

    /// Requests that are delayed now.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that begins its delay.
    pub(super) fn wait(&self, delay: Duration) -> DelayedCall<'_> {
        self.delays.record(delay);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        DelayedCall(&self.waiting)
    }

    /// Changes of limits of their own with this result.
    pub(super) fn own_limits(&self, result: OwnLimitResult) -> &MetricCounter {
        &self.own_limits[result as usize]
    }

    /// Requests that had an error and are counted as this.
    pub fn unanswered(&self, reason: Unanswered) -> u64 {
        self.unanswered[reason as usize].get()
    }

    /// Counts a request that has an error.
    pub(super) fn count_unanswered(&self, error: &Error) {
        if let Some(reason) = error.counted {
            self.unanswered[reason as usize].increase();
        }
    }
}

// A call that the client cancels is no longer delayed either.
impl Drop for DelayedCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
