//! Calls whose counters are not in this process: of other owners in a cluster, or in a shared store.
//!
//! A [`Submit`] carries operations to counters and brings their outcomes. All else is here, once for every store: the
//! budget of a call, the bounds on open checks, the rounds over several owners, what is taken back, and what is decided
//! without counters that cannot be reached.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bounds::OpenCheckBounds;
use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::Limit,
    descriptor::Key,
    lock::lock,
    resilience::{Caller, Overloaded, budget},
    time::Stopwatch,
};
use tollgate_store::{
    CheckDecision, Checks, CounterOperation, CounterOutcomes, Decisions, OnRefusal, OperationOutcome,
    OwnLimitPosition, Refusal,
};

mod bounds;
mod check;
mod holds;
mod id_share;
mod local_share;
pub mod rounds;
mod submit;

pub use holds::{RemoteHoldError, refund_operations, refunded, settle_operations, settled};
#[cfg(any(test, feature = "testing"))]
pub use holds::{answered, reserve_operations, withdrawals};

pub use bounds::OpenChecks;
pub use check::{COUNTER_ONLY, CounterCheck, CounterChecks, DecidedBy, RemoteOutcome, RemoteOutcomes};
pub use id_share::{ReplicaShare, SentId};
pub use local_share::{Admitted, LocalShare, LocalShareBasis, MEMORY_DIVISOR};
pub use submit::{LATE_MAX, Outcomes, OwnLimits, RemoteExtent, Submission, SubmissionMode, Submit};

/// Calls counters elsewhere. Clones share the bounds on open checks.
#[derive(Clone, Debug)]
pub struct Remote {
    submit: Arc<dyn Submit>,
    bounds: OpenCheckBounds,
    // Whether the local share remembers limits of their own.
    remembers_own: Arc<AtomicBool>,
}

impl Remote {
    /// Calls counters to which `submit` carries operations.
    pub fn new(submit: Arc<dyn Submit>) -> Self {
        Self { submit, bounds: OpenCheckBounds::default(), remembers_own: Arc::default() }
    }

    /// Which counters are elsewhere.
    pub fn extent(&self) -> RemoteExtent {
        self.submit.extent()
    }

    /// Whether this replica does not know yet where the counters are.
    pub fn is_joining(&self) -> bool {
        self.submit.is_joining()
    }

    /// Decides the check set of one call, within half of the caller's `timeout`.
    ///
    /// If `refusal` says that the call as a whole is refused, charges that passed are taken back where their checks say
    /// so. Refunds and overdrafts stay. A check whose counter cannot be reached is decided as its policy says. If the
    /// caller goes away, what its unfinished rounds have charged is taken back.
    ///
    /// On an error nothing was sent: the call has too many checks, or too many are open for its `connection` or for
    /// this replica.
    pub async fn decide(
        &self,
        checks: &[CounterCheck],
        timeout: Option<Duration>,
        connection: &Caller,
        refusal: &Refusal,
    ) -> Result<CounterOutcomes, Overloaded> {
        if let [check] = checks
            && let Some(outcome) = self.submit.refuse_known(&check.to_check())
        {
            return Ok(decisions(&[outcome]));
        }
        if checks.len() == 1 {
            let (open, within) = self.open_checks(checks, timeout, connection)?;
            return Ok(decisions(&self.apply_each(checks, within, open).await));
        }
        let call = self.open(checks, timeout, connection)?;
        // Boxed, so that the future of a single check stays small.
        Ok(decisions(&Box::pin(call.decide_set(refusal)).await))
    }

    /// The decisions that [`Remote::decide`] would return now, after the side data of each counter. Changes nothing.
    /// The decisions are `None` if the counters do not change in one step: then they can be predicted from the peeks.
    /// All is `None` if a counter cannot be reached.
    pub async fn dry_run(
        &self,
        checks: &Checks<'_>,
        refusal: Refusal,
    ) -> Option<(SmallVec<[OperationOutcome; 1]>, Option<Decisions>)> {
        let counters: CounterChecks =
            checks.iter().map(|check| CounterCheck::new(check, COUNTER_ONLY)).collect();
        let call = self.open(&counters, None, &Caller::default()).ok()?;
        let submission = call.submission(&counters, SubmissionMode::DryRun(refusal));
        if let Some(outcomes) = self.submit.submit(submission) {
            let mut shown = by_counters(outcomes.await)?;
            let (_, decided) = shown.split_at_checked(checks.len())?;
            let decisions = decided.iter().map(CheckDecision::from).collect();
            shown.truncate(checks.len());
            return Some((shown, Some(decisions)));
        }
        let show = |check: &CounterCheck| check.with(CounterOperation::Show);
        let peeks: CounterChecks = counters.iter().map(show).collect();
        let shown = by_counters(call.submit(&peeks).await)?;
        Some((shown, None))
    }

