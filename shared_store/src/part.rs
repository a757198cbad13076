//! Checks that a lane decides together: those of a call whose counters can change in one step.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tollgate_counter::time::Timestamp;
use tollgate_remote::{CounterChecks, OpenChecks, SubmissionMode};
use tollgate_store::OperationOutcome;

/// Checks that are decided in one step.
#[derive(Debug)]
pub(super) struct BatchPart {
    pub(super) checks: CounterChecks,
    pub(super) mode: SubmissionMode,
    /// `None` if nothing waits for the outcomes.
    pub(super) reply: Option<PartReply>,
    /// The local instant at which the caller stops waiting.
    pub(super) deadline: Timestamp,
    /// Lost races.
    pub(super) conflicts: u32,
    /// Whether it was sent already and the answer was lost.
    pub(super) was_lost: bool,
    /// The local instant before which it waits, because another replica has claimed a counter.
    pub(super) not_before: Timestamp,
    // Keeps the checks open, also if the caller has gone.
    pub(super) open: Option<Arc<OpenChecks>>,
}

/// The outcomes of a part, one for each check. Those of a dry run follow the peeks before it.
pub(super) type PartOutcomes = SmallVec<[OperationOutcome; 1]>;

/// Takes the outcomes of a part; `None` if the store does not decide it.
pub(super) type PartReply = oneshot::Sender<Option<PartOutcomes>>;

impl BatchPart {
    /// A part for whose outcomes nothing waits yet.
    pub(super) fn new(
        checks: CounterChecks,
        mode: SubmissionMode,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> Self {
        let not_before = Timestamp::EPOCH;
        Self { checks, mode, reply: None, deadline, conflicts: 0, was_lost: false, not_before, open }
    }

    /// Whether nothing waits for the outcomes any more.
    pub(super) fn is_abandoned(&self, local: Timestamp) -> bool {
        self.deadline <= local || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Whether a counter may refuse before and pass after it.
    pub(super) fn may_end_refusals(&self) -> bool {
        match self.mode {
            SubmissionMode::DryRun(_) | SubmissionMode::Reserve(_) => false,
            SubmissionMode::Call(_) | SubmissionMode::Each => {
                self.checks.iter().any(|check| check.operation.frees_hits())
            }
        }
    }
}
