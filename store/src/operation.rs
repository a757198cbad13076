//! Operations on one counter and its holds, and their outcomes; the checks of one call decided as one.

use std::{convert::Infallible, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Admission, Counter, Decision, Limit, Operation, OwnTerms, PenaltyState, Receipt, Verdict},
    descriptor::Key,
    time::Timestamp,
};

use crate::{
    check::{Check, OnFull, OnRefusal},
    decisions::{CheckDecision, CounterOutcomes, Decisions},
    reservation::{HoldId, HoldTerms, OpenHolds, Settled},
    side_data::own::{OwnLimitChange, OwnLimitOutcome, OwnLimitState, SlotOwnLimits},
    subscribers::Subscribers,
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
    /// Return limits of their own of the slot of the counter: the next ones after this key.
    ListOwnLimits(Option<Key>),
    /// Add what was consumed elsewhere, then peek. Instants in it are of this clock, so it is not sent.
    #[serde(skip)]
    Absorb(Counter),
}

/// What becomes of an unknown id whose settlement was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownId {
    /// The id is retained if there is room, so that a repeated settlement charges nothing.
    Remember,
    /// The id is forgotten.
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
    /// The limit of its own that has decided; `None` if the limit of the check has. Boxed, because most have none.
    pub own: Option<Box<OwnTerms>>,
}

/// What an operation has done to holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HoldOutcome {
    /// What the decision says.
    Decided,
    /// Nothing was done, because the counter has too many holds.
    Exhausted,
    /// A hold is settled. Boxed, because most outcomes have none.
    Settled(Box<Settled>),
    /// Nothing was done to holds: the outcome has the side data of the counter.
    Shown(Arc<CounterDetails>),
    /// The hold that was reserved is known and has ended. The decision is that of its reservation.
    Ended,
    /// Nothing was done to holds: the outcome has what became of the limit of its own.
    OwnLimit(Box<OwnLimitOutcome>),
    /// Nothing was done to holds: the outcome has limits of their own of the slot.
    OwnLimits(Box<SlotOwnLimits>),
}

/// The side data of a counter, which a peek does not tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// What others than the interpreter ask of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperationProperties<'o> {
    /// The operation of a call.
    pub decided: Option<Operation>,
    /// The receipt of the charge that is taken back.
    pub undone: Option<&'o Receipt>,
    /// The hits that are held.
    pub reserved: Option<u64>,
    /// The hits at which a hold is settled.
    pub settled: Option<u64>,
    /// The terms of the id that is added.
    pub terms: Option<&'o HoldTerms>,
    /// The id that the counter may retain if it does not know it.
    pub retained_id: Option<&'o HoldId>,
    /// Whether the operation may charge, so that a replica that receives from too few members does not apply it.
    pub may_charge: bool,
    /// Whether the counter may refuse before the operation and pass after it.
    pub frees_hits: bool,
    /// Whether only the counter itself can decide the operation.
    pub needs_counter: bool,
    /// Whether the operation is sent again if it gets lost.
    pub must_arrive: bool,
    /// Whether nothing of what was counted before remains.
    pub replaces_counter: bool,
}

impl CounterOperation {
    /// What others than the interpreter ask of the operation.
    pub fn properties(&self) -> OperationProperties<'_> {
        let none = OperationProperties::default();
        match self {
            Self::Decide(operation) => OperationProperties {
                decided: Some(*operation),
                may_charge: true,
                frees_hits: matches!(operation, Operation::Refund(_)),
                ..none
            },
            Self::Undo(receipt) => OperationProperties { undone: Some(receipt), frees_hits: true, ..none },
            Self::Set(_) => OperationProperties { frees_hits: true, replaces_counter: true, ..none },
            Self::Reserve { terms, hits } => OperationProperties {
                reserved: Some(*hits),
                terms: Some(terms),
                retained_id: Some(&terms.id),
                may_charge: true,
                needs_counter: true,
                ..none
            },
            Self::Settle { id, actual, unknown } => OperationProperties {
                settled: Some(*actual),
                retained_id: Some(id).filter(|_| *unknown == UnknownId::Remember),
                may_charge: true,
                frees_hits: true,
                needs_counter: true,
                ..none
            },
            Self::Withdraw { .. } => {
                OperationProperties { frees_hits: true, needs_counter: true, must_arrive: true, ..none }
            }
            Self::RefundOnce { terms, .. } => OperationProperties {
                terms: Some(terms),
                retained_id: Some(&terms.id),
                may_charge: true,
                frees_hits: true,
                needs_counter: true,
                ..none
            },
            Self::Show | Self::ListOwnLimits(_) => OperationProperties { needs_counter: true, ..none },
            Self::SetOwnLimit(_) => OperationProperties { frees_hits: true, needs_counter: true, ..none },
            Self::Absorb(_) => none,
        }
    }

    /// The operation without room for its id; `None` if it cannot be applied then.
    pub fn without_retained_id(&self) -> Option<Self> {
        let Self::Settle { id, actual, .. } = self else { return None };
        Some(Self::Settle { id: id.clone(), actual: *actual, unknown: UnknownId::Forget })
    }
}

impl OperationOutcome {
    /// The outcome of a decision that has charged so many hits.
    pub fn new(decision: Decision, charged: u64) -> Self {
        Self { decision, charged, hold: HoldOutcome::Decided, own: None }
    }

