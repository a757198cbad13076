//! Statistics of the shared store, for the metrics page.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::telemetry::metrics::{Buckets, Histogram};

/// The bounds of the histogram of round trips.
const ROUND_TRIP_BOUNDS: [Duration; 14] = {
    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }
    [
        micros(100),
        micros(200),
        micros(300),
        micros(500),
        micros(700),
        micros(1_000),
        micros(2_000),
        micros(3_000),
        micros(5_000),
        micros(10_000),
        micros(30_000),
        micros(100_000),
        micros(300_000),
        micros(1_000_000),
    ]
};

/// Counts of what happens.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) checks: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) conflicts: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) refused_locally: AtomicU64,
    pub(super) degraded: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) breaker_openings: AtomicU64,
    pub(super) round_trips: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            checks: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            refused_locally: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            late: AtomicU64::new(0),
            breaker_openings: AtomicU64::new(0),
            round_trips: Histogram::new(&ROUND_TRIP_BOUNDS),
        }
    }
}

/// Adds to a count.
pub(super) fn add(count: &AtomicU64, number: u64) {
    count.fetch_add(number, Relaxed);
}

/// Statistics of this replica and its store.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Whether the store can be reached and has shown its secret.
    pub is_ready: bool,
    /// Replicas that use the store, as it last said.
    pub replicas: u32,
    /// Checks that the store decided.
    pub checks: u64,
    /// Batches that were sent; each is one round trip.
    pub batches: u64,
    /// Groups of counters that another replica changed first, so that they were decided again.
    pub conflicts: u64,
    /// Counters that the store lost.
    pub lost: u64,
    /// Checks that were refused by what was known, without asking the store.
    pub refused_locally: u64,
    /// Checks that were decided without the store.
    pub degraded: u64,
    /// Answers that arrived too late and whose charges were taken back.
    pub late: u64,
    /// Times that a circuit breaker opened.
    pub breaker_openings: u64,
    /// Lanes whose circuit breaker is open.
    pub breakers_open: usize,
    /// The durations of round trips.
    pub round_trips: Buckets,
}
