//! Worked examples: what each algorithm is known for, with its numbers.

use std::{num::NonZeroU64, time::Duration};

use super::*;
use crate::time::SECOND;

const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

/// Two o'clock on some day.
const TWO: Timestamp = Timestamp::from_nanos(20_000 * DAY + 2 * 60 * MINUTE);

fn at(seconds: u64) -> Timestamp {
    TWO.plus(seconds * SECOND)
}

fn classic(limit: u64, nanos: u64) -> Classic {
    Classic { limit, window: Window::of_nanos(nanos).unwrap() }
}

fn fixed_window(limit: u64, nanos: u64) -> FixedWindow {
    FixedWindow { limit, window: Window::of_nanos(nanos).unwrap(), excess: Excess::Refuse }
}

fn token_bucket(hits: u64, nanos: u64, burst: u64) -> TokenBucket {
    let pace = Pace::new(NonZeroU64::new(hits).unwrap(), NonZeroU64::new(nanos).unwrap());
    TokenBucket { pace, burst, excess: Excess::Refuse }
}

/// How many single hits of `asked` pass at `now`.
fn passed<A: Algorithm>(limit: &A, counter: &mut A::Counter, now: Timestamp, asked: u64) -> u64 {
    let hits = (0..asked).map(|_| limit.decide(counter, now, Ask::Charge(1)).verdict.passes());
    hits.map(u64::from).sum()
}

#[test]
fn a_fixed_window_of_three_a_second_passes_three_in_each_second() {
    let (limit, mut counter) = (fixed_window(3, SECOND), WindowCounter::default());
    for second in 0..10 {
        assert_eq!(passed(&limit, &mut counter, at(second), 2), 2);
        assert_eq!(passed(&limit, &mut counter, at(second).plus(SECOND - 1), 5), 1);
    }
}

#[test]
fn a_fixed_window_of_five_a_minute_passes_ten_around_the_turn() {
    let (limit, mut counter) = (fixed_window(5, MINUTE), WindowCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(30), 9), 5);
    assert_eq!(passed(&limit, &mut counter, at(60), 9), 5);
    assert_eq!(passed(&limit, &mut counter, at(90), 9), 0);
}

#[test]
fn sixty_a_minute_at_one_a_second_is_never_refused() {
    let (limit, mut counter) = (fixed_window(60, MINUTE), WindowCounter::default());
    for second in 0..600 {
        assert_eq!(passed(&limit, &mut counter, at(second), 1), 1);
    }
}

#[test]
fn a_full_token_bucket_gives_its_burst_and_then_its_pace() {
    let (limit, mut counter) = (token_bucket(2, SECOND, 10), PaceCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 20), 10);
    assert_eq!(passed(&limit, &mut counter, at(1), 20), 2);
    assert_eq!(passed(&limit, &mut counter, at(4), 20), 6);
    assert_eq!(
        passed(&limit, &mut counter, at(3_600), 20),
        10,
        "no more than the burst, however long it rested"
    );
}

#[test]
fn a_token_bucket_takes_all_hits_of_a_charge_or_none() {
    let (limit, mut counter) = (token_bucket(1, SECOND, 4), PaceCounter::default());
    assert!(limit.decide(&mut counter, at(0), Ask::Charge(3)).verdict.passes());
    let refused = limit.decide(&mut counter, at(0), Ask::Charge(2));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(1)) });
    assert_eq!(refused.remaining, 1);
    assert!(limit.decide(&mut counter, at(0), Ask::Charge(1)).verdict.passes());
    let never = limit.decide(&mut counter, at(0), Ask::Charge(5));
    assert_eq!(never.verdict, Verdict::Refuse { retry_after: None });
    assert_eq!(never.reset_after, Duration::from_secs(4), "until it is full");
}

#[test]
fn a_token_bucket_refills_while_traffic_keeps_coming() {
    let (limit, mut counter) = (token_bucket(10, 30 * SECOND, 10), PaceCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 20), 10);
    let passes = (1..=9).filter(|second| passed(&limit, &mut counter, at(*second), 1) == 1);
    assert_eq!(passes.collect::<Vec<_>>(), [3, 6, 9]);
}

#[test]
fn a_pace_that_is_no_whole_number_of_nanoseconds_loses_and_gains_no_hit() {
    for (hits, nanos) in
        [(3, SECOND), (7, DAY), (1_000_000_000, SECOND), (999_999_937, SECOND), (7, 60 * SECOND)]
    {
        let (limit, mut counter) = (token_bucket(hits, nanos, hits), PaceCounter::default());
        let greedy = |counter: &mut PaceCounter, now| {
            let left = limit.decide(counter, now, Ask::Look).remaining;
            limit.decide(counter, now, Ask::Charge(left));
            left
        };
        assert_eq!(greedy(&mut counter, TWO), hits);
        // Many steps that share no factor with the pace, ending after ten whole windows.
        let steps = 10_007;
        let mut sum = 0;
        for step in 1..=steps {
            let passed = u64::try_from(10 * u128::from(nanos) * step / steps).unwrap();
            sum += greedy(&mut counter, TWO.plus(passed));
        }
        assert_eq!(sum, 10 * hits, "{hits} in {nanos} ns");
    }
}