    /// The outcomes of a reservation, in the order of its checks.
    pub fn reserved(reserved: &CounterOutcomes) -> SmallVec<[Self; 1]> {
        let hold = if reserved.has_ended { HoldOutcome::Ended } else { HoldOutcome::Decided };
        let each = reserved.decisions.iter();
        each.map(|each| Self { hold: hold.clone(), ..Self::new(each.decision, each.charged) }).collect()
    }

    /// The outcome by the limit of its own that has decided.
    pub fn by_own(self, own: Option<&OwnTerms>) -> Self {
        Self { own: own.cloned().map(Box::new), ..self }
    }

    /// What the limit of its own displays that has decided.
    pub fn displayed(&self) -> Option<u64> {
        self.own.as_ref().map(|own| own.requests_per_unit)
    }

    /// The outcome of a settlement.
    pub(super) fn settled(settled: Settled) -> Self {
        let Settled { remaining, reset_after, .. } = settled;
        let decision = Decision { verdict: Verdict::Pass, remaining, reset_after, receipt: None };
        Self { hold: HoldOutcome::Settled(Box::new(settled)), ..Self::new(decision, 0) }
    }

    /// The outcome in place of one whose counter could not be stored.
    pub(super) fn without_memory(self, on_full: OnFull, operation: &CounterOperation) -> Self {
        let Self { decision, mut hold, own, .. } = self;
        if let (HoldOutcome::Settled(settled), Some(actual)) = (&mut hold, operation.properties().settled) {
            settled.uncharged = actual.saturating_sub(settled.reserved);
            return Self { decision, charged: 0, hold, own };
        }
        Self { decision: on_full.without_memory(decision), charged: 0, hold, own }
    }

    /// The outcome if the counter has too many holds.
    pub fn exhausted() -> Self {
        Self::undecided(HoldOutcome::Exhausted)
    }

    /// The outcome of a list.
    pub(super) fn listed(limits: SlotOwnLimits) -> Self {
        Self::undecided(HoldOutcome::OwnLimits(Box::new(limits)))
    }

    fn undecided(hold: HoldOutcome) -> Self {
        let verdict = Verdict::Pass;
        let reset_after = Duration::ZERO;
        let decision = Decision { verdict, remaining: 0, reset_after, receipt: None };
        Self { hold, ..Self::new(decision, 0) }
    }
}

/// The decision of a call with one check. It has no receipt, because such a call takes no charge back.
impl From<OperationOutcome> for CheckDecision<Infallible> {
    fn from(outcome: OperationOutcome) -> Self {
        let CheckDecision { decision, charged, own } = (&outcome).into();
        Self { decision: decision.keep_receipt(|_: Receipt| None), charged, own }
    }
}

/// The decision as one of several of its call.
impl From<&OperationOutcome> for CheckDecision {
    fn from(outcome: &OperationOutcome) -> Self {
        let OperationOutcome { decision, charged, .. } = *outcome;
        Self { decision, charged, own: outcome.displayed() }
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
    refused: impl FnOnce(&[CheckDecision]) -> bool,
    mut each: impl FnMut(usize, &CounterOperation) -> (CheckDecision, bool),
) -> Decisions {
    let mut decisions = Decisions::new();
    let mut are_stored = SmallVec::<[bool; 2]>::new();
    for (index, check) in checks.iter().enumerate() {
        let (decision, is_stored) = each(index, &CounterOperation::Decide(check.operation));
        decisions.push(decision);
        are_stored.push(is_stored);
    }
    if checks.len() > 1 && refused(&decisions) {
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, CheckDecision { decision, charged, .. }) in decisions.iter_mut().enumerate().rev() {
            if checks[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                *charged = 0;
                each(index, &CounterOperation::Undo(receipt));
            }
        }
        for (index, CheckDecision { decision, .. }) in decisions.iter_mut().enumerate() {
            // A counter without memory has nothing left.
            let has_memory = decision.verdict.passes() || are_stored[index];
            if has_memory && checks[index].on_refusal == OnRefusal::TakeBack {
                let (left, _) = each(index, &CounterOperation::Decide(Operation::Peek));
                *decision = decision.after_take_back(&left);
            }
        }
    }
    decisions
}

/// Decides an operation with `leased` hits counted as charged now.
pub(super) fn decide_leased(
    limit: &Limit,
    counter: &mut Counter,
    operation: Operation,
    leased: u64,
    now: Timestamp,
) -> Decision {
    if leased == 0 {
        return limit.decide(counter, now, operation);
    }
    let mut full = counter.clone();
    limit.charge_at(&mut full, leased, now, now);
    let with_leases = limit.decide(&mut full, now, operation);
    let mut unleased = counter.clone();
    let bare = limit.decide(&mut unleased, now, operation);
    let passes = with_leases.verdict.passes();
    if limit.is_changed_by(operation, passes) {
        *counter = unleased;
    }
    if passes {
        Decision { remaining: with_leases.remaining, ..bare }
    } else {
        Decision { receipt: None, ..with_leases }
    }
}

/// Whether the decision of [`decide_leased`] would differ if the `leased` hits were returned.
pub(super) fn depends_on_leases(
    limit: &Limit,
    counter: &Counter,
    operation: Operation,
    leased: u64,
    now: Timestamp,
) -> bool {
    let mut after = counter.clone();
    let passes = decide_leased(limit, &mut after, operation, leased, now).verdict.passes();
    match operation {
        Operation::Peek | Operation::Charge(_) => {
            !passes && limit.decide(&mut counter.clone(), now, operation).verdict.passes()
        }
        // A refund gives back no more than was charged.
        Operation::Refund(_) => limit.idle_at(&after) <= now,
    }
}
