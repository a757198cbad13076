//! Decides the check sets of calls, with the store or, while it cannot be used, without.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::{
    algorithm::{Decision, Limit, Operation, Verdict},
    descriptor::Key,
    resilience::{Overloaded, budget},
    rules::OnOwnerUnavailable,
    shared_store::{
        Shared, SharedStore, lock,
        part::{Action, Mode, Outcome, Outcomes, Part, SharedCheck, Unavailable},
    },
    store::{Check, Decisions, OnRefusal, Refusal, RemoteDecisions},
    time::Timestamp,
};

/// The most checks in one call.
const CHECKS_PER_CALL_MAX: usize = 1_024;
/// The most open checks of all calls.
const OPEN_CHECKS_MAX: usize = 32_768;

/// The outcome of a check, and whether it was decided without the store.
#[derive(Clone, Copy, Debug)]
struct Decided {
    outcome: Outcome,
    is_degraded: bool,
}

/// The checks of one call with all that deciding them needs.
struct Call {
    store: Arc<Shared>,
    checks: SmallVec<[SharedCheck; 1]>,
    policies: SmallVec<[OnOwnerUnavailable; 2]>,
    deadline: Timestamp,
    /// The open checks; they are closed when this is dropped.
    open: usize,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.store.open_checks.fetch_sub(self.open, Relaxed);
    }
}

impl SharedStore {
    /// Decides the check set of one call, within half of the caller's `timeout`.
    ///
    /// If the decisions refuse the call as `refusal` says, charges that passed are taken back where their checks say
    /// so. Without the store each check is decided as its policy says.
    pub async fn decide(
        &self,
        checks: &[Check<'_>],
        policies: &[OnOwnerUnavailable],
        timeout: Option<Duration>,
        refusal: Refusal,
    ) -> Result<RemoteDecisions, Overloaded> {
        let local = self.0.local();
        if let [check] = checks
            && let Some(outcome) = self.0.refuse_known(check.key, check.limit, check.operation, local)
        {
            self.0.counts.refused_locally.increase();
            return Ok(decisions(&[Decided { outcome, is_degraded: false }]));
        }
        let deadline = local.after(budget(timeout, self.0.settings.timeout));
        let call = self.call(checks, policies, deadline)?;
        let mut decided = if call.is_one_step() {
            call.decide_in_one_step(refusal.clone()).await
        } else {
            // A task of its own, so that charges are taken back even if the caller goes away.
            let refusal = refusal.clone();
            let task = tokio::spawn(async move { (call.decide_in_steps(&refusal).await, call) });
            let (decided, call) = task.await.expect("the task neither panics nor is cancelled");
            drop(call);
            return Ok(decisions(&decided));
        };
        call.take_back_shares(&mut decided, &refusal);
        Ok(decisions(&decided))
    }

    fn call(
        &self,
        checks: &[Check<'_>],
        policies: &[OnOwnerUnavailable],
        deadline: Timestamp,
    ) -> Result<Call, Overloaded> {
        let open = checks.len();
        if open > CHECKS_PER_CALL_MAX {
            return Err(Overloaded);
        }
        let call = Call {
            store: self.0.clone(),
            checks: checks.iter().map(SharedCheck::of).collect(),
            policies: policies.into(),
            deadline,
            open,
        };
        let before = self.0.open_checks.fetch_add(open, Relaxed);
        if before + open > OPEN_CHECKS_MAX { Err(Overloaded) } else { Ok(call) }
    }
}

impl SharedCheck {
    pub(super) fn of(check: &Check<'_>) -> Self {
        let Check { key, limit, operation, on_refusal } = *check;
        Self { key, limit: limit.clone(), action: Action::Decide(operation), on_refusal }
    }
}

impl Shared {
    /// The refusal of a charge to a counter that is known to be exhausted.
    fn refuse_known(
        &self,
        key: Key,
        limit: &Limit,
        operation: Operation,
        local: Timestamp,
    ) -> Option<Outcome> {
        if !self.is_subscribed.load(Relaxed) {
            return None;
        }
        let (server, given_up) = self.server_now(local)?;
        lock(&self.lanes[self.lane_of(key)]).refuse_known(key, limit, operation, local, server, given_up)
    }

    /// Lets a lane decide checks and waits for the outcomes.
    pub(super) async fn decide_part(
        self: &Arc<Self>,
        checks: SmallVec<[SharedCheck; 1]>,
        mode: Mode,
        deadline: Timestamp,
    ) -> Result<Outcomes, Unavailable> {
        let (reply, outcomes) = oneshot::channel();
        let left = deadline.since(self.local());
        if self.submit(Part::new(checks, mode, Some(reply), deadline)).is_err() {
            return Err(Unavailable::Unreachable);
        }
        match tokio::time::timeout(left, outcomes).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(_)) | Err(_) => Err(Unavailable::Unreachable),
        }
    }

