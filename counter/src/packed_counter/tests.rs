//! Tests of packed counters.

use proptest::prelude::*;

use super::{
    layout::{MILLISECOND, Millis},
    *,
};
use crate::{algorithm::laws::any_limit, time::timestamp::SECOND};

proptest! {
    #[test]
    fn packed_counter_decides_like_the_algorithm(
        limit in any_limit(),
        steps in prop::collection::vec((0..3_u8, 0..1_u64 << 33, 0_u32..33, 0..2 * SECOND), 1..20),
    ) {
        let (mut now, mut counter) = (Timestamp::from_nanos(1_790_000_000 * SECOND), limit.fresh());
        let decision = limit.decide(&mut counter, now, Operation::Charge(1));
        let mut packed = PackedCounter::new(&limit, counter.clone(), &decision);
        for (kind, hits, cut, pause) in steps {
            now = now.plus(pause);
            let hits = hits >> cut;
            let operation = [Operation::Peek, Operation::Charge(hits), Operation::Refund(hits)][usize::from(kind)];
            let expected = limit.decide(&mut counter, now, operation);
            let decision = packed.decide(&limit, Now { now, given_up: None }, operation, Some).unwrap_or_else(|| {
                packed.update(&limit, |counter| limit.decide(counter, now, operation))
            });
            prop_assert_eq!(decision, expected);
            prop_assert_eq!(packed.counter(&limit), counter.clone());
            prop_assert!(limit.idle_at(&counter) <= packed.idle_at());
        }
    }

    #[test]
    fn approx_number_is_low_by_at_most_one_in_512(number: u64) {
        let approx = ApproxNumber::new(number).number();
        prop_assert!(approx <= number && number - approx <= number / 512);
    }

    #[test]
    fn used_share_is_rounded_down_for_all_magnitudes(left in 1_u64.., all in 1_u64.., cut in 0_u32..64) {
        let [left, all] = [left, all].map(|number: u64| (number >> cut).max(1));
        let exact = u128::from(all.saturating_sub(left)) * 254 / u128::from(all);
        prop_assert_eq!(u128::from(UsedShare::share(left, all).0), exact);
    }

    #[test]
    fn whole_milliseconds_round_trip_in_six_bytes(millis in 0..u64::MAX / MILLISECOND) {
        let instant = Timestamp::from_nanos(millis * MILLISECOND);
        prop_assert_eq!(Millis::from_instant(instant).unwrap().timestamp(), instant);
        prop_assert_eq!(Millis::from_instant(instant.plus(1)), None);
    }
}
