//! Reservations: all limits of a request are held, and settled when it is known how many hits were used.

use std::time::Duration;

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Operation},
    resilience::Caller,
};
use tollgate_remote::{CounterCheck, CounterChecks, Remote, RemoteHoldError, refund_operations};
use tollgate_rules::KeyedDomain;
use tollgate_store::{
    Checks, Decisions, HoldId, HoldOutcome, HoldTerms, HoldTtlOutOfBounds, Refusal, RemoteDecisions,
    ReserveError, Reserved, Settled, UnknownId,
};

use crate::limiter::{
    ActiveView, Answer, AnswerOrPlan, CounterOutcomes, LimiterError, Request, RequestError, Status, answer,
    check_set::{AppliedLimit, CheckSet, applied_limits},
    id_share::SentId,
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

/// What a request with an id asks of its counters.
#[derive(Clone, Debug)]
pub enum HoldRequest {
    /// Holds the hits of all descriptors, or none. A repeated call with the same id is answered as the first one.
    Reserve(HoldTerms),
    /// Charges the hits of all descriptors, or none, once for each id: a repeated call is answered as the first one.
    ///
    /// The charge is a reservation that is settled at once. If it is not settled, its expiry charges it. A refused call
    /// changes nothing and its id is not retained.
    ChargeOnce(HoldTerms),
    /// Refunds the hits of all descriptors once for each id: a repeated call is answered as the first one.
    RefundOnce(HoldTerms),
    /// Settles a reservation at the hits of the descriptors. They are the same descriptors as those of the reservation.
    /// No hits cancel it.
    Settle(HoldId),
}

/// The answer to a request, and what is held by it.
#[derive(Clone, Debug)]
pub struct HeldAnswer<'s> {
    /// The answer that a charge would get. After a settlement all descriptors pass, and it says what is left.
    pub answer: Answer<'s>,
    /// Whether all limits that apply are held. Otherwise nothing is. They are not if the request passes only because of
    /// the shadow mode of all rules.
    pub is_held: bool,
    /// Whether a reservation with this id was made before and has ended: it was settled or has expired. The answer is
    /// that of its first call, and nothing more is held.
    pub has_ended: bool,
    /// How a reservation was settled, for each descriptor in order; `None` without a limit. Empty unless it was settled.
    pub settled: Vec<Option<Settled>>,
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
    /// Holds or settles the hits of `request` by the counters in the memory of this process, or plans what is asked of
    /// counters elsewhere. It waits for nothing.
    // `inline(never)`: keeps the stack frame of requests that are only decided small.
    #[inline(never)]
    pub fn hold(
        &self,
        request: &Request<'_>,
        hold: HoldRequest,
        caller: &Caller,
    ) -> Result<AnswerOrPlan<HeldAnswer<'_>>, HoldError> {
        hold.require_operations(request)?;
        let Some(domain) = self.domain_of(request)? else {
            return Ok(AnswerOrPlan::Answer(HeldAnswer::without_limits(request.descriptors.len())));
        };
        let applied = applied_limits(domain, request);
        let set = CheckSet::new(domain, request, &applied);
        let hold = hold.for_checks(&set);
        // A settlement is for other replicas also if its counters are here: the owner may have reported them as exhausted.
        if self.limiter.remote.is_some() {
            return Ok(AnswerOrPlan::Plan(self.plan(request, &applied, &set, Some(hold))));
        }
        let refusal = answer::refusal(self.limiter.modes, &applied, set.deciding());
        let outcomes = self.hold_here(&hold, &set.checks, &refusal, caller)?;
        Ok(AnswerOrPlan::Answer(self.held_answer(&hold, domain, request, &applied, &set, &outcomes)))
    }

    /// Asks counters of which all are in the memory of this process.
    fn hold_here(
        &self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        caller: &Caller,
    ) -> Result<CounterOutcomes, HoldError> {
        match hold {
            HoldRequest::Reserve(terms) | HoldRequest::ChargeOnce(terms) => {
                let sent = self.require_share(caller, checks, terms)?;
                let reserved = self.reserve_here(checks, terms, refusal)?.ok_or(LimiterError::Remote)?;
                if let Some(sent) = sent.filter(|_| reserved.is_held) {
                    sent.held(terms);
                }
                if reserved.is_held && hold.is_settled_at_once() {
                    // The expiry charges what is not settled, so the answer does not depend on this.
                    let _ = self.hold_here(&HoldRequest::Settle(terms.id.clone()), checks, refusal, caller);
                }
                Ok(reserved.into())
            }
            HoldRequest::RefundOnce(terms) => {
                let sent = self.require_share(caller, checks, terms)?;
                let refunded = self.refund_here(refund_operations(checks, terms))?;
                if let Some(sent) = sent {
                    sent.held(terms);
                }
                Ok(refunded.into())
            }
            HoldRequest::Settle(id) => {
                let sent = self.sent_id(caller, checks, id);
                let unknown = sent.as_ref().map_or(UnknownId::Remember, SentId::unknown);
                let settled = self.limiter.memory.settle(checks, id, unknown, self.now());
                let settled = settled.map_err(|_| LimiterError::Remote)?;
                if let Some(sent) = sent {
                    sent.settled(&settled);
                }
                Ok(CounterOutcomes { settled, ..Decisions::default().into() })
            }
        }
    }

    /// Asks counters that are elsewhere, or here and elsewhere.
    pub(super) async fn hold_elsewhere(
        &self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        remote: &Remote,
        timeout: Option<Duration>,
        caller: &Caller,
    ) -> Result<CounterOutcomes, HoldError> {
        match hold {
            HoldRequest::Reserve(terms) | HoldRequest::ChargeOnce(terms) => {
                let sent = self.require_share(caller, checks, terms)?;
                let reserved = match self.reserve_here(checks, terms, refusal)? {
                    Some(reserved) => reserved,
                    None => remote.reserve(checks, terms, timeout, caller, refusal.clone()).await?,
                };
                if let Some(sent) = sent.filter(|_| reserved.is_held) {
                    sent.held(terms);
                }
                if reserved.is_held && hold.is_settled_at_once() {
                    // The expiry charges what is not settled, so the answer does not depend on this.
                    let _ = self.settle_elsewhere(&terms.id, checks, remote, timeout, caller).await;
                }
                Ok(reserved.into())
            }
            HoldRequest::RefundOnce(terms) => {
                let sent = self.require_share(caller, checks, terms)?;
                let operations = refund_operations(checks, terms);
                let refunded = remote.refund_once(operations, timeout, caller).await?;
                if let Some(sent) = sent {
                    sent.held(terms);
                }
                Ok(refunded.into())
            }
            HoldRequest::Settle(id) => {
                let settled = self.settle_elsewhere(id, checks, remote, timeout, caller).await?;
                Ok(CounterOutcomes { settled, ..Decisions::default().into() })
            }
        }
    }

    async fn settle_elsewhere(
        &self,
        id: &HoldId,
        checks: &Checks<'_>,
        remote: &Remote,
        timeout: Option<Duration>,
        caller: &Caller,
    ) -> Result<SmallVec<[Settled; 2]>, HoldError> {
        let sent = self.sent_id(caller, checks, id);
        let unknown = sent.as_ref().map_or(UnknownId::Remember, SentId::unknown);
        let settled = remote.settle(checks, id, unknown, timeout, caller).await?;
        if let Some(sent) = sent {
            sent.settled(&settled);
        }
        Ok(settled)
    }

    /// Reserves in the memory of this process. `None` if the counters are elsewhere.
    fn reserve_here(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        refusal: &Refusal,
    ) -> Result<Option<Reserved>, HoldError> {
        if self.limiter.has_no_counters() {
            return Ok(None);
        }
        let refused = |decisions: &[Decision]| refusal.is_refused(decisions);
        match self.limiter.memory.reserve(checks, terms, self.now(), refused) {
            Ok(reserved) => Ok(Some(reserved)),
            Err(ReserveError::NotLocal(_)) => {
                self.require_elsewhere()?;
                Ok(None)
            }
            Err(ReserveError::Exhausted) => Err(HoldError::Exhausted),
        }
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

    /// The id of a call in its caller's share; `None` if this process keeps no counters.
    fn sent_id<'c>(&self, caller: &'c Caller, checks: &Checks<'_>, id: &HoldId) -> Option<SentId<'c>> {
        let memory = (!self.limiter.has_no_counters()).then(|| self.limiter.memory.id_memory())?;
        Some(SentId::new(caller, checks, id, memory, self.now()))
    }

    /// The answer from what the counters have answered.
    pub(super) fn held_answer<'s>(
        &'s self,
        hold: &HoldRequest,
        domain: KeyedDomain<'s>,
        request: &Request<'_>,
        applied: &[AppliedLimit<'s>],
        set: &CheckSet<'_>,
        outcomes: &CounterOutcomes,
    ) -> HeldAnswer<'s> {
        if let HoldRequest::Settle(_) = hold {
            return HeldAnswer::from_settled(applied, set, &outcomes.settled);
        }
        let RemoteDecisions { decisions, degraded } = &outcomes.decided;
        let answer = self.recorded_answer(domain, request, applied, set, decisions, degraded);
        HeldAnswer { is_held: outcomes.is_held, has_ended: outcomes.has_ended, ..answer.into() }
    }
}

