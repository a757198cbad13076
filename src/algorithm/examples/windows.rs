//! Worked examples of windows and logs.

use super::*;

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
fn a_fixed_window_gives_its_whole_limit_in_every_window() {
    for (hits, nanos) in [(3, SECOND), (7, DAY), (1_000_000_000, SECOND)] {
        let (limit, mut counter) = (fixed_window(hits, nanos), WindowCounter::default());
        for window in 0..1_000 {
            let now = Timestamp::from_nanos((20_000 + window) * nanos);
            assert!(limit.decide(&mut counter, now, Operation::Charge(hits - 1)).verdict.passes());
            assert!(limit.decide(&mut counter, now.plus(nanos - 1), Operation::Charge(1)).verdict.passes());
            assert!(!limit.decide(&mut counter, now.plus(nanos - 1), Operation::Charge(1)).verdict.passes());
        }
    }
}

/// The law of classic rules: (limit, hits counted before, ask, passes, remaining, hits counted after).
#[test]
fn a_classic_limit_answers_as_the_table_says() {
    let table = [
        (10, 0, Operation::Charge(1), true, 9, 1),
        (10, 9, Operation::Charge(1), true, 0, 10),
        (10, 10, Operation::Charge(1), false, 0, 11),
        (10, 8, Operation::Charge(5), false, 0, 13),
        (10, 13, Operation::Charge(5), false, 0, 18),
        (10, 10, Operation::Peek, true, 0, 10),
        (10, 11, Operation::Peek, false, 0, 11),
        (10, 4, Operation::Peek, true, 6, 4),
        (10, 4, Operation::Refund(3), true, 9, 1),
        (10, 4, Operation::Refund(9), true, 10, 0),
        (10, 50, Operation::Refund(1), true, 0, 49),
        (0, 0, Operation::Charge(1), false, 0, 1),
        (0, 0, Operation::Peek, true, 0, 0),
        (10, u64::MAX, Operation::Charge(u64::MAX), false, 0, u64::MAX),
    ];
    for (limit, before, operation, passes, remaining, after) in table {
        let limit = classic(limit, MINUTE);
        let mut counter = WindowCounter { start: TWO, count: before };
        let decision = limit.decide(&mut counter, at(24), operation);
        assert_eq!(
            (decision.verdict.passes(), decision.remaining, counter.count),
            (passes, remaining, after),
            "{limit:?} after {before}: {operation:?}"
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
    assert!(week.decide(&mut counter, wednesday_night, Operation::Charge(1)).verdict.passes());
    assert!(!week.decide(&mut counter, wednesday_night, Operation::Charge(1)).verdict.passes());
    assert!(week.decide(&mut counter, wednesday_night.plus(1), Operation::Charge(1)).verdict.passes());
}

#[test]
fn raising_a_classic_limit_over_what_was_refused_admits_the_difference() {
    let mut named = WindowCounter::default();
    for _ in 0..50 {
        fixed_window(10, 60 * MINUTE).decide(&mut named, at(0), Operation::Charge(1));
    }
    assert_eq!(passed(&fixed_window(20, 60 * MINUTE), &mut named, at(1), 50), 10);
}

#[test]
fn an_overdraft_passes_once_and_is_paid_by_the_windows_that_follow() {
    let limit = FixedWindow { excess: Excess::Overdraft(10), ..fixed_window(10, MINUTE) };
    let mut counter = WindowCounter::default();
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(9)).verdict.passes());
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(8)).verdict.passes());
    let refused = limit.decide(&mut counter, at(10), Operation::Charge(1));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(50)) });
    assert_eq!(limit.decide(&mut counter, at(60), Operation::Peek).remaining, 3, "seven were owed");
    assert!(limit.decide(&mut counter, at(60), Operation::Charge(1_000_000)).verdict.passes());
    let refused = limit.decide(&mut counter, at(60), Operation::Peek);
    assert_eq!(
        refused.verdict,
        Verdict::Refuse { retry_after: Some(Duration::from_secs(120)) },
        "a debt has a bound"
    );
}

#[test]
fn hits_that_were_refused_keep_a_counting_window_shut() {
    let limit = FixedWindow { excess: Excess::Count, ..fixed_window(2, MINUTE) };
    let mut counter = WindowCounter::default();
    assert_eq!(passed(&limit, &mut counter, at(0), 5), 2);
    limit.decide(&mut counter, at(0), Operation::Refund(1));
    assert_eq!(passed(&limit, &mut counter, at(0), 1), 0, "four are still counted");
    assert_eq!(passed(&limit, &mut counter, at(60), 5), 2);
}

