//! Checks whose counters other replicas own.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Limit, Operation},
    cluster::{
        Cluster, Core, MemberId, OpenForwards, Overloaded,
        calls::{AfterRound, Outcomes},
        message::{RemoteCheck, RemoteOperation},
        node::{DecidedBy, Outcome, Ticket},
    },
    descriptor::Key,
    rules::OnOwnerUnavailable,
    store::{Check, CounterState, Decisions, OnRefusal, Replacement},
    time::Timestamp,
};

pub use crate::cluster::node::ForwardPolicy;

/// The decisions of a check set, wherever its counters are.
#[derive(Clone, Debug)]
pub struct RemoteDecisions {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// For each decision, whether it was made without the owner of the counter.
    pub degraded: SmallVec<[bool; 2]>,
}

/// The decision of a single check.
#[derive(Clone, Copy, Debug)]
pub struct RemoteDecision {
    /// The decision.
    pub decision: Decision,
    /// The hits that were charged.
    pub charged: u64,
    /// Whether it was made without the owner of the counter.
    pub degraded: bool,
}

impl Cluster {
    /// Decides the only check of a call, as [`Cluster::decide`] does.
    pub async fn decide_one(
        &self,
        check: &Check<'_>,
        policy: ForwardPolicy,
        timeout: Option<Duration>,
        connection: &OpenForwards,
    ) -> Result<RemoteDecision, Overloaded> {
        let operation = RemoteOperation::Decide(check.operation);
        let Outcome { decision, charged, decided_by } =
            self.submit(check, policy, operation, self.deadline(timeout), connection).await?;
        Ok(RemoteDecision { decision, charged, degraded: decided_by == DecidedBy::Degraded })
    }

