//! Metrics of the rate limit quota service.

use std::sync::atomic::Ordering;

use tollgate_telemetry::metrics::metrics;

use crate::service::QuotaService;

metrics! { METRICS: QuotaService;
    Gauge "tollgate_rlqs_streams" []
        "Open streams of the rate limit quota service, one for each client."
        => |all, family| family.value(all.stats.streams.load(Ordering::Relaxed));
    Gauge "tollgate_rlqs_buckets" []
        "Buckets of these streams."
        => |all, family| family.value(all.stats.buckets.load(Ordering::Relaxed));
    Gauge "tollgate_rlqs_memory_bytes" []
        "Memory that streams, their buckets and the divisions of these take of rlqs.memory."
        => |all, family| family.value(all.memory_bytes());
    Gauge "tollgate_rlqs_divided_counters" []
        "Counters whose limit is divided over buckets."
        => |all, family| family.value(all.dividers.len());
    Gauge "tollgate_rlqs_granted_rate" []
        "Hits a second that buckets may let pass, of limits that are divided as rates."
        => |all, family| family.value(all.dividers.granted().rate.per_second);
    Gauge "tollgate_rlqs_granted_hits" []
        "Hits that buckets may still let pass, of limits that are divided into slices."
        => |all, family| family.value(all.dividers.granted().hits);
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
        => |all, family| family.value(all.dividers.stats().beyond_grant.get());
    Counter "tollgate_rlqs_division_visits_total" []
        "Buckets that divisions of limits have visited, in this replica: the work that reports cause."
        => |all, family| family.value(all.dividers.stats().visited.get());
    Counter "tollgate_rlqs_assignments_total" []
        "Assignments that were sent, also those that only renew one."
        => |all, family| family.value(all.stats.assignments.get());
    Histogram "tollgate_rlqs_convergence_seconds" []
        "Time from a change of demand or clients until all clients of a rate have been sent their new shares."
        => |all, family| family.buckets(&all.dividers.stats().convergence.buckets());
    Counter "tollgate_rlqs_abandoned_buckets_total" []
        "Buckets without requests that were abandoned, so that their clients drop them."
        => |all, family| family.value(all.stats.abandoned.get());
    Counter "tollgate_rlqs_refused_total" ["reason"]
        "What was refused: streams and buckets beyond their caller's share of rlqs.memory, buckets beyond its share of the 4,096 places of a limit, reports with invalid keys, reported requests beyond 2^32 - 1, and unassigned: reports of buckets that are charged but get no assignment."
        => |all, family| {
            family.sample(&["streams"], all.stats.refused_streams.get());
            family.sample(&["buckets"], all.refused_buckets());
            family.sample(&["invalid"], all.stats.invalid.get());
            family.sample(&["unassigned"], all.stats.unassigned.get());
            family.sample(&["implausible"], all.stats.implausible.get());
        };
}
