//! What carries operations to counters elsewhere.

use std::{
    fmt::Debug,
    pin::Pin,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tollgate_counter::{algorithm::Limit, descriptor::Key};
use tollgate_store::{Check, OwnLimitPage, OwnLimitPosition, Refusal};

use crate::{
    bounds::OpenChecks,
    check::{CounterCheck, CounterChecks, RemoteOutcome, RemoteOutcomes},
    local_share::{LocalShare, LocalShareBasis},
};

/// For so long what a call has left behind is taken back, while its counter cannot be reached.
pub const LATE_MAX: Duration = Duration::from_secs(30);

/// Carries operations to counters elsewhere. Implemented by the cluster and by the shared store.
pub trait Submit: Debug + Send + Sync {
    /// Applies operations, and returns an outcome for each: [`RemoteOutcome::unreachable`] if the counter cannot be
    /// reached in time. `None` if the counters cannot be changed in one step, as the mode demands.
    fn submit(&self, submission: Submission<'_>) -> Option<Outcomes>;

    /// Applies operations for which nothing waits. Withdrawals are repeated until they arrive, at most for
    /// [`LATE_MAX`].
    fn send(&self, checks: CounterChecks);

    /// Takes back hits that were charged to a grant of an owner.
    fn undo_leased(&self, _key: Key, _limit: &Limit, _hits: u64) {}

    /// What this replica has admitted without counters. The store charges it once they are reached, and forgets it with
    /// the secret of its keys.
    fn local_share(&self) -> MutexGuard<'_, LocalShare>;

    /// What the local share depends on. The caller does not hold its lock.
    fn local_share_basis(&self) -> LocalShareBasis;

    /// The refusal of a check whose counter is known to be exhausted.
    fn refuse_known(&self, _check: &Check<'_>) -> Option<RemoteOutcome> {
        None
    }

    /// A part of the list of all limits of their own, of a store that has all counters: those that are found in about
    /// `most` counters after this position. The inner value is `None` if the store cannot be reached.
    fn own_limits(&self, _after: Option<OwnLimitPosition>, _most: usize) -> Option<OwnLimits> {
        None
    }

    /// Which counters are elsewhere.
    fn extent(&self) -> RemoteExtent;

    /// Whether this replica does not know yet where the counters are.
    fn is_joining(&self) -> bool;

    /// The longest time that a call waits.
    fn budget_max(&self) -> Duration;
}

/// The outcomes of a submission, once all are known.
pub type Outcomes = Pin<Box<dyn Future<Output = RemoteOutcomes> + Send>>;

/// A part of a list, once it is known.
pub type OwnLimits = Pin<Box<dyn Future<Output = Option<OwnLimitPage>> + Send>>;

/// Operations that are submitted together: sent at once and awaited together, so the work is linear in their number.
#[derive(Debug)]
pub struct Submission<'c> {
    /// The operations.
    pub checks: &'c [CounterCheck],
    /// Whether the operations wait for one another.
    pub mode: SubmissionMode,
    /// How long the call waits.
    pub within: Duration,
    /// Counts the checks as open. The store drops it when all of them are answered.
    pub open: Option<Arc<OpenChecks>>,
}

/// How the operations of a submission are applied.
#[derive(Clone, Debug)]
pub enum SubmissionMode {
    /// Each operation is applied on its own.
    Each,
    /// The operations are one call: if their decisions refuse it, charges are taken back as the checks say.
    Call(Refusal),
    /// The operations are one call that changes nothing. A peek of each counter is before the outcomes.
    DryRun(Refusal),
    /// Reservations: all are held, or none if their decisions refuse the call.
    Reserve(Refusal),
}

/// Which counters are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteExtent {
    /// The counters of other owners are elsewhere. This replica is itself an owner.
    OtherOwners,
    /// All counters are elsewhere.
    All,
}