    /// Decides the check set of one call at the owners, within half of the caller's `timeout`.
    ///
    /// If `refused` says that the call as a whole is refused, charges that passed are taken back where their checks say
    /// so. A peek before the charges finds calls that would be refused anyway, so that calls which are always refused
    /// leave no trace in other counters. A call that loses a race is charged until the charge is taken back.
    ///
    /// On an error nothing was sent: the call has too many checks, or too many are open for its `connection` or for
    /// this replica.
    pub async fn decide(
        &self,
        checks: &[Check<'_>],
        policies: &[ForwardPolicy],
        timeout: Option<Duration>,
        connection: &OpenForwards,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<RemoteDecisions, Overloaded> {
        let call = Call::open(self, checks, policies, self.deadline(timeout), connection)?;
        let outcomes = if checks.len() == 1 {
            call.submit(&[0]).await
        } else {
            let skipped = call.predict_taken_back(&refused).await;
            let mut outcomes = call.submit_except(skipped, &refused).await;
            if refused(&decisions(&outcomes)) {
                call.take_back(&mut outcomes).await;
            }
            outcomes
        };
        let degraded = outcomes.iter().map(|outcome| outcome.decided_by == DecidedBy::Degraded).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        Ok(RemoteDecisions { decisions: Decisions::new(decisions(&outcomes), charged), degraded })
    }

    /// The instant until which a call waits for other replicas.
    fn deadline(&self, timeout: Option<Duration>) -> Timestamp {
        let budget = timeout.map_or(Duration::MAX, |timeout| timeout / 2).min(self.0.forward_budget_max);
        self.0.now().after(budget)
    }

    async fn submit(
        &self,
        check: &Check<'_>,
        policy: ForwardPolicy,
        operation: RemoteOperation,
        deadline: Timestamp,
        connection: &OpenForwards,
    ) -> Result<Outcome, Overloaded> {
        let remote_check =
            RemoteCheck { key: check.key, limit: check.limit.clone(), operation, lease_hits: 0 };
        let (receiver, ready_peers) = self.0.with_core_without_wakes(|Core { node, calls }, now| {
            let call = calls.open(1, connection)?;
            let receiver = calls.start_round(call, std::iter::once(policy), AfterRound::Close);
            node.submit(Ticket { call, check: 0 }, remote_check, policy, deadline, now);
            Ok(receiver)
        });
        self.wake_later(ready_peers);
        let outcomes = receiver?.await.unwrap_or_default();
        Ok(outcomes.into_iter().next().unwrap_or_else(|| Outcome::without_owner(policy)))
    }

    /// Wakes links after all calls that are ready have submitted their checks, so that those checks share a batch. A
    /// separate task does so, because the task of a call may be cancelled.
    fn wake_later(&self, links: Vec<MemberId>) {
        if !links.is_empty() {
            let replica = self.0.clone();
            tokio::spawn(async move { replica.wake(&links) });
        }
    }

    /// Reads the counter of `key`, wherever its owner is; `None` if the owner is unreachable.
    pub async fn peek(&self, key: Key, limit: &Limit) -> Option<CounterState> {
        let outcome = self.admin_check(key, limit, RemoteOperation::Decide(Operation::Peek)).await?;
        Some(self.kept(limit, outcome.decision))
    }

    /// Replaces the counter of `key` by one with `hits` charged, wherever its owner is.
    pub async fn replace(&self, key: Key, limit: &Limit, hits: u64) -> Option<Replacement> {
        let before = self.peek(key, limit).await?;
        let outcome = self.admin_check(key, limit, RemoteOperation::Set(hits)).await?;
        Some(Replacement { before, after: self.kept(limit, outcome.decision) })
    }

    async fn admin_check(&self, key: Key, limit: &Limit, operation: RemoteOperation) -> Option<Outcome> {
        let check = Check { key, limit, operation: Operation::Peek, on_refusal: OnRefusal::Keep };
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
        let deadline = self.0.now().after(self.0.forward_budget_max);
        let outcome =
            self.submit(&check, policy, operation, deadline, &OpenForwards::default()).await.ok()?;
        (outcome.decided_by == DecidedBy::Owner).then_some(outcome)
    }

    fn kept(&self, limit: &Limit, peek: Decision) -> CounterState {
        let used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        CounterState { idle_at: used.then(|| self.0.clock.now().after(peek.reset_after)), peek }
    }
}

/// The check set of one call on its way to the owners. It is open while this value lives, and until every submitted
/// check is answered.
struct Call<'c> {
    cluster: &'c Cluster,
    checks: &'c [Check<'c>],
    policies: &'c [ForwardPolicy],
    deadline: Timestamp,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.cluster.0.lock().calls.close(self.number);
    }
}

