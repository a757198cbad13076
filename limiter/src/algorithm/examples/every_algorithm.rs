//! What every named algorithm does.

use super::*;

#[test]
fn charge_above_remaining_is_refused_and_changes_nothing() {
    for limit in ten_each() {
        let mut counter = limit.fresh();
        for left in [10, 6, 2] {
            for _ in 0..3 {
                let refused = limit.decide(&mut counter, TWO, Operation::Charge(left + 1));
                assert_eq!((refused.verdict.passes(), refused.remaining), (false, left), "{limit:?}");
                let never = limit.decide(&mut counter, TWO, Operation::Charge(11));
                assert_eq!(never.verdict, Verdict::Refuse { retry_after: None }, "{limit:?}");
                assert_eq!(never.remaining, left);
            }
            limit.decide(&mut counter, TWO, Operation::Charge(4));
        }
    }
}

#[test]
fn reset_after_several_hits_is_exact() {
    for limit in ten_each() {
        let mut counter = limit.fresh();
        let first = limit.decide(&mut counter, at(0), Operation::Charge(1));
        let second = limit.decide(&mut counter, at(0), Operation::Charge(9));
        let full = at(0).plus(u64::try_from(second.reset_after.as_nanos()).unwrap());
        assert!(first.reset_after <= second.reset_after && !first.reset_after.is_zero(), "{limit:?}");
        let left =
            |counter: &Counter, now| limit.decide(&mut counter.clone(), now, Operation::Peek).remaining;
        // The counts of a sliding window still weigh something when its window has ended.
        let all = if matches!(limit, Limit::SlidingWindow(_)) { 0 } else { 10 };
        assert_eq!(left(&counter, full), all, "{limit:?}");
        assert!(left(&counter, full.minus(1)) < 10);
        let refused = limit.decide(&mut counter, at(7), Operation::Charge(3));
        let then = at(7).plus(u64::try_from(refused.reset_after.as_nanos()).unwrap());
        // Places may be freed earlier.
        let is_known = limit.admission() != Admission::InFlight;
        let retry_after = is_known.then_some(refused.reset_after);
        assert_eq!(refused.verdict, Verdict::Refuse { retry_after });
        assert!(left(&counter, then.minus(1)) < 3 && left(&counter, then) >= 3, "{limit:?}");
    }
}

#[test]
fn refund_of_uncharged_hits_gives_nothing() {
    for limit in ten_each() {
        let mut counter = limit.fresh();
        let refund = limit.decide(&mut counter, TWO, Operation::Refund(u64::MAX));
        assert_eq!((refund.verdict, refund.remaining), (Verdict::Pass, 10), "{limit:?}");
        limit.decide(&mut counter, TWO, Operation::Charge(10));
        let refund = limit.decide(&mut counter, TWO, Operation::Refund(3));
        assert_eq!((refund.verdict, refund.remaining), (Verdict::Pass, 3), "{limit:?}");
        let refund = limit.decide(&mut counter, TWO, Operation::Refund(1_000));
        assert_eq!((refund.verdict, refund.remaining), (Verdict::Pass, 10), "{limit:?}");
    }
}

#[test]
fn peek_leaves_counter_unchanged() {
    for limit in ten_each() {
        let mut counter = limit.fresh();
        for (now, operation) in [
            (0, Operation::Charge(4)),
            (30, Operation::Charge(9)),
            (70, Operation::Charge(2)),
            (200, Operation::Peek),
        ] {
            let before = counter.clone();
            limit.decide(&mut counter, at(now), Operation::Peek);
            assert_eq!(counter, before, "{limit:?}");
            limit.decide(&mut counter, at(now), operation);
        }
    }
}
