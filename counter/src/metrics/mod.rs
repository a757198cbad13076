//! Counters and histograms that every thread adds to without contention and that are summed when read.

mod histogram;
mod sharded;
mod top_keys;

pub use histogram::{Buckets, Histogram, micros};
pub use sharded::{CounterShard, ShardedCounters};
pub use top_keys::{SpaceSaving, TopKey, TopKeys};

/// A single counter.
#[derive(Debug, Default)]
pub struct MetricCounter(ShardedCounters<1>);

impl MetricCounter {
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
