//! The report of a run, as text and as JSON.

use std::{fmt::Write, time::Duration};

use serde_json::{Map, Value, json};
use tonic::Code;

use crate::cli::bench::run::{Callers, LoadModel, Running};

/// The reported quantiles, with their names in text and in JSON.
const QUANTILES: [(f64, &str, &str); 4] =
    [(0.5, "p50", "p50"), (0.9, "p90", "p90"), (0.99, "p99", "p99"), (0.999, "p99.9", "p99_9")];

/// The names of gRPC codes, indexed by code.
const CODES: [&str; 17] = [
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

/// The measurements up to one moment.
pub(super) struct Report {
    callers: Callers,
    time: Duration,
    warmup: u64,
    sent: u64,
    ended: u64,
    ok: u64,
    over_limit: u64,
    errors: Vec<(Code, u64)>,
    open: Option<OpenLoop>,
    /// In nanoseconds; `None` if no request has ended.
    latency: Option<Latency>,
}

/// The measurements of an open loop.
struct OpenLoop {
    rate: u64,
    due: u64,
    late: u64,
}

struct Latency {
    mean: f64,
    quantiles: [u64; QUANTILES.len()],
    max: u64,
}

impl Report {
    /// The measurements of `running` so far.
    pub(super) fn new(callers: Callers, load_model: &LoadModel, running: &Running) -> Self {
        let due = running.due();
        let stats = running.stats();
        let open = match load_model {
            LoadModel::Closed => None,
            LoadModel::Open(schedule) => {
                Some(OpenLoop { rate: schedule.rate(), due: due.unwrap_or(stats.sent), late: stats.late })
            }
        };
        let times = &stats.latency;
        let latency = (!times.is_empty()).then(|| Latency {
            mean: times.mean(),
            quantiles: QUANTILES.map(|(quantile, ..)| times.value_at_quantile(quantile)),
            max: times.max(),
        });
        Self {
            callers,
            time: running.measured(),
            warmup: stats.warmup,
            sent: stats.sent,
            ended: stats.ended(),
            ok: stats.ok,
            over_limit: stats.over_limit,
            errors: stats.errors.iter().map(|(code, number)| (Code::from_i32(*code), *number)).collect(),
            open,
            latency,
        }
    }

    /// Whether any request was answered.
    pub(super) fn answered(&self) -> bool {
        self.ok + self.over_limit > 0
    }

    /// Completed requests per second.
    fn rate(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.ended as f64 / self.time.as_secs_f64() }
    }

    fn failed(&self) -> u64 {
        self.errors.iter().map(|(_, number)| number).sum()
    }

    /// The progress, in one line.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{} s: {:.0} requests a second", self.time.as_secs(), self.rate());
        if let Some(latency) = &self.latency {
            // Writing to a string cannot fail.
            let _ = write!(line, ", p99 {}, max {}", ms(latency.quantiles[2]), ms(latency.max));
        }
        if self.failed() > 0 {
            let _ = write!(line, ", {} errors", self.failed());
        }
        line
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let Callers { connections, streams } = self.callers;
        let mut lines = vec![format!(
            "{:.2} s, connections: {connections}, requests at a time on each: at most {streams}",
            self.time.as_secs_f64()
        )];
        if let Some(OpenLoop { rate, due, late }) = self.open {
            let unsent = due.saturating_sub(self.sent);
            lines.push(format!("due         {due} ({rate} a second), {late} sent late, {unsent} not sent"));
        }
        lines.push(format!("requests    {} ({:.0} a second)", self.ended, self.rate()));
        lines.push(format!("passed      {}", self.ok));
        lines.push(format!("over limit  {}", self.over_limit));
        let errors = self.errors.iter().map(|(code, number)| format!("{} {number}", name(*code)));
        let errors = errors.collect::<Vec<_>>().join(", ");
        lines.push(if errors.is_empty() {
            "errors      0".to_owned()
        } else {
            format!("errors      {} ({errors})", self.failed())
        });
        if self.sent > self.ended {
            lines.push(format!("unanswered  {} when it was ended", self.sent - self.ended));
        }
        if let Some(latency) = &self.latency {
            let quantiles = QUANTILES.iter().zip(latency.quantiles);
            let quantiles: String =
                quantiles.map(|((_, name, _), nanos)| format!("{name} {}, ", ms(nanos))).collect();
            lines.push(format!("latency     {quantiles}max {}", ms(latency.max)));
        }
        lines.join("\n")
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        let errors: Map<_, _> =
            self.errors.iter().map(|(code, number)| (name(*code).to_owned(), json!(number))).collect();
        let latency = self.latency.as_ref().map(|latency| {
            let quantiles = QUANTILES.iter().zip(latency.quantiles);
            let mut fields: Map<_, _> = quantiles
                .map(|((_, _, name), nanos)| ((*name).to_owned(), json!(us(nanos as f64))))
                .collect();
            fields.insert("mean".to_owned(), json!(us(latency.mean)));
            fields.insert("max".to_owned(), json!(us(latency.max as f64)));
            Value::Object(fields)
        });
        let mut whole = json!({
            "loop": if self.open.is_some() { "open" } else { "closed" },
            "connections": self.callers.connections,
            "streams": self.callers.streams,
            "seconds": self.time.as_secs_f64(),
            "warmup_requests": self.warmup,
            "requests": self.ended,
            "requests_per_second": self.rate(),
            "ok": self.ok,
            "over_limit": self.over_limit,
            "errors": errors,
            "unanswered": self.sent - self.ended,
            "latency_us": latency,
        });
        if let Some(OpenLoop { rate, due, late }) = self.open {
            whole["rate"] = json!(rate);
            whole["due"] = json!(due);
            whole["late"] = json!(late);
            whole["unsent"] = json!(due.saturating_sub(self.sent));
        }
        whole
    }
}

fn name(code: Code) -> &'static str {
    CODES.get(code as usize).copied().unwrap_or("UNKNOWN")
}

fn us(nanos: f64) -> f64 {
    (nanos / 100.0).round() / 10.0
}

fn ms(nanos: u64) -> String {
    format!("{:.3} ms", nanos as f64 / 1e6)
}
