//! Descriptors that are decided many times: rule and key are looked up once.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::{Entry, Key},
};
use tollgate_rules::{KeyedRules, Match, OpenMatch};
use tollgate_store::{Check, LimitOrigin, OnRefusal};

use crate::limiter::{
    Limiter,
    answer::{LimiterError, SingleAnswer, Status},
    check_set::role_of,
    embedded::{CheckError, Checked},
    metrics::CheckOutcome,
};

/// A descriptor of which all but the last `OPEN` values are fixed. Its answers are those of [`Limiter::check`] with the
/// same entries, at a fraction of the cost: the rule is looked up once, and again when the rules are replaced.
///
/// Clones are independent and count on the same counters; keep one for each thread.
#[derive(Clone, Debug)]
pub struct PreparedDescriptor<const OPEN: usize> {
    limiter: Limiter,
    text: Arc<DescriptorText<OPEN>>,
    rules: Arc<KeyedRules>,
    // The version of `rules`, and the rule in them. `None` if each descriptor has to be looked up.
    version: u64,
    found: Option<OpenMatch>,
}

#[derive(Debug)]
struct DescriptorText<const OPEN: usize> {
    domain: String,
    fixed: Vec<(String, String)>,
    open: [String; OPEN],
}

impl Limiter {
    /// Prepares the descriptor of these entries, followed by entries with the keys `open` whose values each call gives.
    ///
    /// ```
    /// let limiter = tollgate_limiter::Limiter::from_yaml(
    ///     "
    /// domain: shop
    /// descriptors:
    ///   - key: plan
    ///     value: free
    ///     descriptors:
    ///       - key: user
    ///         rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}
    /// ",
    /// )?;
    /// let mut free = limiter.prepare("shop", &[("plan", "free")], ["user"]);
    /// assert!(free.check(["ada"], 2)?.passes);
    /// assert!(!free.check(["ada"], 1)?.passes);
    /// assert!(free.check(["bob"], 1)?.passes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare<const OPEN: usize>(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        open: [&str; OPEN],
    ) -> PreparedDescriptor<OPEN> {
        let text = DescriptorText {
            domain: domain.to_owned(),
            fixed: entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            open: open.map(str::to_owned),
        };
        let rules = self.active_rules.current().clone();
        let mut prepared = PreparedDescriptor {
            limiter: self.clone(),
            text: Arc::new(text),
            rules,
            version: 0,
            found: None,
        };
        prepared.look_up();
        prepared
    }
}

impl<const OPEN: usize> PreparedDescriptor<OPEN> {
    /// Charges `hits` to the limit of the descriptor with these open values if they pass. Without a rule they pass.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    #[inline]
    pub fn check(&mut self, values: [&str; OPEN], hits: u64) -> Result<Checked, CheckError> {
        self.ask(values, Operation::Charge(hits))
    }