#[test]
fn a_fixed_window_gives_its_whole_limit_in_every_window() {
    for (hits, nanos) in [(3, SECOND), (7, DAY), (1_000_000_000, SECOND)] {
        let (limit, mut counter) = (fixed_window(hits, nanos), WindowCounter::default());
        for window in 0..1_000 {
            let now = Timestamp::from_nanos((20_000 + window) * nanos);
            assert!(limit.decide(&mut counter, now, Ask::Charge(hits - 1)).verdict.passes());
            assert!(limit.decide(&mut counter, now.plus(nanos - 1), Ask::Charge(1)).verdict.passes());
            assert!(!limit.decide(&mut counter, now.plus(nanos - 1), Ask::Charge(1)).verdict.passes());
        }
    }
}

/// The law of classic rules: (limit, hits counted before, ask, passes, remaining, hits counted after).
#[test]
fn a_classic_limit_answers_as_the_table_says() {
    let table = [
        (10, 0, Ask::Charge(1), true, 9, 1),
        (10, 9, Ask::Charge(1), true, 0, 10),
        (10, 10, Ask::Charge(1), false, 0, 11),
        (10, 8, Ask::Charge(5), false, 0, 13),
        (10, 13, Ask::Charge(5), false, 0, 18),
        (10, 10, Ask::Look, true, 0, 10),
        (10, 11, Ask::Look, false, 0, 11),
        (10, 4, Ask::Look, true, 6, 4),
        (10, 4, Ask::Refund(3), true, 9, 1),
        (10, 4, Ask::Refund(9), true, 10, 0),
        (10, 50, Ask::Refund(1), true, 0, 49),
        (0, 0, Ask::Charge(1), false, 0, 1),
        (0, 0, Ask::Look, true, 0, 0),
        (10, u64::MAX, Ask::Charge(u64::MAX), false, 0, u64::MAX),
    ];
    for (limit, before, ask, passes, remaining, after) in table {
        let limit = classic(limit, MINUTE);
        let mut counter = WindowCounter { start: TWO, count: before };
        let decision = limit.decide(&mut counter, at(24), ask);
        assert_eq!(
            (decision.verdict.passes(), decision.remaining, counter.count),
            (passes, remaining, after),
            "{limit:?} after {before}: {ask:?}"
        );
        assert_eq!(decision.reset_after, Duration::from_secs(36));
    }
}

#[test]
fn a_classic_window_turns_at_each_multiple_of_its_length_since_the_epoch() {
    let week = classic(1, 7 * DAY);
    let mut counter = WindowCounter::default();
    // The epoch was a Thursday, so that is when weeks turn.
    let wednesday_night = Timestamp::from_nanos(2_900 * 7 * DAY - 1);
    assert!(week.decide(&mut counter, wednesday_night, Ask::Charge(1)).verdict.passes());
    assert!(!week.decide(&mut counter, wednesday_night, Ask::Charge(1)).verdict.passes());
    assert!(week.decide(&mut counter, wednesday_night.plus(1), Ask::Charge(1)).verdict.passes());
}

#[test]
fn raising_a_classic_limit_over_what_was_refused_admits_the_difference() {
    let mut named = WindowCounter::default();
    for _ in 0..50 {
        fixed_window(10, 60 * MINUTE).decide(&mut named, at(0), Ask::Charge(1));
    }
    assert_eq!(passed(&fixed_window(20, 60 * MINUTE), &mut named, at(1), 50), 10);
}

#[test]
fn an_overdraft_passes_once_and_is_paid_by_the_windows_that_follow() {
    let limit = FixedWindow { excess: Excess::Overdraft(10), ..fixed_window(10, MINUTE) };
    let mut counter = WindowCounter::default();
    assert!(limit.decide(&mut counter, at(0), Ask::Charge(9)).verdict.passes());
    assert!(limit.decide(&mut counter, at(0), Ask::Charge(8)).verdict.passes());
    let refused = limit.decide(&mut counter, at(10), Ask::Charge(1));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(50)) });
    assert_eq!(limit.decide(&mut counter, at(60), Ask::Look).remaining, 3, "seven were owed");
    assert!(limit.decide(&mut counter, at(60), Ask::Charge(1_000_000)).verdict.passes());
    let refused = limit.decide(&mut counter, at(60), Ask::Look);
    assert_eq!(
        refused.verdict,
        Verdict::Refuse { retry_after: Some(Duration::from_secs(120)) },
        "a debt has a bound"
    );
}

#[test]
fn an_overdraft_of_a_bucket_is_paid_at_its_pace() {
    let limit = TokenBucket { excess: Excess::Overdraft(10), ..token_bucket(1, SECOND, 10) };
    let mut counter = PaceCounter::default();
    assert!(limit.decide(&mut counter, at(0), Ask::Charge(15)).verdict.passes());
    let refused = limit.decide(&mut counter, at(0), Ask::Look);
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(6)) });
    assert!(limit.decide(&mut counter, at(6), Ask::Charge(1)).verdict.passes());
}

#[test]
fn hits_that_were_refused_keep_a_counting_window_shut() {
    let limit = FixedWindow { excess: Excess::Count, ..fixed_window(2, MINUTE) };
    let mut counter = WindowCounter::default();
    assert_eq!(passed(&limit, &mut counter, at(0), 5), 2);
    limit.decide(&mut counter, at(0), Ask::Refund(1));
    assert_eq!(passed(&limit, &mut counter, at(0), 1), 0, "four are still counted");
    assert_eq!(passed(&limit, &mut counter, at(60), 5), 2);
}