#[test]
fn a_log_of_two_a_minute_lets_a_third_pass_when_the_first_is_a_minute_old() {
    let (limit, mut counter) = (sliding_log(2, MINUTE, 1), LogCounter::default());
    let answers = [1, 30, 50, 100, 105].map(|second| passed(&limit, &mut counter, at(second), 1));
    assert_eq!(answers, [1, 1, 0, 1, 1], "the refused one was not counted");
}

#[test]
fn a_log_that_counts_what_it_refuses_keeps_those_as_well() {
    let limit = SlidingLog { excess: Excess::Count, ..sliding_log(2, MINUTE, 1) };
    let mut counter = LogCounter::default();
    let answers = [1, 30, 50, 100, 105].map(|second| passed(&limit, &mut counter, at(second), 1));
    assert_eq!(answers, [1, 1, 0, 1, 0], "the refused one of second 50 still counts at 105");
}

#[test]
fn what_a_log_counts_since_a_copy_of_another_clock_is_only_what_came_later() {
    let limit = sliding_log(10, MINUTE, 1);
    let mut counter = LogCounter::default();
    assert_eq!([10, 20].map(|second| passed(&limit, &mut counter, at(second), 2)), [2, 2]);
    let mut copy = counter.clone();
    copy.shift_back(SECOND / 1_000);
    assert_eq!(passed(&limit, &mut counter, at(30), 3), 3);
    let since = limit.since(&counter, &copy, at(30));
    assert_eq!(since.hits().collect::<Vec<_>>(), [(at(30), 3)]);
}

#[test]
fn a_log_beyond_ten_thousand_charges_is_stricter_and_never_more_lenient() {
    let limit = sliding_log(20_000, MINUTE, 1);
    let instants: Vec<_> = (0..10_050).map(|nanos| at(0).plus(nanos)).collect();
    let mut counter = LogCounter::default();
    for &instant in &instants {
        assert_eq!(passed(&limit, &mut counter, instant, 1), 1);
    }
    assert_eq!(counter.entries.len(), 10_000);
    let left = |now| limit.decide(&mut counter.clone(), now, Operation::Peek).remaining;
    assert_eq!(left(at(1)), 9_950, "every charge counts");
    for (index, instant) in instants.iter().enumerate().step_by(97) {
        let known = 9_950 + index as u64 + 1;
        let left = left(instant.plus(MINUTE));
        assert!(left <= known && known - left <= 50, "{left} of {known}");
    }
    assert_eq!(left(at(61)), 20_000);
}

#[test]
fn a_sliding_window_weighs_the_last_minute_and_rounds_down() {
    let (limit, mut counter) = (sliding_window(7, MINUTE), SlidingCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(30), 5), 5);
    assert_eq!(passed(&limit, &mut counter, at(60), 3), 2, "all of the last minute counts");
    assert_eq!(passed(&limit, &mut counter, at(72), 1), 1);
    // 30 % into it: three of its own and 3.5 of the last one make six.
    assert_eq!(limit.decide(&mut counter, at(78), Operation::Peek).remaining, 1);
    assert_eq!(passed(&limit, &mut counter, at(78), 3), 1);
}

#[test]
fn a_quarter_into_the_window_the_last_one_weighs_three_quarters() {
    let (limit, mut counter) = (sliding_window(100, MINUTE), SlidingCounter::default());
    limit.decide(&mut counter, at(59), Operation::Charge(80));
    assert_eq!(limit.decide(&mut counter, at(75), Operation::Peek).remaining, 40);
}

#[test]
fn five_requests_in_the_last_second_counted_in_tenths() {
    let (limit, mut counter) = (sliding_log(5, SECOND, SECOND / 10), LogCounter::default());
    let tenth = |tenths: u64| at(0).plus(tenths * SECOND / 10);
    assert_eq!(passed(&limit, &mut counter, tenth(0).plus(SECOND / 20), 3), 3);
    assert_eq!(passed(&limit, &mut counter, tenth(5), 9), 2);
    assert_eq!(passed(&limit, &mut counter, tenth(10).minus(1), 9), 0);
    assert_eq!(passed(&limit, &mut counter, tenth(10), 9), 3, "the first tenth is dropped as a whole");
    assert_eq!(passed(&limit, &mut counter, tenth(15), 9), 2);
}

#[test]
fn a_hundred_in_the_last_minute_counted_in_seconds() {
    let (limit, mut counter) = (sliding_log(100, MINUTE, SECOND), LogCounter::default());
    assert!(limit.decide(&mut counter, at(0).plus(SECOND - 1), Operation::Charge(60)).verdict.passes());
    assert_eq!(passed(&limit, &mut counter, at(30), 99), 40);
    let refused = limit.decide(&mut counter, at(59), Operation::Charge(60));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(1)) });
    assert!(limit.decide(&mut counter, at(60), Operation::Charge(60)).verdict.passes());
    assert!(counter.entries.len() <= 60, "a count for each second and no more");
}
