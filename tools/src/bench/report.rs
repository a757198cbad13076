//! The report of a run, as text and as JSON.

use std::{fmt::Write, time::Duration};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use tollgate_wire::code_name;
use tonic::Code;

use crate::bench::{
    run::{CallerCount, RunState},
    stats::BenchStats,
};

/// The reported quantiles, with their names in text and in JSON.
const QUANTILES: [(f64, &str, &str); 4] =
    [(0.5, "p50", "p50"), (0.9, "p90", "p90"), (0.99, "p99", "p99"), (0.999, "p99.9", "p99_9")];

/// The measurements up to one moment.
pub(super) struct BenchReport {
    callers: CallerCount,
    time: Duration,
    stats: BenchStats,
    // The rate of an open loop, and the requests that were due.
    open: Option<(u64, u64)>,
}

impl BenchReport {
    /// The measurements of a run so far.
    pub(super) fn new(run: &RunState) -> Self {
        let open = run.rate.zip(run.due());
        Self { callers: run.callers, time: run.measured(), stats: run.stats(), open }
    }

    /// Whether any request was answered.
    pub(super) fn answered(&self) -> bool {
        self.stats.answered() > 0
    }

    /// Completed requests per second.
    fn rate(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.stats.ended() as f64 / self.time.as_secs_f64() }
    }

    fn errors(&self) -> impl Iterator<Item = (String, u64)> {
        self.stats.errors.iter().map(|(code, number)| (code_name(Code::from_i32(*code)), *number))
    }

    /// The latencies in nanoseconds, if any request has ended.
    fn latency(&self) -> Option<&Histogram<u64>> {
        Some(&self.stats.latency).filter(|latency| !latency.is_empty())
    }

    /// The progress, in one line.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{} s: {:.0} requests a second", self.time.as_secs(), self.rate());
        if let Some(latency) = self.latency() {
            // Writing to a string cannot fail.
            let _ = write!(line, ", p99 {}, max {}", ms(latency.value_at_quantile(0.99)), ms(latency.max()));
        }
        if self.stats.failed() > 0 {
            let _ = write!(line, ", {} errors", self.stats.failed());
        }
        line
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let CallerCount { connections, streams } = self.callers;
        let mut lines = vec![format!(
            "{:.2} s, connections: {connections}, requests at a time on each: at most {streams}",
            self.time.as_secs_f64()
        )];
        if let Some((rate, due)) = self.open {
            let late = self.stats.late;
            let unsent = due.saturating_sub(self.stats.sent);
            lines.push(format!("due         {due} ({rate} a second), {late} sent late, {unsent} not sent"));
        }
        lines.push(format!("requests    {} ({:.0} a second)", self.stats.ended(), self.rate()));
        lines.push(format!("passed      {}", self.stats.ok));
        lines.push(format!("over limit  {}", self.stats.over_limit));
        let errors = self.errors().map(|(name, number)| format!("{name} {number}"));
        let errors = errors.collect::<Vec<_>>().join(", ");
        lines.push(if errors.is_empty() {
            "errors      0".to_owned()
        } else {
            format!("errors      {} ({errors})", self.stats.failed())
        });
        let unanswered = self.stats.sent - self.stats.ended();
        if unanswered > 0 {
            lines.push(format!("unanswered  {unanswered} when it was ended"));
        }
        if let Some(latency) = self.latency() {
            let quantiles =
                QUANTILES.map(|(at, name, _)| format!("{name} {}, ", ms(latency.value_at_quantile(at))));
            lines.push(format!("latency     {}max {}", quantiles.concat(), ms(latency.max())));
        }
        lines.join("\n")
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        let errors: Map<_, _> = self.errors().map(|(name, number)| (name, json!(number))).collect();
        let latency = self.latency().map(|latency| {
            let mut times = Value::Null;
            for (at, _, name) in QUANTILES {
                times[name] = us(latency.value_at_quantile(at) as f64).into();
            }
            times["mean"] = us(latency.mean()).into();
            times["max"] = us(latency.max() as f64).into();
            times
        });
        let mut whole = json!({
            "loop": if self.open.is_some() { "open" } else { "closed" },
            "connections": self.callers.connections,
            "streams": self.callers.streams,
            "seconds": self.time.as_secs_f64(),
            "warmup_requests": self.stats.warmup,
            "requests": self.stats.ended(),
            "requests_per_second": self.rate(),
            "ok": self.stats.ok,
            "over_limit": self.stats.over_limit,
            "errors": errors,
            "unanswered": self.stats.sent - self.stats.ended(),
            "latency_us": latency,
        });
        if let Some((rate, due)) = self.open {
            whole["rate"] = json!(rate);
            whole["due"] = json!(due);
            whole["late"] = json!(self.stats.late);
            whole["unsent"] = json!(due.saturating_sub(self.stats.sent));
        }
        whole
    }
}

fn us(nanos: f64) -> f64 {
    (nanos / 100.0).round() / 10.0
}

fn ms(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_grpc() {
        let names = [
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        ];
        for (code, expected) in (0..).zip(names) {
            assert_eq!(code_name(Code::from_i32(code)), expected);
        }
    }
}
