//! Requests with counters elsewhere: of other owners in a cluster, or in a shared store.

use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "server")]
use crate::cluster::{Cluster, MemberState};
#[cfg(not(feature = "server"))]
use crate::limiter::no_cluster::{Cluster, MemberState};
use crate::{
    limiter::{
        ActiveView, Answer, HeldAnswer, HoldError, Limiter, LimiterError, Request, SettledAnswer, answer,
        plan::{AppliedLimit, Plan, applied_limits},
    },
    resilience::OpenForwards,
    rules::{ForwardPolicy, OnOwnerUnavailable},
    shared_store::SharedStore,
    store::{Check, Checks, HoldId, HoldTerms, Refusal, RemoteDecisions, RemoteHoldError, Reserved, Settled},
};

/// Decides checks whose counters are elsewhere.
#[derive(Clone, Debug)]
pub enum RemoteDecider {
    /// The owners of slots in a cluster. This replica is one of them.
    Cluster(Cluster),
    /// A store of all counters.
    SharedStore(SharedStore),
}

impl RemoteDecider {
    /// Whether `request` is decided here in any case, even if this replica had its counters.
    #[inline]
    pub(super) fn takes(&self, request: &Request<'_>) -> bool {
        match self {
            // The owner may have reported the counter as exhausted to other replicas.
            Self::Cluster(_) => request.has_refund(),
            Self::SharedStore(_) => true,
        }
    }

    /// Whether it decides on all reservations, even if this replica had their counters.
    pub(super) fn takes_holds(&self) -> bool {
        match self {
            Self::Cluster(_) => false,
            Self::SharedStore(_) => true,
        }
    }

    /// Why the store in memory does not decide.
    pub(super) fn not_local_error(&self) -> LimiterError {
        match self {
            Self::Cluster(cluster) if cluster.state() == MemberState::Joining => LimiterError::Joining,
            Self::Cluster(_) | Self::SharedStore(_) => LimiterError::Remote,
        }
    }

    /// Decides the check set of a request.
    async fn decide(
        &self,
        checks: &[Check<'_>],
        policies: &[ForwardPolicy],
        timeout: Option<Duration>,
        connection: &OpenForwards,
        refusal: Refusal,
    ) -> Result<RemoteDecisions, LimiterError> {
        match self {
            Self::Cluster(cluster) => {
                let refused = |decisions: &[_]| refusal.is_refused(decisions);
                Ok(cluster.decide(checks, policies, timeout, connection, refused).await?)
            }
            Self::SharedStore(store) => {
                let policies: SmallVec<[_; 2]> =
                    policies.iter().map(|policy| policy.on_owner_unavailable).collect();
                Ok(store.decide(checks, &policies, timeout, refusal).await?)
            }
        }
    }
}

impl RemoteDecider {
    /// Holds the charges of all checks, or none if `refusal` says that their decisions refuse the call.
    async fn reserve(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        timeout: Option<Duration>,
        connection: &OpenForwards,
        refusal: Refusal,
    ) -> Result<Reserved, RemoteHoldError> {
        match self {
            Self::Cluster(cluster) => {
                let refused = |decisions: &[_]| refusal.is_refused(decisions);
                cluster.reserve(checks, terms, timeout, connection, refused).await
            }
            Self::SharedStore(store) => store.reserve(checks, terms, timeout, refusal).await,
        }
    }

    /// Settles the holds of all checks, each at the hits of its charge.
    async fn settle(
        &self,
        checks: &Checks<'_>,
        id: &HoldId,
        timeout: Option<Duration>,
        connection: &OpenForwards,
    ) -> Result<SmallVec<[Settled; 2]>, RemoteHoldError> {
        match self {
            Self::Cluster(cluster) => cluster.settle(checks, id, timeout, connection).await,
            Self::SharedStore(store) => store.settle(checks, id, timeout).await,
        }
    }
}

impl From<RemoteHoldError> for HoldError {
    fn from(error: RemoteHoldError) -> Self {
        match error {
            RemoteHoldError::Overloaded => Self::Limiter(LimiterError::Overloaded),
            RemoteHoldError::Exhausted => Self::Exhausted,
            RemoteHoldError::OwnerUnreachable => Self::OwnerUnreachable,
        }
    }
}

impl Limiter {
    /// The cluster, if this replica is part of one.
    pub fn cluster(&self) -> Option<&Cluster> {
        match &self.remote {
            Some(RemoteDecider::Cluster(cluster)) => Some(cluster),
            Some(RemoteDecider::SharedStore(_)) | None => None,
        }
    }

