//! Stats of all rules. A reload keeps the stats of every path that still has a rule.

use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::{
    Rules,
    stats::{DecisionTotals, RuleStats},
};

/// The stats of all active rules.
#[derive(Debug)]
pub struct RuleStatsRegistry {
    names_max: usize,
    // Replaced as a whole, so that readers never wait for a reload.
    rules: ArcSwap<AllStats>,
}

/// By domain, then by rule path.
pub(super) type AllStats = FxHashMap<Arc<str>, DomainStats>;
type DomainStats = FxHashMap<Arc<str>, Arc<RuleStats>>;

/// The labels of one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The domain.
    pub domain: Arc<str>,
    /// The path of a rule, or its name with values.
    pub rule: String,
}

impl Default for RuleStatsRegistry {
    fn default() -> Self {
        Self::new(100)
    }
}

impl RuleStatsRegistry {
    /// Empty stats with at most `names_max` names with values for each rule.
    pub fn new(names_max: usize) -> Self {
        Self { names_max, rules: ArcSwap::default() }
    }

    /// The stats of `rules` while they are active: those of the active rule with the same path, or new ones. This takes
    /// long for many rules, so the registry keeps the stats of the active rules until [`RuleStatsRegistry::replace`]. Also
    /// returns whether an active rule is not among `rules`.
    pub(super) fn prepare(&self, rules: &Rules) -> (Arc<AllStats>, bool) {
        let before = self.rules.load_full();
        let mut all = AllStats::default();
        let mut retained = 0;
        for domain in rules.domains() {
            let before = before.get_key_value(&*domain.name);
            let name = before.map_or_else(|| domain.name.as_str().into(), |(name, _)| name.clone());
            let mut after = DomainStats::with_capacity_and_hasher(domain.rules().len(), FxBuildHasher);
            for rule in domain.rules() {
                let stats = after.entry(rule.path.clone()).or_insert_with(|| {
                    let known = before.and_then(|(_, before)| before.get(&*rule.path));
                    retained += usize::from(known.is_some());
                    known.cloned().unwrap_or_else(|| Arc::new(RuleStats::new(self.names_max)))
                });
                // Fails for rules that were active before: they keep their stats.
                let _ = rule.stats.0.set(stats.clone());
            }
            all.insert(name, after);
        }
        let lacks_a_rule = retained < before.values().map(DomainStats::len).sum();
        (Arc::new(all), lacks_a_rule)
    }

    /// Makes `next` the stats of the active rules, and returns the previous ones.
    pub(super) fn replace(&self, next: Arc<AllStats>) -> Arc<AllStats> {
        self.rules.swap(next)
    }

    /// All series in order; series with equal labels are merged.
    pub fn totals(&self) -> Vec<(Series, DecisionTotals)> {
        let rules = self.rules.load_full();
        let mut all = Vec::new();
        let each = rules.iter().flat_map(|(domain, rules)| rules.iter().map(move |rule| (domain, rule)));
        for (domain, (path, stats)) in each {
            let series = |rule: String| Series { domain: domain.clone(), rule };
            let names = stats.names.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(names.iter().map(|(name, stats)| (series(name.to_string()), stats.totals())));
            let plain = stats.plain.totals();
            let other_names = stats.other_names.totals();
            if other_names != DecisionTotals::default() {
                all.push((series(format!("{path}:other")), other_names));
            }
            all.push((series(path.to_string()), plain));
        }
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        // Two names with values can be equal, depending on the values.
        all.dedup_by(|(series, totals), (retained, sum)| {
            let same = series == retained;
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
    use std::borrow::Cow;

    use super::*;
    use crate::stats::{NAME_MAX, RuleEvent};

    const PASSED: RuleEvent = RuleEvent {
        over_limit: false,
        charged: 1,
        near_limit: 0,
        shadow_denied: false,
        candidate_denied: false,
    };

    fn rules(keys: &[&str]) -> Rules {
        let each = keys
            .iter()
            .map(|key| format!("  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n"));
        Rules::parse("test", &format!("domain: d\ndescriptors:\n{}", each.collect::<String>())).unwrap()
    }

    fn attach(stats: &RuleStatsRegistry, rules: &Rules) {
        stats.replace(stats.prepare(rules).0);
    }

    fn count(rules: &Rules, key: usize, name: Cow<'_, str>) {
        let rule = rules.domain("d").unwrap().rules().nth(key).unwrap();
        rule.stats().unwrap().count(name, PASSED);
    }

    fn hits(stats: &RuleStatsRegistry) -> Vec<(String, u64)> {
        stats.totals().into_iter().map(|(series, totals)| (series.rule, totals.hits)).collect()
    }

    #[test]
    fn reload_keeps_stats_of_remaining_rules_and_drops_others() {
        let stats = RuleStatsRegistry::default();
        let (one, two, three) = (rules(&["a", "b"]), rules(&["c", "b"]), rules(&["a", "b"]));
        attach(&stats, &one);
        [0, 1].into_iter().for_each(|key| count(&one, key, "".into()));
        attach(&stats, &two);
        count(&two, 1, "".into());
        assert_eq!(hits(&stats), [("d.b".to_owned(), 2), ("d.c".to_owned(), 0)]);
        attach(&stats, &three);
        assert_eq!(hits(&stats), [("d.a".to_owned(), 0), ("d.b".to_owned(), 2)]);
    }

    #[test]
    fn hits_before_prepared_rules_are_active_are_kept() {
        let stats = RuleStatsRegistry::default();
        let (one, two) = (rules(&["a", "b"]), rules(&["c", "b"]));
        attach(&stats, &one);
        let (next, _) = stats.prepare(&two);
        count(&one, 1, "".into());
        assert_eq!(hits(&stats), [("d.a".to_owned(), 0), ("d.b".to_owned(), 1)]);
        stats.replace(next);
        assert_eq!(hits(&stats), [("d.b".to_owned(), 1), ("d.c".to_owned(), 0)]);
    }

    #[test]
    fn names_beyond_the_cap_are_counted_as_other() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a"]));
        attach(&stats, &rules);
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
    fn name_beyond_the_length_bound_is_counted_as_other() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a"]));
        attach(&stats, &rules);
        count(&rules, 0, Cow::Owned("x".repeat(NAME_MAX + 1)));
        assert!(hits(&stats).contains(&("d.a:other".to_owned(), 1)));
    }

    #[test]
    fn equal_names_are_merged_into_one_series() {
        let (stats, rules) = (RuleStatsRegistry::new(10), rules(&["a", "a_b"]));
        attach(&stats, &rules);
        count(&rules, 0, Cow::Owned("d.a_b_c".to_owned()));
        count(&rules, 1, Cow::Owned("d.a_b_c".to_owned()));
        let expected = [("d.a", 0), ("d.a_b", 0), ("d.a_b_c", 2)];
        assert_eq!(hits(&stats), expected.map(|(name, hits)| (name.to_owned(), hits)));
    }
}
