//! Reservations: all limits of a request are held, and settled when it is known how many hits were used.

use tollgate_counter::resilience::Caller;
use tollgate_remote::{
    CounterCheck, RemoteOutcome, RemoteOutcomes, SentId, refund_operations, refunded, settle_operations,
    settled,
};
use tollgate_rules::KeyedDomain;
use tollgate_store::{CheckDecision, Checks, CounterOutcomes, HoldTerms, Refusal, UnknownId};

use crate::limiter::{
    ActiveView,
    answer::{self, LimiterError},
    check_set::{AppliedLimit, CheckSet, applied_limits},
    hold::{HeldAnswer, HoldError, HoldRequest},
    limit_source::CacheHits,
    plan::{AnswerOrPlan, Plan, RemoteCaller},
    request::Request,
};

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
        let mut applied = applied_limits(domain, request);
        let pending =
            self.limiter.limits.apply(domain, request, self.now(), CacheHits::Counted, &mut applied);
        if !pending.is_empty() {
            return Ok(AnswerOrPlan::Plan(Plan::after(pending, self, request, Some(hold))));
        }
        let set = CheckSet::new(domain, request, &applied);
        let hold = hold.for_checks(&set);
        // A settlement is for other replicas also if its counters are here: the owner may have reported them as exhausted.
        if self.limiter.remote.is_some() {
            return Ok(AnswerOrPlan::Plan(Plan::new(self, request, &applied, &set, Some(hold))));
        }
        let refusal = answer::refusal(self.limiter.modes, &applied, set.deciding());
        let outcomes = self.hold_here(&hold, &set.checks, &refusal, caller)?;
        Ok(AnswerOrPlan::Answer(self.held_answer(&hold, domain, request, &applied, &set, &outcomes)))
    }

    /// Asks counters of which all are in the memory of this process.
    pub(super) fn hold_here(
        &self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        caller: &Caller,
    ) -> Result<CounterOutcomes, HoldError> {
        let sent = self.require_share(caller, checks, hold)?;
        let outcomes = self.ask_here(hold, checks, refusal, sent.as_ref())?.ok_or(LimiterError::Remote)?;
        note_outcomes(sent.as_ref(), hold, &outcomes);
        if let Some(settle) = hold.settlement(&outcomes) {
            // The expiry charges what is not settled, so the answer does not depend on this.
            let _ = self.hold_here(&settle, checks, refusal, caller);
        }
        Ok(outcomes)
    }

    /// Asks counters that are elsewhere, or here and elsewhere.
    pub(super) async fn hold_elsewhere(
        &self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        remote: RemoteCaller<'_>,
    ) -> Result<CounterOutcomes, HoldError> {
        let sent = self.require_share(remote.caller, checks, hold)?;
        let outcomes = match self.ask_here(hold, checks, refusal, sent.as_ref())? {
            Some(outcomes) => outcomes,
            None => remote.ask(hold, checks, refusal, unknown(sent.as_ref())).await?,
        };
        note_outcomes(sent.as_ref(), hold, &outcomes);
        if let Some(settle) = hold.settlement(&outcomes) {
            // The expiry charges what is not settled, so the answer does not depend on this.
            let _ = Box::pin(self.hold_elsewhere(&settle, checks, refusal, remote)).await;
        }
        Ok(outcomes)
    }

    /// Asks counters in the memory of this process. `None` if they are elsewhere.
    fn ask_here(
        &self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        sent: Option<&SentId<'_>>,
    ) -> Result<Option<CounterOutcomes>, HoldError> {
        match hold {
            HoldRequest::Reserve(terms) | HoldRequest::ChargeOnce(terms) => {
                self.reserve_here(checks, terms, refusal)
            }
            // Counters that are here are asked by the cluster too: the owner may have reported them as exhausted.
            HoldRequest::RefundOnce(_) | HoldRequest::Settle(_) if self.limiter.remote.is_some() => Ok(None),
            HoldRequest::RefundOnce(terms) => {
                let refunded = refunded(&self.operate_here(&refund_operations(checks, terms))?);
                Ok(Some(refunded.inspect_err(|_| self.limiter.memory.count_exhausted())?.into()))
            }
            HoldRequest::Settle(id) => {
                let outcomes = self.operate_here(&settle_operations(checks, id, unknown(sent)))?;
                Ok(Some(CounterOutcomes { settled: settled(&outcomes)?, ..CounterOutcomes::default() }))
            }
        }
    }

    /// Reserves in the memory of this process. `None` if the counters are elsewhere.
    fn reserve_here(
        &self,
        checks: &Checks<'_>,
        terms: &HoldTerms,
        refusal: &Refusal,
    ) -> Result<Option<CounterOutcomes>, HoldError> {
        if self.limiter.has_no_counters() {
            return Ok(None);
        }
        let refused = |decisions: &[CheckDecision]| refusal.is_refused(decisions);
        match self.limiter.memory.reserve(checks, terms, self.now(), refused) {
            Ok(Some(reserved)) => Ok(Some(reserved)),
            Ok(None) => Err(HoldError::Exhausted),
            Err(_) => {
                self.require_elsewhere()?;
                Ok(None)
            }
        }
    }

    /// Applies operations to counters in the memory of this process.
    fn operate_here(&self, operations: &[CounterCheck]) -> Result<RemoteOutcomes, LimiterError> {
        let operate = |CounterCheck { key, limit, operation, origin, .. }: &CounterCheck| {
            let outcome = self.limiter.memory.operate_by(*key, (limit, *origin), operation, self.now());
            outcome.map(RemoteOutcome::from_counter).map_err(|_| LimiterError::Remote)
        };
        operations.iter().map(operate).collect()
    }

    /// The id of a call in its caller's share, which has room for it; `None` if this process keeps no counters.
    fn require_share<'c>(
        &self,
        caller: &'c Caller,
        checks: &Checks<'_>,
        hold: &HoldRequest,
    ) -> Result<Option<SentId<'c>>, HoldError> {
        if self.limiter.has_no_counters() {
            return Ok(None);
        }
        let memory = &self.limiter.memory;
        let sent = SentId::new(caller, checks, hold.id(), memory, self.now());
        // A settlement is never refused: an unknown id is forgotten instead.
        if !sent.is_allowed() && !matches!(hold, HoldRequest::Settle(_)) {
            memory.count_exhausted();
            return Err(HoldError::Exhausted);
        }
        Ok(Some(sent))
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
        let CounterOutcomes { ref decisions, ref degraded, is_held, has_ended, .. } = *outcomes;
        let answer = self.recorded_answer(domain, request, applied, set, decisions, degraded);
        HeldAnswer { is_held, has_ended, ..answer.into() }
    }
}

