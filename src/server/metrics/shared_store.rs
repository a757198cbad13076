//! The metrics of a replica with a shared store.

use tollgate_shared_store::SharedStoreStats;
use tollgate_telemetry::metrics::metrics;

metrics! { SharedStoreStats;
    Gauge "tollgate_store_ready" []
        "1 while the shared store can be used, otherwise 0."
        => |stats, family| family.value(u8::from(stats.is_ready));
    Gauge "tollgate_store_replicas" []
        "Replicas that use the shared store, as it last said."
        => |stats, family| family.value(stats.replicas);
    Counter "tollgate_store_checks_total" []
        "Checks decided with the shared store."
        => |stats, family| family.value(stats.counts.checks.get());
    Counter "tollgate_store_batches_total" []
        "Batches of checks sent to the shared store; each is one round trip."
        => |stats, family| family.value(stats.counts.batches.get());
    Histogram "tollgate_store_round_trip_seconds" []
        "Time from sending a batch to its answer."
        => |stats, family| family.buckets(&stats.round_trips);
    Counter "tollgate_store_conflicts_total" []
        "Counters decided again because another replica changed them first."
        => |stats, family| family.value(stats.counts.conflicts.get());
    Counter "tollgate_store_refused_locally_total" []
        "Checks refused by the last known value of their counter, without asking the shared store."
        => |stats, family| family.value(stats.counts.refused_locally.get());
    Counter "tollgate_store_degraded_checks_total" []
        "Checks decided without the shared store, because it could not be used in time."
        => |stats, family| family.value(stats.degraded);
    Counter "tollgate_store_local_share_full_total" []
        "Charges decided without the shared store for whose keys local shares had no memory; store.on_full decided."
        => |stats, family| family.value(stats.local_share_full);
    Counter "tollgate_store_late_answers_total" []
        "Calls whose answer of the shared store arrived too late and whose charges were taken back."
        => |stats, family| family.value(stats.counts.late.get());
    Counter "tollgate_store_breaker_openings_total" []
        "Times that a circuit breaker opened for half a second after a failed batch."
        => |stats, family| family.value(stats.counts.breaker_openings.get());
    Gauge "tollgate_store_breakers_open" []
        "Circuit breakers that are open; a cluster of servers has one for each of 4,096 parts of the keys."
        => |stats, family| family.value(stats.breakers_open);
    Counter "tollgate_store_lost_counters_total" []
        "Counters in use that the shared store has lost, as far as this replica noticed."
        => |stats, family| family.value(stats.counts.lost.get());
}
