//! Checks that a lane decides together: those of a call whose counters can change in one step.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::{
    remote::{CounterChecks, Mode, OpenChecks},
    store::Outcome,
    time::Timestamp,
};

/// Checks that are decided in one step.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) checks: CounterChecks,
    pub(super) mode: Mode,
    /// `None` if nothing waits for the outcomes.
    pub(super) reply: Option<oneshot::Sender<Result<PartOutcomes, Unavailable>>>,
    /// The local instant at which the caller stops waiting.
    pub(super) deadline: Timestamp,
    /// Lost races.
    pub(super) conflicts: u32,
    /// Round trips after which it had to be decided again: lost races and wrong guesses.
    pub(super) rounds: u32,
    /// Whether it was sent already and the answer was lost.
    pub(super) was_lost: bool,
    /// The local instant before which it waits, because another replica has claimed a counter.
    pub(super) not_before: Timestamp,
    // Keeps the checks open, also if the caller has gone.
    pub(super) _open: Option<Arc<OpenChecks>>,
}

impl Part {
    /// A part whose outcomes are sent to `reply`.
    pub(super) fn new(
        checks: CounterChecks,
        mode: Mode,
        reply: Option<oneshot::Sender<Result<PartOutcomes, Unavailable>>>,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> Self {
        Self {
            checks,
            mode,
            reply,
            deadline,
            conflicts: 0,
            rounds: 0,
            was_lost: false,
            not_before: Timestamp::EPOCH,
            _open: open,
        }
    }

    /// Whether nothing waits for the outcomes any more.
    pub(super) fn is_abandoned(&self, local: Timestamp) -> bool {
        self.deadline <= local || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Whether a counter may refuse before and pass after it.
    pub(super) fn may_end_refusals(&self) -> bool {
        match self.mode {
            Mode::DryRun(_) | Mode::Reserve(_) => false,
            Mode::Call(_) | Mode::Each => self.checks.iter().any(|check| check.operation.frees_hits()),
        }
    }
}

/// The outcomes of a part, one for each check. Those of a dry run follow the peeks before it.
pub(super) type PartOutcomes = SmallVec<[Outcome; 1]>;

/// Why the store decides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// It does not answer, or not in time.
    Unreachable,
    /// It refuses to work.
    Refused,
    /// Other replicas changed the counter again and again.
    Contended,
    /// Another version of Tollgate wrote the value.
    Foreign,
}
