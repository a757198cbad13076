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
    store::{
        Check, Checks, Decisions, OnRefusal, Refusal, RemoteDecisions,
        rounds::{self, Step, Submit},
    },
    time::Timestamp,
};

/// The most checks in one call.
const CHECKS_PER_CALL_MAX: usize = 1_024;
/// The most open checks of all calls.
const OPEN_CHECKS_MAX: usize = 32_768;

/// The outcome of a check, and whether it was decided without the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    outcome: Outcome,
    is_degraded: bool,
}

/// The indices and the checks of one lane.
pub(super) type LaneChecks = (Vec<usize>, SmallVec<[SharedCheck; 1]>);

/// The checks of one call with all that deciding them needs.
pub(super) struct Call {
    pub(super) store: Arc<Shared>,
    pub(super) checks: SmallVec<[SharedCheck; 1]>,
    policies: SmallVec<[OnOwnerUnavailable; 2]>,
    pub(super) deadline: Timestamp,
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
        let call = self.call(checks.iter().map(SharedCheck::of).collect(), policies, deadline)?;
        if !call.is_one_step() {
            // A task of its own, so that charges are taken back even if the caller goes away.
            let task = tokio::spawn(async move { call.decide_in_steps(&refusal).await });
            return Ok(decisions(&task.await.expect("the task neither panics nor is cancelled")));
        }
        let mut decided = call.decide_in_one_step(refusal.clone()).await;
        call.take_back_shares(&mut decided, &refusal);
        Ok(decisions(&decided))
    }

    pub(super) fn call(
        &self,
        checks: SmallVec<[SharedCheck; 1]>,
        policies: &[OnOwnerUnavailable],
        deadline: Timestamp,
    ) -> Result<Call, Overloaded> {
        let open = checks.len();
        if open > CHECKS_PER_CALL_MAX {
            return Err(Overloaded);
        }
        let call = Call { store: self.0.clone(), checks, policies: policies.into(), deadline, open };
        let before = self.0.open_checks.fetch_add(open, Relaxed);
        if before + open > OPEN_CHECKS_MAX { Err(Overloaded) } else { Ok(call) }
    }
}

impl SharedCheck {
    pub(super) fn of(check: &Check<'_>) -> Self {
        let Check { key, limit, operation, on_refusal } = *check;
        Self { key, limit: limit.clone(), action: Action::Decide(operation), on_refusal }
    }

    fn to_check(&self) -> Check<'_> {
        let Self { key, ref limit, on_refusal, .. } = *self;
        Check { key, limit, operation: self.action.operation(), on_refusal }
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

    /// Lets the lanes decide checks one after the other, those of one lane in one step, and waits for the outcomes.
    pub(super) async fn decide_each(
        self: &Arc<Self>,
        checks: Vec<SharedCheck>,
        deadline: Timestamp,
    ) -> Vec<Result<Outcome, Unavailable>> {
        let mut all: Vec<Result<Outcome, Unavailable>> = vec![Err(Unavailable::Unreachable); checks.len()];
        let lanes = self.by_lane(checks);
        let parts = lanes.iter().map(|(_, checks)| self.decide_part(checks.clone(), Mode::Each, deadline));
        let outcomes = futures_util::future::join_all(parts).await;
        for ((indices, _), outcomes) in lanes.iter().zip(outcomes) {
            match outcomes {
                Ok(outcomes) => {
                    for (index, outcome) in indices.iter().zip(outcomes) {
                        all[*index] = Ok(outcome);
                    }
                }
                Err(unavailable) => {
                    for index in indices {
                        all[*index] = Err(unavailable);
                    }
                }
            }
        }
        all
    }

    /// The checks of each lane, with their indices.
    pub(super) fn by_lane(&self, checks: Vec<SharedCheck>) -> Vec<LaneChecks> {
        let mut lanes: Vec<(usize, LaneChecks)> = Vec::new();
        for (index, check) in checks.into_iter().enumerate() {
            let lane = self.lane_of(check.key);
            let position = lanes.iter().position(|(other, _)| *other == lane).unwrap_or_else(|| {
                lanes.push((lane, LaneChecks::default()));
                lanes.len() - 1
            });
            lanes[position].1.0.push(index);
            lanes[position].1.1.push(check);
        }
        lanes.into_iter().map(|(_, checks)| checks).collect()
    }