    /// Decides a check without the store.
    fn decide_degraded(&self, check: &SharedCheck, policy: OnOwnerUnavailable) -> Decided {
        self.counts.degraded.increase();
        let plain = |verdict| {
            let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
            (decision, 0)
        };
        let operation = match check.action {
            Action::Decide(operation) => operation,
            Action::Undo(_) | Action::Set(_) | Action::Absorb(_) => Operation::Peek,
        };
        let (decision, charged) = match policy {
            OnOwnerUnavailable::Allow => plain(Verdict::Pass),
            OnOwnerUnavailable::Deny => plain(Verdict::Refuse { retry_after: None }),
            OnOwnerUnavailable::LocalShare => {
                let (replicas, now) = (self.replicas.load(Relaxed), self.degraded_now());
                lock(&self.share).decide(check.key, &check.limit, operation, replicas, now)
            }
        };
        Decided { outcome: Outcome { decision, charged, before: decision }, is_degraded: true }
    }
}

impl Call {
    fn is_one_step(&self) -> bool {
        self.store.is_one_step(self.checks.iter().map(|check| check.key))
    }

    async fn decide_in_one_step(&self, refusal: Refusal) -> SmallVec<[Decided; 2]> {
        match self.store.decide_part(self.checks.clone(), Mode::Call(refusal), self.deadline).await {
            Ok(outcomes) => by_store(outcomes),
            Err(_unavailable) => {
                let degraded = |(check, policy): (&SharedCheck, &OnOwnerUnavailable)| {
                    self.store.decide_degraded(check, *policy)
                };
                self.checks.iter().zip(&self.policies).map(degraded).collect()
            }
        }
    }

    /// Decides checks of several hash slots: a peek predicts whether the call is refused, so that calls which are always
    /// refused leave no trace in other counters. Then all are charged, and taken back if another call was faster.
    async fn decide_in_steps(&self, refusal: &Refusal) -> SmallVec<[Decided; 2]> {
        let all = || 0..self.checks.len();
        let mut skipped: Vec<Option<Decided>> = vec![None; self.checks.len()];
        if all().any(|index| self.takes_back(index)) {
            let peeks = self.apply(all().map(|index| (index, Action::Decide(Operation::Peek)))).await;
            let predicted: Vec<Decision> = all()
                .map(|index| {
                    let operation = self.operation(index);
                    self.checks[index].limit.predict(operation, &peeks[index].outcome.decision)
                })
                .collect();
            if refusal.is_refused(&predicted) {
                for index in all() {
                    if self.takes_back(index) && predicted[index].verdict.passes() {
                        // A peek charges nothing, and its own verdict is for no hits.
                        let decision = predicted[index];
                        let outcome = Outcome { decision, charged: 0, before: decision };
                        skipped[index] = Some(Decided { outcome, ..peeks[index] });
                    }
                }
            }
        }
        let submitted: Vec<usize> = all().filter(|index| skipped[*index].is_none()).collect();
        let charge = |index: &usize| (*index, Action::Decide(self.operation(*index)));
        for (index, decided) in submitted.iter().zip(self.apply(submitted.iter().map(charge)).await) {
            skipped[*index] = Some(decided);
        }
        let mut decided: SmallVec<[Decided; 2]> = skipped.into_iter().flatten().collect();
        let left: Vec<usize> = all().filter(|index| !submitted.contains(index)).collect();
        if !left.is_empty() && !refusal.is_refused(&verdicts(&decided)) {
            for (index, late) in left.iter().zip(self.apply(left.iter().map(charge)).await) {
                decided[*index] = late;
            }
        }
        if refusal.is_refused(&verdicts(&decided)) {
            self.take_back_charges(&mut decided).await;
        }
        self.take_back_shares(&mut decided, refusal);
        decided
    }

