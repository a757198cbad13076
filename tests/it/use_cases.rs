//! Typical uses of limits as rule files, and every algorithm with racing callers and extreme numbers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tollgate_counter::algorithm::{AlgorithmName, Operation};
use tollgate_rules::{ActiveRules, Rules};

use crate::{
    counters::{Counters, apply, apply_to, every_rule, rule, rules},
    harness::START,
};

/// A bucket for each user and action, one for each address, and one that all share.
#[test]
fn typical_limits_admit_what_they_say() {
    let counters = Counters::new();
    let limiter = counters.with_rules(Arc::new(ActiveRules::from_rules(
        rules(
            "
domain: d
descriptors:
  - {key: post, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1}}
  - {key: friend, rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 150}}
  - {key: like, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 5}}
  - {key: remote_address, rate_limit: {algorithm: token_bucket, unit: minute, requests_per_unit: 20}}
  - {key: remote_address, value: 10.0.0.7, rate_limit: {unlimited: true}}
  - {key: everyone, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 10000}}
",
        ),
        START,
    )));
    let passed = |key: &str, value: &str, hits: usize| {
        (0..hits).filter(|_| apply_to(&limiter, (key, value), Operation::Charge(1)).passes).count()
    };
    for user in ["alice", "bob"] {
        assert_eq!(["post", "friend", "like"].map(|key| passed(key, user, 200)), [1, 150, 5], "{user}");
    }
    let addresses = ["192.0.2.1", "2001:db8::1", "10.0.0.7"];
    assert_eq!(addresses.map(|address| passed("remote_address", address, 100)), [20, 20, 100]);
    assert_eq!(passed("everyone", "", 12_000), 10_000);
    counters.advance(Duration::from_secs(1));
    assert_eq!(["post", "friend", "like"].map(|key| passed(key, "alice", 200)), [1, 0, 5]);
    assert_eq!(passed("everyone", "", 12_000), 10_000);
    counters.advance(Duration::from_secs(575));
    assert_eq!(passed("friend", "alice", 200), 1, "150 per day are one per 576 s");
}

#[test]
fn racing_1000_calls_admit_exactly_the_limit_for_any_algorithm() {
    for (name, rule_text) in every_rule() {
        let counters = Counters::new();
        let limiter = counters.with_rule(&rule_text(100));
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..125 {
                        let outcome = apply(&limiter, Operation::Charge(1));
                        passed.fetch_add(outcome.passes.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 100, "{name}");
    }
}

/// Every number of a rule at its extremes and around 32 bits: the rule is rejected with its location, or decides every
/// operation.
#[test]
fn extreme_limits_do_not_overflow() {
    const NUMBERS: [u64; 6] = [0, 1, u32::MAX as u64, u32::MAX as u64 + 1, 30_000_000_000, u64::MAX];
    let lengths = ["window: 1ms", "unit: second", "unit: year", "unit: year, unit_multiplier: 100"];
    let with_options = [
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
    let plain = AlgorithmName::ALL.map(|algorithm| format!("algorithm: {}", algorithm.name()));
    let algorithms: Vec<_> = with_options.map(str::to_owned).into_iter().chain(plain).collect();
    let (mut refused, mut answered) = (0, 0);
    for (length, algorithm) in
        lengths.iter().flat_map(|length| algorithms.iter().map(move |each| (length, each)))
    {
        for (limit, burst) in NUMBERS.iter().flat_map(|limit| NUMBERS.map(|burst| (limit, burst))) {
            let more = algorithm.replace("BURST", &burst.to_string());
            let text = format!("{length}, requests_per_unit: {limit}, {more}");
            let file = format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n");
            match Rules::parse("rules.yaml", &file) {
                Ok(_) => decides_every_operation(&text, *limit),
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
                decides_every_operation(&text, burst);
            }
        }
    }
    assert!(refused > 100 && answered > 500, "{refused} refused, {answered} answered");
}

fn decides_every_operation(text: &str, limit: u64) {
    let counters = Counters::new();
    let limiter = counters.with_rules(Arc::new(ActiveRules::from_rules(rule(text), START)));
    if limit == 0 {
        assert!(!apply(&limiter, Operation::Charge(1)).passes, "{text}");
    }
    for hits in [1, u64::from(u32::MAX), u64::MAX] {
        for operation in [
            Operation::Peek,
            Operation::Charge(hits),
            Operation::Charge(hits),
            Operation::Refund(hits),
            Operation::Peek,
        ] {
            apply(&limiter, operation);
        }
        counters.advance(Duration::from_secs(40 * 365 * 86_400));
    }
    let before = apply(&limiter, Operation::Peek);
    assert_eq!(before.passes, before.remaining > 0 || limit == 0 && before.passes, "{text}");
}
