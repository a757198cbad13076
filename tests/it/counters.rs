//! Counters that outlive their rules, and a rule of every algorithm.

use std::{sync::Arc, time::Duration};

use tollgate_counter::{
    algorithm::{AlgorithmName, Operation},
    descriptor::{Entry, Secret},
    time::Clock,
};
use tollgate_limiter::limiter::{Descriptor, Limiter, Request};
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull};

use crate::harness::START;

/// A rule of one algorithm with this limit.
pub type RuleText = fn(u64) -> String;

/// Rules whose counters keep the counted hits, or the missing tokens, when the limit changes.
pub const COUNT_PRESERVING: [(&str, RuleText); 10] = [
    ("classic", |limit| format!("unit: hour, requests_per_unit: {limit}")),
    ("classic by the calendar", |limit| {
        format!("unit: day, calendar: {{timezone: Europe/Berlin}}, requests_per_unit: {limit}")
    }),
    ("fixed_window", |limit| format!("algorithm: fixed_window, unit: hour, requests_per_unit: {limit}")),
    ("fixed_window by the calendar", |limit| {
        format!(
            "algorithm: fixed_window, unit: week, calendar: {{timezone: UTC}}, requests_per_unit: {limit}"
        )
    }),
    ("sliding_window", |limit| format!("algorithm: sliding_window, unit: hour, requests_per_unit: {limit}")),
    ("sub_windows", |limit| {
        format!("algorithm: sliding_window, sub_windows: 60, unit: hour, requests_per_unit: {limit}")
    }),
    ("sliding_log", |limit| format!("algorithm: sliding_log, unit: hour, requests_per_unit: {limit}")),
    ("token_bucket, its burst", |limit| {
        format!("algorithm: token_bucket, unit: hour, requests_per_unit: 10, burst: {limit}")
    }),
    ("token_bucket in steps", |limit| {
        format!("algorithm: token_bucket, refill_amount: 1, refill_interval: 1h, burst: {limit}")
    }),
    ("concurrency", |limit| format!("algorithm: concurrency, hold_max: 1h, max_in_flight: {limit}")),
];

/// Rules whose counters keep the used share when the limit changes, because a debt is a time.
pub const SHARE_PRESERVING: [(&str, RuleText); 3] = [
    ("token_bucket", |limit| format!("algorithm: token_bucket, unit: hour, requests_per_unit: {limit}")),
    ("leaky_bucket", |limit| format!("algorithm: leaky_bucket, unit: hour, requests_per_unit: {limit}")),
    ("leaky_queue", |limit| {
        let burst = limit.saturating_sub(1);
        format!("algorithm: leaky_queue, unit: hour, requests_per_unit: {limit}, burst: {burst}")
    }),
];

/// One rule of every algorithm.
pub fn every_rule() -> impl Iterator<Item = (&'static str, RuleText)> {
    COUNT_PRESERVING.into_iter().chain(SHARE_PRESERVING)
}

#[test]
fn every_algorithm_has_a_rule() {
    let algorithms = AlgorithmName::ALL.map(|algorithm| format!("algorithm: {},", algorithm.name()));
    for algorithm in algorithms {
        assert!(every_rule().any(|(_, rule_text)| rule_text(10).contains(&algorithm)), "{algorithm}");
    }
}

/// Counters and a clock that outlive the rules.
pub struct Counters {
    pub memory: Arc<Memory>,
    pub clock: Clock,
}

/// The decision of an operation: whether it passes, what remains, whether a limit applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub passes: bool,
    pub remaining: u64,
    pub limited: bool,
}

impl Counters {
    pub fn new() -> Self {
        Self { memory: Arc::new(Memory::new(1 << 30, OnFull::Deny)), clock: Clock::manual(START) }
    }

    /// A limiter over these counters with rules that the caller may replace.
    pub fn with_rules(&self, active_rules: Arc<ActiveRules>) -> Limiter {
        active_rules.set_secret(Secret::from_bytes([3; 16]));
        Limiter::new(active_rules, self.memory.clone(), self.clock.clone())
    }

    /// A limiter over these counters with one rule.
    pub fn with_rule(&self, limit: &str) -> Limiter {
        self.with_rules(Arc::new(ActiveRules::from_rules(rule(limit), START)))
    }

    pub fn advance(&self, time: Duration) {
        self.clock.set(self.clock.now().plus(u64::try_from(time.as_nanos()).unwrap()));
    }
}

/// One rule, for the key `a` of the domain `d`.
pub fn rule(limit: &str) -> Rules {
    rules(&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n"))
}

/// The rules of a valid file.
pub fn rules(text: &str) -> Rules {
    Rules::parse("rules.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Applies an operation to the only rule of [`rule`].
pub fn apply(limiter: &Limiter, operation: Operation) -> Outcome {
    apply_to(limiter, ("a", "x"), operation)
}

/// Applies an operation to a descriptor of one entry in the domain `d`.
pub fn apply_to(limiter: &Limiter, (key, value): (&str, &str), ask: Operation) -> Outcome {
    let entries = [Entry::new(key, value)];
    let descriptor = Descriptor { entries: &entries, operation: ask, limit: None };
    let snapshot = limiter.view();
    let answer = snapshot.decide(&Request::new("d", [descriptor], None).unwrap()).unwrap().answer().unwrap();
    let status = answer.statuses[0];
    Outcome { passes: answer.passes, remaining: status.remaining, limited: status.limit.is_some() }
}

/// What remains of the only rule of [`rule`].
pub fn remaining(limiter: &Limiter) -> u64 {
    apply(limiter, Operation::Peek).remaining
}
