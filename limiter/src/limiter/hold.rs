//! Requests with an id: what they hold, and how they are answered.

use smallvec::SmallVec;
use tollgate_counter::algorithm::Operation;
use tollgate_remote::RemoteHoldError;
use tollgate_store::{HoldId, HoldTerms, HoldTtlOutOfBounds, Settled};

use crate::limiter::{
    answer::{Answer, LimiterError, Status},
    check_set::{AppliedLimit, CheckSet},
    request::{Request, RequestError},
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

impl HoldRequest {
    /// The id.
    pub fn id(&self) -> &HoldId {
        match self {
            Self::Reserve(terms) | Self::ChargeOnce(terms) | Self::RefundOnce(terms) => &terms.id,
            Self::Settle(id) => id,
        }
    }

    /// Whether each descriptor charges, unless it is refunded.
    pub(super) fn require_operations(&self, request: &Request<'_>) -> Result<(), HoldError> {
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
    pub(super) fn for_checks(self, set: &CheckSet<'_>) -> Self {
        let of_checks = |terms: HoldTerms| terms.with_checks(set.descriptors.iter().copied()).into_owned();
        match self {
            Self::Reserve(terms) => Self::Reserve(of_checks(terms)),
            Self::ChargeOnce(terms) => Self::ChargeOnce(of_checks(terms)),
            Self::RefundOnce(_) | Self::Settle(_) => self,
        }
    }
}

impl<'s> HeldAnswer<'s> {
    /// The answer if no limit applies to any descriptor: there is nothing to hold.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let settled = vec![None; descriptors];
        Self { is_held: true, settled, ..Answer::without_limits(descriptors).into() }
    }

    /// The answer from how the checks of `set` were settled.
    pub(super) fn from_settled(applied: &[AppliedLimit<'s>], set: &CheckSet<'_>, each: &[Settled]) -> Self {
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

impl<'s> From<Answer<'s>> for HeldAnswer<'s> {
    fn from(answer: Answer<'s>) -> Self {
        Self { answer, is_held: false, has_ended: false, settled: Vec::new() }
    }
}
