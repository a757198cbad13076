//! Decides the checks of one call as one.

use crate::{
    algorithm::{Counter, Decision, Operation, Receipt},
    store::{Check, CheckSet, Decisions, DecisionsOf, OnRefusal},
    time::Timestamp,
};

/// An action on the counter of a check.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Apply the operation of the check.
    Decide,
    /// Take a charge back, then peek.
    TakeBack(Receipt),
    /// Peek.
    Peek,
}

impl Action {
    #[inline]
    pub(crate) fn apply(self, check: &Check<'_>, counter: &mut Counter, now: Timestamp) -> Decision {
        match self {
            Self::Decide => check.limit.decide(counter, now, check.operation),
            Self::TakeBack(receipt) => {
                check.limit.undo(counter, receipt, now);
                check.limit.decide(counter, now, Operation::Peek)
            }
            Self::Peek => check.limit.decide(counter, now, Operation::Peek),
        }
    }
}

/// Decides the checks of one call in order, and takes charges back if the call is refused. `each` applies an action to
/// the counter of the check at an index, and returns whether the counter is stored.
// `inline(always)`: decisions are too large to move.
#[inline(always)]
pub(crate) fn decide_set<S: CheckSet>(
    checks: &S,
    refused: impl FnOnce(&[Decision<S::Receipt>]) -> bool,
    mut each: impl FnMut(usize, Action) -> (Decision<S::Receipt>, bool),
) -> DecisionsOf<S> {
    let mut all_charged = checks.each(|_, _| 0);
    let charged = all_charged.as_mut();
    let mut decisions = checks.each(|index, check| {
        let (decision, stored) = each(index, Action::Decide);
        if stored {
            charged[index] = check.limit.charged(check.operation, decision.verdict.passes());
        }
        decision
    });
    if checks.checks().len() > 1 && refused(decisions.as_ref()) {
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, decision) in decisions.as_mut().iter_mut().enumerate().rev() {
            if checks.checks()[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                charged[index] = 0;
                each(index, Action::TakeBack(receipt.into()));
            }
        }
        for (index, decision) in decisions.as_mut().iter_mut().enumerate() {
            if decision.verdict.passes() && checks.checks()[index].on_refusal == OnRefusal::TakeBack {
                let (left, _) = each(index, Action::Peek);
                // After an overdraft, a peek is refused and has the time until it passes.
                if left.verdict.passes() {
                    (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
                }
            }
        }
    }
    Decisions::new(decisions, all_charged)
}
