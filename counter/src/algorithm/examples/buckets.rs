//! Worked examples of buckets and the queue.

use super::*;

#[test]
fn full_token_bucket_admits_burst_then_rate() {
    let (limit, mut counter) = (token_bucket(2, SECOND, 10), DebtCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 20), 10);
    assert_eq!(passed(&limit, &mut counter, at(1), 20), 2);
    assert_eq!(passed(&limit, &mut counter, at(4), 20), 6);
    assert_eq!(passed(&limit, &mut counter, at(3_600), 20), 10, "an idle bucket holds at most the burst");
}

#[test]
fn token_bucket_admits_whole_charge_or_nothing() {
    let (limit, mut counter) = (token_bucket(1, SECOND, 4), DebtCounter::default());
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(3)).verdict.passes());
    let refused = limit.decide(&mut counter, at(0), Operation::Charge(2));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(1)) });
    assert_eq!(refused.remaining, 1);
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(1)).verdict.passes());
    let never = limit.decide(&mut counter, at(0), Operation::Charge(5));
    assert_eq!(never.verdict, Verdict::Refuse { retry_after: None });
    assert_eq!(never.reset_after, Duration::from_secs(4), "until the bucket is full");
}

#[test]
fn token_bucket_refills_under_constant_traffic() {
    let (limit, mut counter) = (token_bucket(10, 30 * SECOND, 10), DebtCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 20), 10);
    let passes = (1..=9).filter(|second| passed(&limit, &mut counter, at(*second), 1) == 1);
    assert_eq!(passes.collect::<Vec<_>>(), [3, 6, 9]);
}

#[test]
fn fractional_rate_neither_loses_nor_gains_hits() {
    for (hits, nanos) in
        [(3, SECOND), (7, DAY), (1_000_000_000, SECOND), (999_999_937, SECOND), (7, 60 * SECOND)]
    {
        let (limit, mut counter) = (token_bucket(hits, nanos, hits), DebtCounter::default());
        let greedy = |counter: &mut DebtCounter, now| {
            let left = limit.decide(counter, now, Operation::Peek).remaining;
            limit.decide(counter, now, Operation::Charge(left));
            left
        };
        assert_eq!(greedy(&mut counter, TWO), hits);
        // Many steps that share no factor with the rate and end after ten whole windows.
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
fn bucket_overdraft_is_paid_at_the_rate() {
    let limit = TokenBucket { excess: Excess::Overdraft(10), ..token_bucket(1, SECOND, 10) };
    let mut counter = DebtCounter::default();
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(15)).verdict.passes());
    let refused = limit.decide(&mut counter, at(0), Operation::Peek);
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(6)) });
    assert!(limit.decide(&mut counter, at(6), Operation::Charge(1)).verdict.passes());
}

#[test]
fn refused_hits_owe_at_most_a_second_burst() {
    let bucket = Limit::TokenBucket(TokenBucket { excess: Excess::Count, ..token_bucket(1, SECOND, 10) });
    let steps =
        Limit::SteppedBucket(SteppedBucket { excess: Excess::Count, ..stepped_bucket(1, SECOND, 10) });
    for limit in [bucket, steps] {
        let mut counter = limit.fresh();
        assert!(limit.decide(&mut counter, at(0), Operation::Charge(10)).verdict.passes());
        // Each refused hit is owed, up to ten.
        for (refusals, retry_after) in [(3, 4), (6, 10), (1_000, 11)] {
            for _ in 0..refusals {
                limit.decide(&mut counter, at(0), Operation::Charge(1));
            }
            let retry_after = Some(Duration::from_secs(retry_after));
            let peek = limit.decide(&mut counter, at(0), Operation::Peek);
            assert_eq!(peek.verdict, Verdict::Refuse { retry_after }, "{limit:?}");
        }
        assert_eq!(limit.idle_at(&counter), at(20), "{limit:?}");
    }
}

#[test]
fn stepped_bucket_of_four_gains_two_each_second() {
    let (limit, mut counter) = (stepped_bucket(2, SECOND, 4), StepCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 9), 4);
    assert_eq!(passed(&limit, &mut counter, at(1).minus(1), 9), 0);
    assert_eq!(passed(&limit, &mut counter, at(1), 9), 2);
    assert_eq!(passed(&limit, &mut counter, at(2), 9), 2);
    assert_eq!(passed(&limit, &mut counter, at(60), 9), 4, "at most four tokens");
}

#[test]
fn stepped_bucket_of_four_gains_four_each_minute() {
    let (limit, mut counter) = (stepped_bucket(4, MINUTE, 4), StepCounter::default());
    assert_eq!(passed(&limit, &mut counter, at(0), 1), 1);
    assert_eq!(passed(&limit, &mut counter, at(59), 9), 3);
    assert_eq!(passed(&limit, &mut counter, at(60), 9), 4, "a minute after the first charge");
    assert_eq!(passed(&limit, &mut counter, at(119), 9), 0);
    assert_eq!(passed(&limit, &mut counter, at(120), 9), 4);
}

