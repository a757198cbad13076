//! Counts and times of the measured requests.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency that is distinguished, in nanoseconds.
const LONGEST_NANOS: u64 = 60_000_000_000;

/// Times are relative to the start; a request belongs to the warm-up if it was due during it.
pub struct Stats {
    warmup: Duration,
    due: u64,
    answered: u64,
    failed: u64,
    /// From when a request was due until its answer was read.
    latency: Histogram<u64>,
    /// From when a request was due until its frames were ready to be written.
    late: Histogram<u64>,
}

impl Stats {
    pub fn new(warmup: Duration) -> Self {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NANOS, 3).unwrap();
        Self { warmup, due: 0, answered: 0, failed: 0, latency: histogram(), late: histogram() }
    }

    pub fn due(&mut self, due: Duration) {
        self.due += u64::from(due >= self.warmup);
    }

    pub fn sent(&mut self, due: Duration, now: Duration) {
        if due >= self.warmup {
            self.late.saturating_record(nanos(now.saturating_sub(due)));
        }
    }

    pub fn answered(&mut self, due: Duration, now: Duration) {
        if due >= self.warmup {
            self.answered += 1;
            self.latency.saturating_record(nanos(now.saturating_sub(due)));
        }
    }

    /// An answer without a message, or none because the server has closed the stream.
    pub fn failed(&mut self, due: Duration) {
        self.failed += u64::from(due >= self.warmup);
    }

    /// Times in microseconds.
    pub fn json(&self) -> serde_json::Value {
        let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        serde_json::json!({
            "due": self.due,
            "answered": self.answered,
            "failed": self.failed,
            "p50": us(&self.latency, 0.5),
            "p99": us(&self.latency, 0.99),
            "p99_9": us(&self.latency, 0.999),
            "max": us(&self.latency, 1.0),
            "late_p50": us(&self.late, 0.5),
            "late_p99_9": us(&self.late, 0.999),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
