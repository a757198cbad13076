//! Counts the outcome of each descriptor.

use tollgate_counter::{
    algorithm::{Decision, Operation},
    descriptor::{self, Entry, Key},
    metrics::{MetricCounter, TopKeys},
};
use tollgate_rules::{DecisionStats, Domain, KeyedDomain, Match, RuleEvent};
use tollgate_store::{Check, CheckDecision};

use crate::limiter::{
    answer::{Answer, Status},
    check_set::{AppliedLimit, CheckSet, LimitFrom},
    examples::Examples,
    request::{Descriptor, Request},
};

/// Metrics of the limiter other than those of each rule.
#[derive(Debug, Default)]
pub struct LimiterMetrics {
    /// Requests for a domain without rules.
    pub unknown_domains: MetricCounter,
    /// Descriptors that match no rule of their domain.
    pub unmatched: MetricCounter,
    /// Some of the domains without rules.
    pub unknown_examples: Examples,
    /// Some of the descriptors that match no rule, and of those whose only rule is replaced.
    pub unmatched_examples: Examples,
    /// Requests that passed only because of the shadow mode of all rules.
    pub shadow_passes: MetricCounter,
    /// Descriptors that their rule decided because the limit of their key was not known in time.
    pub unknown_limits: MetricCounter,
    /// Outcomes of descriptors with an override.
    pub overrides: DecisionStats,
    /// The keys denied most often.
    pub denied: TopKeys,
    /// The keys requested most often at clients that decide by themselves, as far as their limits are divided.
    pub quotas: TopKeys,
}

impl LimiterMetrics {
    /// Empty metrics; the list of most denied keys, and that of quotas, have `top_keys` entries.
    pub fn new(top_keys: usize) -> Self {
        Self { denied: TopKeys::new(top_keys), quotas: TopKeys::new(top_keys), ..Self::default() }
    }

    /// Counts a request and the outcome of each descriptor.
    pub(super) fn count(
        &self,
        domain: KeyedDomain<'_>,
        request: &Request<'_>,
        applied: &[AppliedLimit<'_>],
        set: &CheckSet<'_>,
        decisions: &[CheckDecision],
        answer: &Answer<'_>,
    ) {
        self.count_shadow_pass(answer.passes_in_shadow);
        let checks = set.checks.iter().zip(decisions);
        let mut decided = set.deciding().iter().zip(checks).peekable();
        for (index, (applied, descriptor)) in applied.iter().zip(&request.descriptors).enumerate() {
            let check = decided.next_if(|(decided, _)| **decided == index);
            let checked = check.map(|(_, (check, decision))| CheckOutcome { check, decision });
            self.count_descriptor(&domain, descriptor, applied, checked, &answer.statuses[index]);
        }
    }

    #[inline(always)]
    pub(super) fn count_shadow_pass(&self, passes_in_shadow: bool) {
        if passes_in_shadow {
            self.shadow_passes.increase();
        }
    }

    /// Counts the outcome of a descriptor, of which `checked` is that of its check, if it has one.
    #[inline(always)]
    pub(super) fn count_descriptor<R>(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        applied: &AppliedLimit<'_>,
        checked: Option<CheckOutcome<'_, R>>,
        status: &Status<'_>,
    ) {
        let outcome = match checked {
            Some(checked) => self.outcome(domain, || descriptor.entries, checked, status),
            None => RuleEvent { candidate_denied: status.candidate_refuses, ..RuleEvent::default() },
        };
        match applied {
            AppliedLimit::Nothing => {
                self.unmatched.increase();
                self.unmatched_examples.add(&domain.name, descriptor.entries);
            }
            AppliedLimit::Override(..) => self.overrides.add(outcome),
            AppliedLimit::Unlimited(matched) | AppliedLimit::Rule(matched, ..) => {
                if status.limit_from == LimitFrom::RuleForUnknown {
                    self.unknown_limits.increase();
                }
                count_rule(matched, descriptor, outcome);
            }
        }
    }

    /// The outcome of a descriptor with a check, which is recorded if it is a denial.
    #[inline(always)]
    pub(super) fn outcome<'e, R, E: AsRef<[Entry<'e>]>>(
        &self,
        domain: &Domain,
        entries: impl FnOnce() -> E,
        CheckOutcome { check, decision }: CheckOutcome<'_, R>,
        status: &Status<'_>,
    ) -> RuleEvent {
        // A peek at an exhausted counter is not a denial.
        if !status.passes && check.operation != Operation::Peek {
            self.record_denied(domain, entries, check.key);
        }
        RuleEvent {
            over_limit: !status.passes,
            charged: decision.charged,
            near_limit: near_limit(check, decision, decision.charged),
            shadow_denied: status.refused_in_shadow,
            candidate_denied: status.candidate_refuses,
        }
    }

