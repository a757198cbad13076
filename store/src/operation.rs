//! Operations on one counter and its holds, and their outcomes; the checks of one call decided as one.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Admission, Counter, Decision, Limit, Operation, PenaltyState, Receipt, Verdict},
    time::Timestamp,
};

use crate::{
    Check, Decisions, HoldId, HoldTerms, OnRefusal, OpenHolds, OwnLimitChange, OwnLimitOutcome,
    OwnLimitState, Reserved, Settled, Subscribers,
};

/// An operation on a counter and its holds, in every store.
///
/// Replicas encode operations by the order of the variants and fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CounterOperation {
    /// Decide the operation of a call.
    Decide(Operation),
    /// Take back what still counts of one charge, then peek.
    Undo(Receipt),
    /// Replace the counter by one with this many hits, above the limit if the algorithm can hold a debt, and drop the
    /// holds. Then peek.
    Set(u64),
    /// Hold a charge of this many hits.
    Reserve {
        /// The terms of the hold.
        terms: Box<HoldTerms>,
        /// The hits.
        hits: u64,
    },
    /// Settle a hold at the hits that were used.
    Settle {
        /// The hold.
        id: HoldId,
        /// The hits that were used.
        actual: u64,
        /// What becomes of an id that is unknown.
        unknown: UnknownId,
    },
    /// Take back what one attempt holds, and forget it.
    Withdraw {
        /// The hold.
        id: HoldId,
        /// The attempt that made it.
        attempt: u64,
    },
    /// Refund this many hits once for each id. A repeated refund is answered as the first one.
    RefundOnce {
        /// The id, and for how long it is retained.
        terms: Box<HoldTerms>,
        /// The hits.
        hits: u64,
    },
    /// Peek, and return the side data of the counter.
    Show,
    /// Set or remove the limit of its own, then peek.
    SetOwnLimit(Box<OwnLimitChange>),
    /// Add what was consumed elsewhere, then peek. Instants in it are of this clock, so it is not sent.
    #[serde(skip)]
    Absorb(Counter),
}

/// What becomes of an unknown id whose settlement was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownId {
    /// It is retained if there is room, so that a repeated settlement charges nothing.
    Remember,
    /// It is forgotten.
    Forget,
}

/// What an operation on a counter has come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationOutcome {
    /// The decision.
    pub decision: Decision,
    /// The hits that were charged.
    pub charged: u64,
    /// What has become of holds.
    pub hold: HoldOutcome,
    /// What the limit of its own displays that has decided; `None` if the numbers of the rule have.
    pub own: Option<u64>,
}

/// What an operation has done to holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HoldOutcome {
    /// What the decision says.
    Decided,
    /// Nothing, because the counter has too many holds.
    Exhausted,
    /// One is settled. Boxed, because most outcomes have none.
    Settled(Box<Settled>),
    /// Nothing: the outcome has the side data of the counter.
    Shown(Arc<CounterDetails>),
    /// The one that was reserved is known and has ended. The decision is that of its reservation.
    Ended,
    /// Nothing: the outcome has what became of the limit of its own.
    OwnLimit(Box<OwnLimitOutcome>),
}

/// The side data of a counter, which a peek does not tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CounterDetails {
    /// The open holds.
    pub holds: Arc<OpenHolds>,
    /// The record of refusals.
    pub penalty: Option<PenaltyState>,
    /// Clients with parts of the limit, if it is divided.
    pub subscribers: Option<Arc<Subscribers>>,
    /// The limit of its own.
    pub own_limit: Option<OwnLimitState>,
}

impl CounterOperation {
    /// Applies the operation to a counter. Operations on holds only peek.
    #[inline]
    pub(super) fn apply(&self, limit: &Limit, counter: &mut Counter, now: Timestamp) -> Decision {
        match self {
            Self::Decide(operation) => return limit.decide(counter, now, *operation),
            Self::Undo(receipt) => limit.undo(counter, *receipt, now),
            Self::Set(hits) => *counter = charged_counter(limit, *hits, now),
            Self::Absorb(consumed) => limit.absorb(counter, consumed, now),
            Self::Reserve { .. }
            | Self::Settle { .. }
            | Self::Withdraw { .. }
            | Self::RefundOnce { .. }
            | Self::Show
            | Self::SetOwnLimit(_) => {}
        }
        limit.decide(counter, now, Operation::Peek)
    }

    /// The operation of a call; a peek for all others.
    pub fn call_operation(&self) -> Operation {
        if let Self::Decide(operation) = self { *operation } else { Operation::Peek }
    }

    /// Whether the counter may refuse before the operation and pass after it.
    pub fn frees_hits(&self) -> bool {
        match self {
            Self::Decide(Operation::Refund(_))
            | Self::Undo(_)
            | Self::Set(_)
            | Self::RefundOnce { .. }
            | Self::Settle { .. }
            | Self::Withdraw { .. }
            | Self::SetOwnLimit(_) => true,
            Self::Decide(Operation::Peek | Operation::Charge(_))
            | Self::Absorb(_)
            | Self::Reserve { .. }
            | Self::Show => false,
        }
    }

