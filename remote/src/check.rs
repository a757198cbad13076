//! Operations on counters elsewhere, and their outcomes.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Limit, Operation, Verdict},
    descriptor::Key,
};
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{Check, CounterOperation, LimitOrigin, OnRefusal, OperationOutcome};

/// The policy of operations that only the counter decides.
pub const COUNTER_ONLY: ForwardPolicy =
    ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };

/// An operation on one counter, with all that it needs.
#[derive(Clone, Debug)]
pub struct CounterCheck {
    /// The key of the counter.
    pub key: Key,
    /// The limit that decides.
    pub limit: Limit,
    /// What is asked of the counter.
    pub operation: CounterOperation,
    pub(crate) on_refusal: OnRefusal,
    /// Where the limit comes from.
    pub origin: LimitOrigin,
    /// What happens if the owner is not reached.
    pub policy: ForwardPolicy,
}

/// Operations on several counters.
pub type CounterChecks = SmallVec<[CounterCheck; 1]>;

/// The outcome of an operation on a counter elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteOutcome {
    /// What the operation has come to.
    pub outcome: OperationOutcome,
    /// What has decided the operation.
    pub decided_by: DecidedBy,
}

/// An outcome for each operation, in their order.
pub type RemoteOutcomes = SmallVec<[RemoteOutcome; 1]>;

/// What has decided an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// The counter.
    Counter,
    /// This replica, from a grant or a refusal that the owner has lent or sent.
    Lease,
    /// This replica, because the counter could not be reached.
    Degraded,
    /// Nothing has decided yet: the counter could not be reached in time.
    Nothing,
}

impl RemoteOutcome {
    /// The outcome of an operation that the counter has decided.
    pub fn from_counter(outcome: OperationOutcome) -> Self {
        Self { outcome, decided_by: DecidedBy::Counter }
    }

    /// The outcome of an operation whose counter could not be reached in time. It is decided as its policy says.
    pub fn unreachable() -> Self {
        let verdict = Verdict::Refuse { retry_after: None };
        let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
        Self { outcome: OperationOutcome::new(decision, 0), decided_by: DecidedBy::Nothing }
    }

    /// The outcome of an operation that neither the counter nor a local share decides.
    pub(super) fn without_counter(policy: ForwardPolicy) -> Self {
        let Self { mut outcome, .. } = Self::unreachable();
        match policy.on_owner_unavailable {
            OnOwnerUnavailable::Allow => outcome.decision.verdict = Verdict::Pass,
            OnOwnerUnavailable::LocalShare | OnOwnerUnavailable::Deny => {}
        }
        Self { outcome, decided_by: DecidedBy::Degraded }
    }
}

impl CounterCheck {
    /// The operation of a check.
    pub fn new(check: &Check<'_>, policy: ForwardPolicy) -> Self {
        let Check { key, limit, operation, on_refusal, origin } = *check;
        let operation = CounterOperation::Decide(operation);
        Self { key, limit: limit.clone(), operation, on_refusal, origin, policy }
    }

    /// An operation that only the counter decides.
    pub fn by_counter(key: Key, limit: Limit, operation: CounterOperation) -> Self {
        let origin = LimitOrigin::Rule;
        Self { key, limit, operation, on_refusal: OnRefusal::Keep, origin, policy: COUNTER_ONLY }
    }

    /// A check of another operation on the counter.
    pub fn with(&self, operation: CounterOperation) -> Self {
        Self { operation, ..self.clone() }
    }

    /// The check, if the operation is one of a call.
    pub fn to_check(&self) -> Check<'_> {
        let Self { key, ref limit, on_refusal, origin, .. } = *self;
        let operation = self.operation.properties().decided.unwrap_or(Operation::Peek);
        Check { key, limit, operation, on_refusal, origin }
    }
}
