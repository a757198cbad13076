//! What becomes of a count when its rule changes, for every algorithm: the table of `docs/rules.md`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tollgate::{
    algorithm::Operation,
    rules::{ActiveRules, Rules},
};

use crate::{
    counters::{Counters, KEEP_THE_COUNT, KEEP_THE_SHARE, all, ask, remaining, rule, rules},
    harness::START,
};

#[test]
fn a_changed_limit_holds_for_the_next_request_and_what_was_counted_stays() {
    for (name, written) in KEEP_THE_COUNT {
        let counters = Counters::new();
        assert_eq!(ask(&counters.under(&written(10)), Operation::Charge(6)).remaining, 4, "{name}");
        for (limit, left) in [(20, 14), (7, 1), (4, 0), (6, 0), (1_000, 994), (10, 4)] {
            assert_eq!(remaining(&counters.under(&written(limit))), left, "{name} of {limit}");
        }
        assert!(!ask(&counters.under(&written(6)), Operation::Charge(1)).passes, "{name}");
    }
}

#[test]
fn a_changed_rate_holds_for_the_next_request_and_the_share_that_is_used_stays() {
    for (name, written) in KEEP_THE_SHARE {
        let counters = Counters::new();
        assert_eq!(ask(&counters.under(&written(10)), Operation::Charge(6)).remaining, 4, "{name}");
        for (limit, left) in [(20, 8), (5, 2), (2, 0), (1_000, 400), (10, 4)] {
            assert_eq!(remaining(&counters.under(&written(limit))), left, "{name} of {limit}");
        }
        assert!(ask(&counters.under(&written(20)), Operation::Charge(8)).passes, "{name}");
        assert!(!ask(&counters.under(&written(10)), Operation::Charge(1)).passes, "{name}: all is used");
        counters.pass(Duration::from_secs(6 * 60));
        assert_eq!(remaining(&counters.under(&written(10))), 1, "{name}: and comes back at the new rate");
    }
}

#[test]
fn a_limit_of_0_bans_and_the_count_is_there_when_it_is_lifted() {
    for (name, written) in all() {
        // A burst is at least 1, and a bucket in steps has no rate that could be 0.
        if name.starts_with("token_bucket ") || name.starts_with("token_bucket,") {
            continue;
        }
        let counters = Counters::new();
        ask(&counters.under(&written(10)), Operation::Charge(6));
        let told = ask(&counters.under(&written(0)), Operation::Charge(1));
        assert_eq!((told.passes, told.remaining), (false, 0), "{name}");
        // A classic rule counts what it refuses.
        let left = if name.starts_with("classic") { 3 } else { 4 };
        assert_eq!(remaining(&counters.under(&written(10))), left, "{name}");
    }
}

#[test]
fn what_was_refused_does_not_use_up_a_raise() {
    for (name, written) in all() {
        let counters = Counters::new();
        let before = counters.under(&written(10));
        let passed = (0..50).filter(|_| ask(&before, Operation::Charge(1)).passes).count();
        assert_eq!(passed, 10, "{name}");
        let after = counters.under(&written(20));
        let passed = (0..50).filter(|_| ask(&after, Operation::Charge(1)).passes).count();
        let expected = match name {
            // Classic rules count what they refuse, as envoyproxy/ratelimit does: 50 are counted.
            "classic" | "classic by the calendar" => 0,
            // Twice the rate, and all of it is used.
            "token_bucket" | "leaky_bucket" | "leaky_queue" => 0,
            _counted => 10,
        };
        assert_eq!(passed, expected, "{name}");
    }
}

#[test]
fn a_thousand_reloads_of_an_unchanged_rule_under_load_move_nothing() {
    for (name, written) in all() {
        let counters = Counters::new();
        let active_rules = Arc::new(ActiveRules::of(rule(&written(500)), START));
        let limiter = counters.by(active_rules.clone());
        let (done, passed) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        passed
                            .fetch_add(ask(&limiter, Operation::Charge(1)).passes.into(), Ordering::Relaxed);
                        thread::sleep(Duration::from_micros(100));
                    }
                });
            }
            for _ in 0..1_000 {
                active_rules.replace(rule(&written(500)), START);
            }
            while ask(&limiter, Operation::Peek).remaining != 0 {
                thread::sleep(Duration::from_micros(100));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(passed.into_inner(), 500, "{name}");
        assert_eq!(active_rules.status().generation, 1_001);
    }
}

#[test]
fn another_window_is_another_count_and_going_back_finds_the_old_one() {
    for (name, written) in all() {
        let counters = Counters::new();
        let old = written(10);
        let other = old
            .replace("unit: hour", "unit: day")
            .replace("unit: week", "unit: month")
            .replace("unit: day, calendar", "unit: year, calendar")
            .replace("refill_interval: 1h", "refill_interval: 2h");
        assert_ne!(old, other, "{name}");
        ask(&counters.under(&old), Operation::Charge(6));
        assert_eq!(ask(&counters.under(&other), Operation::Charge(1)).remaining, 9, "{name}");
        assert_eq!(remaining(&counters.under(&old)), 4, "{name}");
    }
}

