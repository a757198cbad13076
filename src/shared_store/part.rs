//! Checks that a lane decides together: those of a call whose counters can change in one step.

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::{
    algorithm::{Counter, Decision, Limit, Operation, Receipt},
    descriptor::Key,
    store::{HoldId, HoldTerms, OnRefusal, Refusal, Settled, rounds::Step},
    time::Timestamp,
};

/// A check that a lane decides, with all that it needs.
#[derive(Clone, Debug)]
pub(super) struct SharedCheck {
    pub(super) key: Key,
    pub(super) limit: Limit,
    pub(super) action: Action,
    pub(super) on_refusal: OnRefusal,
}

/// What a check does to its counter.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// The operation of a caller.
    Decide(Operation),
    /// Take a charge back.
    Undo(Receipt),
    /// Replace the counter by a fresh one with so many hits.
    Set(u64),
    /// Add what was consumed while the store was unreachable.
    Absorb(Counter),
    /// Hold a charge of so many hits.
    Reserve { terms: Box<HoldTerms>, hits: u64 },
    /// Settle a hold.
    SettleHold { id: HoldId, actual: u64 },
    /// Take back what one attempt holds.
    WithdrawHold { id: HoldId, attempt: u64 },
}

impl Action {
    /// The operation of a caller; a peek for all other actions.
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Decide(operation) => *operation,
            Self::Undo(_)
            | Self::Set(_)
            | Self::Absorb(_)
            | Self::Reserve { .. }
            | Self::SettleHold { .. }
            | Self::WithdrawHold { .. } => Operation::Peek,
        }
    }
}

impl From<Step> for Action {
    fn from(step: Step) -> Self {
        match step {
            Step::Decide(operation) => Self::Decide(operation),
            Step::TakeBack(receipt) => Self::Undo(receipt),
        }
    }
}

/// How the checks of a part are decided.
#[derive(Clone, Debug)]
pub(super) enum Mode {
    /// Together: if their decisions refuse the call, charges are taken back as the checks say.
    Call(Refusal),
    /// The same without changing anything.
    DryRun(Refusal),
    /// Reservations: all are held, or none if their decisions refuse the call.
    Reserve(Refusal),
    /// One after the other.
    Each,
}

/// Checks that are decided in one step.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) checks: SmallVec<[SharedCheck; 1]>,
    pub(super) mode: Mode,
    /// `None` if nothing waits for the outcomes.
    pub(super) reply: Option<oneshot::Sender<Result<Outcomes, Unavailable>>>,
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
}

impl Part {
    /// A part whose outcomes are sent to `reply`.
    pub(super) fn new(
        checks: SmallVec<[SharedCheck; 1]>,
        mode: Mode,
        reply: Option<oneshot::Sender<Result<Outcomes, Unavailable>>>,
        deadline: Timestamp,
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
            Mode::Call(_) | Mode::Each => self.checks.iter().any(|check| match check.action {
                Action::Decide(Operation::Refund(_))
                | Action::Undo(_)
                | Action::Set(_)
                | Action::SettleHold { .. }
                | Action::WithdrawHold { .. } => true,
                Action::Decide(Operation::Peek | Operation::Charge(_))
                | Action::Absorb(_)
                | Action::Reserve { .. } => false,
            }),
        }
    }
}

/// The outcomes of a part, one for each check.
pub(super) type Outcomes = SmallVec<[Outcome; 1]>;

/// The outcome of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) decision: Decision,
    /// The hits that were charged.
    pub(super) charged: u64,
    /// The answer to a peek before a dry run; otherwise equal to the decision.
    pub(super) before: Decision,
    /// What became of a hold, beside the decision.
    pub(super) hold: HoldReply,
}

/// What became of a hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum HoldReply {
    /// The decision says it, or there is no hold.
    Decided,
    /// The counter has too many holds.
    Exhausted,
    /// It was settled.
    Settled(Settled),
}

impl Outcome {
    /// The outcome of a decision that has charged so many hits.
    pub(super) fn of(decision: Decision, charged: u64) -> Self {
        Self { decision, charged, before: decision, hold: HoldReply::Decided }
    }
}

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