    /// Applies operations of operators to one counter. `None` if it cannot be reached.
    pub async fn operate<const N: usize>(
        &self,
        key: Key,
        limit: &Limit,
        operations: [CounterOperation; N],
    ) -> Option<[OperationOutcome; N]> {
        let operations = operations.into_iter().map(|operation| (key, operation));
        self.operate_each(operations, limit).await?.try_into().ok()
    }

    /// Applies an operation of operators to each of these counters. `None` if one cannot be reached.
    pub async fn operate_each(
        &self,
        operations: impl Iterator<Item = (Key, CounterOperation)>,
        limit: &Limit,
    ) -> Option<Vec<OperationOutcome>> {
        let check = |(key, operation)| CounterCheck::by_counter(key, limit.clone(), operation);
        let checks: CounterChecks = operations.map(check).collect();
        let call = self.open(&checks, None, &Caller::default()).ok()?;
        Some(by_counters(call.submit(&checks).await)?.into_vec())
    }

    /// A part of the list of limits of their own of a shared store: see [`Submit::own_limits`].
    pub fn own_limits(&self, after: Option<OwnLimitPosition>, most: usize) -> Option<OwnLimits> {
        self.submit.own_limits(after, most)
    }

    /// Counts the checks as open. Also returns how long their call waits.
    fn open_checks(
        &self,
        checks: &[CounterCheck],
        timeout: Option<Duration>,
        connection: &Caller,
    ) -> Result<(Arc<OpenChecks>, Duration), Overloaded> {
        let open = self.bounds.open(checks.len(), connection)?;
        Ok((Arc::new(open), budget(timeout, self.submit.budget_max())))
    }

    fn open<'r>(
        &'r self,
        checks: &'r [CounterCheck],
        timeout: Option<Duration>,
        connection: &Caller,
    ) -> Result<RemoteCall<'r>, Overloaded> {
        let (open, budget) = self.open_checks(checks, timeout, connection)?;
        let take_backs = TakeBacks { submit: &*self.submit, each: Mutex::default() };
        let started = (checks.len() > 1).then(Stopwatch::start);
        Ok(RemoteCall { remote: self, checks, open, budget, started, take_backs })
    }

    /// Applies operations one after the other.
    async fn apply_each(
        &self,
        checks: &[CounterCheck],
        within: Duration,
        open: Arc<OpenChecks>,
    ) -> RemoteOutcomes {
        let submission = Submission { checks, mode: SubmissionMode::Each, within, open: Some(open) };
        // Each operation changes one counter, so no store refuses this.
        let Some(outcomes) = self.submit.submit(submission) else { return RemoteOutcomes::new() };
        let mut outcomes = outcomes.await;
        self.decide_unreachable(checks, &mut outcomes);
        outcomes
    }

    /// Decides the operations whose counters could not be reached, as their policies say. Remembers the limits of their
    /// own of the others, for the time in which they cannot be reached.
    fn decide_unreachable(&self, checks: &[CounterCheck], outcomes: &mut [RemoteOutcome]) {
        let has_own = |outcome: &RemoteOutcome| outcome.outcome.own.is_some();
        // Without limits of their own no check takes the lock.
        if self.remembers_own.load(Ordering::Relaxed) || outcomes.iter().any(has_own) {
            let is_any = self.submit.local_share().remember_own(checks, outcomes);
            self.remembers_own.store(is_any, Ordering::Relaxed);
        }
        if outcomes.iter().any(|outcome| outcome.decided_by == DecidedBy::Nothing) {
            let basis = self.submit.local_share_basis();
            self.submit.local_share().decide_unreachable(checks, outcomes, basis);
        }
    }
}

/// A call whose counters are elsewhere.
struct RemoteCall<'r> {
    remote: &'r Remote,
    checks: &'r [CounterCheck],
    open: Arc<OpenChecks>,
    budget: Duration,
    // `None` with a single check, which is submitted at once and waits once.
    started: Option<Stopwatch>,
    take_backs: TakeBacks<'r>,
}

