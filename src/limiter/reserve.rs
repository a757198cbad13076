//! Reservations: all limits of a request are held, and settled when it is known how many hits were used.

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Operation},
    limiter::{
        ActiveView, Answer, LimiterError, Request, RequestError, Status, answer,
        plan::{AppliedLimit, Plan, applied_limits},
    },
    rules::KeyedDomain,
    store::{HoldId, HoldTerms, HoldTtlOutOfBounds, ReserveError, Reserved, Settled},
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

impl ActiveView<'_> {
    /// Reserves the hits of all descriptors, or none, if this replica has all their counters. A repeated call with the
    /// same id answers as the first one.
    pub fn reserve(&self, request: &Request<'_>, terms: &HoldTerms) -> Result<HeldAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            return Ok(HeldAnswer::without_limits(request));
        };
        if self.limiter.remote.as_ref().is_some_and(|remote| remote.takes_holds()) {
            return Err(HoldError::Limiter(self.not_local_error()));
        }
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let refused = |decisions: &[Decision]| {
            answer::refuses(self.limiter.modes, &applied.limits, plan.deciding(), decisions)
        };
        let reserved = self.limiter.memory.reserve(&plan.checks, terms, self.now(), refused);
        let reserved = reserved.map_err(|error| match error {
            ReserveError::NotLocal(_) => HoldError::Limiter(self.not_local_error()),
            ReserveError::Exhausted => HoldError::Exhausted,
        })?;
        Ok(self.held_answer(request, &applied, &plan, &reserved))
    }

    /// Charges the hits of all descriptors, or none, once for each id: a repeated call is answered as the first one.
    ///
    /// The charge is a reservation that is settled at once. If it is not settled, its expiry charges it. A refused call
    /// changes nothing and is not remembered.
    pub fn charge_once(&self, request: &Request<'_>, terms: &HoldTerms) -> Result<Answer<'_>, HoldError> {
        // Settlements need the owners of all counters.
        if self.limiter.remote.is_some() {
            return Err(HoldError::Limiter(self.not_local_error()));
        }
        let HeldAnswer { answer, is_held } = self.reserve(request, terms)?;
        if is_held {
            self.settle(request, &terms.id)?;
        }
        Ok(answer)
    }

    /// Settles a reservation at the hits of the descriptors, if there are no other replicas. They are the same
    /// descriptors as those of the reservation. No hits cancel it.
    pub fn settle(&self, request: &Request<'_>, id: &HoldId) -> Result<SettledAnswer<'_>, HoldError> {
        let Some(applied) = self.applied_holds(request)? else {
            return Ok(SettledAnswer::without_limits(request));
        };
        // The owner may have reported the counter as exhausted to other replicas.
        if self.limiter.remote.is_some() {
            return Err(HoldError::Limiter(self.not_local_error()));
        }
        let plan = Plan::new(applied.domain, request, &applied.limits);
        let settled = self.limiter.memory.settle(&plan.checks, id, self.now());
        let settled = settled.map_err(|_| HoldError::Limiter(self.not_local_error()))?;
        Ok(SettledAnswer::of(&applied, &plan, &settled))
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

    pub(super) fn held_answer<'s>(
        &'s self,
        request: &Request<'_>,
        applied: &AppliedHolds<'s>,
        plan: &Plan<'_>,
        Reserved { is_held, decisions }: &Reserved,
    ) -> HeldAnswer<'s> {
        let AppliedHolds { domain, limits } = applied;
        let answer = self.counted_answer(*domain, request, limits, plan, decisions, &[]);
        HeldAnswer { answer, is_held: *is_held }
    }
}

impl HeldAnswer<'_> {
    pub(super) fn without_limits(request: &Request<'_>) -> Self {
        Self { answer: Answer::without_limits(request.descriptors.len()), is_held: true }
    }
}

impl<'s> SettledAnswer<'s> {
    pub(super) fn without_limits(request: &Request<'_>) -> Self {
        let descriptors = request.descriptors.len();
        let Answer { statuses, .. } = Answer::without_limits(descriptors);
        Self { statuses, settled: SmallVec::from_elem(None, descriptors) }
    }

    /// The answer from how the checks of `plan` were settled.
    pub(super) fn of(applied: &AppliedHolds<'s>, plan: &Plan<'_>, each: &[Settled]) -> Self {
        let mut statuses: SmallVec<[Status<'s>; 2]> = applied.limits.iter().map(Status::of).collect();
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
