//! What is counted of each rule: kept while rules come and go, as long as there is a rule of that path.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use arc_swap::ArcSwap;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::{rules::Rules, telemetry::metrics::ShardedCounters};

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
pub struct DecisionStats(ShardedCounters<COUNTERS>);

/// What a [`DecisionStats`] has summed up.
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
const NEAR_LIMIT_HITS: usize = 3;
const SHADOW_DENIALS: usize = 4;
const CANDIDATE_DENIALS: usize = 5;
const COUNTERS: usize = 6;

/// What is counted of a rule: under its path, and under names with values where it asks for them.
#[derive(Debug)]
pub struct RuleStats {
    plain: DecisionStats,
    names_max: usize,
    // At most `names_max`.
    names: RwLock<HashMap<Box<str>, DecisionStats>>,
    other_names: DecisionStats,
}

/// The counts of all rules in force.
#[derive(Debug)]
pub struct RuleStatsRegistry {
    names_max: usize,
    // Replaced as a whole, so that nobody waits for whoever works on that.
    rules: ArcSwap<AllStats>,
}

/// By domain, then by path.
type AllStats = FxHashMap<Arc<str>, DomainStats>;
type DomainStats = FxHashMap<Arc<str>, Arc<RuleStats>>;

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
pub(crate) struct StatsHandle(OnceLock<Arc<RuleStats>>);

impl PartialEq for StatsHandle {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl StatsHandle {
    pub(crate) fn get(&self) -> Option<&RuleStats> {
        self.0.get().map(|stats| &**stats)
    }
}

impl DecisionStats {
    /// Adds an outcome.
    // Always: what it is most often is known where it is added.
    #[inline(always)]
    pub fn add(&self, outcome: Outcome) {
        let shard = self.0.shard();
        match outcome.code {
            Code::Ok => shard.add(OK, 1),
            Code::OverLimit => shard.add(OVER_LIMIT, 1),
        }
        if 0 < outcome.charged {
            shard.add(HITS, outcome.charged);
        }
        if 0 < outcome.near_limit {
            shard.add(NEAR_LIMIT_HITS, outcome.near_limit);
        }
        if outcome.shadow_denied {
            shard.add(SHADOW_DENIALS, 1);
        }
        if outcome.candidate_denied {
            shard.add(CANDIDATE_DENIALS, 1);
        }
    }