impl HoldRequest {
    /// What follows at once.
    fn settlement(&self, outcomes: &CounterOutcomes) -> Option<Self> {
        match self {
            Self::ChargeOnce(terms) if outcomes.is_held => Some(Self::Settle(terms.id.clone())),
            Self::ChargeOnce(_) | Self::Reserve(_) | Self::RefundOnce(_) | Self::Settle(_) => None,
        }
    }
}

/// Counts what the counters retain of an id in the share of its caller.
fn note_outcomes(sent: Option<&SentId<'_>>, hold: &HoldRequest, outcomes: &CounterOutcomes) {
    let Some(sent) = sent else { return };
    match hold {
        HoldRequest::Reserve(terms) | HoldRequest::ChargeOnce(terms) if outcomes.is_held => sent.held(terms),
        HoldRequest::Reserve(_) | HoldRequest::ChargeOnce(_) => {}
        HoldRequest::RefundOnce(terms) => sent.held(terms),
        HoldRequest::Settle(_) => sent.settled(&outcomes.settled),
    }
}

/// What becomes of an id that a settlement finds unknown.
fn unknown(sent: Option<&SentId<'_>>) -> UnknownId {
    sent.map_or(UnknownId::Remember, SentId::unknown)
}

#[cfg(test)]
mod tests;
