//! Decides the checks of one call as one.

use smallvec::SmallVec;
use tollgate_counter::algorithm::{Decision, Operation};

use crate::{Check, Decisions, OnRefusal, operation::CounterOperation};

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
