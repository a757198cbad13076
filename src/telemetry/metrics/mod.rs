//! Metrics: counters that every thread adds to without contention and that are summed when read.

mod catalog;
pub mod cluster;
mod histogram;
mod process;
mod sharded;
mod text;
mod top_keys;

pub use catalog::{
    ACCEPT_ERRORS, ALL, BUILD_INFO, CANDIDATE_DENIALS, CERTIFICATE_ENDS, CERTIFICATE_ERRORS,
    CERTIFICATES_LOADED, CLOCK_STEPS, CONNECTIONS, CONNECTIONS_ACCEPTED, CONNECTIONS_CLOSED, COUNTER_BYTES,
    COUNTERS, COUNTERS_EVICTED, COUNTERS_REFUSED, DECISIONS, HITS, LOG_LINES_DROPPED, Metric, MetricKind,
    NEAR_LIMIT_HITS, OVERRIDE_DECISIONS, OVERRIDE_HITS, PROCESS_CPU, PROCESS_MEMORY, PROCESS_START,
    QUEUE_DELAY, QUEUE_WAITING, REQUEST_DURATION, RULES, RULES_GENERATION, RULES_INFO, RULES_LOAD_ERRORS,
    RULES_LOADED, RULES_STALE, SHADOW_DENIALS, SHADOW_PASSES, TOP_MISSED, UNANSWERED, UNFINISHED_BYTES,
    UNFINISHED_REFUSED, UNKNOWN_DOMAINS, UNMATCHED, UNSENT_BYTES,
};
pub use histogram::{Buckets, Histogram};
pub use process::ProcessStats;
pub use sharded::{Shard, ShardedCounters};
pub use text::{CONTENT_TYPE, Family, Page};
pub use top_keys::{SpaceSaving, TopKey, TopKeys};

/// A single counter.
#[derive(Debug, Default)]
pub struct Counter(ShardedCounters<1>);

impl Counter {
    /// Adds one.
    pub fn increase(&self) {
        self.add(1);
    }

    /// Adds `number`.
    pub fn add(&self, number: u64) {
        self.0.shard().add(0, number);
    }

    /// The sum over all threads.
    pub fn get(&self) -> u64 {
        let [sum] = self.0.sums();
        sum
    }
}
