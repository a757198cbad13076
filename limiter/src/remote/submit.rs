//! What carries operations to counters elsewhere.

use std::{fmt::Debug, pin::Pin, sync::Arc, time::Duration};

use crate::{
    algorithm::Limit,
    descriptor::Key,
    remote::{
        bounds::OpenChecks,
        check::{CounterChecks, RemoteOutcome, RemoteOutcomes},
    },
    store::{Check, Refusal},
};

/// For so long what a call has left behind is taken back, while its counter cannot be reached.
pub const LATE_MAX: Duration = Duration::from_secs(30);

/// Carries operations to counters elsewhere. Implemented by the cluster and by the shared store.
pub trait Submit: Debug + Send + Sync {
    /// Applies operations, and returns an outcome for each. An operation that no counter decides in time has the outcome
    /// that its policy says. `None` if the counters cannot be changed in one step, as the mode demands.
    fn submit(&self, submission: Submission) -> Option<Outcomes>;

    /// Applies operations for which nothing waits. Withdrawals are repeated until they arrive, at most for
    /// [`LATE_MAX`].
    fn send(&self, checks: CounterChecks);

    /// Takes back what was charged to something else than the counter: a grant, or a local share.
    fn take_back_here(&self, key: Key, limit: &Limit, outcome: &mut RemoteOutcome);

    /// The refusal of a check whose counter is known to be exhausted.
    fn refuse_known(&self, _check: &Check<'_>) -> Option<RemoteOutcome> {
        None
    }

    /// Which counters are elsewhere.
    fn extent(&self) -> Extent;

    /// Whether this replica does not know yet where the counters are.
    fn is_joining(&self) -> bool;

    /// The longest time that a call waits.
    fn budget_max(&self) -> Duration;
}

/// The outcomes of a submission, once all are known.
pub type Outcomes = Pin<Box<dyn Future<Output = RemoteOutcomes> + Send>>;

/// Operations that are submitted together: sent at once and awaited together, so the work is linear in their number.
#[derive(Debug)]
pub struct Submission {
    pub checks: CounterChecks,
    pub mode: Mode,
    /// How long the call waits.
    pub within: Duration,
    /// Counts the checks as open. The store drops it when all of them are answered.
    pub open: Option<Arc<OpenChecks>>,
}

/// How the operations of a submission are applied.
#[derive(Clone, Debug)]
pub enum Mode {
    /// One after the other.
    Each,
    /// As one call: if their decisions refuse it, charges are taken back as the checks say.
    Call(Refusal),
    /// The same without changing anything. A peek of each counter is before the outcomes.
    DryRun(Refusal),
    /// Reservations: all are held, or none if their decisions refuse the call.
    Reserve(Refusal),
}

/// Which counters are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Those of other owners. This replica is an owner, too.
    OtherOwners,
    /// All.
    All,
}
