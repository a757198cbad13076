//! What a changed rule does to existing counters, for every algorithm: the table of `docs/rule-changes.md`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tollgate_counter::algorithm::Operation;
use tollgate_rules::{ActiveRules, Rules};

use crate::{
    counters::{COUNT_PRESERVING, Counters, SHARE_PRESERVING, apply, every_rule, remaining, rule, rules},
    harness::{START, rounds},
};

#[test]
fn changed_limit_applies_at_once_and_keeps_count() {
    for (name, rule_text) in COUNT_PRESERVING {
        let counters = Counters::new();
        assert_eq!(apply(&counters.with_rule(&rule_text(10)), Operation::Charge(6)).remaining, 4, "{name}");
        for (limit, left) in [(20, 14), (7, 1), (4, 0), (6, 0), (1_000, 994), (10, 4)] {
            assert_eq!(remaining(&counters.with_rule(&rule_text(limit))), left, "{name} of {limit}");
        }
        assert!(!apply(&counters.with_rule(&rule_text(6)), Operation::Charge(1)).passes, "{name}");
    }
}

#[test]
fn changed_rate_applies_at_once_and_keeps_used_share() {
    for (name, rule_text) in SHARE_PRESERVING {
        let counters = Counters::new();
        assert_eq!(apply(&counters.with_rule(&rule_text(10)), Operation::Charge(6)).remaining, 4, "{name}");
        for (limit, left) in [(20, 8), (5, 2), (2, 0), (1_000, 400), (10, 4)] {
            assert_eq!(remaining(&counters.with_rule(&rule_text(limit))), left, "{name} of {limit}");
        }
        assert!(apply(&counters.with_rule(&rule_text(20)), Operation::Charge(8)).passes, "{name}");
        assert!(
            !apply(&counters.with_rule(&rule_text(10)), Operation::Charge(1)).passes,
            "{name}: the budget is used up"
        );
        counters.advance(Duration::from_secs(6 * 60));
        assert_eq!(remaining(&counters.with_rule(&rule_text(10))), 1, "{name}: it refills at the new rate");
    }
}

#[test]
fn limit_0_bans_and_keeps_count_for_later() {
    for (name, rule_text) in every_rule() {
        // A burst and the number of places are at least 1, and a stepped bucket has no rate that could be 0.
        if name.starts_with("token_bucket ") || name.starts_with("token_bucket,") || name == "concurrency" {
            continue;
        }
        let counters = Counters::new();
        apply(&counters.with_rule(&rule_text(10)), Operation::Charge(6));
        let outcome = apply(&counters.with_rule(&rule_text(0)), Operation::Charge(1));
        assert_eq!((outcome.passes, outcome.remaining), (false, 0), "{name}");
        // A classic rule counts refused hits.
        let left = if name.starts_with("classic") { 3 } else { 4 };
        assert_eq!(remaining(&counters.with_rule(&rule_text(10))), left, "{name}");
    }
}

#[test]
fn refused_hits_do_not_use_up_raised_limit() {
    for (name, rule_text) in every_rule() {
        let counters = Counters::new();
        let before = counters.with_rule(&rule_text(10));
        let passed = (0..50).filter(|_| apply(&before, Operation::Charge(1)).passes).count();
        assert_eq!(passed, 10, "{name}");
        let after = counters.with_rule(&rule_text(20));
        let passed = (0..50).filter(|_| apply(&after, Operation::Charge(1)).passes).count();
        // Classic rules count refused hits, as envoyproxy/ratelimit does: 50 are counted.
        let is_classic = name.starts_with("classic");
        // The used share stays 100 % at twice the rate.
        let keeps_share = SHARE_PRESERVING.iter().any(|(one, _)| *one == name);
        let expected = if is_classic || keeps_share { 0 } else { 10 };
        assert_eq!(passed, expected, "{name}");
    }
}

#[test]
fn reloads_of_unchanged_rule_under_load_keep_count() {
    let reloads = rounds(100, 1_000);
    for (name, rule_text) in every_rule() {
        let counters = Counters::new();
        let active_rules = Arc::new(ActiveRules::from_rules(rule(&rule_text(500)), START));
        let limiter = counters.with_rules(active_rules.clone());
        let (done, passed) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        passed.fetch_add(
                            apply(&limiter, Operation::Charge(1)).passes.into(),
                            Ordering::Relaxed,
                        );
                        thread::sleep(Duration::from_micros(100));
                    }
                });
            }
            for _ in 0..reloads {
                active_rules.replace(rule(&rule_text(500)), START);
            }
            while apply(&limiter, Operation::Peek).remaining != 0 {
                thread::sleep(Duration::from_micros(100));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(passed.into_inner(), 500, "{name}");
        assert_eq!(active_rules.status().generation, 1 + reloads as u64);
    }
}