impl HoldRequest {
    /// The id.
    pub fn id(&self) -> &HoldId {
        match self {
            Self::Reserve(terms) | Self::ChargeOnce(terms) | Self::RefundOnce(terms) => terms.id(),
            Self::Settle(id) => id,
        }
    }

    /// Whether each descriptor charges, unless it is refunded.
    fn require_operations(&self, request: &Request<'_>) -> Result<(), HoldError> {
        let is_charge = |operation| matches!(operation, Operation::Charge(_));
        let other = request.descriptors.iter().position(|descriptor| !is_charge(descriptor.operation));
        match (self, other) {
            (Self::RefundOnce(_), _) | (_, None) => Ok(()),
            (Self::Reserve(_) | Self::ChargeOnce(_) | Self::Settle(_), Some(descriptor)) => {
                Err(HoldError::NotCharge { descriptor })
            }
        }
    }

    /// The request with the terms of each check.
    fn for_checks(self, set: &CheckSet<'_>) -> Self {
        let of_checks = |terms: HoldTerms| terms.with_checks(set.each_descriptor()).into_owned();
        match self {
            Self::Reserve(terms) => Self::Reserve(of_checks(terms)),
            Self::ChargeOnce(terms) => Self::ChargeOnce(of_checks(terms)),
            Self::RefundOnce(_) | Self::Settle(_) => self,
        }
    }

