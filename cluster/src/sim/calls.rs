//! Calls of the simulation. Their check sets are decided by the rounds of the product; the world submits the checks.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
};
use tollgate_remote::{
    CounterCheck, CounterChecks, LocalShare, LocalShareBasis, RemoteOutcome, RemoteOutcomes,
    rounds::{self, CallCounters},
};
use tollgate_rules::ForwardPolicy;
use tollgate_store::{Check, CheckDecision, Checks, CounterOperation, HoldTerms, LimitOrigin, OnRefusal};

/// A check of a call.
#[derive(Clone, Debug)]
pub(super) struct TestCheck {
    /// The number of the key, if what it admits is recorded.
    pub(super) number: Option<usize>,
    pub(super) key: Key,
    pub(super) limit: Limit,
    pub(super) operation: Operation,
    pub(super) policy: ForwardPolicy,
}

/// What a call does.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// The call decides the operations of its checks.
    Decide,
    /// The call reserves the hits of its checks.
    Reserve(HoldTerms),
    /// The call repeats the reservation with this number by other terms with the same id.
    ReserveAgain(usize, HoldTerms),
    /// The call settles the reservation with this number at the hits of its checks.
    Settle(usize),
    /// The call settles the reservation with this number once more.
    SettleAgain(usize),
    /// The call makes the change with the second number to the limit of its own of the key with the first one.
    SetLimit(usize, usize),
}

/// A call that is not answered yet.
pub(super) struct OpenCall {
    pub(super) purpose: Purpose,
    pub(super) checks: Vec<TestCheck>,
    pub(super) called_at: u64,
    /// When it was called, or when its replica continued after it was frozen.
    pub(super) waits_since: u64,
    /// The checks whose charges are taken back at their owners.
    pub(super) taken_back: Vec<usize>,
    mailbox: Rc<RefCell<Mailbox>>,
    rounds: Pin<Box<dyn Future<Output = RemoteOutcomes>>>,
    submitted: CounterChecks,
    outcomes: Vec<Option<RemoteOutcome>>,
}

/// What a call waits for.
pub(super) enum Progress {
    /// Nothing: these are its outcomes.
    Finished(RemoteOutcomes),
    /// The outcomes of these operations.
    Submitted(CounterChecks),
}

#[derive(Default)]
struct Mailbox {
    submitted: Vec<(usize, CounterOperation)>,
    /// What the replica takes back itself, each of the check with this index.
    taken_back_here: Vec<(usize, RemoteOutcome)>,
    answered: Option<RemoteOutcomes>,
}

/// Submits by the mailbox that the world empties.
struct ByMailbox(Rc<RefCell<Mailbox>>);

impl CallCounters for ByMailbox {
    async fn apply(&self, operations: Vec<(usize, CounterOperation)>) -> RemoteOutcomes {
        self.0.borrow_mut().submitted = operations;
        poll_fn(|_| self.0.borrow_mut().answered.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    fn take_back_here(&self, index: usize, outcome: &mut RemoteOutcome) {
        self.0.borrow_mut().taken_back_here.push((index, outcome.clone()));
        (outcome.outcome.charged, outcome.outcome.decision.receipt) = (0, None);
    }
}

impl TestCheck {
    /// The check as the store takes it.
    fn of_store(&self) -> Check<'_> {
        let Self { key, ref limit, operation, .. } = *self;
        Check { key, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule }
    }
}

/// The checks as the store takes them.
pub(super) fn of_store(checks: &[TestCheck]) -> Checks<'_> {
    checks.iter().map(TestCheck::of_store).collect()
}

/// Whether a call with these decisions is refused.
pub(super) fn refused(decisions: &[CheckDecision]) -> bool {
    decisions.iter().any(|decision| !decision.verdict.passes())
}

impl OpenCall {
    /// A call of checks with different keys.
    pub(super) fn new(checks: Vec<TestCheck>, called_at: u64) -> Self {
        let mailbox = Rc::new(RefCell::new(Mailbox::default()));
        let submit = ByMailbox(mailbox.clone());
        let owned = checks.clone();
        let rounds = Box::pin(async move { rounds::decide(&submit, &of_store(&owned), refused).await });
        Self::with_rounds(Purpose::Decide, checks, called_at, mailbox, rounds)
    }

    /// A call with one round of operations on reservations.
    pub(super) fn for_holds(
        purpose: Purpose,
        checks: Vec<TestCheck>,
        operations: CounterChecks,
        called_at: u64,
    ) -> Self {
        let mailbox = Rc::new(RefCell::new(Mailbox::default()));
        let submit = ByMailbox(mailbox.clone());
        let operations = operations.into_iter().map(|check| check.operation).enumerate().collect();
        let rounds = Box::pin(async move { submit.apply(operations).await });
        Self::with_rounds(purpose, checks, called_at, mailbox, rounds)
    }

    fn with_rounds(
        purpose: Purpose,
        checks: Vec<TestCheck>,
        called_at: u64,
        mailbox: Rc<RefCell<Mailbox>>,
        rounds: Pin<Box<dyn Future<Output = RemoteOutcomes>>>,
    ) -> Self {
        let waits_since = called_at;
        let taken_back = Vec::new();
        let submitted = CounterChecks::new();
        let outcomes = Vec::new();
        Self { purpose, checks, called_at, waits_since, taken_back, mailbox, rounds, submitted, outcomes }
    }

    /// Continues as far as the outcomes allow. Also returns what the replica takes back itself first.
    pub(super) fn advance(&mut self) -> (Vec<(usize, RemoteOutcome)>, Progress) {
        let polled = self.rounds.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let mut mailbox = self.mailbox.borrow_mut();
        let taken_back_here = std::mem::take(&mut mailbox.taken_back_here);
        let progress = match polled {
            Poll::Ready(outcomes) => Progress::Finished(outcomes),
            Poll::Pending => {
                let submitted = std::mem::take(&mut mailbox.submitted);
                let is_undo = |(_, operation): &&(usize, CounterOperation)| {
                    matches!(operation, CounterOperation::Undo(_))
                };
                self.taken_back.extend(submitted.iter().filter(is_undo).map(|(check, _)| *check));
                self.outcomes = vec![None; submitted.len()];
                let counter_check = |(index, operation): (usize, CounterOperation)| {
                    let TestCheck { policy, .. } = self.checks[index];
                    CounterCheck::new(&self.checks[index].of_store(), policy).with(operation)
                };
                self.submitted = submitted.into_iter().map(counter_check).collect();
                Progress::Submitted(self.submitted.clone())
            }
        };
        (taken_back_here, progress)
    }

    /// Stores the outcome of a submitted operation. Returns all outcomes after the last one; `share` decides the
    /// operations that no owner has decided.
    pub(super) fn complete(
        &mut self,
        operation: u32,
        outcome: RemoteOutcome,
        share: &mut LocalShare,
        standing: LocalShareBasis,
    ) -> Option<RemoteOutcomes> {
        self.outcomes[operation as usize] = Some(outcome);
        if !self.outcomes.iter().all(Option::is_some) {
            return None;
        }
        let mut outcomes: RemoteOutcomes = self.outcomes.drain(..).flatten().collect();
        share.decide_unreachable(&self.submitted, &mut outcomes, standing);
        self.mailbox.borrow_mut().answered = Some(outcomes.clone());
        Some(outcomes)
    }
}