#[test]
fn other_window_has_own_counter_and_old_one_remains() {
    for (name, rule_text) in every_rule() {
        let counters = Counters::new();
        let old = rule_text(10);
        let other = old
            .replace("unit: hour", "unit: day")
            .replace("unit: week", "unit: month")
            .replace("unit: day, calendar", "unit: year, calendar")
            .replace("refill_interval: 1h", "refill_interval: 2h")
            .replace("hold_max: 1h", "hold_max: 2h");
        assert_ne!(old, other, "{name}");
        apply(&counters.with_rule(&old), Operation::Charge(6));
        assert_eq!(apply(&counters.with_rule(&other), Operation::Charge(1)).remaining, 9, "{name}");
        assert_eq!(remaining(&counters.with_rule(&old)), 4, "{name}");
    }
}

#[test]
fn other_time_zone_or_week_start_has_own_counter() {
    let counters = Counters::new();
    let zones = ["timezone: UTC", "timezone: Asia/Tokyo", "timezone: UTC, week_start: sunday"];
    let rule_text = |zone: &str| {
        format!("algorithm: fixed_window, unit: week, calendar: {{{zone}}}, requests_per_unit: 10")
    };
    for (used, zone) in zones.into_iter().enumerate() {
        apply(&counters.with_rule(&rule_text(zone)), Operation::Charge(used as u64 + 1));
    }
    for (used, zone) in zones.into_iter().enumerate() {
        assert_eq!(remaining(&counters.with_rule(&rule_text(zone))), 9 - used as u64, "{zone}");
    }
}

#[test]
fn other_algorithm_has_own_counter_and_old_one_remains() {
    // Rules of one algorithm and window share their counters.
    let same =
        |name: &str| name.split([',', ' ']).next().unwrap() == "token_bucket" && !name.contains("steps");
    for (name, old) in every_rule() {
        for (other_name, other) in every_rule().filter(|(other, _)| *other != name) {
            if same(name) && same(other_name) {
                continue;
            }
            let counters = Counters::new();
            apply(&counters.with_rule(&old(10)), Operation::Charge(6));
            assert_eq!(
                apply(&counters.with_rule(&other(10)), Operation::Charge(1)).remaining,
                9,
                "{name}, {other_name}"
            );
            assert_eq!(remaining(&counters.with_rule(&old(10))), 4, "{name}, {other_name}");
        }
    }
}

#[test]
fn removed_and_restored_rule_finds_its_counter() {
    for (name, rule_text) in every_rule() {
        let counters = Counters::new();
        let active_rules = Arc::new(ActiveRules::from_rules(rule(&rule_text(10)), START));
        let limiter = counters.with_rules(active_rules.clone());
        apply(&limiter, Operation::Charge(6));
        active_rules.replace(rules("domain: d\n"), START);
        let outcome = apply(&limiter, Operation::Charge(1_000));
        assert_eq!((outcome.passes, outcome.limited), (true, false), "{name}");
        active_rules.replace(rule(&rule_text(10)), START);
        assert_eq!(remaining(&limiter), 4, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Limits are raised, lowered below the used count, set to 0 and to the largest number.
    #[test]
    fn any_series_of_limits_never_exceeds_current_limit(
        steps in prop::collection::vec(
            (
                prop_oneof![2 => 1..20_u64, 1 => Just(1_000_000_000), 1 => Just(u64::MAX)],
                prop_oneof![3 => 1..15_u64, 1 => Just(u64::MAX)],
                prop_oneof![Just(0), 0..7_200_000_u64],
            ),
            1..12,
        ),
    ) {
        for (name, rule_text) in every_rule() {
            let counters = Counters::new();
            for (limit, hits, pause_ms) in &steps {
                // Limits that would refill only after a hundred years are rejected as rules.
                let text = rule_text(*limit);
                let Ok(rules) = Rules::parse(
                    "rules.yaml",
                    &format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n"),
                ) else {
                    continue;
                };
                let limiter = counters.with_rules(Arc::new(ActiveRules::from_rules(rules, START)));
                let before = remaining(&limiter);
                let outcome = apply(&limiter, Operation::Charge(*hits));
                // A classic count saturates at 2^64 - 1.
                if !name.starts_with("classic") {
                    prop_assert_eq!(outcome.passes, *hits <= before, "{} of {}", name, limit);
                }
                prop_assert!(outcome.remaining <= *limit);
                counters.advance(Duration::from_millis(*pause_ms));
            }
        }
    }
}
