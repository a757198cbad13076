//! One descriptor with one counter, the usual request: the straight line through what `decide` does for several.

use std::{borrow::Cow, time::Duration};

use crate::{
    algorithm::Decision,
    limiter::{Descriptor, Request, Snapshot, Unanswered, metrics::Checked, plan},
    rules::{CachedMatch, Domain},
    store::{Alone, Check},
};

impl Snapshot<'_> {
    /// Decides and counts a request where nothing but one counter has a say; `None` where more has, and then nothing
    /// has happened.
    // Always: what is known of its parts where they are used need not be written down and read again.
    #[inline(always)]
    pub(super) fn decide_alone<'s>(
        &'s self,
        domain: &'s Domain,
        request: &Request<'_>,
    ) -> Result<Option<(CachedMatch<'s>, Decision<()>)>, Unanswered> {
        let [descriptor @ Descriptor { limit: None, .. }] = request.descriptors else { return Ok(None) };
        let Some((usual, check)) = self.check_alone(domain, descriptor, request.patience) else {
            return Ok(None);
        };
        let applied = self.limiter.memory.apply_alone(&check, self.now());
        let Some(Alone { decision, charged }) = applied.map_err(|_| self.why_not_here())? else {
            return Ok(None);
        };
        let checked = Checked { check: &check, decision: &decision, charged };
        self.limiter.metrics.count_alone(domain, descriptor, usual, checked, self.limiter.modes);
        Ok(Some((usual, decision)))
    }

    /// What is asked of the one counter that has a say where `descriptor` is alone, and whose it is; `None` where none
    /// has, or more, or the way to its rule is unusual.
    #[inline(always)]
    pub(super) fn check_alone<'s>(
        &self,
        domain: &'s Domain,
        descriptor: &Descriptor<'_>,
        patience: Option<Duration>,
    ) -> Option<(CachedMatch<'s>, Check<'s>)> {
        let usual = domain.find_cached(descriptor.entries, &self.secret)?;
        // (What the rule replaces is of no account: never itself, and there is nothing else.)
        if usual.rule.candidate.is_some() {
            return None;
        }
        let Cow::Borrowed(limit) = usual.limit.within(patience) else { return None };
        Some((usual, plan::check(domain, descriptor.ask, usual.key(descriptor.entries), limit)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::Ask,
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
  - {key: tried, rate_limit: {unit: minute, requests_per_unit: 3, candidate: {unit: minute, requests_per_unit: 2}}}
  - {key: gold, rate_limit: {name: gold, replaces: [{name: basic}], unit: minute, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
";

    fn limiter(modes: Modes) -> Limiter {
        let active_rules = ActiveRules::of(Rules::parse("test", RULES).unwrap(), NOW);
        let memory = Memory::new(1 << 20, OnFull::Deny);
        let secret = Secret::from_bytes([7; 16]);
        Limiter::new(Arc::new(active_rules), Arc::new(memory), Clock::manual(NOW), secret).with_modes(modes)
    }

    /// What an answer says, and of which rule.
    fn told(answer: Answer<'_>) -> String {
        let rules = answer.statuses.iter().map(|status| status.rule.map(|rule| &rule.path));
        let rules: Vec<_> = rules.collect();
        let statuses = answer.statuses.iter().map(|status| Status { rule: None, ..*status }).collect();
        format!("{:?} {rules:?}", Answer { statuses, ..answer })
    }

    fn counted(limiter: &Limiter) -> String {
        let Metrics { unknown_domains, unmatched, shadow_passes, overrides, denied } = &*limiter.metrics;
        let plain = [unknown_domains, unmatched, shadow_passes].map(|counter| counter.get());
        let rules = limiter.active_rules.stats().totals();
        format!("{plain:?} {:?} {:?} {rules:?}", overrides.totals(), denied.entries(99))
    }

    fn any_ask() -> impl Strategy<Value = Ask> {
        prop_oneof![Just(Ask::Look), (0..5_u64).prop_map(Ask::Charge), (0..3_u64).prop_map(Ask::Refund),]
    }

    proptest! {
        #[test]
        fn a_descriptor_alone_is_decided_and_counted_as_it_is_among_others(
            (quota, shadow) in any::<(bool, bool)>(),
            steps in prop::collection::vec((0..KEYS.len(), "a[bc]?", any_ask(), 0..SECOND, any::<bool>()), 1..60),
        ) {
            let [alone, together] = [limiter(Modes { quota, shadow }), limiter(Modes { quota, shadow })];
            let mut now = NOW;
            for (key, value, ask, pass, patient) in steps {
                now = now.plus(pass);
                [&alone, &together].into_iter().for_each(|limiter| limiter.clock.set(now));
                let entries = [Entry { key: KEYS[key], value: &value }];
                let descriptors = [Descriptor { entries: &entries, ask, limit: None }];
                let patience = patient.then_some(std::time::Duration::from_millis(700));
                let request = Request { domain: "d", descriptors: &descriptors, patience };
                let (one, other) = (alone.snapshot(), together.snapshot());
                let domain = other.domain_of(&request).unwrap().unwrap();
                let expected = told(other.decide_together(domain, &request).unwrap());
                prop_assert_eq!(told(one.decide(&request).unwrap()), expected);
            }
            prop_assert_eq!(counted(&alone), counted(&together));
            prop_assert_eq!(alone.memory.figures(), together.memory.figures());
        }
    }
}
