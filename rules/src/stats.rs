//! Stats of a rule.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tollgate_counter::metrics::ShardedCounters;

/// The maximum length of a name in metrics, in bytes. Longer names are counted under `other`.
const NAME_MAX: usize = 256;
/// The most hits that one charge adds to a metric: a caller that charges 2^64 - 1 must not fill the metric for all time.
const COUNTED_HITS_MAX: u64 = 1 << 40;

/// What a rule has decided for one descriptor. The default is: within the limit, nothing charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleEvent {
    /// Whether the descriptor is over the limit.
    pub over_limit: bool,
    /// Hits charged to the counter.
    pub charged: u64,
    /// Charged hits that passed with more than 80 % of the limit used.
    pub near_limit: u64,
    /// Whether the descriptor passed only because the rule is in shadow mode.
    pub shadow_denied: bool,
    /// Whether the candidate of the rule would have refused the descriptor.
    pub candidate_denied: bool,
}

/// Sharded counters of outcomes.
#[derive(Debug, Default)]
pub struct DecisionStats(ShardedCounters<COUNTERS>);

/// The sums of a [`DecisionStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionTotals {
    /// Descriptors within the limit.
    pub ok: u64,
    /// Descriptors over the limit.
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

// The index of each counter.
const OK: usize = 0;
const OVER_LIMIT: usize = 1;
const HITS: usize = 2;
const NEAR_LIMIT_HITS: usize = 3;
const SHADOW_DENIALS: usize = 4;
const CANDIDATE_DENIALS: usize = 5;
const COUNTERS: usize = 6;

/// Stats of one rule: under the path, and under names with values if the rule requests them.
#[derive(Debug)]
pub struct RuleStats {
    plain: DecisionStats,
    names_max: usize,
    // Invariant: at most `names_max` entries.
    names: RwLock<HashMap<Box<str>, DecisionStats>>,
    other_names: DecisionStats,
}

/// The labels of one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// The domain.
    pub domain: Arc<str>,
    /// The path of a rule, or its name with values.
    pub rule: String,
}

impl DecisionStats {
    /// Adds an outcome.
    // `inline(always)`: most callers pass a constant outcome.
    #[inline(always)]
    pub fn add(&self, outcome: RuleEvent) {
        let shard = self.0.shard();
        shard.add(if outcome.over_limit { OVER_LIMIT } else { OK }, 1);
        if outcome.charged > 0 {
            shard.add(HITS, outcome.charged.min(COUNTED_HITS_MAX));
        }
        if outcome.near_limit > 0 {
            shard.add(NEAR_LIMIT_HITS, outcome.near_limit.min(COUNTED_HITS_MAX));
        }
        if outcome.shadow_denied {
            shard.add(SHADOW_DENIALS, 1);
        }
        if outcome.candidate_denied {
            shard.add(CANDIDATE_DENIALS, 1);
        }
    }

    /// The sums so far.
    pub fn totals(&self) -> DecisionTotals {
        let [ok, over_limit, hits, near_limit_hits, shadow_denials, candidate_denials] = self.0.sums();
        DecisionTotals { ok, over_limit, hits, near_limit_hits, shadow_denials, candidate_denials }
    }
}

impl DecisionTotals {
    /// The sum of two totals.
    pub fn plus(self, other: Self) -> Self {
        Self {
            ok: self.ok.saturating_add(other.ok),
            over_limit: self.over_limit.saturating_add(other.over_limit),
            hits: self.hits.saturating_add(other.hits),
            near_limit_hits: self.near_limit_hits.saturating_add(other.near_limit_hits),
            shadow_denials: self.shadow_denials.saturating_add(other.shadow_denials),
            candidate_denials: self.candidate_denials.saturating_add(other.candidate_denials),
        }
    }
}

impl RuleStats {
    pub(super) fn new(names_max: usize) -> Self {
        Self {
            plain: DecisionStats::default(),
            names_max,
            names: RwLock::default(),
            other_names: DecisionStats::default(),
        }
    }

    /// Counts an outcome under the rule's name in metrics. A borrowed name is the rule's own path and takes no lock.
    #[inline]
    pub fn count(&self, name: Cow<'_, str>, outcome: RuleEvent) {
        match name {
            Cow::Borrowed(_) => self.count_plain(outcome),
            Cow::Owned(name) => self.count_named(name, outcome),
        }
    }

    /// Counts an outcome under the rule's own path.
    #[inline(always)]
    pub fn count_plain(&self, outcome: RuleEvent) {
        self.plain.add(outcome);
    }

    /// The sums over all names.
    pub fn totals(&self) -> DecisionTotals {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let others = self.plain.totals().plus(self.other_names.totals());
        names.values().fold(others, |sum, stats| sum.plus(stats.totals()))
    }

    /// The sums by name: of each name with values, of all beyond the bound if there are any, and of `path`, the path of the
    /// rule.
    pub(super) fn by_name(&self, path: &str) -> Vec<(String, DecisionTotals)> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = names.iter().map(|(name, stats)| (name.to_string(), stats.totals())).collect();
        let other_names = self.other_names.totals();
        if other_names != DecisionTotals::default() {
            all.push((format!("{path}:other"), other_names));
        }
        all.push((path.to_owned(), self.plain.totals()));
        all
    }

    #[cold]
    fn count_named(&self, name: String, outcome: RuleEvent) {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stats) = names.get(&*name) {
            return stats.add(outcome);
        }
        if names.len() >= self.names_max || name.len() > NAME_MAX {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn count(stats: &RuleStats, name: String) {
        stats.count(Cow::Owned(name), RuleEvent { charged: 1, ..RuleEvent::default() });
    }

    fn hits_of_other_names(stats: &RuleStats) -> Option<u64> {
        stats.by_name("d.a").iter().find(|(name, _)| name == "d.a:other").map(|(_, totals)| totals.hits)
    }

    #[test]
    fn names_beyond_the_cap_are_counted_as_other() {
        let stats = RuleStats::new(10);
        for value in 0..1_000_000 {
            count(&stats, format!("d.a_{value}"));
        }
        assert_eq!(stats.by_name("d.a").len(), 12);
        assert_eq!(hits_of_other_names(&stats), Some(999_990));
    }

    #[test]
    fn name_beyond_the_length_bound_is_counted_as_other() {
        let stats = RuleStats::new(10);
        count(&stats, "x".repeat(NAME_MAX + 1));
        assert_eq!(hits_of_other_names(&stats), Some(1));
    }
}
