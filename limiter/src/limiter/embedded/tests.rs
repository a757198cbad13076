//! Tests of the limiter inside a program.

use super::*;
use tollgate_counter::time::{SECOND, Stopwatch};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_queue, burst: 5}
";

fn remaining(limiter: &Limiter) -> u64 {
    limiter.peek("shop", &[("user", "ada")]).unwrap().remaining
}

#[test]
fn charges_peeks_and_refunds_agree_on_what_is_left() {
    let limiter = Limiter::from_yaml(RULES).unwrap();
    let user = [("user", "ada")];
    assert_eq!(limiter.check("shop", &user, 2).unwrap().remaining, 1);
    assert_eq!(remaining(&limiter), 1);
    let refused = limiter.check("shop", &user, 2).unwrap();
    assert!(!refused.passes && refused.retry_after.is_some());
    assert_eq!(limiter.refund("shop", &user, 1).unwrap().remaining, 2);
    assert!(limiter.check("shop", &user, 2).unwrap().passes);
}

#[test]
fn descriptor_without_rule_passes_without_limit() {
    let limiter = Limiter::from_yaml(RULES).unwrap();
    for (domain, entries) in [("shop", [("plan", "free")]), ("other", [("user", "ada")])] {
        let checked = limiter.check(domain, &entries, 1).unwrap();
        assert_eq!((checked.passes, checked.remaining, checked.reset_after), (true, u64::MAX, None));
    }
}

#[test]
fn empty_domain_and_no_entries_are_answered_alike_by_every_question() {
    let limiter = Limiter::from_yaml(RULES).unwrap();
    let empty = CheckError::Request(RequestError::EmptyDomain);
    assert_eq!(limiter.check("", &[("user", "ada")], 1), Err(empty));
    assert_eq!(limiter.peek("", &[("user", "ada")]), Err(empty));
    assert_eq!(limiter.refund("", &[("user", "ada")], 1), Err(empty));
    assert!(limiter.check("shop", &[], 1).unwrap().passes);
}

#[test]
fn queue_says_how_long_the_caller_waits() {
    let limiter = Limiter::from_yaml(RULES).unwrap();
    let queue = [("queue", "a")];
    assert!(limiter.check("shop", &queue, 1).unwrap().delay.is_zero());
    let second = limiter.check("shop", &queue, 1).unwrap();
    assert!(second.passes && !second.delay.is_zero());
}

#[test]
fn limiter_follows_wall_clock_that_jumps_and_is_put_right() {
    const DAY: u64 = 24 * 3_600 * SECOND;
    let limiter = Limiter::from_yaml(RULES).unwrap();
    let user = [("user", "ada")];
    let start = limiter.view().now();
    assert!(limiter.check("shop", &user, 3).unwrap().passes);
    limiter.clock.set_wall_ahead(3 * DAY as i64);
    until(|| limiter.view().now() > start.plus(2 * DAY));
    assert_eq!(limiter.check("shop", &user, 2).unwrap().remaining, 1);
    limiter.clock.set_wall_ahead(0);
    until(|| limiter.view().now() < start.plus(DAY));
    // The window that lies three days ahead has become the next one.
    let refused = limiter.check("shop", &user, 2).unwrap();
    let retry_after = refused.retry_after.unwrap();
    assert!(!refused.passes && retry_after <= Duration::from_nanos(2 * DAY), "{retry_after:?}");
}

fn until(condition: impl Fn() -> bool) {
    let watch = Stopwatch::start();
    while !condition() {
        assert!(watch.elapsed() < Duration::from_secs(60), "the condition does not hold within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn replaced_rules_keep_counters_and_broken_rules_change_nothing() {
    let limiter = Limiter::from_yaml(RULES).unwrap();
    limiter.check("shop", &[("user", "ada")], 2).unwrap();
    let problems = limiter.replace_rules("domain: shop\ndescriptors: 3\n").unwrap_err();
    assert!(problems.to_string().starts_with("rules:2:"), "{problems}");
    assert_eq!(remaining(&limiter), 1);
    limiter.replace_rules(&RULES.replace("requests_per_unit: 3", "requests_per_unit: 10")).unwrap();
    assert_eq!(remaining(&limiter), 8);
}
