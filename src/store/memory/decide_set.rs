//! Decides the checks of one call as one.

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Decision, Operation, Receipt},
    store::{Check, Decisions, OnRefusal},
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
pub(crate) fn decide_set(
    checks: &[Check<'_>],
    refused: impl FnOnce(&[Decision]) -> bool,
    mut each: impl FnMut(usize, Action) -> (Decision, bool),
) -> Decisions {
    let (mut decisions, mut charged) = (SmallVec::<[Decision; 2]>::new(), SmallVec::<[u64; 2]>::new());
    for (index, check) in checks.iter().enumerate() {
        let (decision, stored) = each(index, Action::Decide);
        let hits = check.limit.charged(check.operation, decision.verdict.passes());
        charged.push(if stored { hits } else { 0 });
        decisions.push(decision);
    }
    if checks.len() > 1 && refused(&decisions) {
        // Newest first, so that two charges to one counter are undone in reverse order.
        for (index, decision) in decisions.iter_mut().enumerate().rev() {
            if checks[index].on_refusal == OnRefusal::TakeBack
                && let Some(receipt) = decision.receipt.take()
            {
                charged[index] = 0;
                each(index, Action::TakeBack(receipt));
            }
        }
        for (index, decision) in decisions.iter_mut().enumerate() {
            if decision.verdict.passes() && checks[index].on_refusal == OnRefusal::TakeBack {
                let (left, _) = each(index, Action::Peek);
                // After an overdraft, a peek is refused and has the time until it passes.
                if left.verdict.passes() {
                    (decision.remaining, decision.reset_after) = (left.remaining, left.reset_after);
                }
            }
        }
    }
    Decisions::new(decisions, charged)
}
