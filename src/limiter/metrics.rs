//! Counts the outcome of each descriptor.

use crate::{
    algorithm::{Decision, Operation},
    descriptor::{Entry, Key},
    limiter::{Answer, AppliedLimit, Descriptor, Modes},
    rules::{CachedMatch, Code, DecisionStats, Domain, Outcome},
    store::{Check, Decisions},
    telemetry::metrics::{Counter, TopKeys},
};

/// The default length of the list of most denied keys.
const TOP_KEYS: usize = 1_000;

/// Metrics of the limiter other than those of each rule.
#[derive(Debug)]
pub struct Metrics {
    /// Requests for a domain without rules.
    pub unknown_domains: Counter,
    /// Descriptors that match no rule of their domain.
    pub unmatched: Counter,
    /// Requests that passed only because of the shadow mode of all rules.
    pub shadow_passes: Counter,
    /// Outcomes of descriptors with an override.
    pub overrides: DecisionStats,
    /// The keys denied most often.
    pub denied: TopKeys,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(TOP_KEYS)
    }
}

impl Metrics {
    /// Empty metrics; the list of most denied keys has `top_keys` entries.
    pub fn new(top_keys: usize) -> Self {
        Self {
            unknown_domains: Counter::default(),
            unmatched: Counter::default(),
            shadow_passes: Counter::default(),
            overrides: DecisionStats::default(),
            denied: TopKeys::new(top_keys),
        }
    }

    /// Counts the outcome of each descriptor.
    pub(super) fn count(&self, decided: &DecidedRequest<'_, '_>, answer: &Answer<'_>) {
        if answer.passes_in_shadow {
            self.shadow_passes.increase();
        }
        let DecidedRequest { domain, descriptors, applied, status_indexes, checks, decisions } = decided;
        let mut next = 0;
        for (index, (descriptor, applied)) in descriptors.iter().zip(*applied).enumerate() {
            let status = &answer.statuses[index];
            let mut outcome = Outcome { candidate_denied: status.candidate_refuses, ..Outcome::default() };
            if status_indexes.get(next) == Some(&index) {
                let (check, decision, charged) = (&checks[next], &decisions[next], decisions.charged()[next]);
                let of_check = self.outcome(
                    domain,
                    descriptor,
                    CheckOutcome { check, decision, charged },
                    status.passes,
                );
                outcome = Outcome { candidate_denied: status.candidate_refuses, ..of_check };
                next += 1;
            }
            match applied {
                AppliedLimit::Nothing => self.unmatched.increase(),
                AppliedLimit::Override(..) => self.overrides.add(outcome),
                AppliedLimit::Unlimited(matched) | AppliedLimit::Rule(matched, _) => {
                    if let Some(counts) = matched.rule.stats() {
                        counts.count(matched.metric_name(&domain.name, descriptor.entries), outcome);
                    }
                }
            }
        }
    }

    /// The same for one descriptor with one check.
    // `inline(always)`: the caller knows most of the values.
    #[inline(always)]
    pub(super) fn count_single<R>(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        usual: CachedMatch<'_>,
        checked: CheckOutcome<'_, R>,
        modes: Modes,
    ) {
        let passes = usual.rule.shadow_mode || checked.decision.verdict.passes();
        if modes.shadow && !passes {
            self.shadow_passes.increase();
        }
        let outcome = self.outcome(domain, descriptor, checked, passes);
        if let Some(counts) = usual.rule.stats() {
            match usual.match_for_name(domain, descriptor.entries) {
                None => counts.count_plain(outcome),
                Some(matched) => counts.count(matched.metric_name(&domain.name, descriptor.entries), outcome),
            }
        }
    }

    /// The outcome of a descriptor with a check, without candidates. Records its key if it was denied.
    #[inline(always)]
    fn outcome<R>(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        CheckOutcome { check, decision, charged }: CheckOutcome<'_, R>,
        passes: bool,
    ) -> Outcome {
        // A peek at an exhausted counter is not a denial.
        if !passes && check.operation != Operation::Peek {
            self.record_denied(domain, descriptor, check.key);
        }
        Outcome {
            code: if passes { Code::Ok } else { Code::OverLimit },
            charged,
            near_limit: near_limit(check, decision, charged),
            shadow_denied: passes && !decision.verdict.passes(),
            candidate_denied: false,
        }
    }

    #[cold]
    fn record_denied(&self, domain: &Domain, descriptor: &Descriptor<'_>, key: Key) {
        let key = u128::from(key.high()) << 64 | u128::from(key.low());
        self.denied.add(key, || descriptor_text(&domain.name, descriptor.entries));
    }
}

/// A check and its decision.
#[derive(Clone, Copy)]
pub(super) struct CheckOutcome<'a, R> {
    pub(super) check: &'a Check<'a>,
    pub(super) decision: &'a Decision<R>,
    pub(super) charged: u64,
}

/// A request with its checks and decisions.
pub(super) struct DecidedRequest<'a, 's> {
    pub(super) domain: &'a Domain,
    pub(super) descriptors: &'a [Descriptor<'a>],
    pub(super) applied: &'a [AppliedLimit<'s>],
    // The index of the descriptor of each check, in ascending order.
    pub(super) status_indexes: &'a [usize],
    pub(super) checks: &'a [Check<'a>],
    pub(super) decisions: &'a Decisions,
}

/// Of the hits charged, those beyond 80 % of the limit.
fn near_limit<R>(check: &Check<'_>, decision: &Decision<R>, charged: u64) -> u64 {
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

/// A descriptor as text: `domain key=value,key=value`.
fn descriptor_text(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut text = domain.to_owned();
    for (index, entry) in entries.iter().enumerate() {
        text.push(if index == 0 { ' ' } else { ',' });
        text.extend([entry.key, "=", entry.value]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        algorithm::{Classic, Limit, Verdict},
        descriptor::{KeyText, Secret},
        rules::Unit,
        store::OnRefusal,
    };

    #[test]
    fn hits_above_80_percent_of_limit_count_as_near_limit() {
        let near = |limit: u64, after: u64, hits: u64| {
            let limit = Limit::Classic(Classic { limit, window: Unit::Hour.window() });
            let check = Check {
                key: KeyText::new("d").key(&[], &Secret::from_bytes([0; 16])),
                limit: &limit,
                operation: Operation::Charge(hits),
                on_refusal: OnRefusal::Keep,
            };
            let (remaining, reset_after) = (limit.allowance() - after, Duration::ZERO);
            near_limit(
                &check,
                &Decision::<()> { verdict: Verdict::Pass, remaining, reset_after, receipt: None },
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