    /// What was added so far.
    pub fn totals(&self) -> Totals {
        let sums = self.0.sums();
        Totals {
            ok: sums[OK],
            over_limit: sums[OVER_LIMIT],
            hits: sums[HITS],
            near_limit_hits: sums[NEAR_LIMIT_HITS],
            shadow_denials: sums[SHADOW_DENIALS],
            candidate_denials: sums[CANDIDATE_DENIALS],
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

impl RuleStats {
    fn new(names_max: usize) -> Self {
        Self {
            plain: DecisionStats::default(),
            names_max,
            names: RwLock::default(),
            other_names: DecisionStats::default(),
        }
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
        if let Some(stats) = names.get(&*name) {
            return stats.add(outcome);
        }
        if self.names_max <= names.len() || NAME_MAX < name.len() {
            return self.other_names.add(outcome);
        }
        drop(names);
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if names.len() < self.names_max || names.contains_key(&*name) {
            names.entry(name.into()).or_default().add(outcome);
        } else {
            self.other_names.add(outcome);
        }
    }
}

impl Default for RuleStatsRegistry {
    fn default() -> Self {
        Self::new(100)
    }
}

impl RuleStatsRegistry {
    /// No counts yet; at most `names_max` names with values for each rule.
    pub fn new(names_max: usize) -> Self {
        Self { names_max, rules: ArcSwap::default() }
    }

    /// Gives each of these rules the counts of the one with its path before, or fresh ones. Those of rules that
    /// are gone are forgotten. Not to be called by two at a time.
    pub(crate) fn attach(&self, rules: &Rules) {
        let before = self.rules.load_full();
        let mut all = AllStats::default();
        for domain in rules.domains() {
            let before = before.get_key_value(&*domain.name);
            let name = before.map_or_else(|| domain.name.as_str().into(), |(name, _)| name.clone());
            let mut after = DomainStats::with_capacity_and_hasher(domain.rules().len(), FxBuildHasher);
            for rule in domain.rules() {
                let stats = self.reuse_or_create(&rule.path, before.map(|(_, before)| before), &mut after);
                // Rules that were in force before keep theirs.
                let _ = rule.stats.0.set(stats);
            }
            all.insert(name, after);
        }
        self.rules.store(Arc::new(all));
    }

    /// The counts of the rule with this path, which are among those `after` from now on.
    fn reuse_or_create(
        &self,
        path: &str,
        before: Option<&DomainStats>,
        after: &mut DomainStats,
    ) -> Arc<RuleStats> {
        if let Some(stats) = after.get(path) {
            return stats.clone();
        }
        let known = before.and_then(|before| before.get_key_value(path));
        let known = known.map(|(path, stats)| (path.clone(), stats.clone()));
        let fresh = || (path.into(), Arc::new(RuleStats::new(self.names_max)));
        let (path, stats) = known.unwrap_or_else(fresh);
        after.insert(path, stats.clone());
        stats
    }

    /// What was counted, in order; what reads the same is one.
    pub fn totals(&self) -> Vec<(Series, Totals)> {
        let rules = self.rules.load_full();
        let mut all = Vec::new();
        let each = rules.iter().flat_map(|(domain, rules)| rules.iter().map(move |rule| (domain, rule)));
        for (domain, (path, stats)) in each {
            let series = |rule: String| Series { domain: domain.clone(), rule };
            let names = stats.names.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(names.iter().map(|(name, stats)| (series(name.to_string()), stats.totals())));
            let (plain, other_names) = (stats.plain.totals(), stats.other_names.totals());
            if other_names != Totals::default() {
                all.push((series(format!("{path}:other")), other_names));
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
        rule.stats.get().unwrap().count(name, PASSED);
    }

    fn hits(stats: &RuleStatsRegistry) -> Vec<(String, u64)> {
        stats.totals().into_iter().map(|(series, totals)| (series.rule, totals.hits)).collect()
    }

    #[test]
    fn a_reload_keeps_the_counts_of_rules_that_stay_and_drops_those_that_go() {
        let stats = RuleStatsRegistry::default();
        let (one, two, three) = (rules(&["a", "b"]), rules(&["c", "b"]), rules(&["a", "b"]));
        stats.attach(&one);
        [0, 1].into_iter().for_each(|key| count(&one, key, "".into()));
        stats.attach(&two);
        count(&two, 1, "".into());
        assert_eq!(hits(&stats), [("d.b".to_owned(), 2), ("d.c".to_owned(), 0)]);
        stats.attach(&three);
        assert_eq!(hits(&stats), [("d.a".to_owned(), 0), ("d.b".to_owned(), 2)]);
    }

    #[test]
    fn a_million_names_are_as_many_series_as_the_cap_the_others_and_the_path() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a"]));
        stats.attach(&rules);
        for value in 0..1_000_000 {
            count(&rules, 0, Cow::Owned(format!("d.a_{value}")));
        }
        let hits = hits(&stats);
        assert_eq!(hits.len(), 12);
        assert_eq!(
            hits.iter().find(|(name, _)| name == "d.a:other"),
            Some(&("d.a:other".to_owned(), 999_990))
        );
    }

    #[test]
    fn a_name_that_is_too_long_counts_as_another() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a"]));
        stats.attach(&rules);
        count(&rules, 0, Cow::Owned("x".repeat(NAME_MAX + 1)));
        assert!(hits(&stats).contains(&("d.a:other".to_owned(), 1)));
    }

    #[test]
    fn names_that_read_the_same_are_one_series() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a", "a_b"]));
        stats.attach(&rules);
        count(&rules, 0, Cow::Owned("d.a_b_c".to_owned()));
        count(&rules, 1, Cow::Owned("d.a_b_c".to_owned()));
        let expected = [("d.a", 0), ("d.a_b", 0), ("d.a_b_c", 2)];
        assert_eq!(hits(&stats), expected.map(|(name, hits)| (name.to_owned(), hits)));
    }
}