#[test]
fn another_time_zone_or_first_day_of_the_week_is_another_count() {
    let counters = Counters::new();
    let zones = ["timezone: UTC", "timezone: Asia/Tokyo", "timezone: UTC, week_start: sunday"];
    let written = |zone: &str| {
        format!("algorithm: fixed_window, unit: week, calendar: {{{zone}}}, requests_per_unit: 10")
    };
    for (used, zone) in zones.into_iter().enumerate() {
        ask(&counters.under(&written(zone)), Operation::Charge(used as u64 + 1));
    }
    for (used, zone) in zones.into_iter().enumerate() {
        assert_eq!(remaining(&counters.under(&written(zone))), 9 - used as u64, "{zone}");
    }
}

#[test]
fn another_algorithm_is_another_count_and_going_back_finds_the_old_one() {
    // Those of one algorithm and window share their counts.
    let same =
        |name: &str| name.split([',', ' ']).next().unwrap() == "token_bucket" && !name.contains("steps");
    for (name, old) in all() {
        for (other_name, other) in all().filter(|(other, _)| *other != name) {
            if same(name) && same(other_name) {
                continue;
            }
            let counters = Counters::new();
            ask(&counters.under(&old(10)), Operation::Charge(6));
            assert_eq!(
                ask(&counters.under(&other(10)), Operation::Charge(1)).remaining,
                9,
                "{name}, {other_name}"
            );
            assert_eq!(remaining(&counters.under(&old(10))), 4, "{name}, {other_name}");
        }
    }
}

#[test]
fn a_rule_that_is_removed_and_put_back_finds_its_count() {
    for (name, written) in all() {
        let counters = Counters::new();
        let active_rules = Arc::new(ActiveRules::of(rule(&written(10)), START));
        let limiter = counters.by(active_rules.clone());
        ask(&limiter, Operation::Charge(6));
        active_rules.replace(rules("domain: d\n"), START);
        let told = ask(&limiter, Operation::Charge(1_000));
        assert_eq!((told.passes, told.limited), (true, false), "{name}");
        active_rules.replace(rule(&written(10)), START);
        assert_eq!(remaining(&limiter), 4, "{name}");
    }
}

#[test]
fn two_versions_of_a_limit_that_ask_by_turns_share_one_count() {
    for (name, written) in KEEP_THE_COUNT {
        let counters = Counters::new();
        let [old, new] = [10, 20].map(|limit| counters.under(&written(limit)));
        let mut passed = [0, 0];
        for _ in 0..30 {
            for (index, limiter) in [&old, &new].into_iter().enumerate() {
                // Classic rules would count what the older version refuses.
                let hits = if remaining(limiter) == 0 { Operation::Peek } else { Operation::Charge(1) };
                passed[index] += u32::from(hits != Operation::Peek && ask(limiter, hits).passes);
            }
        }
        assert_eq!(passed, [5, 15], "{name}: until each has reached its own limit");
    }
}

#[test]
fn two_versions_of_a_rate_that_ask_by_turns_share_one_debt() {
    for (name, written) in KEEP_THE_SHARE {
        let counters = Counters::new();
        let [old, new] = [10, 20].map(|limit| counters.under(&written(limit)));
        let mut passed = [0, 0];
        for _ in 0..30 {
            for (index, limiter) in [&old, &new].into_iter().enumerate() {
                passed[index] += u32::from(ask(limiter, Operation::Charge(1)).passes);
            }
        }
        // A tenth and a twentieth by turns: after six of each nine tenths are used, and one tenth more fits.
        assert_eq!(passed, [7, 6], "{name}");
        assert_eq!((remaining(&old), remaining(&new)), (0, 0), "{name}");
    }
}

#[test]
fn two_versions_that_count_in_another_way_do_not_disturb_each_other() {
    let counters = Counters::new();
    let old = counters.under("algorithm: fixed_window, unit: hour, requests_per_unit: 10");
    let new = counters.under("algorithm: token_bucket, unit: hour, requests_per_unit: 10");
    for left in (0..10).rev() {
        assert_eq!(ask(&old, Operation::Charge(1)).remaining, left);
        assert_eq!(ask(&new, Operation::Charge(1)).remaining, left);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Raised, lowered below what is used, banned, raised to the largest number there is.
    #[test]
    fn no_series_of_limits_panics_or_leaves_more_than_the_limit(
        steps in prop::collection::vec(
            (
                prop_oneof![2 => 1..20_u64, 1 => Just(1_000_000_000), 1 => Just(u64::MAX)],
                prop_oneof![3 => 1..15_u64, 1 => Just(u64::MAX)],
                prop_oneof![Just(0), 0..7_200_000_u64],
            ),
            1..12,
        ),
    ) {
        for (name, written) in all() {
            let counters = Counters::new();
            for (limit, hits, pause_ms) in &steps {
                // What would not come back within a hundred years is no rule.
                let text = written(*limit);
                let Ok(rules) = Rules::parse(
                    "rules.yaml",
                    &format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{text}}}}}]\n"),
                ) else {
                    continue;
                };
                let limiter = counters.by(Arc::new(ActiveRules::of(rules, START)));
                let before = remaining(&limiter);
                let told = ask(&limiter, Operation::Charge(*hits));
                // A classic count ends at 2^64 - 1, also where it should be more.
                if !name.starts_with("classic") {
                    prop_assert_eq!(told.passes, *hits <= before, "{} of {}", name, limit);
                }
                prop_assert!(told.remaining <= *limit);
                counters.pass(Duration::from_millis(*pause_ms));
            }
        }
    }
}
