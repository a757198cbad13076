//! Carries operations to the counters in the store, and decides without the store while it cannot be used.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    algorithm::Limit,
    descriptor::Key,
    remote::{
        CounterCheck, CounterChecks, DecidedBy, Extent, Mode, OpenChecks, Outcomes, RemoteOutcome,
        Submission, Submit, lock, rounds::RemoteOutcomes,
    },
    rules::OnOwnerUnavailable,
    shared_store::{
        Shared, SharedStore,
        part::{Part, PartOutcomes, Unavailable},
    },
    store::{Check, CounterOperation, HoldOutcome},
    time::Timestamp,
};

/// For so long a withdrawal is repeated while the store does not answer. Then the expiry ends what is held.
const WITHDRAWAL_MAX: Duration = Duration::from_secs(30);
/// How often it is repeated.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_millis(250);
/// The most withdrawals that are open. The expiry ends what others would take back.
const WITHDRAWALS_MAX: usize = 1_024;
/// How long a charge may be taken back for which no caller waits.
const LATE_MAX: Duration = Duration::from_secs(30);

impl Submit for SharedStore {
    fn submit(&self, Submission { checks, mode, within, open }: Submission) -> Option<Outcomes> {
        let store = self.0.clone();
        let deadline = store.local().after(within);
        let is_one_step = store.is_one_step(checks.iter().map(|check| check.key));
        match mode {
            _ if checks.is_empty() => Some(Box::pin(async { RemoteOutcomes::new() })),
            Mode::Each if !is_one_step => {
                Some(Box::pin(async move { store.apply_by_lane(checks, deadline, open).await }))
            }
            Mode::Call(_) | Mode::DryRun(_) | Mode::Reserve(_) if !is_one_step => None,
            mode => Some(Box::pin(async move { store.apply(checks, mode, deadline, open).await })),
        }
    }

    fn send(&self, checks: CounterChecks) {
        // At the end of the process no lane can be driven.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let is_withdrawal =
            |check: &CounterCheck| matches!(check.operation, CounterOperation::Withdraw { .. });
        let (withdrawals, others): (CounterChecks, CounterChecks) =
            checks.into_iter().partition(is_withdrawal);
        self.0.take_back_late(others);
        if !withdrawals.is_empty() {
            let store = self.0.clone();
            if store.open_withdrawals.fetch_add(1, Relaxed) < WITHDRAWALS_MAX {
                tokio::spawn(async move {
                    store.withdraw(withdrawals).await;
                    store.open_withdrawals.fetch_sub(1, Relaxed);
                });
            } else {
                store.open_withdrawals.fetch_sub(1, Relaxed);
            }
        }
    }

    fn take_back_here(&self, key: Key, limit: &Limit, outcome: &mut RemoteOutcome) {
        let store = &self.0;
        if let Some(receipt) = outcome.outcome.decision.receipt.take() {
            let hits = std::mem::take(&mut outcome.outcome.charged);
            let (replicas, now) = (store.replicas.load(Relaxed), store.degraded_now());
            lock(&store.share).undo(key, limit, receipt, hits, replicas, now);
        }
    }

    fn refuse_known(&self, check: &Check<'_>) -> Option<RemoteOutcome> {
        let store = &self.0;
        if !store.is_subscribed.load(Relaxed) {
            return None;
        }
        let local = store.local();
        let (server, given_up) = store.server_now(local)?;
        let Check { key, limit, operation, .. } = check;
        let mut lane = lock(&store.lanes[store.lane_of(*key)]);
        let outcome = lane.refuse_known(*key, limit, *operation, local, server, given_up)?;
        store.counts.refused_locally.increase();
        Some(RemoteOutcome::of_counter(outcome))
    }

    fn extent(&self) -> Extent {
        Extent::All
    }

    fn is_joining(&self) -> bool {
        false
    }

    fn budget_max(&self) -> Duration {
        self.0.settings.timeout
    }
}

