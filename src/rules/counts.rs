//! What is counted of each rule: kept while rules come and go, as long as there is a rule of that path.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use arc_swap::ArcSwap;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::{rules::Rules, telemetry::metrics::Cells};

/// The longest name in metrics that is kept, in bytes; a longer one counts as another.
const NAME_MAX: usize = 256;

/// What became of one descriptor. By default it was within its limit, and nothing was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The code of its status.
    pub code: Code,
    /// Hits that were charged to its counter.
    pub charged: u64,
    /// Those of them that passed with more than 80 % of the limit used.
    pub near_limit: u64,
    /// Whether it passed only because its rule is in shadow mode.
    pub shadow_denied: bool,
    /// Whether its rule's candidate would have refused it.
    pub candidate_denied: bool,
}

/// The code of a descriptor's status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// Within the limit.
    #[default]
    Ok,
    /// Over it.
    OverLimit,
}

/// Sums of outcomes.
#[derive(Debug, Default)]
pub struct Tally(Cells<CELLS>);

/// What a [`Tally`] has summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Descriptors within the limit.
    pub ok: u64,
    /// Descriptors over it.
    pub over_limit: u64,
    /// Hits charged.
    pub hits: u64,
    /// Hits near the limit.
    pub near_limit_hits: u64,
    /// Descriptors that passed in shadow mode.
    pub shadow_denials: u64,
    /// Descriptors that a candidate would have refused.
    pub candidate_denials: u64,
}

// Where a tally keeps each sum.
const OK: usize = 0;
const OVER_LIMIT: usize = 1;
const HITS: usize = 2;
const NEAR_LIMIT: usize = 3;
const SHADOW: usize = 4;
const CANDIDATE: usize = 5;
const CELLS: usize = 6;

/// What is counted of a rule: under its path, and under names with values where it asks for them.
#[derive(Debug)]
pub struct RuleCounts {
    plain: Tally,
    names_max: usize,
    // At most `names_max`.
    names: RwLock<HashMap<Box<str>, Tally>>,
    others: Tally,
}

/// The counts of all rules in force.
#[derive(Debug)]
pub struct Ledger {
    names_max: usize,
    // Replaced as a whole, so that nobody waits for whoever works on that.
    rules: ArcSwap<ByPath>,
}

/// By domain, then by path.
type ByPath = FxHashMap<Arc<str>, OfDomain>;
type OfDomain = FxHashMap<Arc<str>, Arc<RuleCounts>>;

/// What is counted under one name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The domain.
    pub domain: Arc<str>,
    /// The path of a rule, or its name with values.
    pub rule: String,
}

/// A rule's counts, once it is in force. It is no part of what the rule says, so it makes no two rules differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted(OnceLock<Arc<RuleCounts>>);

impl PartialEq for Counted {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Counted {
    pub(crate) fn get(&self) -> Option<&RuleCounts> {
        self.0.get().map(|counts| &**counts)
    }
}

impl Tally {
    /// Adds an outcome.
    // Always: what it is most often is known where it is added.
    #[inline(always)]
    pub fn add(&self, outcome: Outcome) {
        let place = self.0.place();
        match outcome.code {
            Code::Ok => place.add(OK, 1),
            Code::OverLimit => place.add(OVER_LIMIT, 1),
        }
        if 0 < outcome.charged {
            place.add(HITS, outcome.charged);
        }
        if 0 < outcome.near_limit {
            place.add(NEAR_LIMIT, outcome.near_limit);
        }
        if outcome.shadow_denied {
            place.add(SHADOW, 1);
        }
        if outcome.candidate_denied {
            place.add(CANDIDATE, 1);
        }
    }

    /// What was added so far.
    pub fn totals(&self) -> Totals {
        let sums = self.0.sums();
        Totals {
            ok: sums[OK],
            over_limit: sums[OVER_LIMIT],
            hits: sums[HITS],
            near_limit_hits: sums[NEAR_LIMIT],
            shadow_denials: sums[SHADOW],
            candidate_denials: sums[CANDIDATE],
        }
    }
}

impl Totals {
    fn plus(self, other: Self) -> Self {
        Self {
            ok: self.ok + other.ok,
            over_limit: self.over_limit + other.over_limit,
            hits: self.hits + other.hits,
            near_limit_hits: self.near_limit_hits + other.near_limit_hits,
            shadow_denials: self.shadow_denials + other.shadow_denials,
            candidate_denials: self.candidate_denials + other.candidate_denials,
        }
    }
}

impl RuleCounts {
    fn new(names_max: usize) -> Self {
        Self { plain: Tally::default(), names_max, names: RwLock::default(), others: Tally::default() }
    }

    /// Counts what became of a descriptor, under the rule's name in metrics. One that is the rule's own takes no
    /// lock.
    #[inline]
    pub fn count(&self, name: Cow<'_, str>, outcome: Outcome) {
        match name {
            Cow::Borrowed(_) => self.count_plain(outcome),
            Cow::Owned(name) => self.count_named(name, outcome),
        }
    }

    /// The same under the rule's own name.
    #[inline]
    pub fn count_plain(&self, outcome: Outcome) {
        self.plain.add(outcome);
    }

    #[cold]
    fn count_named(&self, name: String, outcome: Outcome) {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = names.get(&*name) {
            return tally.add(outcome);
        }
        if self.names_max <= names.len() || NAME_MAX < name.len() {
            return self.others.add(outcome);
        }
        drop(names);
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.len() < self.names_max || names.contains_key(&*name) {
            names.entry(name.into()).or_default().add(outcome);
        } else {
            self.others.add(outcome);
        }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(100)
    }
}

impl Ledger {
    /// No counts yet; at most `names_max` names with values for each rule.
    pub fn new(names_max: usize) -> Self {
        Self { names_max, rules: ArcSwap::default() }
    }

