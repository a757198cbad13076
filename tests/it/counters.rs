//! Counters that outlive the rules they are held against, and a rule of every algorithm.

use std::{sync::Arc, time::Duration};

use tollgate::{
    algorithm::Operation,
    descriptor::{Entry, Secret},
    limiter::{Descriptor, Limiter, Request},
    rules::{ActiveRules, Rules},
    store::{Memory, OnFull},
    time::Clock,
};

use crate::harness::START;

/// A rule of one algorithm with this limit.
pub type Written = fn(u64) -> String;

/// Those that keep what was counted: hits, or tokens that are missing.
pub const KEEP_THE_COUNT: [(&str, Written); 9] = [
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
];

/// Those that keep how much of the whole is used: a debt is a time.
pub const KEEP_THE_SHARE: [(&str, Written); 3] = [
    ("token_bucket", |limit| format!("algorithm: token_bucket, unit: hour, requests_per_unit: {limit}")),
    ("leaky_bucket", |limit| format!("algorithm: leaky_bucket, unit: hour, requests_per_unit: {limit}")),
    ("leaky_queue", |limit| {
        let burst = limit.saturating_sub(1);
        format!("algorithm: leaky_queue, unit: hour, requests_per_unit: {limit}, burst: {burst}")
    }),
];

/// One rule of every algorithm.
pub fn all() -> impl Iterator<Item = (&'static str, Written)> {
    KEEP_THE_COUNT.into_iter().chain(KEEP_THE_SHARE)
}

/// Counters and a clock, which outlive the rules.
pub struct Counters {
    pub memory: Arc<Memory>,
    pub clock: Clock,
}

/// What an ask was answered: whether it passes, what is left, whether a limit applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub passes: bool,
    pub remaining: u64,
    pub limited: bool,
}

impl Counters {
    pub fn new() -> Self {
        Self { memory: Arc::new(Memory::new(1 << 30, OnFull::Deny)), clock: Clock::manual(START) }
    }

    /// A limiter over these counters, by a book that the caller may replace.
    pub fn by(&self, active_rules: Arc<ActiveRules>) -> Limiter {
        Limiter::new(active_rules, self.memory.clone(), self.clock.clone(), Secret::from_bytes([3; 16]))
    }

    /// A limiter over these counters by one rule.
    pub fn under(&self, limit: &str) -> Limiter {
        self.by(Arc::new(ActiveRules::of(rule(limit), START)))
    }

    pub fn pass(&self, time: Duration) {
        self.clock.set(self.clock.now().plus(u64::try_from(time.as_nanos()).unwrap()));
    }
}

/// One rule, for the key `a` of the domain `d`.
pub fn rule(limit: &str) -> Rules {
    rules(&format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{{limit}}}}}]\n"))
}

/// The rules of a file that is right.
pub fn rules(text: &str) -> Rules {
    Rules::parse("rules.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Asks about the only rule that [`rule`] makes.
pub fn ask(limiter: &Limiter, ask: Operation) -> Told {
    ask_about(limiter, ("a", "x"), ask)
}

/// Asks about a descriptor of one entry in the domain `d`.
pub fn ask_about(limiter: &Limiter, (key, value): (&str, &str), ask: Operation) -> Told {
    let entries = [Entry { key, value }];
    let descriptors = [Descriptor { entries: &entries, operation: ask, limit: None }];
    let snapshot = limiter.view();
    let answer = snapshot.decide(&Request { domain: "d", descriptors: &descriptors, timeout: None }).unwrap();
    let status = answer.statuses[0];
    Told { passes: answer.passes, remaining: status.remaining, limited: status.limit.is_some() }
}

/// What is left of the only rule that [`rule`] makes.
pub fn remaining(limiter: &Limiter) -> u64 {
    ask(limiter, Operation::Peek).remaining
}