impl Shared {
    /// Lets a lane apply operations in one step, and waits for the outcomes. Those that the store does not apply are
    /// decided without it.
    async fn apply(
        self: &Arc<Self>,
        checks: CounterChecks,
        mode: Mode,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> RemoteOutcomes {
        match self.decide_part(checks.clone(), mode, deadline, open).await {
            Ok(outcomes) => {
                let is_exhausted = outcomes.iter().any(|outcome| outcome.hold == HoldOutcome::Exhausted);
                self.counts.holds_exhausted.add(is_exhausted.into());
                outcomes.into_iter().map(RemoteOutcome::of_counter).collect()
            }
            Err(_unavailable) => checks.iter().map(|check| self.decide_degraded(check)).collect(),
        }
    }

    /// Lets the lanes apply operations, those of one lane in one step, and waits for the outcomes.
    async fn apply_by_lane(
        self: &Arc<Self>,
        checks: CounterChecks,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> RemoteOutcomes {
        let mut lanes: Vec<(usize, Vec<usize>, CounterChecks)> = Vec::new();
        let mut all: RemoteOutcomes =
            checks.iter().map(|check| RemoteOutcome::without_counter(check.policy)).collect();
        for (index, check) in checks.into_iter().enumerate() {
            let lane = self.lane_of(check.key);
            let position = lanes.iter().position(|(other, ..)| *other == lane).unwrap_or_else(|| {
                lanes.push((lane, Vec::new(), CounterChecks::new()));
                lanes.len() - 1
            });
            lanes[position].1.push(index);
            lanes[position].2.push(check);
        }
        let parts = lanes.into_iter().map(|(_, indices, checks)| {
            let outcomes = self.apply(checks, Mode::Each, deadline, open.clone());
            async move { (indices, outcomes.await) }
        });
        for (indices, outcomes) in futures_util::future::join_all(parts).await {
            indices.into_iter().zip(outcomes).for_each(|(index, outcome)| all[index] = outcome);
        }
        all
    }

    /// Lets a lane decide checks and waits for the outcomes.
    pub(super) async fn decide_part(
        self: &Arc<Self>,
        checks: CounterChecks,
        mode: Mode,
        deadline: Timestamp,
        open: Option<Arc<OpenChecks>>,
    ) -> Result<PartOutcomes, Unavailable> {
        let (reply, outcomes) = oneshot::channel();
        let left = deadline.since(self.local());
        if self.submit(Part::new(checks, mode, Some(reply), deadline, open)).is_err() {
            return Err(Unavailable::Unreachable);
        }
        match tokio::time::timeout(left, outcomes).await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(_)) | Err(_) => Err(Unavailable::Unreachable),
        }
    }

    /// Decides a check without the store.
    fn decide_degraded(&self, check: &CounterCheck) -> RemoteOutcome {
        let CounterCheck { key, limit, operation, policy, .. } = check;
        // Without the store a hold fails, and nothing is decided.
        self.counts.degraded.add((!operation.needs_counter()).into());
        match policy.on_owner_unavailable {
            OnOwnerUnavailable::LocalShare => {
                let (replicas, now) = (self.replicas.load(Relaxed), self.degraded_now());
                let (decision, charged) =
                    lock(&self.share).decide(*key, limit, operation.of_call(), replicas, now);
                RemoteOutcome::degraded(decision, charged)
            }
            OnOwnerUnavailable::Allow | OnOwnerUnavailable::Deny => RemoteOutcome::without_counter(*policy),
        }
    }

    /// Takes charges back for which no caller waits. If the store is gone by then, they stay.
    pub(super) fn take_back_late(self: &Arc<Self>, checks: CounterChecks) {
        for check in checks {
            let deadline = self.local().after(LATE_MAX);
            let _ =
                self.submit(Part::new(CounterChecks::from_iter([check]), Mode::Each, None, deadline, None));
        }
    }

    /// Takes back what one attempt holds, as soon as the store answers.
    async fn withdraw(self: &Arc<Self>, checks: CounterChecks) {
        let last = self.local().after(WITHDRAWAL_MAX);
        let mut left = checks;
        while self.local() < last {
            let deadline = self.local().after(self.settings.timeout);
            let outcomes = self.apply_by_lane(left.clone(), deadline, None).await;
            let mut outcomes = outcomes.iter();
            left.retain(|_| outcomes.next().is_none_or(|outcome| outcome.decided_by != DecidedBy::Counter));
            if left.is_empty() {
                return;
            }
            tokio::time::sleep(WITHDRAWAL_INTERVAL).await;
        }
    }
}