    /// The answer that a charge of one hit to the descriptor with these open values would get, which is not charged.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn peek(&mut self, values: [&str; OPEN]) -> Result<Checked, CheckError> {
        self.ask(values, Operation::Peek)
    }

    /// Gives `hits` of the descriptor with these open values back, at most those that the counter still holds.
    ///
    /// # Errors
    ///
    /// The domain is empty, or there are no rules.
    pub fn refund(&mut self, values: [&str; OPEN], hits: u64) -> Result<Checked, CheckError> {
        self.ask(values, Operation::Refund(hits))
    }

    #[inline(always)]
    pub(super) fn ask(&mut self, values: [&str; OPEN], operation: Operation) -> Result<Checked, CheckError> {
        if self.limiter.active_rules.version() != self.version {
            self.look_up();
        }
        let Some((matched, limit, key)) = self.prepared(&values) else {
            return self.ask_unprepared(values, operation);
        };
        let Limiter { memory, modes, metrics, .. } = &self.limiter;
        // No other check refuses the call.
        let check = Check { key, limit, operation, on_refusal: OnRefusal::Keep, origin: LimitOrigin::Rule };
        let decided = memory.apply_single(&check, self.limiter.read_clock().now);
        let decision = decided.map_err(|_| LimiterError::Remote)?;
        let answer = SingleAnswer::from_decision(
            *modes,
            role_of(matched.rule),
            Status::for_rule(matched.rule).with_own(decision.own),
            &decision,
        );
        metrics.count_shadow_pass(answer.passes_in_shadow);
        let checked = CheckOutcome { check: &check, decision: &decision };
        let outcome =
            metrics.outcome(&matched.domain, || self.text.entries(values), checked, &answer.statuses[0]);
        if let Some(stats) = &matched.rule.stats {
            stats.count_plain(outcome);
        }
        Ok(Checked::from_answer(&answer, operation))
    }

    /// The rule, its limit, and the key of the counter. `None` if the descriptor has to be looked up.
    #[inline(always)]
    fn prepared(&self, values: &[&str; OPEN]) -> Option<(Match<'_>, &Limit, Key)> {
        let found = self.found.as_ref()?;
        let matched = self.rules.match_at(found.position)?;
        Some((matched, matched.rule.limit()?, found.key(values)))
    }

    /// Looks the rule up in the active rules.
    #[cold]
    fn look_up(&mut self) {
        // Rules that are replaced from here on have another version.
        self.version = self.limiter.active_rules.version();
        self.rules = self.limiter.active_rules.current().clone();
        let entries = self.text.entries([""; OPEN]);
        // Only counters in memory are decided here.
        let domain = self.rules.domain(&self.text.domain).filter(|_| self.limiter.remote.is_none());
        self.found = domain.and_then(|domain| domain.find_open(&entries, OPEN));
    }

    #[cold]
    fn ask_unprepared(&self, values: [&str; OPEN], operation: Operation) -> Result<Checked, CheckError> {
        self.limiter.ask_entries(&self.text.domain, &self.text.entries(values), operation)
    }
}

impl<const OPEN: usize> DescriptorText<OPEN> {
    /// All entries.
    fn entries<'a>(&'a self, values: [&'a str; OPEN]) -> SmallVec<[Entry<'a>; 4]> {
        let fixed = self.fixed.iter().map(|(key, value)| Entry::new(key, value));
        fixed.chain(self.open.iter().zip(values).map(|(key, value)| Entry::new(key, value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::request::RequestError;

    const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}
";

    #[test]
    fn prepared_descriptor_shares_its_counter_with_clones_and_checks() {
        let limiter = Limiter::from_yaml(RULES).unwrap();
        let mut user = limiter.prepare("shop", &[], ["user"]);
        let mut ada = limiter.prepare("shop", &[("user", "ada")], []);
        assert!(user.check(["ada"], 1).unwrap().passes);
        assert!(ada.clone().check([], 1).unwrap().passes);
        assert!(limiter.check("shop", &[("user", "ada")], 1).unwrap().passes);
        assert_eq!((ada.peek([]).unwrap().remaining, user.refund(["ada"], 2).unwrap().remaining), (0, 2));
    }

    #[test]
    fn prepared_descriptor_follows_replaced_rules() {
        let limiter = Limiter::from_yaml(RULES).unwrap();
        let mut user = limiter.prepare("shop", &[], ["user"]);
        assert_eq!(user.check(["ada"], 1).unwrap().remaining, 2);
        limiter.replace_rules(&RULES.replace("requests_per_unit: 3", "requests_per_unit: 10")).unwrap();
        assert_eq!(user.check(["ada"], 1).unwrap().remaining, 8);
        limiter.replace_rules(&RULES.replace("key: user", "key: plan")).unwrap();
        assert_eq!(user.check(["ada"], 1).unwrap().limit, None);
        limiter.replace_rules(RULES).unwrap();
        assert_eq!(user.check(["ada"], 1).unwrap().remaining, 0);
    }

    #[test]
    fn prepared_descriptor_without_domain_or_rule_answers_as_check() {
        let limiter = Limiter::from_yaml(RULES).unwrap();
        let empty = limiter.prepare("", &[("user", "ada")], []).check([], 1);
        assert_eq!(empty, Err(CheckError::Request(RequestError::EmptyDomain)));
        for domain in ["shop", "other"] {
            let checked = limiter.prepare(domain, &[("plan", "free")], ["seat"]).check(["1"], 1).unwrap();
            assert!(checked.passes && checked.limit.is_none());
        }
    }
}
