//! Counts what became of each descriptor.

use crate::{
    algorithm::{Ask, Decision},
    descriptor::{Entry, Key},
    limiter::{Answer, Applies, Descriptor, Modes},
    rules::{CachedMatch, Code, DecisionStats, Domain, Outcome},
    store::{Check, Decisions},
    telemetry::metrics::{Counter, TopKeys},
};

/// How many keys are listed as denied most often, unless another number is asked for.
const TOP_KEYS: usize = 1_000;

/// What the limiter counts besides what each rule does.
#[derive(Debug)]
pub struct Metrics {
    /// Requests for a domain without rules.
    pub unknown_domains: Counter,
    /// Descriptors of a domain with rules that none of them is for.
    pub unmatched: Counter,
    /// Requests that passed only because of the shadow mode of all rules.
    pub shadow_passes: Counter,
    /// What became of descriptors with a limit of the caller's.
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
    /// Nothing counted yet; lists of `top_keys` keys that are denied most often.
    pub fn new(top_keys: usize) -> Self {
        Self {
            unknown_domains: Counter::default(),
            unmatched: Counter::default(),
            shadow_passes: Counter::default(),
            overrides: DecisionStats::default(),
            denied: TopKeys::new(top_keys),
        }
    }

    /// Counts what became of each descriptor.
    pub(super) fn count(&self, asked: &Asked<'_, '_>, answer: &Answer<'_>) {
        if answer.passes_in_shadow {
            self.shadow_passes.increase();
        }
        let Asked { domain, descriptors, applies, places, checks, decisions } = asked;
        let mut next = 0;
        for (place, (descriptor, applies)) in descriptors.iter().zip(*applies).enumerate() {
            let status = &answer.statuses[place];
            let mut outcome = Outcome { candidate_denied: status.candidate_refuses, ..Outcome::default() };
            if places.get(next) == Some(&place) {
                let (check, decision, charged) = (&checks[next], &decisions[next], decisions.charged()[next]);
                let of_check =
                    self.outcome(domain, descriptor, Checked { check, decision, charged }, status.passes);
                outcome = Outcome { candidate_denied: status.candidate_refuses, ..of_check };
                next += 1;
            }
            match applies {
                Applies::Nothing => self.unmatched.increase(),
                Applies::Override(..) => self.overrides.add(outcome),
                Applies::Unlimited(matched) | Applies::Rule(matched, _) => {
                    if let Some(counts) = matched.rule.stats() {
                        counts.count(matched.metric_name(&domain.name, descriptor.entries), outcome);
                    }
                }
            }
        }
    }

    /// The same for a call of one descriptor with one check.
    // Always, as what is counted is known where it is decided.
    #[inline(always)]
    pub(super) fn count_alone<R>(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        usual: CachedMatch<'_>,
        checked: Checked<'_, R>,
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

    /// What became of a descriptor with a check, of a rule without a candidate; lists its key where it was denied.
    #[inline(always)]
    fn outcome<R>(
        &self,
        domain: &Domain,
        descriptor: &Descriptor<'_>,
        Checked { check, decision, charged }: Checked<'_, R>,
        passes: bool,
    ) -> Outcome {
        // A look at an exhausted counter is no denial of anything.
        if !passes && check.ask != Ask::Look {
            self.note_denied(domain, descriptor, check.key);
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
    fn note_denied(&self, domain: &Domain, descriptor: &Descriptor<'_>, key: Key) {
        let key = u128::from(key.high()) << 64 | u128::from(key.low());
        self.denied.add(key, || text(&domain.name, descriptor.entries));
    }
}

/// A check and what came of it.
#[derive(Clone, Copy)]
pub(super) struct Checked<'a, R> {
    pub(super) check: &'a Check<'a>,
    pub(super) decision: &'a Decision<R>,
    pub(super) charged: u64,
}

/// What the counters of one call were asked, and said.
pub(super) struct Asked<'a, 's> {
    pub(super) domain: &'a Domain,
    pub(super) descriptors: &'a [Descriptor<'a>],
    pub(super) applies: &'a [Applies<'s>],
    // Which descriptor each check belongs to, in ascending order.
    pub(super) places: &'a [usize],
    pub(super) checks: &'a [Check<'a>],
    pub(super) decisions: &'a Decisions,
}

/// Of the hits charged, those beyond 80 % of the limit.
fn near_limit<R>(check: &Check<'_>, decision: &Decision<R>, charged: u64) -> u64 {
    if charged == 0 || !decision.verdict.passes() {
        return 0;
    }
    let most = check.limit.allowance();
    // Most are nowhere near.
    if most / 2 < decision.remaining {
        return 0;
    }
    let near = most / 5 * 4 + most % 5 * 4 / 5;
    most.saturating_sub(decision.remaining).saturating_sub(near).min(charged)
}

/// A descriptor for people to read: `domain key=value,key=value`.
fn text(domain: &str, entries: &[Entry<'_>]) -> String {
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
    fn hits_beyond_80_percent_of_the_limit_are_near_it() {
        let near = |limit: u64, after: u64, hits: u64| {
            let limit = Limit::Classic(Classic { limit, window: Unit::Hour.window() });
            let check = Check {
                key: KeyText::new("d").key(&[], &Secret::from_bytes([0; 16])),
                limit: &limit,
                ask: Ask::Charge(hits),
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
