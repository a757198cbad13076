//! Reservations: all limits of a request are held, and settled when it is known how many hits were used.

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Operation},
    resilience::Caller,
};
use tollgate_remote::{CounterCheck, CounterChecks, RemoteHoldError, refund_operations};
use tollgate_rules::KeyedDomain;
use tollgate_store::{
    Checks, Decisions, HoldId, HoldOutcome, HoldTerms, HoldTtlOutOfBounds, Refusal, ReserveError, Reserved,
    Settled, UnknownId,
};

use crate::limiter::{
    ActiveView, Answer, LimiterError, Request, RequestError, Status, answer,
    id_share::SentId,
    plan::{AppliedLimit, Plan, applied_limits},
};

/// Why a reservation is not made or settled. Nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The content of the request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The time until the expiry is out of bounds.
    #[error(transparent)]
    Ttl(#[from] HoldTtlOutOfBounds),
    /// A descriptor peeks or refunds.
    #[error("descriptors[{descriptor}]: a reservation needs an amount")]
    NotCharge {
        /// The index of the descriptor.
        descriptor: usize,
    },
    /// The limiter cannot answer.
    #[error(transparent)]
    Limiter(#[from] LimiterError),
    /// A counter has too many reservations, or all reservations take too much memory.
    #[error("too many reservations are open: nothing was reserved, try again later")]
    Exhausted,
    /// An owner, or the shared store, could not be reached in time. Nothing is reserved. Of a settlement, the owners that
    /// were reached have settled their part; a repeated call settles the rest.
    #[error("the owner of a counter could not be reached in time: try again")]
    OwnerUnreachable,
}

/// The answer to a reservation.
#[derive(Clone, Debug)]
pub struct HeldAnswer<'s> {
    /// The answer that a charge would get.
    pub answer: Answer<'s>,
    /// Whether all limits that apply are held. Otherwise nothing is. They are not if the request passes only because of
    /// the shadow mode of all rules.
    pub is_held: bool,
    /// Whether a reservation with this id was made before and has ended: it was settled or has expired. The answer is
    /// that of its first call, and nothing more is held.
    pub has_ended: bool,
}

/// The answer to a settlement.
#[derive(Clone, Debug)]
pub struct SettledAnswer<'s> {
    /// What is left, for each descriptor in order. All of them pass.
    pub statuses: SmallVec<[Status<'s>; 2]>,
    /// How the reservation was settled, for each descriptor in order; `None` without a limit.
    pub settled: SmallVec<[Option<Settled>; 2]>,
}