    /// Takes charges back that the store has made, and updates what remains.
    async fn take_back_charges(&self, decided: &mut [Decided]) {
        let mut undone = Vec::new();
        for (index, Decided { outcome, is_degraded }) in decided.iter_mut().enumerate() {
            if self.takes_back(index)
                && !*is_degraded
                && let Some(receipt) = outcome.decision.receipt.take()
            {
                outcome.charged = 0;
                undone.push((index, Action::Undo(receipt)));
            }
        }
        let indexes: Vec<usize> = undone.iter().map(|(index, _)| *index).collect();
        for (index, peek) in indexes.into_iter().zip(self.apply(undone.into_iter()).await) {
            if !peek.is_degraded {
                let Decision { remaining, reset_after, .. } = peek.outcome.decision;
                let decision = &mut decided[index].outcome.decision;
                (decision.remaining, decision.reset_after) = (remaining, reset_after);
            }
        }
    }

    /// Takes back what local shares admitted of a refused call.
    fn take_back_shares(&self, decided: &mut [Decided], refusal: &Refusal) {
        if decided.len() < 2
            || decided.iter().all(|decided| !decided.is_degraded)
            || !refusal.is_refused(&verdicts(decided))
        {
            return;
        }
        let (now, replicas) = (self.store.degraded_now(), self.store.replicas.load(Relaxed));
        for (index, Decided { outcome, is_degraded }) in decided.iter_mut().enumerate() {
            if self.takes_back(index)
                && *is_degraded
                && let Some(receipt) = outcome.decision.receipt.take()
            {
                let SharedCheck { key, limit, .. } = &self.checks[index];
                let hits = std::mem::take(&mut outcome.charged);
                lock(&self.store.share).undo(*key, limit, receipt, hits, replicas, now);
            }
        }
    }

    /// Applies actions to some of the checks, those of one hash slot in one step. A check that the store does not decide
    /// is decided without it.
    async fn apply(&self, actions: impl Iterator<Item = (usize, Action)>) -> SmallVec<[Decided; 2]> {
        let mut lanes: Vec<(usize, Vec<usize>, SmallVec<[SharedCheck; 1]>)> = Vec::new();
        let mut count = 0;
        for (index, action) in actions {
            let check = SharedCheck { action, ..self.checks[index].clone() };
            let lane = self.store.lane_of(check.key);
            let position = lanes.iter().position(|(other, _, _)| *other == lane).unwrap_or_else(|| {
                lanes.push((lane, Vec::new(), SmallVec::new()));
                lanes.len() - 1
            });
            lanes[position].1.push(count);
            lanes[position].2.push(check);
            count += 1;
        }
        let outcomes = futures_util::future::join_all(
            lanes
                .iter()
                .map(|(_, _, checks)| self.store.decide_part(checks.clone(), Mode::Each, self.deadline)),
        )
        .await;
        let mut decided: Vec<Option<Decided>> = vec![None; count];
        for ((_, positions, checks), outcomes) in lanes.iter().zip(outcomes) {
            let each: SmallVec<[Decided; 2]> = match outcomes {
                Ok(outcomes) => by_store(outcomes),
                Err(_unavailable) => {
                    let policy = |check: &SharedCheck| {
                        let index = self.checks.iter().position(|other| other.key == check.key);
                        index.map_or(OnOwnerUnavailable::Deny, |index| self.policies[index])
                    };
                    checks.iter().map(|check| self.store.decide_degraded(check, policy(check))).collect()
                }
            };
            for (position, each) in positions.iter().zip(each) {
                decided[*position] = Some(each);
            }
        }
        decided.into_iter().flatten().collect()
    }

    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    fn operation(&self, index: usize) -> Operation {
        match self.checks[index].action {
            Action::Decide(operation) => operation,
            Action::Undo(_) | Action::Set(_) | Action::Absorb(_) => Operation::Peek,
        }
    }
}

fn by_store(outcomes: Outcomes) -> SmallVec<[Decided; 2]> {
    outcomes.into_iter().map(|outcome| Decided { outcome, is_degraded: false }).collect()
}

fn verdicts(decided: &[Decided]) -> SmallVec<[Decision; 2]> {
    decided.iter().map(|decided| decided.outcome.decision).collect()
}

fn decisions(decided: &[Decided]) -> RemoteDecisions {
    let charged = decided.iter().map(|decided| decided.outcome.charged).collect();
    RemoteDecisions {
        decisions: Decisions::new(verdicts(decided), charged),
        degraded: decided.iter().map(|decided| decided.is_degraded).collect(),
    }
}
