//! One descriptor with one check: the common case of `decide`, without the steps that only several checks need.

use std::{borrow::Cow, time::Duration};

use crate::{
    algorithm::Decision,
    limiter::{ActiveView, Descriptor, LimiterError, Request, metrics::CheckOutcome, plan},
    rules::{CachedMatch, Domain},
    store::{Check, SingleDecision},
};

impl ActiveView<'_> {
    /// Decides and counts a request with exactly one check; `None`, without any effect, for all others.
    // `inline(always)`: the values stay in registers.
    #[inline(always)]
    pub(super) fn decide_single<'s>(
        &'s self,
        domain: &'s Domain,
        request: &Request<'_>,
    ) -> Result<Option<(CachedMatch<'s>, Decision<()>)>, LimiterError> {
        let [descriptor @ Descriptor { limit: None, .. }] = request.descriptors else { return Ok(None) };
        let Some((usual, check)) = self.single_check(domain, descriptor, request.timeout) else {
            return Ok(None);
        };
        let applied = self.limiter.memory.apply_single(&check, self.now());
        let Some(SingleDecision { decision, charged }) = applied.map_err(|_| self.not_local_error())? else {
            return Ok(None);
        };
        let checked = CheckOutcome { check: &check, decision: &decision, charged };
        self.limiter.metrics.count_single(domain, descriptor, usual, checked, self.limiter.modes);
        Ok(Some((usual, decision)))
    }

    /// The check of the only descriptor of a request and its rule; `None` if there is no check or more than one, or if
    /// the rule needs the general lookup.
    #[inline(always)]
    pub(super) fn single_check<'s>(
        &self,
        domain: &'s Domain,
        descriptor: &Descriptor<'_>,
        timeout: Option<Duration>,
    ) -> Option<(CachedMatch<'s>, Check<'s>)> {
        let usual = domain.find_cached(descriptor.entries, &self.secret)?;
        // `replaces` cannot apply here: there is only one descriptor.
        if usual.rule.candidate.is_some() {
            return None;
        }
        let Cow::Borrowed(limit) = usual.limit.within(timeout) else { return None };
        Some((usual, plan::check(domain, descriptor.operation, usual.key(descriptor.entries), limit)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::Operation,
        descriptor::{Entry, Secret},
        limiter::{Answer, Descriptor, Limiter, Metrics, Modes, Status},
        rules::{ActiveRules, Rules},
        store::{Memory, OnFull},
        time::{Clock, SECOND, Timestamp},
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
    const KEYS: [&str; 11] = [
        "classic", "fixed", "bucket", "queue", "shadow", "quota", "late", "tried", "gold", "free", "nothing",
    ];
    const RULES: &str = "\
domain: d
descriptors:
  - {key: classic, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: fixed, rate_limit: {unit: second, requests_per_unit: 3, algorithm: fixed_window, overdraft: true}}
  - {key: bucket, value: a*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_queue, burst: 3}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: late, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_queue, burst: 3}}
  - {key: candidate_indexes, rate_limit: {unit: minute, requests_per_unit: 3, candidate: {unit: minute, requests_per_unit: 2}}}
  - {key: gold, rate_limit: {name: gold, replaces: [{name: basic}], unit: minute, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
";

    fn limiter(modes: Modes) -> Limiter {
        let active_rules = ActiveRules::of(Rules::parse("test", RULES).unwrap(), NOW);
        let memory = Memory::new(1 << 20, OnFull::Deny);
        let secret = Secret::from_bytes([7; 16]);
        Limiter::new(Arc::new(active_rules), Arc::new(memory), Clock::manual(NOW), secret).with_modes(modes)
    }

    /// The answer and its rules as text.
    fn answer_text(answer: Answer<'_>) -> String {
        let rules = answer.statuses.iter().map(|status| status.rule.map(|rule| &rule.path));
        let rules: Vec<_> = rules.collect();
        let statuses = answer.statuses.iter().map(|status| Status { rule: None, ..*status }).collect();
        format!("{:?} {rules:?}", Answer { statuses, ..answer })
    }

    fn metrics_text(limiter: &Limiter) -> String {
        let Metrics { unknown_domains, unmatched, shadow_passes, overrides, denied } = &*limiter.metrics;
        let plain = [unknown_domains, unmatched, shadow_passes].map(|counter| counter.get());
        let rules = limiter.active_rules.stats().totals();
        format!("{plain:?} {:?} {:?} {rules:?}", overrides.totals(), denied.entries(99))
    }

    fn any_operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            Just(Operation::Peek),
            (0..5_u64).prop_map(Operation::Charge),
            (0..3_u64).prop_map(Operation::Refund),
        ]
    }

    proptest! {
        #[test]
        fn single_descriptor_is_decided_and_counted_as_in_a_set(
            (quota, shadow) in any::<(bool, bool)>(),
            steps in prop::collection::vec((0..KEYS.len(), "a[bc]?", any_operation(), 0..SECOND, any::<bool>()), 1..60),
        ) {
            let [single, set] = [limiter(Modes { quota, shadow }), limiter(Modes { quota, shadow })];
            let mut now = NOW;
            for (key, value, operation, pass, patient) in steps {
                now = now.plus(pass);
                [&single, &set].into_iter().for_each(|limiter| limiter.clock.set(now));
                let entries = [Entry { key: KEYS[key], value: &value }];
                let descriptors = [Descriptor { entries: &entries, operation, limit: None }];
                let timeout = patient.then_some(std::time::Duration::from_millis(700));
                let request = Request { domain: "d", descriptors: &descriptors, timeout };
                let (one, other) = (single.view(), set.view());
                let domain = other.domain_of(&request).unwrap().unwrap();
                let expected = answer_text(other.decide_set(domain, &request).unwrap());
                prop_assert_eq!(answer_text(one.decide(&request).unwrap()), expected);
            }
            prop_assert_eq!(metrics_text(&single), metrics_text(&set));
            prop_assert_eq!(single.memory.stats(), set.memory.stats());
        }
    }
}