#[test]
fn stepped_bucket_keeps_partial_interval() {
    // A burst of ten, three tokens every ten seconds.
    let (limit, mut counter) = (stepped_bucket(3, 10 * SECOND, 10), StepCounter::default());
    let peek = |counter: &mut StepCounter, now| limit.decide(counter, now, Operation::Peek).remaining;
    assert!(limit.decide(&mut counter, at(0), Operation::Charge(10)).verdict.passes());
    assert_eq!(peek(&mut counter, at(25)), 6, "two whole intervals");
    assert!(limit.decide(&mut counter, at(25), Operation::Charge(4)).verdict.passes());
    assert_eq!(peek(&mut counter, at(30).minus(1)), 2);
    assert_eq!(
        peek(&mut counter, at(30)),
        5,
        "the five seconds before the charge count towards the interval"
    );
    let refused = limit.decide(&mut counter, at(33), Operation::Charge(9));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_secs(17)) });
    assert_eq!(peek(&mut counter, at(33)), 5, "a refused charge takes nothing");
}

#[test]
fn leaky_queue_admits_ten_of_twenty_at_two_per_second() {
    // One hit leaves at once and nine wait: ten in total.
    let (limit, mut counter) = (leaky_queue(2, SECOND, 9), DebtCounter::default());
    for place in 0..10 {
        let advance = Duration::from_millis(500 * place);
        let verdict = if place == 0 { Verdict::Pass } else { Verdict::Delay(advance) };
        assert_eq!(limit.decide(&mut counter, at(0), Operation::Charge(1)).verdict, verdict);
    }
    for _ in 0..10 {
        let refused = limit.decide(&mut counter, at(0), Operation::Charge(1));
        let retry_after = Some(Duration::from_millis(500));
        assert_eq!((refused.verdict, refused.remaining), (Verdict::Refuse { retry_after }, 0));
    }
    let after = limit.decide(&mut counter, at(1), Operation::Charge(1));
    assert_eq!(
        after.verdict,
        Verdict::Delay(Duration::from_secs(4)),
        "behind the eight hits that still wait"
    );
}

#[test]
fn leaky_bucket_of_ten_leaks_two_per_second() {
    // The level of a leaky bucket is what a token bucket lacks.
    let (limit, mut counter) =
        (Limit::LeakyBucket(token_bucket(2, SECOND, 10)), Counter::Debt(DebtCounter::default()));
    let mut passed = |now, asked: u64| {
        (0..asked).filter(|_| limit.decide(&mut counter, now, Operation::Charge(1)).verdict.passes()).count()
    };
    assert_eq!(passed(at(0), 20), 10);
    assert_eq!(passed(at(1), 20), 2);
    assert_eq!(passed(at(1).plus(SECOND / 2), 20), 1);
    assert_eq!(passed(at(5), 20), 7);
    let refused = limit.decide(&mut counter, at(5), Operation::Charge(3));
    assert_eq!(refused.verdict, Verdict::Refuse { retry_after: Some(Duration::from_millis(1_500)) });
}

#[test]
fn request_before_the_interval_has_passed_is_refused() {
    for rate in [1, 3, 1_000, 999_983, 1_000_000] {
        let (limit, mut counter) = (token_bucket(rate, SECOND, 1), DebtCounter::default());
        let interval = SECOND.div_ceil(rate);
        let mut now = TWO;
        for _ in 0..100 {
            assert_eq!(passed(&limit, &mut counter, now, 2), 1, "{rate} a second");
            assert_eq!(passed(&limit, &mut counter, now.plus(interval / 2), 1), 0);
            assert_eq!(passed(&limit, &mut counter, now.plus(interval - 2), 1), 0);
            now = now.plus(interval);
        }
    }
}

#[test]
fn caller_with_short_timeout_gets_the_wait_it_would_need() {
    let limit = leaky_queue(2, SECOND, 9);
    let hurried = LeakyQueue { timeout: Some(Duration::from_secs(1)), ..limit };
    let mut counter = DebtCounter::default();
    assert_eq!(passed(&hurried, &mut counter, at(0), 20), 3, "admitted with delays of 0, 0.5 and 1 s");
    let refused = hurried.decide(&mut counter, at(0), Operation::Charge(1));
    let retry_after = Some(Duration::from_millis(1_500));
    assert_eq!((refused.verdict, refused.remaining), (Verdict::Refuse { retry_after }, 0));
    assert_eq!(passed(&limit, &mut counter, at(0), 20), 7, "a caller without timeout is admitted");
    let full = hurried.decide(&mut counter, at(0), Operation::Charge(1));
    assert_eq!(full.verdict, Verdict::Refuse { retry_after: Some(Duration::from_millis(500)) });
}
