//! Statistics of the shared store, for the metrics page.

use std::{sync::Arc, time::Duration};

use tollgate_counter::metrics::{Buckets, MetricCounter, micros};
use tollgate_store::CounterEvents;

/// The bounds of the histogram of round trips.
pub(super) const ROUND_TRIP_BOUNDS: [Duration; 14] = micros([
    100, 200, 300, 500, 700, 1_000, 2_000, 3_000, 5_000, 10_000, 30_000, 100_000, 300_000, 1_000_000,
]);

/// Counts of what happens, to which every part of the store adds.
#[derive(Debug, Default)]
pub struct SharedStoreCounters {
    /// Checks that the store decided.
    pub checks: MetricCounter,
    /// Batches that were sent; each is one round trip.
    pub batches: MetricCounter,
    /// Groups of counters that another replica changed first, so that they were decided again.
    pub conflicts: MetricCounter,
    /// Counters that the store lost.
    pub lost: MetricCounter,
    /// Checks that were refused by what was known, without a request to the store.
    pub refused_locally: MetricCounter,
    /// Answers that arrived too late and whose charges were taken back.
    pub late: MetricCounter,
    /// Times that a circuit breaker opened.
    pub breaker_openings: MetricCounter,
    /// What this replica has done to counters.
    pub events: CounterEvents,
}

/// Statistics of this replica and its store.
#[derive(Clone, Debug)]
pub struct SharedStoreStats {
    /// What is counted.
    pub counts: Arc<SharedStoreCounters>,
    /// Whether the store can be reached and has sent its secret.
    pub is_ready: bool,
    /// Replicas that use the store, as it last said.
    pub replicas: u32,
    /// Checks that were decided without the store.
    pub degraded: u64,
    /// Charges decided without the store that had no memory for their key.
    pub local_share_full: u64,
    /// Lanes whose circuit breaker is open.
    pub breakers_open: usize,
    /// The durations of round trips.
    pub round_trips: Buckets,
}
