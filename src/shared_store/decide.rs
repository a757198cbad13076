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
        if !call.is_one_step() {
            // A task of its own, so that charges are taken back even if the caller goes away.
            let task = tokio::spawn(async move { call.decide_in_steps(&refusal).await });
            return Ok(decisions(&task.await.expect("the task neither panics nor is cancelled")));
        }
        let mut decided = call.decide_in_one_step(refusal.clone()).await;
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

    fn to_check(&self) -> Check<'_> {
        let Self { key, ref limit, on_refusal, .. } = *self;
        Check { key, limit, operation: self.operation(), on_refusal }
    }

    /// The operation of a caller; a peek for all other actions.
    fn operation(&self) -> Operation {
        match self.action {
            Action::Decide(operation) => operation,
            Action::Undo(_) | Action::Set(_) | Action::Absorb(_) => Operation::Peek,
        }
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
        let (decision, charged) = match policy {
            OnOwnerUnavailable::Allow => plain(Verdict::Pass),
            OnOwnerUnavailable::Deny => plain(Verdict::Refuse { retry_after: None }),
            OnOwnerUnavailable::LocalShare => {
                let (replicas, now) = (self.replicas.load(Relaxed), self.degraded_now());
                lock(&self.share).decide(check.key, &check.limit, check.operation(), replicas, now)
            }
        };
        Decided { outcome: Outcome { decision, charged, before: decision }, is_degraded: true }
    }
}

impl Call {
    fn is_one_step(&self) -> bool {
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

    /// Applies actions to some of the checks, those of one hash slot in one step. A check that the store does not decide
    /// is decided without it.
    async fn apply(&self, actions: impl Iterator<Item = (usize, Action)>) -> rounds::Outcomes<Decided> {
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
            let each: rounds::Outcomes<Decided> = match outcomes {
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