    /// Counts requests for the counter of `key` at a client that decides by itself.
    pub fn count_quota<'e, E: AsRef<[Entry<'e>]>>(
        &self,
        domain: &str,
        entries: impl FnOnce() -> E,
        key: Key,
        requests: u64,
    ) {
        self.quotas.add(number_of(key), requests, || descriptor_text(domain, entries().as_ref()));
    }

    #[cold]
    fn record_denied<'e, E: AsRef<[Entry<'e>]>>(
        &self,
        domain: &Domain,
        entries: impl FnOnce() -> E,
        key: Key,
    ) {
        self.denied.add(number_of(key), 1, || descriptor_text(&domain.name, entries().as_ref()));
    }
}

/// A check and its decision.
pub(super) struct CheckOutcome<'a, R> {
    pub(super) check: &'a Check<'a>,
    pub(super) decision: &'a CheckDecision<R>,
}

/// Of the hits charged, those beyond 80 % of the limit.
pub(super) fn near_limit<R>(check: &Check<'_>, decision: &Decision<R>, charged: u64) -> u64 {
    if charged == 0 || !decision.verdict.passes() {
        return 0;
    }
    let most = check.limit.allowance();
    // Early return for the common case.
    if most / 2 < decision.remaining {
        return 0;
    }
    let near = most / 5 * 4 + most % 5 * 4 / 5;
    most.saturating_sub(decision.remaining).saturating_sub(near).min(charged)
}

#[inline(always)]
fn count_rule(matched: &Match<'_>, descriptor: &Descriptor<'_>, outcome: RuleEvent) {
    if let Some(counts) = &matched.rule.stats {
        counts.count(matched.metric_name(descriptor.entries), outcome);
    }
}

fn number_of(key: Key) -> u128 {
    u128::from(key.high()) << 64 | u128::from(key.low())
}

/// A descriptor as text: `domain key=value,key=value`.
fn descriptor_text(domain: &str, entries: &[Entry<'_>]) -> String {
    let entries = descriptor::format(entries.iter().map(|entry| (entry.key, entry.value)));
    format!("{domain} {entries}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tollgate_counter::{
        algorithm::{Classic, Limit, Receipt, Verdict},
        descriptor::{KeyText, Secret},
    };
    use tollgate_rules::Unit;
    use tollgate_store::{LimitOrigin, OnRefusal};

    #[test]
    fn hits_above_80_percent_of_limit_count_as_near_limit() {
        let near = |limit: u64, after: u64, hits: u64| {
            let limit = Limit::Classic(Classic::new(limit, Unit::Hour.window()));
            let check = Check {
                key: KeyText::new("d").key(&[], &Secret::from_bytes([0; 16])),
                limit: &limit,
                operation: Operation::Charge(hits),
                on_refusal: OnRefusal::Keep,
                origin: LimitOrigin::Rule,
            };
            let (remaining, reset_after) = (limit.allowance() - after, Duration::ZERO);
            near_limit(
                &check,
                &Decision { verdict: Verdict::Pass, remaining, reset_after, receipt: None::<Receipt> },
                hits,
            )
        };
        for (limit, after, hits, expected) in
            [(15, 11, 1, 0), (15, 12, 1, 0), (15, 13, 1, 1), (20, 5, 3, 0), (8, 7, 2, 1), (20, 19, 3, 3)]
        {
            assert_eq!(near(limit, after, hits), expected, "{hits} to {after} of {limit}");
        }
    }
}