    /// Decides a check without the store.
    fn decide_degraded(&self, check: &SharedCheck, policy: OnOwnerUnavailable) -> Decided {
        self.counts.degraded.increase();
        let plain = |verdict| {
            let decision = Decision { verdict, remaining: 0, reset_after: Duration::ZERO, receipt: None };
            (decision, 0)
        };
        let (decision, charged) = match policy {
            OnOwnerUnavailable::Allow => plain(Verdict::Pass),
            OnOwnerUnavailable::Deny => plain(Verdict::Refuse { retry_after: None }),
            OnOwnerUnavailable::LocalShare => {
                let (replicas, now) = (self.replicas.load(Relaxed), self.degraded_now());
                lock(&self.share).decide(check.key, &check.limit, check.action.operation(), replicas, now)
            }
        };
        Decided { outcome: Outcome::of(decision, charged), is_degraded: true }
    }
}

impl Call {
    pub(super) fn is_one_step(&self) -> bool {
        self.store.is_one_step(self.checks.iter().map(|check| check.key))
    }

    async fn decide_in_one_step(&self, refusal: Refusal) -> rounds::Outcomes<Decided> {
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

    /// Decides checks of several hash slots.
    async fn decide_in_steps(&self, refusal: &Refusal) -> rounds::Outcomes<Decided> {
        let checks: Checks<'_> = self.checks.iter().map(SharedCheck::to_check).collect();
        rounds::decide(self, &checks, |decisions| refusal.is_refused(decisions)).await
    }

    /// Takes back what local shares admitted of a refused call.
    fn take_back_shares(&self, decided: &mut [Decided], refusal: &Refusal) {
        let is_degraded = decided.iter().any(|decided| decided.is_degraded);
        if !is_degraded || !refusal.is_refused(&rounds::decisions(decided)) {
            return;
        }
        for (check, decided) in self.checks.iter().zip(decided).rev() {
            if decided.is_degraded && check.on_refusal == OnRefusal::TakeBack {
                self.take_back_share(check.key, &check.limit, decided);
            }
        }
    }

    fn take_back_share(&self, key: Key, limit: &Limit, decided: &mut Decided) {
        let Outcome { decision, charged, .. } = &mut decided.outcome;
        if let Some(receipt) = decision.receipt.take() {
            let (hits, replicas) = (std::mem::take(charged), self.store.replicas.load(Relaxed));
            lock(&self.store.share).undo(key, limit, receipt, hits, replicas, self.store.degraded_now());
        }
    }

    /// Applies actions to some of the checks. A check that the store does not decide is decided without it.
    async fn apply(&self, actions: impl Iterator<Item = (usize, Action)>) -> rounds::Outcomes<Decided> {
        let (indices, checks): (Vec<usize>, Vec<SharedCheck>) = actions
            .map(|(index, action)| (index, SharedCheck { action, ..self.checks[index].clone() }))
            .unzip();
        let outcomes = self.store.decide_each(checks.clone(), self.deadline).await;
        let decided = |((index, check), outcome): ((&usize, &SharedCheck), _)| match outcome {
            Ok(outcome) => Decided { outcome, is_degraded: false },
            Err(_unavailable) => self.store.decide_degraded(check, self.policies[*index]),
        };
        indices.iter().zip(&checks).zip(outcomes).map(decided).collect()
    }
}

impl Submit for Call {
    type Outcome = Decided;

    async fn submit(&self, steps: Vec<(usize, Step)>) -> rounds::Outcomes<Decided> {
        self.apply(steps.into_iter().map(|(index, step)| (index, step.into()))).await
    }

    fn take_back_here(&self, check: &Check<'_>, decided: &mut Decided) {
        self.take_back_share(check.key, check.limit, decided);
    }
}

impl rounds::Outcome for Decided {
    fn decision(&self) -> &Decision {
        &self.outcome.decision
    }

    fn parts_mut(&mut self) -> (&mut Decision, &mut u64) {
        (&mut self.outcome.decision, &mut self.outcome.charged)
    }

    fn is_of_counter(&self) -> bool {
        !self.is_degraded
    }
}

fn by_store(outcomes: Outcomes) -> rounds::Outcomes<Decided> {
    outcomes.into_iter().map(|outcome| Decided { outcome, is_degraded: false }).collect()
}

fn decisions(decided: &[Decided]) -> RemoteDecisions {
    let charged = decided.iter().map(|decided| decided.outcome.charged).collect();
    RemoteDecisions {
        decisions: Decisions::new(rounds::decisions(decided), charged),
        degraded: decided.iter().map(|decided| decided.is_degraded).collect(),
    }
}
