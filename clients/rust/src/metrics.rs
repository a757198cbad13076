//! What a client counts.

use std::time::Duration;

use tokio::time::Instant;

/// Receives what a client counts. Many tasks call its functions at once; they must neither block nor panic.
pub trait Metrics: Send + Sync {
    /// Called once for each check, with the time that it took.
    fn checked(&self, outcome: Outcome, latency: Duration);
    /// Called for each call to the server with checks, with the number of checks in it.
    fn sent(&self, batch: usize);
    /// Called with the hits of a slice that were not spent and stay charged, because its settlement was lost.
    fn lost(&self, hits: u64);
}

/// Counts nothing.
impl Metrics for () {
    fn checked(&self, _: Outcome, _: Duration) {}
    fn sent(&self, _: usize) {}
    fn lost(&self, _: u64) {}
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The server allowed the request.
    Allowed,
    /// The server denied the request.
    Denied,
    /// The deny cache denied the request.
    DeniedLocally,
    /// A slice of [`PrepaidSlices`](crate::PrepaidSlices) allowed the request.
    Prepaid,
    /// The server did not answer in time or at all, and the default decided.
    NoAnswer,
    /// Too many checks waited for a call, and the default decided.
    QueueFull,
    /// The request is invalid, or the caller dropped the check.
    Failed,
}

impl Outcome {
    /// The name of the outcome, as the value of a label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::DeniedLocally => "denied_locally",
            Self::Prepaid => "prepaid",
            Self::NoAnswer => "no_answer",
            Self::QueueFull => "queue_full",
            Self::Failed => "failed",
        }
    }
}

/// Counts a check when it ends, also if its caller drops it.
pub(crate) struct Measured<'a> {
    metrics: &'a dyn Metrics,
    pub(crate) begin: Instant,
    pub(crate) outcome: Outcome,
}

impl<'a> Measured<'a> {
    /// A check that begins now, and fails unless it gets another outcome.
    pub(crate) fn new(metrics: &'a dyn Metrics) -> Self {
        Self { metrics, begin: Instant::now(), outcome: Outcome::Failed }
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.metrics.checked(self.outcome, self.begin.elapsed());
    }
}