    /// Gives each of these rules the counts of the one with its path before, or fresh ones. Those of rules that
    /// are gone are forgotten. Not to be called by two at a time.
    pub(crate) fn open(&self, rules: &Rules) {
        let before = self.rules.load_full();
        let mut all = ByPath::default();
        for domain in rules.domains() {
            let before = before.get_key_value(&*domain.name);
            let name = before.map_or_else(|| domain.name.as_str().into(), |(name, _)| name.clone());
            let mut after = OfDomain::with_capacity_and_hasher(domain.rules().len(), FxBuildHasher);
            for rule in domain.rules() {
                let counts = self.kept(&rule.path, before.map(|(_, before)| before), &mut after);
                // Rules that were in force before keep theirs.
                let _ = rule.counted.0.set(counts);
            }
            all.insert(name, after);
        }
        self.rules.store(Arc::new(all));
    }

    /// The counts of the rule with this path, which are among those `after` from now on.
    fn kept(&self, path: &str, before: Option<&OfDomain>, after: &mut OfDomain) -> Arc<RuleCounts> {
        if let Some(counts) = after.get(path) {
            return counts.clone();
        }
        let known = before.and_then(|before| before.get_key_value(path));
        let known = known.map(|(path, counts)| (path.clone(), counts.clone()));
        let fresh = || (path.into(), Arc::new(RuleCounts::new(self.names_max)));
        let (path, counts) = known.unwrap_or_else(fresh);
        after.insert(path, counts.clone());
        counts
    }

    /// What was counted, in order; what reads the same is one.
    pub fn totals(&self) -> Vec<(Series, Totals)> {
        let rules = self.rules.load_full();
        let mut all = Vec::new();
        let each = rules.iter().flat_map(|(domain, rules)| rules.iter().map(move |rule| (domain, rule)));
        for (domain, (path, counts)) in each {
            let series = |rule: String| Series { domain: domain.clone(), rule };
            let names = counts.names.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(names.iter().map(|(name, tally)| (series(name.to_string()), tally.totals())));
            let (plain, others) = (counts.plain.totals(), counts.others.totals());
            if others != Totals::default() {
                all.push((series(format!("{path}:other")), others));
            }
            all.push((series(path.to_string()), plain));
        }
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        // Values can be chosen such that two names read the same.
        all.dedup_by(|(series, totals), (kept, sum)| {
            let same = series == kept;
            if same {
                *sum = sum.plus(*totals);
            }
            same
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: Outcome =
        Outcome { code: Code::Ok, charged: 1, near_limit: 0, shadow_denied: false, candidate_denied: false };

    fn rules(keys: &[&str]) -> Rules {
        let each = keys
            .iter()
            .map(|key| format!("  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n"));
        Rules::parse("test", &format!("domain: d\ndescriptors:\n{}", each.collect::<String>())).unwrap()
    }

    fn count(rules: &Rules, key: usize, name: Cow<'_, str>) {
        let rule = rules.domain("d").unwrap().rules().nth(key).unwrap();
        rule.counted.get().unwrap().count(name, PASSED);
    }

    fn hits(ledger: &Ledger) -> Vec<(String, u64)> {
        ledger.totals().into_iter().map(|(series, totals)| (series.rule, totals.hits)).collect()
    }

    #[test]
    fn a_reload_keeps_the_counts_of_rules_that_stay_and_drops_those_that_go() {
        let ledger = Ledger::default();
        let (one, two, three) = (rules(&["a", "b"]), rules(&["c", "b"]), rules(&["a", "b"]));
        ledger.open(&one);
        [0, 1].into_iter().for_each(|key| count(&one, key, "".into()));
        ledger.open(&two);
        count(&two, 1, "".into());
        assert_eq!(hits(&ledger), [("d.b".to_owned(), 2), ("d.c".to_owned(), 0)]);
        ledger.open(&three);
        assert_eq!(hits(&ledger), [("d.a".to_owned(), 0), ("d.b".to_owned(), 2)]);
    }

    #[test]
    fn a_million_names_are_as_many_series_as_the_cap_the_others_and_the_path() {
        let (ledger, rules) = (Ledger::new(10), rules(&["a"]));
        ledger.open(&rules);
        for value in 0..1_000_000 {
            count(&rules, 0, Cow::Owned(format!("d.a_{value}")));
        }
        let hits = hits(&ledger);
        assert_eq!(hits.len(), 12);
        assert_eq!(
            hits.iter().find(|(name, _)| name == "d.a:other"),
            Some(&("d.a:other".to_owned(), 999_990))
        );
    }

    #[test]
    fn a_name_that_is_too_long_counts_as_another() {
        let (ledger, rules) = (Ledger::new(10), rules(&["a"]));
        ledger.open(&rules);
        count(&rules, 0, Cow::Owned("x".repeat(NAME_MAX + 1)));
        assert!(hits(&ledger).contains(&("d.a:other".to_owned(), 1)));
    }

    #[test]
    fn names_that_read_the_same_are_one_series() {
        let (ledger, rules) = (Ledger::new(10), rules(&["a", "a_b"]));
        ledger.open(&rules);
        count(&rules, 0, Cow::Owned("d.a_b_c".to_owned()));
        count(&rules, 1, Cow::Owned("d.a_b_c".to_owned()));
        let expected = [("d.a", 0), ("d.a_b", 0), ("d.a_b_c", 2)];
        assert_eq!(hits(&ledger), expected.map(|(name, hits)| (name.to_owned(), hits)));
    }
}
