//! How long something takes, as counts between bounds.

use std::time::Duration;

use crate::telemetry::metrics::ShardedCounters;

/// The most bounds that a histogram can have.
const BOUNDS_MAX: usize = 22;
/// The cell that holds the sum, in nanoseconds.
const SUM: usize = BOUNDS_MAX + 1;

/// Counts lengths of time between bounds.
#[derive(Debug)]
pub struct Histogram {
    // In ascending order, at most `BOUNDS_MAX`.
    bounds: &'static [Duration],
    // One for each bound, one for what is above all of them, and the sum.
    counters: ShardedCounters<{ SUM + 1 }>,
}

/// What a histogram has counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// Each bound in seconds, and how many were not above it.
    pub up_to: Vec<(f64, u64)>,
    /// How many there were in all.
    pub count: u64,
    /// Their sum in seconds.
    pub sum: f64,
}

impl Histogram {
    /// A histogram with these bounds, in ascending order, of which there are at most 22.
    pub const fn new(bounds: &'static [Duration]) -> Self {
        assert!(bounds.len() <= BOUNDS_MAX, "a histogram has at most 22 bounds");
        Self { bounds, counters: ShardedCounters::new() }
    }

    /// Counts one length of time.
    pub fn record(&self, time: Duration) {
        self.record_mean(time, 1);
    }

    /// Counts so many lengths of time by their mean, of which this is the sum.
    pub fn record_mean(&self, sum: Duration, count: u32) {
        let Some(mean) = sum.checked_div(count) else { return };
        let bucket = self.bounds.partition_point(|bound| *bound < mean);
        let shard = self.counters.shard();
        shard.add(bucket, count.into());
        shard.add(SUM, u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX));
    }

    /// What was counted so far.
    pub fn buckets(&self) -> Buckets {
        let sums = self.counters.sums();
        let mut count = 0;
        let mut up_to = Vec::with_capacity(self.bounds.len());
        for (bound, number) in self.bounds.iter().zip(sums) {
            count += number;
            up_to.push((bound.as_secs_f64(), count));
        }
        let sum = Duration::from_nanos(sums[SUM]).as_secs_f64();
        Buckets { up_to, count: count + sums[self.bounds.len()], sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket_and_each_bucket_holds_those_below_it_too() {
        const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
        let histogram = Histogram::new(&BOUNDS);
        for millis in [0, 10, 11, 500, 501, 978] {
            histogram.record(Duration::from_millis(millis));
        }
        let expected = Buckets { up_to: vec![(0.01, 2), (0.5, 4)], count: 6, sum: 2.0 };
        assert_eq!(histogram.buckets(), expected);
    }

    #[test]
    fn several_together_count_by_their_mean_and_none_by_nothing() {
        const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
        let histogram = Histogram::new(&BOUNDS);
        histogram.record_mean(Duration::from_millis(30), 3);
        histogram.record_mean(Duration::from_millis(31), 3);
        histogram.record_mean(Duration::ZERO, 0);
        let expected = Buckets { up_to: vec![(0.01, 3), (0.5, 6)], count: 6, sum: 0.061 };
        assert_eq!(histogram.buckets(), expected);
    }
}