    /// Whether the counter may retain an id that it does not know.
    pub fn remembers_id(&self) -> bool {
        match self {
            Self::Reserve { .. } | Self::RefundOnce { .. } => true,
            Self::Settle { unknown, .. } => *unknown == UnknownId::Remember,
            Self::Decide(_)
            | Self::Undo(_)
            | Self::Set(_)
            | Self::Withdraw { .. }
            | Self::Absorb(_)
            | Self::Show
            | Self::SetOwnLimit(_) => false,
        }
    }

    /// Whether only the counter itself can decide the operation.
    pub fn needs_counter(&self) -> bool {
        match self {
            Self::Reserve { .. }
            | Self::Settle { .. }
            | Self::Withdraw { .. }
            | Self::RefundOnce { .. }
            | Self::Show
            | Self::SetOwnLimit(_) => true,
            Self::Decide(_) | Self::Undo(_) | Self::Set(_) | Self::Absorb(_) => false,
        }
    }
}

impl OperationOutcome {
    /// The outcome of a decision that has charged so many hits.
    pub fn new(decision: Decision, charged: u64) -> Self {
        Self { decision, charged, hold: HoldOutcome::Decided, own: None }
    }

    /// The outcomes of a reservation, in the order of its checks.
    pub fn reserved(reserved: &Reserved) -> SmallVec<[Self; 1]> {
        let hold = if reserved.has_ended { HoldOutcome::Ended } else { HoldOutcome::Decided };
        let each = reserved.decisions.iter().zip(reserved.decisions.charged());
        let own = |index| reserved.decisions.own(index);
        each.enumerate()
            .map(|(index, (decision, charged))| Self {
                hold: hold.clone(),
                own: own(index),
                ..Self::new(*decision, *charged)
            })
            .collect()
    }

    /// The outcome of a settlement.
    pub(super) fn settled(settled: Settled) -> Self {
        let Settled { remaining, reset_after, .. } = settled;
        let decision = Decision { verdict: Verdict::Pass, remaining, reset_after, receipt: None };
        Self { hold: HoldOutcome::Settled(Box::new(settled)), ..Self::new(decision, 0) }
    }

    /// The outcome if the counter has too many holds.
    pub fn exhausted() -> Self {
        let verdict = Verdict::Pass;
        let reset_after = Duration::ZERO;
        let decision = Decision { verdict, remaining: 0, reset_after, receipt: None };
        Self { hold: HoldOutcome::Exhausted, ..Self::new(decision, 0) }
    }
}

/// Charges hits that a client has used, or may have used, whether they would pass or not. Returns a peek.
pub(super) fn charge_used(limit: &Limit, counter: &mut Counter, hits: u64, now: Timestamp) -> Decision {
    limit.charge_at(counter, hits, now, now);
    limit.decide(counter, now, Operation::Peek)
}

/// A fresh counter with `hits` charged, above the limit if the algorithm can hold a debt, and without a penalty.
pub(super) fn charged_counter(limit: &Limit, hits: u64, now: Timestamp) -> Counter {
    let limit = limit.plain();
    let mut counter = limit.fresh();
    if hits > 0 {
        let hits = match limit.admission() {
            Admission::AtOnce => hits,
            // A queue and places in flight hold no more than their allowance.
            Admission::Delayed | Admission::InFlight => hits.min(limit.allowance()),
        };
        limit.with_debt(hits).decide(&mut counter, now, Operation::Charge(hits));
    }
    counter
}

/// Decides the checks of one call in order, and takes charges back if the call is refused. `each` applies an operation to
/// the counter of the check at an index, and returns whether the counter is stored.
pub fn decide_set(
    checks: &[Check<'_>],
    refused: impl FnOnce(&[Decision]) -> bool,
    mut each: impl FnMut(usize, &CounterOperation) -> (Decision, bool),
) -> Decisions {
    let mut decisions = SmallVec::<[Decision; 2]>::new();
    let mut charged = SmallVec::<[u64; 2]>::new();
    let mut are_stored = SmallVec::<[bool; 2]>::new();
    for (index, check) in checks.iter().enumerate() {
        let (decision, stored) = each(index, &CounterOperation::Decide(check.operation));
        let hits = check.limit.charged(check.operation, decision.verdict.passes());
        charged.push(if stored { hits } else { 0 });
        decisions.push(decision);
        are_stored.push(stored);
    }
    if checks.len() > 1 && refused(&decisions) {
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, decision) in decisions.iter_mut().enumerate().rev() {
            if checks[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                charged[index] = 0;
                each(index, &CounterOperation::Undo(receipt));
            }
        }
        for (index, decision) in decisions.iter_mut().enumerate() {
            // A counter without memory has nothing left.
            let has_memory = decision.verdict.passes() || are_stored[index];
            if has_memory && checks[index].on_refusal == OnRefusal::TakeBack {
                let (left, _) = each(index, &CounterOperation::Decide(Operation::Peek));
                *decision = decision.after_take_back(&left);
            }
        }
    }
    Decisions::new(decisions, charged)
}