impl RemoteCall<'_> {
    fn submission<'c>(&self, checks: &'c [CounterCheck], mode: SubmissionMode) -> Submission<'c> {
        Submission { checks, mode, within: self.time_left(), open: Some(self.open.clone()) }
    }

    fn time_left(&self) -> Duration {
        let waited = self.started.as_ref().map_or(Duration::ZERO, Stopwatch::elapsed);
        self.budget.saturating_sub(waited)
    }

    /// Decides the checks as one call.
    async fn decide_set(self, refusal: &Refusal) -> RemoteOutcomes {
        let submission = self.submission(self.checks, SubmissionMode::Call(refusal.clone()));
        if let Some(outcomes) = self.remote.submit.submit(submission) {
            let mut outcomes = outcomes.await;
            self.remote.decide_unreachable(self.checks, &mut outcomes);
            self.take_back_degraded(&mut outcomes, refusal);
            return outcomes;
        }
        let checks: Checks<'_> = self.checks.iter().map(CounterCheck::to_check).collect();
        let outcomes = rounds::decide(&self, &checks, |each| refusal.is_refused(each)).await;
        self.take_backs.finish();
        outcomes
    }

    /// Applies operations one after the other.
    async fn submit(&self, checks: &[CounterCheck]) -> RemoteOutcomes {
        self.remote.apply_each(checks, self.time_left(), self.open.clone()).await
    }

    /// Takes back what was admitted of a refused call without its counters.
    fn take_back_degraded(&self, outcomes: &mut [RemoteOutcome], refusal: &Refusal) {
        let is_degraded = |outcome: &RemoteOutcome| outcome.decided_by == DecidedBy::Degraded;
        if !outcomes.iter().any(is_degraded) || !refusal.is_refused(&rounds::decisions(outcomes)) {
            return;
        }
        for (check, outcome) in self.checks.iter().zip(outcomes).rev() {
            if is_degraded(outcome) && check.on_refusal == OnRefusal::TakeBack {
                self.take_back_here(check, outcome);
            }
        }
    }

    /// Takes back what a check has charged to something else than its counter: a grant, or the local share.
    fn take_back_here(&self, CounterCheck { key, limit, .. }: &CounterCheck, outcome: &mut RemoteOutcome) {
        match outcome.decided_by {
            DecidedBy::Lease => {
                outcome.outcome.decision.receipt = None;
                self.remote.submit.undo_leased(*key, limit, std::mem::take(&mut outcome.outcome.charged));
            }
            DecidedBy::Degraded => {
                let basis = self.remote.submit.local_share_basis();
                self.remote.submit.local_share().take_back(*key, limit, outcome, basis);
            }
            DecidedBy::Counter | DecidedBy::Nothing => {}
        }
    }
}

impl rounds::CallCounters for RemoteCall<'_> {
    async fn apply(&self, operations: Vec<(usize, CounterOperation)>) -> RemoteOutcomes {
        let checks: CounterChecks =
            operations.into_iter().map(|(index, operation)| self.checks[index].with(operation)).collect();
        let outcomes = self.submit(&checks).await;
        for (check, outcome) in checks.iter().zip(&outcomes) {
            self.take_backs.note(check, outcome);
        }
        outcomes
    }

    fn take_back_here(&self, index: usize, outcome: &mut RemoteOutcome) {
        self.take_back_here(&self.checks[index], outcome);
    }
}

/// What takes back what a call that is under way has charged or reserved. Dropping it before the call is finished sends
/// that.
struct TakeBacks<'r> {
    submit: &'r dyn Submit,
    each: Mutex<CounterChecks>,
}

impl TakeBacks<'_> {
    /// Notes what an operation has charged to its counter.
    fn note(&self, check: &CounterCheck, outcome: &RemoteOutcome) {
        let RemoteOutcome { outcome: OperationOutcome { decision, charged, .. }, decided_by } = outcome;
        let properties = check.operation.properties();
        if let Some(undone) = properties.undone {
            let is_other = |other: &CounterCheck| {
                other.key != check.key || other.operation.properties().undone != Some(undone)
            };
            lock(&self.each).retain(|other| is_other(other));
        }
        if let (Some(_), Some(receipt)) = (properties.decided, decision.receipt)
            && *charged > 0
            && *decided_by == DecidedBy::Counter
            && check.on_refusal == OnRefusal::TakeBack
        {
            lock(&self.each).push(check.with(CounterOperation::Undo(receipt)));
        }
    }

    /// Takes nothing back.
    fn finish(&self) {
        lock(&self.each).clear();
    }
}

impl Drop for TakeBacks<'_> {
    fn drop(&mut self) {
        let left = std::mem::take(&mut *lock(&self.each));
        if !left.is_empty() {
            // Newest first, so that two charges to one counter are undone in reverse order.
            self.submit.send(left.into_iter().rev().collect());
        }
    }
}

/// The outcomes, if the counters have decided all of them.
fn by_counters(outcomes: RemoteOutcomes) -> Option<SmallVec<[OperationOutcome; 1]>> {
    let by_counter = |each: RemoteOutcome| (each.decided_by == DecidedBy::Counter).then_some(each.outcome);
    outcomes.into_iter().map(by_counter).collect()
}

/// The decisions of these outcomes, as those of one check set.
fn decisions(outcomes: &[RemoteOutcome]) -> CounterOutcomes {
    let degraded = outcomes.iter().map(|outcome| outcome.decided_by == DecidedBy::Degraded).collect();
    CounterOutcomes { degraded, ..rounds::decisions(outcomes).into() }
}

#[cfg(test)]
mod tests;