    /// The shared store, if the counters are there.
    pub fn shared_store(&self) -> Option<&SharedStore> {
        match &self.remote {
            Some(RemoteDecider::SharedStore(store)) => Some(store),
            Some(RemoteDecider::Cluster(_)) | None => None,
        }
    }
}

impl AppliedLimit<'_> {
    /// The settings of the rule for a counter of another owner.
    fn forward_policy(&self) -> ForwardPolicy {
        match self.rule() {
            Some(rule) => {
                ForwardPolicy { on_owner_unavailable: rule.on_owner_unavailable, lease: rule.lease }
            }
            None => ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::default(), lease: true },
        }
    }
}

impl ActiveView<'_> {
    /// The same as [`ActiveView::decide`] for a request with counters elsewhere, received over `connection`.
    pub async fn decide_remote(
        &self,
        request: &Request<'_>,
        connection: &OpenForwards,
    ) -> Result<Answer<'_>, LimiterError> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        let Some(remote) = &self.limiter.remote else { return Err(LimiterError::Remote) };
        let applied = applied_limits(domain, request);
        let plan = Plan::new(domain, request, &applied);
        let refusal = answer::refusal(self.limiter.modes, &applied, plan.deciding());
        let policy = |index| applied[plan.descriptor(index)].forward_policy();
        let policies: SmallVec<[ForwardPolicy; 2]> = (0..plan.checks.len()).map(policy).collect();
        let RemoteDecisions { decisions, degraded } =
            remote.decide(&plan.checks, &policies, request.timeout, connection, refusal).await?;
        Ok(self.counted_answer(domain, request, &applied, &plan, &decisions, &degraded))
    }
}

impl ActiveView<'_> {
    /// The same as [`ActiveView::reserve`] for a request with counters elsewhere, received over `connection`.
    pub async fn reserve_remote(
        &self,
        request: &Request<'_>,
        terms: &HoldTerms,
        connection: &OpenForwards,
    ) -> Result<HeldAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            return Ok(HeldAnswer::without_limits(request));
        };
        let Some(remote) = &self.limiter.remote else { return Err(LimiterError::Remote.into()) };
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let refusal = answer::refusal(self.limiter.modes, &applied.limits, plan.deciding());
        let reserved = remote.reserve(&plan.checks, terms, request.timeout, connection, refusal).await?;
        Ok(self.held_answer(request, &applied, &plan, &reserved))
    }

    /// The same as [`ActiveView::charge_once`] for a request with counters elsewhere, received over `connection`.
    pub async fn charge_once_remote(
        &self,
        request: &Request<'_>,
        terms: &HoldTerms,
        connection: &OpenForwards,
    ) -> Result<Answer<'_>, HoldError> {
        let HeldAnswer { answer, is_held } = self.reserve_remote(request, terms, connection).await?;
        if is_held {
            // A charge that is not settled is charged by its expiry, so the answer does not depend on this.
            let _ = self.settle_remote(request, &terms.id, connection).await;
        }
        Ok(answer)
    }

    /// The same as [`ActiveView::settle`] for a request with counters elsewhere, received over `connection`.
    pub async fn settle_remote(
        &self,
        request: &Request<'_>,
        id: &HoldId,
        connection: &OpenForwards,
    ) -> Result<SettledAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            return Ok(SettledAnswer::without_limits(request));
        };
        let Some(remote) = &self.limiter.remote else { return Err(LimiterError::Remote.into()) };
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let settled = remote.settle(&plan.checks, id, request.timeout, connection).await?;
        Ok(SettledAnswer::of(&applied, &plan, &settled))
    }
}
