//! Reservations whose counters other replicas own.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::Decision,
    cluster::{
        Cluster,
        message::{RemoteCheck, RemoteOperation},
        node::{DecidedBy, Outcome},
        remote_check::Call,
    },
    resilience::OpenForwards,
    rules::{ForwardPolicy, OnOwnerUnavailable},
    store::{self, Check, Checks, Decisions, HoldId, HoldTerms, RemoteHoldError, Reserved, Settled, rounds},
};

/// Only owners decide on holds.
const POLICY: ForwardPolicy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };

impl Cluster {
    /// Holds the charges of all checks at their owners, within half of the caller's `timeout`, or none if `refused`
    /// returns that their decisions refuse the call. What was held in vain is withdrawn, also if the call is canceled;
    /// until that arrives it counts.
    pub async fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        timeout: Option<Duration>,
        connection: &OpenForwards,
        refused: impl Fn(&[Decision]) -> bool,
    ) -> Result<Reserved, RemoteHoldError> {
        let terms = HoldTerms { attempt: rand::random(), ..terms.clone() };
        let policies: SmallVec<[ForwardPolicy; 2]> = checks.iter().map(|_| POLICY).collect();
        let call = Call::open(self, checks, &policies, self.deadline(timeout), connection)?;
        let attempted = Attempt { cluster: self, checks, terms: &terms };
        let outcomes = call.submit_round(reserve_operations(checks, &terms)).await;
        let mut decisions = answered(&outcomes)?;
        if refused(&decisions) {
            decisions.iter_mut().for_each(|decision| decision.receipt = None);
            let charged = SmallVec::from_elem(0, checks.len());
            return Ok(Reserved { is_held: false, decisions: Decisions::new(decisions, charged) });
        }
        // It is not dropped, so nothing is withdrawn.
        std::mem::forget(attempted);
        let charged = outcomes.iter().map(|outcome| outcome.charged).collect();
        Ok(Reserved { is_held: true, decisions: Decisions::new(decisions, charged) })
    }

    /// Settles the holds of all checks at their owners, each at the hits of its charge, within half of the caller's
    /// `timeout`.
    pub async fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        timeout: Option<Duration>,
        connection: &OpenForwards,
    ) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
        let policies: SmallVec<[ForwardPolicy; 2]> = checks.iter().map(|_| POLICY).collect();
        let call = Call::open(self, checks, &policies, self.deadline(timeout), connection)?;
        let outcomes = call.submit_round(settle_operations(checks, id)).await;
        settled(&outcomes)
    }
}

/// What holds the charges of checks at their owners.
pub(super) fn reserve_operations(checks: &[Check<'_>], terms: &HoldTerms) -> Vec<(usize, RemoteOperation)> {
    let ids = store::each_hold_id(checks, &terms.id);
    let operation = |(check, id): (&Check<'_>, HoldId)| {
        let terms = Box::new(HoldTerms { id, ..terms.clone() });
        RemoteOperation::Reserve { terms, hits: check.hits() }
    };
    checks.iter().zip(ids).map(operation).enumerate().collect()
}

/// What settles the holds of checks at their owners.
pub(super) fn settle_operations(checks: &[Check<'_>], id: &HoldId) -> Vec<(usize, RemoteOperation)> {
    let operation = |(check, id): (&Check<'_>, _)| RemoteOperation::SettleHold { id, actual: check.hits() };
    checks.iter().zip(store::each_hold_id(checks, id)).map(operation).enumerate().collect()
}

/// What takes back the holds of one attempt.
pub(super) fn withdrawals(checks: &[Check<'_>], terms: &HoldTerms) -> Vec<RemoteCheck> {
    let withdraw = |(Check { key, limit, .. }, id): (&Check<'_>, HoldId)| {
        let operation = RemoteOperation::WithdrawHold { id, attempt: terms.attempt };
        RemoteCheck { key: *key, limit: (*limit).clone(), operation, lease_hits: 0 }
    };
    checks.iter().zip(store::each_hold_id(checks, &terms.id)).map(withdraw).collect()
}

/// How the owners have settled, if all have answered.
pub(super) fn settled(outcomes: &[Outcome]) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
    answered(outcomes)?;
    let settled = outcomes.iter().map(|outcome| outcome.settled.as_deref().copied());
    settled.collect::<Option<_>>().ok_or(RemoteHoldError::OwnerUnreachable)
}

/// The decisions of the owners, if all have answered.
pub(super) fn answered(outcomes: &[Outcome]) -> Result<SmallVec<[Decision; 2]>, RemoteHoldError> {
    for outcome in outcomes {
        match outcome.decided_by {
            DecidedBy::Owner => {}
            DecidedBy::Exhausted => return Err(RemoteHoldError::Exhausted),
            DecidedBy::Lease | DecidedBy::Degraded => return Err(RemoteHoldError::OwnerUnreachable),
        }
    }
    Ok(rounds::decisions(outcomes))
}

/// What one call has reserved. Dropping it withdraws everything.
struct Attempt<'c> {
    cluster: &'c Cluster,
    checks: &'c [Check<'c>],
    terms: &'c HoldTerms,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.cluster.0.with_node(|node, now| {
            withdrawals(self.checks, self.terms).into_iter().for_each(|check| node.send(check, now));
        });
    }
}
