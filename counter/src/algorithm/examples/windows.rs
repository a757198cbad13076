//! Worked examples of windows and logs.

use super::*;

#[test]
fn fixed_window_of_three_admits_three_each_second() {
    let (limit, mut counter) = (fixed_window(3, SECOND), WindowCounter::default());
    for second in 0..10 {
        assert_eq!(passed(&limit, &mut counter, at(second), 2), 2);
        assert_eq!(passed(&limit, &mut counter, at(second).plus(SECOND - 1), 5), 1);
    }
}

#[test]
fn fixed_window_of_five_admits_ten_around_its_boundary() {
    let (limit, mut counter) = (fixed_window(5, MINUTE), WindowCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(30), 9), 5);
    assert_eq!(passed(&limit, &mut counter, at(60), 9), 5);
    assert_eq!(passed(&limit, &mut counter, at(90), 9), 0);
}

#[test]
fn window_of_sixty_a_minute_admits_one_each_second() {
    let (limit, mut counter) = (fixed_window(60, MINUTE), WindowCounter::default());
    for second in 0..600 {
        assert_eq!(passed(&limit, &mut counter, at(second), 1), 1);
    }
}

/// Semantics of a classic limit: (limit, count before, operation, passes, remaining, count after).
#[test]
fn classic_limit_matches_table() {
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
        let mut counter = WindowCounter { end: TWO.plus(MINUTE), count: before };
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
fn classic_window_starts_at_multiples_of_its_length() {
    let week = classic(1, 7 * DAY);
    let mut counter = WindowCounter::default();
    // The epoch was a Thursday, so weekly windows begin on Thursdays.
    let wednesday_night = Timestamp::from_nanos(2_900 * 7 * DAY - 1);
    assert!(week.decide(&mut counter, wednesday_night, Operation::Charge(1)).verdict.passes());
    assert!(!week.decide(&mut counter, wednesday_night, Operation::Charge(1)).verdict.passes());
    assert!(week.decide(&mut counter, wednesday_night.plus(1), Operation::Charge(1)).verdict.passes());
}

#[test]
fn overdraft_passes_once_and_is_paid_by_later_windows() {
    let limit = FixedWindow { excess: Excess::Overdraft(10), ..fixed_window(10, MINUTE) };
    let mut counter = WindowCounter::default();
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(9)).verdict.passes());
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(8)).verdict.passes());
    let refused = limit.decide(&mut counter, at(10), Operation::Charge(1));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(50)) });
    assert_eq!(limit.decide(&mut counter, at(60), Operation::Peek).remaining, 3, "seven hits were owed");
    assert!(limit.decide(&mut counter, at(60), Operation::Charge(1_000_000)).verdict.passes());
    let refused = limit.decide(&mut counter, at(60), Operation::Peek);
    assert_eq!(
        refused.verdict,
        Verdict::Refuse { retry_after: Some(Duration::from_secs(120)) },
        "the debt is bounded"
    );
}

#[test]
fn sliding_log_admits_third_when_first_has_expired() {
    let (limit, mut counter) = (sliding_log(2, MINUTE, 1), LogCounter::default());
    let answers = [1, 30, 50, 100, 105].map(|second| passed(&limit, &mut counter, at(second), 1));
    assert_eq!(answers, [1, 1, 0, 1, 1], "the refused hit was not counted");
}

#[test]
fn sliding_log_with_count_denied_counts_refused_hits() {
    let limit = SlidingLog { excess: Excess::Count, ..sliding_log(2, MINUTE, 1) };
    let mut counter = LogCounter::default();
    let answers = [1, 30, 50, 100, 105].map(|second| passed(&limit, &mut counter, at(second), 1));
    assert_eq!(answers, [1, 1, 0, 1, 0], "the hit refused at second 50 still counts at second 105");
}

#[test]
fn log_difference_across_clocks_contains_only_later_hits() {
    let limit = sliding_log(10, MINUTE, 1);
    let mut counter = LogCounter::default();
    assert_eq!([10, 20].map(|second| passed(&limit, &mut counter, at(second), 2)), [2, 2]);
    let copy = LogCounter::from_hits(counter.hits().map(|(at, hits)| (at.minus(SECOND / 1_000), hits)));
    assert_eq!(passed(&limit, &mut counter, at(30), 3), 3);
    let since = limit.since(&counter, &copy, at(30));
    assert_eq!(since.hits().collect::<Vec<_>>(), [(at(30), 3)]);
}

