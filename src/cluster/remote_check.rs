//! Checks whose counters other replicas own.

use std::time::Duration;

use smallvec::smallvec;

use crate::{
    algorithm::{Decision, Limit, Operation},
    cluster::{
        Cluster, MemberId,
        calls::Outcomes,
        message::{RemoteCheck, RemoteOperation},
        node::{DecidedBy, Outcome, Ticket},
    },
    descriptor::Key,
    resilience::{OpenForwards, Overloaded, budget},
    rules::{ForwardPolicy, OnOwnerUnavailable},
    store::{
        Check, CounterState, Decisions, OnRefusal, RemoteDecisions, Replacement,
        rounds::{self, Step, Submit},
    },
    time::Timestamp,
};

impl Cluster {
    /// Decides the check set of one call at the owners, within half of the caller's `timeout`.
    ///
    /// If `refused` says that the call as a whole is refused, charges that passed are taken back where their checks say
    /// so. Refunds and overdrafts stay.
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
        let outcomes: Outcomes = if let [check] = checks {
            smallvec![call.submit_only(RemoteOperation::Decide(check.operation)).await]
        } else {
            // Boxed, so that the future of a single check stays small.
            Box::pin(async move { rounds::decide(&call, checks, refused).await }).await
        };
        let degraded = outcomes.iter().map(|outcome| outcome.decided_by == DecidedBy::Degraded).collect();
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        Ok(RemoteDecisions { decisions: Decisions::new(rounds::decisions(&outcomes), charged), degraded })
    }

    /// The instant until which a call waits for other replicas.
    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Timestamp {
        self.0.now().after(budget(timeout, self.0.forward_budget_max))
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
        let (checks, policies, connection) = ([check], [policy], OpenForwards::default());
        let call = Call::open(self, &checks, &policies, self.deadline(None), &connection).ok()?;
        let outcome = call.submit_only(operation).await;
        (outcome.decided_by == DecidedBy::Owner).then_some(outcome)
    }

    fn kept(&self, limit: &Limit, peek: Decision) -> CounterState {
        let used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        CounterState { idle_at: used.then(|| self.0.clock.now().after(peek.reset_after)), peek }
    }
}

/// A call whose checks are submitted to the node. It is open while this value lives, and until every submitted check is
/// answered.
pub(super) struct Call<'c> {
    cluster: &'c Cluster,
    checks: &'c [Check<'c>],
    policies: &'c [ForwardPolicy],
    deadline: Timestamp,
    number: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.cluster.0.calls.close(self.number);
    }
}

impl<'c> Call<'c> {
    pub(super) fn open(
        cluster: &'c Cluster,
        checks: &'c [Check<'c>],
        policies: &'c [ForwardPolicy],
        deadline: Timestamp,
        connection: &OpenForwards,
    ) -> Result<Self, Overloaded> {
        let number = cluster.0.calls.open(checks.len(), connection)?;
        Ok(Self { cluster, checks, policies, deadline, number })
    }

    /// Submits the operation of the only check.
    async fn submit_only(&self, operation: RemoteOperation) -> Outcome {
        let mut outcomes = self.submit_round([(0, operation)]).await;
        outcomes.pop().expect("a round has an outcome for each check")
    }

    pub(super) async fn submit_round<O>(&self, operations: O) -> Outcomes
    where
        O: AsRef<[(usize, RemoteOperation)]> + IntoIterator<Item = (usize, RemoteOperation)>,
    {
        let policies = operations.as_ref().iter().map(|(index, _)| self.policies[*index]);
        let receiver = self.cluster.0.calls.start_round(self.number, policies);
        let ((), ready_peers) = self.cluster.0.with_node_without_wakes(|node, now| {
            for (check, (index, operation)) in (0..).zip(operations) {
                let Check { key, limit, .. } = self.checks[index];
                let remote_check = RemoteCheck { key, limit: limit.clone(), operation, lease_hits: 0 };
                let ticket = Ticket { call: self.number, check };
                node.submit(ticket, remote_check, self.policies[index], self.deadline, now);
            }
        });
        self.cluster.wake_later(ready_peers);
        receiver.await.expect("an open call keeps the sender of its round")
    }
}

impl Submit for Call<'_> {
    type Outcome = Outcome;

    async fn submit(&self, steps: Vec<(usize, Step)>) -> Outcomes {
        let operations: Vec<_> = steps.into_iter().map(|(index, step)| (index, step.into())).collect();
        self.submit_round(operations).await
    }

    fn take_back_here(&self, check: &Check<'_>, outcome: &mut Outcome) {
        self.cluster.0.with_node(|node, _| node.take_back_here(check.key, check.limit, outcome));
    }
}