/// The limits that apply to a reservation.
pub(super) struct AppliedHolds<'s> {
    pub(super) domain: KeyedDomain<'s>,
    pub(super) limits: SmallVec<[AppliedLimit<'s>; 2]>,
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

impl ActiveView<'_> {
    /// Reserves the hits of all descriptors, or none: here if this replica has all their counters, elsewhere otherwise. A
    /// repeated call with the same id answers as the first one.
    pub async fn reserve(
        &self,
        request: &Request<'_>,
        terms: &HoldTerms,
        connection: &Caller,
    ) -> Result<HeldAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            let answer = Answer::without_limits(request.descriptors.len());
            return Ok(HeldAnswer { answer, is_held: true, has_ended: false });
        };
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let refusal = answer::refusal(self.limiter.modes, &applied.limits, plan.deciding());
        let terms = &*terms.with_checks(plan.each_descriptor());
        let sent = self.require_share(connection, &plan.checks, terms)?;
        let reserved = match self.reserve_here(&plan.checks, terms, &refusal) {
            Err(HoldError::Limiter(LimiterError::Remote)) => {
                let remote = self.remote()?;
                remote.reserve(&plan.checks, terms, request.timeout, connection, refusal).await?
            }
            reserved => reserved?,
        };
        let Reserved { is_held, has_ended, decisions } = reserved;
        if let Some(sent) = sent.filter(|_| is_held) {
            sent.held(terms);
        }
        let answer = self.recorded_answer(applied.domain, request, &applied.limits, &plan, &decisions, &[]);
        Ok(HeldAnswer { answer, is_held, has_ended })
    }

    fn reserve_here(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        refusal: &Refusal,
    ) -> Result<Reserved, HoldError> {
        if self.limiter.has_no_counters() {
            return Err(LimiterError::Remote.into());
        }
        let refused = |decisions: &[Decision]| refusal.is_refused(decisions);
        self.limiter.memory.reserve(checks, terms, self.now(), refused).map_err(|error| match error {
            ReserveError::NotLocal(_) => self.not_local_error().into(),
            ReserveError::Exhausted => HoldError::Exhausted,
        })
    }

    /// Charges the hits of all descriptors, or none, once for each id: a repeated call is answered as the first one.
    ///
    /// The charge is a reservation that is settled at once. If it is not settled, its expiry charges it. A refused call
    /// changes nothing and its id is not retained.
    pub async fn charge_once(
        &self,
        request: &Request<'_>,
        terms: &HoldTerms,
        connection: &Caller,
    ) -> Result<Answer<'_>, HoldError> {
        let HeldAnswer { answer, is_held, .. } = self.reserve(request, terms, connection).await?;
        if is_held {
            // The expiry charges what is not settled, so the answer does not depend on this.
            let _ = self.settle(request, &terms.id, connection).await;
        }
        Ok(answer)
    }

    /// Refunds the hits of all descriptors once for each id: a repeated call is answered as the first one.
    pub async fn refund_once(
        &self,
        request: &Request<'_>,
        terms: &HoldTerms,
        connection: &Caller,
    ) -> Result<Answer<'_>, HoldError> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        let limits = applied_limits(domain, request);
        let plan = Plan::new(domain, request, &limits);
        let sent = self.require_share(connection, &plan.checks, terms)?;
        let operations = refund_operations(&plan.checks, terms);
        let decisions = match &self.limiter.remote {
            None => self.refund_here(operations)?,
            // Also for counters that are here: the owner may have reported them as exhausted to other replicas.
            Some(remote) => remote.refund_once(operations, request.timeout, connection).await?,
        };
        if let Some(sent) = sent {
            sent.held(terms);
        }
        Ok(self.recorded_answer(domain, request, &limits, &plan, &decisions, &[]))
    }

    fn refund_here(&self, operations: CounterChecks) -> Result<Decisions, HoldError> {
        let mut decisions = SmallVec::new();
        let mut charged = SmallVec::new();
        for CounterCheck { key, limit, operation, .. } in operations {
            let outcome = self.limiter.memory.operate(key, &limit, &operation, self.now());
            let outcome = outcome.map_err(|_| HoldError::Limiter(LimiterError::Remote))?;
            if outcome.hold == HoldOutcome::Exhausted {
                self.limiter.memory.count_exhausted();
                return Err(HoldError::Exhausted);
            }
            decisions.push(outcome.decision);
            charged.push(0);
        }
        Ok(Decisions::new(decisions, charged))
    }

    /// The id of a call in its caller's share, which has room for it.
    fn require_share<'c>(
        &self,
        caller: &'c Caller,
        checks: &Checks<'_>,
        terms: &HoldTerms,
    ) -> Result<Option<SentId<'c>>, HoldError> {
        let sent = self.sent_id(caller, checks, terms.id());
        if sent.as_ref().is_some_and(|sent| !sent.is_allowed()) {
            self.limiter.memory.count_exhausted();
            return Err(HoldError::Exhausted);
        }
        Ok(sent)
    }

    /// Settles a reservation at the hits of the descriptors. They are the same descriptors as those of the reservation.
    /// No hits cancel it.
    pub async fn settle(
        &self,
        request: &Request<'_>,
        id: &HoldId,
        connection: &Caller,
    ) -> Result<SettledAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            return Ok(SettledAnswer::without_limits(request));
        };
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let sent = self.sent_id(connection, &plan.checks, id);
        let unknown = sent.as_ref().map_or(UnknownId::Remember, SentId::unknown);
        let settled = match &self.limiter.remote {
            None => self
                .limiter
                .memory
                .settle(&plan.checks, id, unknown, self.now())
                .map_err(|_| HoldError::Limiter(LimiterError::Remote))?,
            // Also for counters that are here: the owner may have reported them as exhausted to other replicas.
            Some(remote) => remote.settle(&plan.checks, id, unknown, request.timeout, connection).await?,
        };
        if let Some(sent) = sent {
            sent.settled(&settled);
        }
        Ok(SettledAnswer::new(&applied, &plan, &settled))
    }

    /// The id of a call in its caller's share; `None` if this process keeps no counters.
    fn sent_id<'c>(&self, caller: &'c Caller, checks: &Checks<'_>, id: &HoldId) -> Option<SentId<'c>> {
        let memory = (!self.limiter.has_no_counters()).then(|| self.limiter.memory.id_memory())?;
        Some(SentId::new(caller, checks, id, memory, self.now()))
    }

    /// The limits that apply; `None` if the domain has no rules.
    pub(super) fn applied_holds(&self, request: &Request<'_>) -> Result<Option<AppliedHolds<'_>>, HoldError> {
        let is_charge = |operation| matches!(operation, Operation::Charge(_));
        let other = request.descriptors.iter().position(|descriptor| !is_charge(descriptor.operation));
        if let Some(descriptor) = other {
            return Err(HoldError::NotCharge { descriptor });
        }
        let domain = self.domain_of(request)?;
        Ok(domain.map(|domain| AppliedHolds { domain, limits: applied_limits(domain, request) }))
    }
}

impl<'s> SettledAnswer<'s> {
    pub(super) fn without_limits(request: &Request<'_>) -> Self {
        let descriptors = request.descriptors.len();
        let Answer { statuses, .. } = Answer::without_limits(descriptors);
        Self { statuses, settled: SmallVec::from_elem(None, descriptors) }
    }

    /// The answer from how the checks of `plan` were settled.
    pub(super) fn new(applied: &AppliedHolds<'s>, plan: &Plan<'_>, each: &[Settled]) -> Self {
        let mut statuses: SmallVec<[Status<'s>; 2]> =
            applied.limits.iter().map(Status::from_applied).collect();
        let mut all = SmallVec::from_elem(None, statuses.len());
        for (index, settled) in plan.deciding().iter().zip(each) {
            let status = &mut statuses[*index];
            (status.remaining, status.reset_after) = (settled.remaining, Some(settled.reset_after));
            all[*index] = Some(*settled);
        }
        Self { statuses, settled: all }
    }
}

#[cfg(test)]
mod tests;
