//! When a charge that has passed passes again.

use super::*;

proptest! {
    #[test]
    fn charge_that_passed_passes_again_after_the_named_time(
        limit in any_limit(), history in history(), hits in any_hits(),
    ) {
        let ((mut now, operations), mut counter) = (history, limit.fresh());
        for (pause, operation) in operations {
            now = now.plus(pause);
            limit.decide(&mut counter, now, operation);
        }
        let operation = Operation::Charge(hits);
        let decision = limit.decide(&mut counter, now, operation);
        if decision.verdict.passes()
            && let Some(wait) = limit.repeats_after(operation, decision.remaining, decision.reset_after)
        {
            let then = now.plus(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
            let again = limit.decide(&mut counter, then, operation);
            prop_assert!(again.verdict.passes(), "{decision:?} after {wait:?}: {again:?}");
        }
    }

    #[test]
    fn charge_that_can_pass_passes_on_a_fresh_counter(
        limit in any_limit(), now in any_instant(), operation in any_operation(),
    ) {
        let passes = limit.decide(&mut limit.fresh(), now, operation).verdict.passes();
        // A classic peek is refused only if more than the limit is counted.
        prop_assert!(limit.can_pass(operation) == passes || limit.is_classic() && operation == Operation::Peek);
    }
}