#[test]
fn log_beyond_ten_thousand_entries_is_only_stricter() {
    let limit = sliding_log(20_000, MINUTE, 1);
    let instants: Vec<_> = (0..10_050).map(|nanos| at(0).plus(nanos)).collect();
    let mut counter = LogCounter::default();
    for &instant in &instants {
        assert_eq!(passed(&limit, &mut counter, instant, 1), 1);
    }
    assert_eq!(counter.entries.len(), 10_000);
    let left = |now| limit.decide(&mut counter.clone(), now, Operation::Peek).remaining;
    assert_eq!(left(at(1)), 9_950, "every charge counts after merging");
    for (index, instant) in instants.iter().enumerate().step_by(97) {
        let known = 9_950 + index as u64 + 1;
        let left = left(instant.plus(MINUTE));
        assert!(left <= known && known - left <= 50, "{left} of {known}");
    }
    assert_eq!(left(at(61)), 20_000);
}

#[test]
fn sliding_window_weighs_previous_window_and_rounds_down() {
    let (limit, mut counter) = (sliding_window(7, MINUTE), SlidingCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(30), 5), 5);
    assert_eq!(passed(&limit, &mut counter, at(60), 3), 2, "the previous minute has its full weight");
    assert_eq!(passed(&limit, &mut counter, at(72), 1), 1);
    // 30 % into the window: three hits of its own and 3.5 of the previous one, so the estimate is six.
    assert_eq!(limit.decide(&mut counter, at(78), Operation::Peek).remaining, 1);
    assert_eq!(passed(&limit, &mut counter, at(78), 3), 1);
}

#[test]
fn previous_window_weighs_three_quarters_after_a_quarter() {
    let (limit, mut counter) = (sliding_window(100, MINUTE), SlidingCounter::default());
    limit.decide(&mut counter, at(59), Operation::Charge(80));
    assert_eq!(limit.decide(&mut counter, at(75), Operation::Peek).remaining, 40);
}

#[test]
fn sub_windows_of_a_tenth_expire_as_a_whole() {
    let (limit, mut counter) = (sliding_log(5, SECOND, SECOND / 10), LogCounter::default());
    let tenth = |tenths: u64| at(0).plus(tenths * SECOND / 10);
    assert_eq!(passed(&limit, &mut counter, tenth(0).plus(SECOND / 20), 3), 3);
    assert_eq!(passed(&limit, &mut counter, tenth(5), 9), 2);
    assert_eq!(passed(&limit, &mut counter, tenth(10).minus(1), 9), 0);
    assert_eq!(passed(&limit, &mut counter, tenth(10), 9), 3, "the first sub-window expires as a whole");
    assert_eq!(passed(&limit, &mut counter, tenth(15), 9), 2);
}

#[test]
fn log_in_whole_seconds_keeps_one_entry_per_second() {
    let (limit, mut counter) = (sliding_log(100, MINUTE, SECOND), LogCounter::default());
    assert!(limit.decide(&mut counter, at(0).plus(SECOND - 1), Operation::Charge(60)).verdict.passes());
    assert_eq!(passed(&limit, &mut counter, at(30), 99), 40);
    let refused = limit.decide(&mut counter, at(59), Operation::Charge(60));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(1)) });
    assert!(limit.decide(&mut counter, at(60), Operation::Charge(60)).verdict.passes());
    assert!(counter.entries.len() <= 60, "at most one entry for each second");
}

#[test]
fn largest_limit_refuses_hits_beyond_it() {
    let largest = u64::MAX;
    let limits = [
        Limit::Classic(classic(largest, MINUTE)),
        Limit::FixedWindow(fixed_window(largest, MINUTE)),
        Limit::SlidingWindow(sliding_window(largest, MINUTE)),
        Limit::SlidingLog(sliding_log(largest, MINUTE, 1)),
    ];
    for limit in limits {
        let mut counter = limit.fresh();
        let all = limit.decide(&mut counter, TWO, Operation::Charge(largest - 1));
        assert_eq!((all.verdict, all.remaining), (Verdict::Pass, 1), "{limit:?}");
        for hits in [2, 1, largest] {
            let refused = limit.decide(&mut counter.clone(), TWO, Operation::Charge(hits));
            assert_eq!(refused.verdict.passes(), hits == 1, "{limit:?} {hits}");
        }
        limit.decide(&mut counter, TWO, Operation::Charge(1));
        for _ in 0..2 {
            let refused = limit.decide(&mut counter, TWO, Operation::Charge(1));
            assert_eq!((refused.verdict.passes(), refused.remaining), (false, 0), "{limit:?}");
        }
    }
}
