//! What every named algorithm does.

use super::*;

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
