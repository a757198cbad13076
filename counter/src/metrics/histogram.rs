//! Histograms of durations.

use std::time::Duration;

use crate::metrics::ShardedCounters;

/// The maximum number of bounds.
const BOUNDS_MAX: usize = 22;
/// The index of the counter for the sum, in nanoseconds.
const SUM: usize = BOUNDS_MAX + 1;

/// Counts durations in buckets.
#[derive(Debug)]
pub struct Histogram {
    // Invariant: ascending, at most `BOUNDS_MAX`.
    bounds: &'static [Duration],
    // One counter for each bound, one for longer durations, and the sum.
    counters: ShardedCounters<{ SUM + 1 }>,
}

/// The content of a histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Each bound in seconds, with the number of durations up to it.
    pub up_to: Vec<(f64, u64)>,
    /// The number of durations.
    pub count: u64,
    /// The sum of all durations in seconds.
    pub sum: f64,
}

/// Bounds in microseconds.
pub const fn micros<const N: usize>(numbers: [u64; N]) -> [Duration; N] {
    let mut bounds = [Duration::ZERO; N];
    let mut index = 0;
    while index < N {
        bounds[index] = Duration::from_micros(numbers[index]);
        index += 1;
    }
    bounds
}

impl Histogram {
    /// A histogram with these bounds, in ascending order; at most 22.
    pub const fn new(bounds: &'static [Duration]) -> Self {
        assert!(bounds.len() <= BOUNDS_MAX, "a histogram has at most 22 bounds");
        Self { bounds, counters: ShardedCounters::new() }
    }

    /// Records a duration.
    pub fn record(&self, time: Duration) {
        self.add(time, time, 1);
    }

    /// Records `count` durations, each as the mean of their `sum`.
    pub fn record_mean(&self, sum: Duration, count: u32) {
        if let Some(mean) = sum.checked_div(count) {
            self.add(mean, sum, count);
        }
    }

    fn add(&self, mean: Duration, sum: Duration, count: u32) {
        let bucket = self.bounds.partition_point(|bound| *bound < mean);
        let shard = self.counters.shard();
        shard.add(bucket, count.into());
        shard.add(SUM, u64::try_from(sum.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The content so far.
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
    fn buckets_are_cumulative_and_include_their_bound() {
        const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
        let histogram = Histogram::new(&BOUNDS);
        for millis in [0, 10, 11, 500, 501, 978] {
            histogram.record(Duration::from_millis(millis));
        }
        let expected = Buckets { up_to: vec![(0.01, 2), (0.5, 4)], count: 6, sum: 2.0 };
        assert_eq!(histogram.buckets(), expected);
    }

    #[test]
    fn record_mean_counts_each_at_the_mean_and_ignores_none() {
        const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
        let histogram = Histogram::new(&BOUNDS);
        histogram.record_mean(Duration::from_millis(30), 3);
        histogram.record_mean(Duration::from_millis(31), 3);
        histogram.record_mean(Duration::ZERO, 0);
        let expected = Buckets { up_to: vec![(0.01, 3), (0.5, 6)], count: 6, sum: 0.061 };
        assert_eq!(histogram.buckets(), expected);
    }
}