impl<'c> Call<'c> {
    fn open(
        cluster: &'c Cluster,
        checks: &'c [Check<'c>],
        policies: &'c [ForwardPolicy],
        deadline: Timestamp,
        connection: &OpenForwards,
    ) -> Result<Self, Overloaded> {
        let number = cluster.0.lock().calls.open(checks.len(), connection)?;
        Ok(Self { cluster, checks, policies, deadline, number })
    }

    fn takes_back(&self, index: usize) -> bool {
        self.checks[index].on_refusal == OnRefusal::TakeBack
    }

    /// Submits operations for some of the checks. All are sent at once and awaited together, so the work is linear in
    /// their number.
    async fn submit_all(&self, operations: Vec<(usize, RemoteOperation)>) -> Outcomes {
        if operations.is_empty() {
            return Outcomes::new();
        }
        let (receiver, ready_peers) = self.cluster.0.with_core_without_wakes(|Core { node, calls }, now| {
            let policies = operations.iter().map(|(index, _)| self.policies[*index]);
            let receiver = calls.start_round(self.number, policies, AfterRound::StayOpen);
            for (check, (index, operation)) in (0..).zip(operations) {
                let Check { key, limit, .. } = self.checks[index];
                let remote_check = RemoteCheck { key, limit: limit.clone(), operation, lease_hits: 0 };
                let ticket = Ticket { call: self.number, check };
                node.submit(ticket, remote_check, self.policies[index], self.deadline, now);
            }
            receiver
        });
        self.cluster.wake_later(ready_peers);
        receiver.await.expect("an open call keeps the sender of its round")
    }

    /// Submits the operations of these checks.
    async fn submit(&self, checks: &[usize]) -> Outcomes {
        self.submit_all(
            checks
                .iter()
                .map(|index| (*index, RemoteOperation::Decide(self.checks[*index].operation)))
                .collect(),
        )
        .await
    }

    /// Peeks first. If the call would be refused, returns the expected outcomes of the checks that would pass and be
    /// taken back, and `None` for all others, which are to be submitted.
    async fn predict_taken_back(&self, refused: impl Fn(&[Decision]) -> bool) -> Vec<Option<Outcome>> {
        let all = 0..self.checks.len();
        let mut skipped = vec![None; self.checks.len()];
        if !all.clone().any(|index| self.takes_back(index)) {
            return skipped;
        }
        let peeks = self
            .submit_all(all.map(|index| (index, RemoteOperation::Decide(Operation::Peek))).collect())
            .await;
        let predict =
            |(check, peek): (&Check<'_>, &Outcome)| check.limit.predict(check.operation, &peek.decision);
        let predicted: Vec<Decision> = self.checks.iter().zip(&peeks).map(predict).collect();
        if refused(&predicted) {
            for (index, peek) in peeks.into_iter().enumerate() {
                if self.takes_back(index) && predicted[index].verdict.passes() {
                    // A peek charges nothing, and its own verdict is for no hits.
                    let decision = predicted[index];
                    skipped[index] = Some(Outcome { decision, charged: 0, ..peek });
                }
            }
        }
        skipped
    }

    /// Submits all checks but the skipped ones, and those as well if the call is not refused.
    async fn submit_except(
        &self,
        mut outcomes: Vec<Option<Outcome>>,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Outcomes {
        let (submitted, skipped): (Vec<usize>, Vec<usize>) =
            (0..outcomes.len()).partition(|index| outcomes[*index].is_none());
        let replies = self.submit(&submitted).await;
        for (index, outcome) in submitted.into_iter().zip(replies) {
            outcomes[index] = Some(outcome);
        }
        let mut outcomes: Outcomes = outcomes.into_iter().flatten().collect();
        if !skipped.is_empty() && !refused(&decisions(&outcomes)) {
            let replies = self.submit(&skipped).await;
            for (index, outcome) in skipped.into_iter().zip(replies) {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Takes back the charges of a refused call, and updates what remains.
    async fn take_back(&self, outcomes: &mut [Outcome]) {
        let mut undone = Vec::new();
        let replica = &self.cluster.0;
        for (index, outcome) in outcomes.iter_mut().enumerate().filter(|(index, _)| self.takes_back(*index)) {
            let Check { key, limit, .. } = self.checks[index];
            let charged = std::mem::take(&mut outcome.charged);
            match (outcome.decided_by, outcome.decision.receipt.take()) {
                (DecidedBy::Owner, Some(receipt)) => undone.push((index, RemoteOperation::Undo(receipt))),
                (DecidedBy::Lease, _) if charged > 0 => {
                    replica.with_node(|node, _| node.undo_lease(key, limit, charged));
                }
                (DecidedBy::Degraded, Some(receipt)) => {
                    replica.with_node(|node, _| node.undo_share(key, limit, receipt, charged));
                }
                (DecidedBy::Owner | DecidedBy::Lease | DecidedBy::Degraded, _) => {}
            }
        }
        let indices: Vec<usize> = undone.iter().map(|(index, _)| *index).collect();
        for (index, peek) in indices.into_iter().zip(self.submit_all(undone).await) {
            if peek.decided_by == DecidedBy::Owner {
                let Decision { remaining, reset_after, .. } = peek.decision;
                let outcome = &mut outcomes[index];
                outcome.decision = Decision { remaining, reset_after, ..outcome.decision };
            }
        }
    }
}

fn decisions(outcomes: &[Outcome]) -> SmallVec<[Decision; 2]> {
    outcomes.iter().map(|outcome| outcome.decision).collect()
}
