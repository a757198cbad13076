//! Metrics of the rate limit quota service.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tollgate_counter::metrics::{Buckets, MetricCounter};
use tollgate_telemetry::metrics::metrics;

/// What has happened to streams and their buckets.
#[derive(Debug, Default)]
pub(super) struct QuotaStats {
    pub(super) streams: AtomicUsize,
    pub(super) buckets: AtomicUsize,
    pub(super) reports: MetricCounter,
    pub(super) allowed: MetricCounter,
    pub(super) denied: MetricCounter,
    pub(super) assignments: MetricCounter,
    pub(super) abandoned: MetricCounter,
    pub(super) refused_streams: MetricCounter,
    pub(super) invalid: MetricCounter,
    pub(super) unassigned: MetricCounter,
    pub(super) implausible: MetricCounter,
    pub(super) too_many: MetricCounter,
}

/// What is displayed.
#[derive(Clone, Debug, Default)]
pub struct QuotaTotals {
    pub(super) stats: Arc<QuotaStats>,
    pub(super) memory: usize,
    pub(super) divided: usize,
    pub(super) granted_per_second: u64,
    pub(super) granted_hits: u64,
    pub(super) beyond_grant: u64,
    pub(super) visited: u64,
    pub(super) convergence: Buckets,
    pub(super) too_many: u64,
}

metrics! { METRICS: QuotaTotals;
    Gauge "tollgate_rlqs_streams" []
        "Open streams of the rate limit quota service, one for each client."
        => |all, family| family.value(all.stats.streams.load(Ordering::Relaxed));
    Gauge "tollgate_rlqs_buckets" []
        "Buckets of these streams."
        => |all, family| family.value(all.stats.buckets.load(Ordering::Relaxed));
    Gauge "tollgate_rlqs_memory_bytes" []
        "Memory that streams, their buckets and the divisions of these take of rlqs.memory."
        => |all, family| family.value(all.memory);
    Gauge "tollgate_rlqs_divided_counters" []
        "Counters whose limit is divided over buckets."
        => |all, family| family.value(all.divided);
    Gauge "tollgate_rlqs_granted_rate" []
        "Hits a second that buckets may let pass, of limits that are divided as rates."
        => |all, family| family.value(all.granted_per_second);
    Gauge "tollgate_rlqs_granted_hits" []
        "Hits that buckets may still let pass, of limits that are divided into slices."
        => |all, family| family.value(all.granted_hits);
    Counter "tollgate_rlqs_reports_total" []
        "Reports of buckets."
        => |all, family| family.value(all.stats.reports.get());
    Counter "tollgate_rlqs_reported_requests_total" ["outcome"]
        "Requests that clients have reported: allowed or denied."
        => |all, family| {
            family.sample(&["allowed"], all.stats.allowed.get());
            family.sample(&["denied"], all.stats.denied.get());
        };
    Counter "tollgate_rlqs_requests_beyond_grant_total" []
        "Requests that clients have let pass before their first assignment or after the end of one."
        => |all, family| family.value(all.beyond_grant);
    Counter "tollgate_rlqs_division_visits_total" []
        "Buckets that divisions of limits have visited, in this replica: the work that reports cause."
        => |all, family| family.value(all.visited);
    Counter "tollgate_rlqs_assignments_total" []
        "Assignments that were sent, also those that only renew one."
        => |all, family| family.value(all.stats.assignments.get());
    Histogram "tollgate_rlqs_convergence_seconds" []
        "Time from a change of demand or clients until all clients of a rate have been sent their new shares."
        => |all, family| family.buckets(&all.convergence);
    Counter "tollgate_rlqs_abandoned_buckets_total" []
        "Buckets without requests that were abandoned, so that their clients drop them."
        => |all, family| family.value(all.stats.abandoned.get());
    Counter "tollgate_rlqs_refused_total" ["reason"]
        "What was refused: streams and buckets beyond their caller's share of rlqs.memory, buckets beyond its share of the 4,096 places of a limit, reports with invalid keys, reported requests beyond 2^32 - 1, and unassigned: reports of buckets that are charged but get no assignment."
        => |all, family| {
            family.sample(&["streams"], all.stats.refused_streams.get());
            family.sample(&["buckets"], all.too_many);
            family.sample(&["invalid"], all.stats.invalid.get());
            family.sample(&["unassigned"], all.stats.unassigned.get());
            family.sample(&["implausible"], all.stats.implausible.get());
        };
}
