//! Round trips of limits and decisions through their serialized form; shares of limits.

use std::collections::HashSet;

use serde::{Serialize, de::DeserializeOwned};

use super::*;

/// The encoding of the penalty of [`with_penalty`] for a minute.
const PENALTY: &str = "02808c8d9e020280f882ad1680d88ee16f";

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
    limits.push(Limit::Classic(Classic::new(1, calendar())));
    limits.push(Limit::FixedWindow(FixedWindow { limit: 1, window: calendar(), excess: Excess::Refuse }));
    let numbers: Vec<_> = limits.iter().map(|limit| (variant(limit), limit.kind().bytes()[0])).collect();
    let more = [("SlidingLog", 5), ("Classic", 1), ("FixedWindow", 3)];
    let expected: Vec<_> = KINDS.iter().copied().chain(more).collect();
    assert_eq!(numbers, expected, "give a new kind a new number, and leave the others");
    let distinct: HashSet<_> = numbers.iter().map(|(_, number)| number).collect();
    assert_eq!(distinct.len(), numbers.len());
}

fn hex(value: &impl Serialize) -> String {
    postcard::to_stdvec(value).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value is encoded as these bytes, and read from them.
fn assert_encoded<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, bytes: &str) {
    assert_eq!(hex(value), bytes, "{value:?}: append new variants at the end");
    assert_eq!(&back(value), value);
}

/// Replicas number the variants of `Limit` and `Receipt` by their order, so a new one is appended at the end.
#[test]
fn encoding_of_every_variant_is_stable() {
    let now = Timestamp::from_nanos((20_000 * 24 + 2) * HOUR);
    for (limit, row) in every_limit(10, 60 * SECOND).iter().zip(ENCODED) {
        let receipt = limit.decide(&mut limit.fresh(), now, Operation::Charge(1)).receipt.unwrap();
        assert_eq!(
            (variant(limit), hex(&receipt).as_str()),
            (row.0, row.2),
            "append new variants at the end"
        );
        assert_encoded(limit, row.1);
    }
}

/// A limit with a penalty is its own variant, its limit as it is alone, and the numbers of the penalty.
#[test]
fn encoding_of_every_limit_with_a_penalty_is_stable() {
    for (limit, row) in every_limit(10, 60 * SECOND).into_iter().zip(ENCODED) {
        let encoded = format!("09{}{PENALTY}", row.1);
        assert_encoded(&with_penalty(limit, 60 * SECOND), &encoded);
    }
}

/// Otherwise a message could nest them without a bound.
#[test]
fn limit_with_a_penalty_of_a_penalty_is_not_read() {
    let limit = every_limit(10, 60 * SECOND).remove(0);
    let penalty = &postcard::to_stdvec(&with_penalty(limit.clone(), 60 * SECOND)).unwrap()[1..];
    let penalty = &penalty[postcard::to_stdvec(&limit).unwrap().len()..];
    let once = [&[9], &*postcard::to_stdvec(&limit).unwrap(), penalty].concat();
    assert!(postcard::from_bytes::<Limit>(&once).is_ok());
    assert!(postcard::from_bytes::<Limit>(&[&[9], &*once, penalty].concat()).is_err());
}

/// The parts of limits that are enums or optional.
#[test]
fn encoding_of_every_part_of_a_limit_is_stable() {
    let calendar = |unit| Window::Calendar(Calendar::new(unit, "Europe/Berlin").unwrap());
    for (window, bytes) in [
        (Window::from_nanos(60 * SECOND).unwrap(), "0080b09dc2df01"),
        (calendar(CalendarUnit::Day), "01000d4575726f70652f4265726c696ed2e7f09495e1b9b96b"),
        (
            calendar(CalendarUnit::Week(jiff::civil::Weekday::Monday)),
            "0101010d4575726f70652f4265726c696ef1c091d68cfbb2fc65",
        ),
        (
            calendar(CalendarUnit::Week(jiff::civil::Weekday::Sunday)),
            "0101070d4575726f70652f4265726c696eebb8bbae84c2a9f8c201",
        ),
        (calendar(CalendarUnit::Month), "01020d4575726f70652f4265726c696ed6f99a99d9fc8084d301"),
        (calendar(CalendarUnit::Year), "01030d4575726f70652f4265726c696e90e2a5c3a88796a276"),
    ] {
        assert_encoded(&window, bytes);
    }
    for (excess, bytes) in [(Excess::Refuse, "00"), (Excess::Count, "01"), (Excess::Overdraft(300), "02ac02")]
    {
        assert_encoded(&excess, bytes);
    }
    let sub_windows = every_limit(10, 60 * SECOND).pop().unwrap();
    assert_encoded(&sub_windows, "030a80b09dc2df0180f882ad1600");
    let [max_delay, timeout] = [1, 2].map(|seconds| Some(Duration::from_secs(seconds)));
    let rate = Rate::new(NonZeroU64::new(10).unwrap(), NonZeroU64::new(SECOND).unwrap());
    assert_encoded(
        &Limit::LeakyQueue(LeakyQueue { rate, burst: None, max_delay, timeout }),
        "070a8094ebdc0300010100010200",
    );
}
