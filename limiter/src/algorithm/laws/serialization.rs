//! Round trips of limits and decisions through their serialized form; shares of limits.

use std::collections::HashSet;

use serde::{Serialize, de::DeserializeOwned};

use super::*;

fn back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_stdvec(value).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn limit_operation_and_decision_round_trip(
        limit in any_limit(), operation in any_operation(), now in any_instant(),
    ) {
        prop_assert_eq!(&back(&limit), &limit);
        prop_assert_eq!(back(&limit).kind(), limit.kind());
        prop_assert_eq!(back(&operation), operation);
        let decision = limit.decide(&mut limit.fresh(), now, operation);
        prop_assert_eq!(back(&decision), decision);
    }
}

proptest! {
    #[test]
    fn shares_exceed_limit_by_at_most_one_per_member(
        limit in any_limit(), members in 1..100_u32,
    ) {
        let share = limit.share(members);
        let (whole, all) = (u128::from(limit.allowance()), u128::from(share.allowance()) * u128::from(members));
        prop_assert!(whole <= all && all < whole + u128::from(members));
        prop_assert_eq!(share.allowance() == 0, limit.allowance() == 0);
        prop_assert_eq!(share.kind(), limit.kind());
        prop_assert_eq!(limit.share(1), limit);
    }
}

#[test]
fn share_of_bucket_refills_proportionally_slower() {
    let number = |number| NonZeroU64::new(number).unwrap();
    let rate = |hits| Rate::new(number(hits), number(SECOND));
    let bucket = |hits, burst, excess| Limit::TokenBucket(TokenBucket { rate: rate(hits), burst, excess });
    let owes = |hits, burst, debt| bucket(hits, burst, Excess::Overdraft(debt));
    assert_eq!(owes(100, 20, 9).share(3), owes(34, 7, 3));
    let steps = |amount, burst| {
        let (amount, interval) = (number(amount), number(SECOND));
        Limit::SteppedBucket(SteppedBucket { amount, interval, burst, excess: Excess::Refuse })
    };
    assert_eq!(steps(2, 10).share(4), steps(1, 3));
    let queue = |hits, burst| {
        Limit::LeakyQueue(LeakyQueue { rate: rate(hits), burst: Some(burst), max_delay: None, timeout: None })
    };
    assert_eq!(queue(10, 9).share(5), queue(2, 1));
}

#[test]
fn calendar_of_unknown_zone_is_an_error() {
    let calendar = Calendar::new(CalendarUnit::Month, "Europe/Berlin").unwrap();
    let mut bytes = postcard::to_stdvec(&Window::Calendar(calendar)).unwrap();
    let place = bytes.iter().position(|byte| *byte == b'B').unwrap();
    bytes[place] = b'X';
    assert!(postcard::from_bytes::<Window>(&bytes).is_err());
}

#[test]
fn span_out_of_bounds_is_an_error() {
    let bytes = postcard::to_stdvec(&(Span::NANOS_MIN - 1)).unwrap();
    assert!(postcard::from_bytes::<Span>(&bytes).is_err());
}

/// Besides one limit of each variant: sub-windows, and calendars.
#[test]
fn kind_number_of_every_algorithm_is_its_own_for_good() {
    let calendar = || Window::Calendar(Calendar::new(CalendarUnit::Month, "Europe/Berlin").unwrap());
    let mut limits = every_limit(1, 10 * SECOND);
    limits.push(Limit::Classic(Classic { limit: 1, window: calendar() }));
    limits.push(Limit::FixedWindow(FixedWindow { limit: 1, window: calendar(), excess: Excess::Refuse }));
    let numbers: Vec<_> = limits.iter().map(|limit| (variant(limit), limit.kind().bytes()[0])).collect();
    let more = [("SlidingLog", 5), ("Classic", 1), ("FixedWindow", 3)];
    let expected: Vec<_> = KINDS.iter().copied().chain(more).collect();
    assert_eq!(numbers, expected, "give a new kind a new number, and leave the others");
    let distinct: HashSet<_> = numbers.iter().map(|(_, number)| number).collect();
    assert_eq!(distinct.len(), numbers.len());
}

/// Replicas number the variants of `Limit` and `Receipt` by their order, so a new one is appended at the end.
#[test]
fn encoding_of_every_variant_is_stable() {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let now = Timestamp::from_nanos((20_000 * 24 + 2) * HOUR);
    for (limit, row) in every_limit(10, 60 * SECOND).iter().zip(ENCODED) {
        let receipt = limit.decide(&mut limit.fresh(), now, Operation::Charge(1)).receipt.unwrap();
        let encoded =
            [postcard::to_stdvec(limit), postcard::to_stdvec(&receipt)].map(|bytes| hex(bytes.unwrap()));
        let expected = (row.0, [row.1, row.2].map(str::to_owned));
        assert_eq!((variant(limit), encoded), expected, "append new variants at the end");
    }
}
