//! Carries operations, and reports of clients that decide by themselves, to the owners of their counters.

use std::{future::pending, sync::MutexGuard, time::Duration};

use tollgate_counter::{algorithm::Limit, descriptor::Key};
use tollgate_remote::{
    CounterCheck, CounterChecks, LocalShare, LocalShareBasis, Outcomes, RemoteExtent, RemoteOutcome,
    RemoteOutcomes, Submission, SubmissionMode, Submit,
};
use tollgate_store::{
    LimitOrigin,
    divider::{Divide, SubscriberReport},
};

use crate::{
    message::{
        MemberState,
        check::{RemoteCheck, RemoteOperation},
    },
    node::output::Ticket,
    replica::Cluster,
};

impl Submit for Cluster {
    fn submit(&self, Submission { checks, mode, within, open }: Submission<'_>) -> Option<Outcomes> {
        let SubmissionMode::Each = mode else { return None };
        let replica = &self.0;
        let unanswered = RemoteOutcomes::from_elem(RemoteOutcome::unreachable(), checks.len());
        let (call, outcomes) = replica.calls.start_round(unanswered, open);
        let ((), ready_peers) = replica.with_node_without_wakes(|node, now| {
            for (number, check) in (0..).zip(checks) {
                let ticket = Ticket { call, check: number };
                let policy = check.policy;
                node.submit(ticket, RemoteCheck::from_check(check), policy, now.after(within), now);
            }
        });
        if !ready_peers.is_empty() {
            // The links are woken after all calls that are ready have submitted their checks, so that those checks share
            // a batch. A separate task does so, because the task of a call may be cancelled.
            let replica = replica.clone();
            tokio::spawn(async move { replica.wake(&ready_peers) });
        }
        Some(Box::pin(async {
            match outcomes.await {
                Ok(outcomes) => outcomes,
                // Not expected while the process runs: the node answers every check.
                Err(_) => pending().await,
            }
        }))
    }

    fn send(&self, checks: CounterChecks) {
        self.0.with_node(|node, now| {
            checks.iter().for_each(|check| node.send(RemoteCheck::from_check(check), now));
        });
    }

    fn undo_leased(&self, key: Key, limit: &Limit, hits: u64) {
        self.0.with_node(|node, _| node.undo_leased(key, limit, hits));
    }

    fn local_share(&self) -> MutexGuard<'_, LocalShare> {
        self.0.local_share.lock()
    }

    fn local_share_basis(&self) -> LocalShareBasis {
        self.0.with_node(|node, _| node.local_share_basis())
    }

    fn extent(&self) -> RemoteExtent {
        RemoteExtent::OtherOwners
    }

    fn is_joining(&self) -> bool {
        self.state() == MemberState::Joining
    }

    fn budget_max(&self) -> Duration {
        self.0.forward_budget_max
    }
}

impl RemoteCheck {
    pub(super) fn from_check(CounterCheck { key, limit, operation, origin, .. }: &CounterCheck) -> Self {
        let operation = match origin {
            LimitOrigin::Rule => RemoteOperation::Counter(operation.clone()),
            LimitOrigin::Request => RemoteOperation::CounterByRequest(operation.clone()),
        };
        Self { key: *key, limit: limit.clone(), operation, lease_hits: 0 }
    }
}

/// The most reports that are sent while checks wait.
const REPORTS_MAX: usize = 64;

impl Divide for Cluster {
    fn report(&self, reports: Vec<SubscriberReport>) {
        let mut reports = reports.into_iter().peekable();
        while reports.peek().is_some() {
            self.0.with_node(|node, now| {
                for SubscriberReport { key, limit, id, terms, report } in reports.by_ref().take(REPORTS_MAX) {
                    let operation = RemoteOperation::Divide(id, terms, report);
                    node.send(RemoteCheck { key, limit, operation, lease_hits: 0 }, now);
                }
            });
        }
    }
}
