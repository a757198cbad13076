//! The stats of a run.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;

use crate::bench::frame::AnswerKind;

/// The longest latency that is distinguished, one hour, in nanoseconds; longer ones count as this one.
const LONGEST_NANOS: u64 = 3_600 * 1_000_000_000;
/// The significant digits of a latency.
const DIGITS: u8 = 3;
/// A request sent later than this after it was due counts as late.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// Counts and latencies of the measured requests.
#[derive(Clone, Debug)]
pub(super) struct BenchStats {
    /// Requests sent during the warm-up.
    pub warmup: u64,
    /// Requests sent after the warm-up.
    pub sent: u64,
    pub ok: u64,
    pub over_limit: u64,
    /// Requests that failed, by gRPC code.
    pub errors: BTreeMap<i32, u64>,
    /// Requests sent more than `LATE` after they were due. Open loop only.
    pub late: u64,
    /// The time from when a request was due (open loop) or sent (closed loop) to its end, errors included.
    pub latency: Histogram<u64>,
}

impl BenchStats {
    pub(super) fn new() -> Self {
        let latency =
            Histogram::new_with_bounds(1, LONGEST_NANOS, DIGITS).expect("an hour in three digits fits");
        Self { warmup: 0, sent: 0, ok: 0, over_limit: 0, errors: BTreeMap::new(), late: 0, latency }
    }

    /// Records the end of a measured request.
    pub(super) fn end(&mut self, outcome: AnswerKind, latency: Duration) {
        match outcome {
            AnswerKind::Ok => self.ok += 1,
            AnswerKind::OverLimit => self.over_limit += 1,
            AnswerKind::Failed(code) => *self.errors.entry(code as i32).or_default() += 1,
        }
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Requests with an answer.
    pub(super) fn answered(&self) -> u64 {
        self.ok + self.over_limit
    }

    /// Requests that ended with an error.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Requests that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.answered() + self.failed()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn outcomes_are_counted_and_latencies_kept_to_three_digits() {
        let mut stats = BenchStats::new();
        for (outcome, ms) in [
            (AnswerKind::Ok, 1),
            (AnswerKind::OverLimit, 2),
            (AnswerKind::Failed(Code::Unavailable), 3),
            (AnswerKind::Failed(Code::Unavailable), 5_000),
        ] {
            stats.end(outcome, Duration::from_millis(ms));
        }
        assert_eq!((stats.ok, stats.over_limit, stats.failed(), stats.ended()), (1, 1, 2, 4));
        assert_eq!(stats.errors, BTreeMap::from([(Code::Unavailable as i32, 2)]));
        let longest = stats.latency.max() as f64 / 5e9;
        assert!((longest - 1.0).abs() < 0.001, "{longest}");
    }

    #[test]
    fn latency_beyond_the_longest_counts_as_the_longest() {
        let mut stats = BenchStats::new();
        stats.end(AnswerKind::Ok, Duration::MAX);
        assert_eq!(stats.latency.len(), 1);
    }
}
