//! What limits are used for, as rule files say it; and every algorithm among many callers and at the extremes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tollgate::{
    algorithm::Operation,
    limiter::Limiter,
    rules::{ActiveRules, Rules},
};

use crate::{
    counters::{Counters, all, ask, ask_about, rule, rules},
    harness::START,
};

fn under(counters: &Counters, text: &str) -> Limiter {
    counters.by(Arc::new(ActiveRules::of(rules(text), START)))
}

/// How many single hits of `asked` pass.
fn passed(limiter: &Limiter, entry: (&str, &str), asked: usize) -> usize {
    (0..asked).filter(|_| ask_about(limiter, entry, Operation::Charge(1)).passes).count()
}

#[test]
fn each_user_has_a_bucket_for_each_thing_that_it_does() {
    let counters = Counters::new();
    let limiter = under(
        &counters,
        "
domain: d
descriptors:
  - key: post
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1}
  - key: friend
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 150}
  - key: like
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 5}
",
    );
    for user in ["alice", "bob"] {
        for (what, most) in [("post", 1), ("friend", 150), ("like", 5)] {
            assert_eq!(passed(&limiter, (what, user), 200), most, "{user} {what}");
        }
    }
    counters.pass(Duration::from_secs(1));
    for (what, most) in [("post", 1), ("friend", 0), ("like", 5)] {
        assert_eq!(passed(&limiter, (what, "alice"), 200), most, "a second later: {what}");
    }
    counters.pass(Duration::from_secs(575));
    assert_eq!(passed(&limiter, ("friend", "alice"), 200), 1, "150 a day are one in 576 seconds");
}

#[test]
fn each_address_has_a_bucket() {
    let counters = Counters::new();
    let limiter = under(
        &counters,
        "
domain: d
descriptors:
  - key: remote_address
    rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 20}
  - key: remote_address
    value: 10.0.0.7
    rate_limit: {unlimited: true}
",
    );
    for address in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
        assert_eq!(passed(&limiter, ("remote_address", address), 100), 20);
    }
    assert_eq!(passed(&limiter, ("remote_address", "10.0.0.7"), 100), 100);
}

#[test]
fn ten_thousand_a_second_are_shared_by_all() {
    let counters = Counters::new();
    let limiter = under(
        &counters,
        "
domain: d
descriptors:
  - key: everyone
    rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10000}
",
    );
    for _ in 0..2 {
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let passed = passed(&limiter, ("everyone", ""), 3_000);
                    sum.fetch_add(passed as u64, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(sum.into_inner(), 10_000);
        counters.pass(Duration::from_secs(1));
    }
}

#[test]
fn of_a_thousand_racing_calls_exactly_the_limit_pass_whatever_the_algorithm() {
    for (name, written) in all() {
        let counters = Counters::new();
        let limiter = counters.under(&written(100));
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..125 {
                        let told = ask(&limiter, Operation::Charge(1));
                        passed.fetch_add(told.passes.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100, "{name}");
    }
}

/// Every number that a rule takes, at its extremes and around 32 bits: a rule is refused with its place, or
/// answers whatever it is asked.
#[test]
fn no_rule_overflows() {
    const NUMBERS: [u64; 6] = [0, 1, u32::MAX as u64, u32::MAX as u64 + 1, 30_000_000_000, u64::MAX];
    let lengths = ["window: 1ms", "unit: second", "unit: year", "unit: year, unit_multiplier: 100"];
    let algorithms = [
        "",
        "algorithm: fixed_window, overdraft: true, overdraft_limit: BURST",
        "algorithm: sliding_window, overdraft: true, overdraft_limit: BURST",
        "algorithm: sliding_window, sub_windows: 1, count_denied: true",
        "algorithm: sliding_log, count_denied: true",
        "algorithm: token_bucket, burst: BURST, count_denied: true",
        "algorithm: token_bucket, burst: BURST, overdraft: true",
        "algorithm: leaky_bucket, burst: BURST",
        "algorithm: leaky_queue, burst: BURST",
        "algorithm: leaky_queue, burst: BURST, max_delay: 876000h",
    ];
    let (mut refused, mut answered) = (0, 0);
    for (length, algorithm) in lengths.iter().flat_map(|length| algorithms.map(|each| (length, each))) {
        for (limit, burst) in NUMBERS.iter().flat_map(|limit| NUMBERS.map(|burst| (limit, burst))) {
            let more = algorithm.replace("BURST", &burst.to_string());
            let text = format!("{length}, requests_per_unit: {limit}, {more}");
            let file = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n");
            match Rules::parse("rules.yaml", &file) {
                Ok(_) => answers_all(&text, *limit),
                Err(problems) => {
                    assert!(problems.iter().all(|problem| problem.location.mark.line == 2), "{problems}");
                    refused += 1;
                    continue;
                }
            }
            answered += 1;
        }
    }
    for amount in NUMBERS {
        for burst in NUMBERS {
            let text = format!(
                "algorithm: token_bucket, refill_amount: {amount}, refill_interval: 1ms, burst: {burst}, overdraft: true"
            );
            let file = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n");
            if Rules::parse("rules.yaml", &file).is_ok() {
                answers_all(&text, burst);
            }
        }
    }
    assert!(refused > 100 && answered > 500, "{refused} refused, {answered} answered");
}

fn answers_all(text: &str, limit: u64) {
    let counters = Counters::new();
    let limiter = counters.by(Arc::new(ActiveRules::of(rule(text), START)));
    if limit == 0 {
        assert!(!ask(&limiter, Operation::Charge(1)).passes, "{text}");
    }
    for hits in [1, u64::from(u32::MAX), u64::MAX] {
        for what in [
            Operation::Peek,
            Operation::Charge(hits),
            Operation::Charge(hits),
            Operation::Refund(hits),
            Operation::Peek,
        ] {
            ask(&limiter, what);
        }
        counters.pass(Duration::from_secs(40 * 365 * 86_400));
    }
    let before = ask(&limiter, Operation::Peek);
    assert_eq!(before.passes, 0 < before.remaining || limit == 0 && before.passes, "{text}");
}
