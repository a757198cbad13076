//! Several checks of one call, decided as one.

use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Counter, Decision, Receipt},
    store::{Check, Decisions, OnRefusal},
    time::Timestamp,
};

/// What is done to the counter of a check.
#[derive(Clone, Copy)]
pub(super) enum Deed {
    /// It is asked what the check asks.
    Ask,
    /// A charge is taken back, and it is looked at.
    TakeBack(Receipt),
    /// It is looked at.
    Look,
}

impl Deed {
    pub(super) fn done(self, check: &Check<'_>, counter: &mut Counter, now: Timestamp) -> Decision {
        match self {
            Self::Ask => check.limit.decide(counter, now, check.ask),
            Self::TakeBack(receipt) => {
                check.limit.undo(counter, receipt, now);
                check.limit.decide(counter, now, Ask::Look)
            }
            Self::Look => check.limit.decide(counter, now, Ask::Look),
        }
    }
}

/// Decides the checks of one call one after the other, and takes charges back where the call is refused. `each` does
/// a deed to the counter of the check at that index, and says whether that is kept.
pub(super) fn settle(
    checks: &[Check<'_>],
    refused: impl FnOnce(&[Decision]) -> bool,
    each: &mut impl FnMut(usize, Deed) -> (Decision, bool),
) -> Decisions {
    let (mut decisions, mut charged) = (SmallVec::<[Decision; 2]>::new(), SmallVec::<[u64; 2]>::new());
    for (index, check) in checks.iter().enumerate() {
        let (decision, kept) = each(index, Deed::Ask);
        charged.push(if kept { check.limit.charged(check.ask, decision.verdict.passes()) } else { 0 });
        decisions.push(decision);
    }
    if 1 < checks.len() && refused(&decisions) {
        // Newest first, so that two charges to one counter come off in turn.
        for (index, decision) in decisions.iter_mut().enumerate().rev() {
            if checks[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                charged[index] = 0;
                each(index, Deed::TakeBack(receipt));
            }
        }
        for (index, decision) in decisions.iter_mut().enumerate() {
            if decision.verdict.passes() {
                let (left, _) = each(index, Deed::Look);
                (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
            }
        }
    }
    Decisions { each: decisions, charged }
}