    fn is_settled_at_once(&self) -> bool {
        match self {
            Self::ChargeOnce(_) => true,
            Self::Reserve(_) | Self::RefundOnce(_) | Self::Settle(_) => false,
        }
    }
}

impl From<Decisions> for CounterOutcomes {
    fn from(decisions: Decisions) -> Self {
        Self::new(RemoteDecisions { decisions, degraded: SmallVec::new() })
    }
}

impl From<Reserved> for CounterOutcomes {
    fn from(Reserved { is_held, has_ended, decisions }: Reserved) -> Self {
        Self { is_held, has_ended, ..decisions.into() }
    }
}

impl<'s> HeldAnswer<'s> {
    /// The answer if no limit applies to any descriptor: there is nothing to hold.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let settled = vec![None; descriptors];
        Self { is_held: true, settled, ..Answer::without_limits(descriptors).into() }
    }

    /// The answer from how the checks of `set` were settled.
    fn from_settled(applied: &[AppliedLimit<'s>], set: &CheckSet<'_>, each: &[Settled]) -> Self {
        let mut statuses: SmallVec<[Status<'s>; 2]> = applied.iter().map(Status::from_applied).collect();
        let mut all = vec![None; statuses.len()];
        for (index, settled) in set.deciding().iter().zip(each) {
            let status = &mut statuses[*index];
            status.remaining = settled.remaining;
            status.reset_after = Some(settled.reset_after);
            all[*index] = Some(*settled);
        }
        let answer = Answer { statuses, ..Answer::without_limits(0) };
        Self { settled: all, ..answer.into() }
    }
}

#[cfg(test)]
mod tests;
