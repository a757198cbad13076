//! The active rules: the set of rules that decides requests now, and the secret of the keys of their counters.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use rustc_hash::{FxBuildHasher, FxHashMap};
#[cfg(feature = "watch")]
use tokio::sync::Notify;
use tollgate_counter::{descriptor::Secret, time::Timestamp};

use crate::{
    diagnostics::Problems,
    keyed_rules::KeyedRules,
    rule::Rule,
    rule_set::{Domain, Rules},
    stats::RuleStats,
};

/// The most names with values that each rule has in metrics, unless a setting says otherwise.
const NAMES_MAX_DEFAULT: usize = 100;

/// The active rules and the secret of their keys. Every request reads both as one; a reload replaces the rules as a
/// whole and keeps the secret, and another secret keeps the rules. There are no rules until the first valid set, and
/// the secret is random until it is set.
#[derive(Debug)]
pub struct ActiveRules {
    keyed: ArcSwap<KeyedRules>,
    // Incremented after each replacement of the rules or the secret.
    version: AtomicU64,
    status: RwLock<RulesStatus>,
    #[cfg(feature = "watch")]
    replaced: Notify,
    names_max: usize,
}

/// Rules that can become active at once.
#[derive(Debug)]
pub(super) struct PreparedRules {
    rules: Arc<Rules>,
    /// Whether an active rule is not among the rules.
    lacks_a_rule: bool,
}

/// The outcome of the loads so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesStatus {
    /// The number of rule sets activated so far; 0 before the first.
    pub generation: u64,
    /// The hash of the active rules.
    pub hash: Option<String>,
    /// The version that a control plane gave the active rules; `None` for rules of files.
    pub version: Option<String>,
    /// The time at which the active rules were loaded.
    pub loaded_at: Option<Timestamp>,
    /// The number of distinct contents that could not be loaded since the start.
    pub load_errors: u64,
    /// The error of the current contents; `None` while they are active.
    pub last_error: Option<LoadError>,
    /// How often rules of a control plane were replaced by a set that lacks at least one of them.
    pub removals: u64,
    /// The problems of the current overlay file; `None` while it is active, and without one.
    pub overlay_problems: Option<Arc<Problems>>,
    /// Why changes of rule files are seen late, or not at all; `None` if they are seen at once.
    pub unseen_changes: Option<Arc<str>>,
}

/// A failed load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The time of the attempt.
    pub at: Timestamp,
    /// The problems.
    pub problems: Arc<Problems>,
}

impl Default for ActiveRules {
    fn default() -> Self {
        Self::with_names_max(NAMES_MAX_DEFAULT)
    }
}

impl ActiveRules {
    /// Active rules that consist of `rules` until `replace` is called.
    pub fn from_rules(rules: Rules, now: Timestamp) -> Self {
        let active_rules = Self::default();
        active_rules.replace(rules, now);
        active_rules
    }

    /// Active rules without a rule set yet, of which each rule has at most `names_max` names with values in metrics.
    pub fn with_names_max(names_max: usize) -> Self {
        let keyed = KeyedRules::new(None, Secret::random());
        Self {
            keyed: ArcSwap::from_pointee(keyed),
            version: AtomicU64::new(0),
            status: RwLock::default(),
            #[cfg(feature = "watch")]
            replaced: Notify::new(),
            names_max,
        }
    }

    /// The active rules and secret. Cheap; the guard stays valid across a reload. Hold it for one request only.
    pub fn current(&self) -> Guard<Arc<KeyedRules>> {
        self.keyed.load()
    }

    /// A number that changes once rules or secret have been replaced.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The secret of the keys.
    pub fn secret(&self) -> Secret {
        self.keyed.load().secret().clone()
    }

    /// Replaces the secret of the keys. Replicas that join a cluster replace theirs by the secret of the cluster.
    pub fn set_secret(&self, secret: Secret) {
        self.keyed.rcu(|current| current.with_secret(secret.clone()));
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The outcome of the loads so far.
    pub fn status(&self) -> RulesStatus {
        self.status.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the first valid rule set.
    #[cfg(feature = "watch")]
    pub async fn loaded(&self) {
        loop {
            let changed = self.replaced.notified();
            if self.status().generation > 0 {
                return;
            }
            changed.await;
        }
    }

    /// Waits until other rules are active, or are refused. Changes after the call are not missed.
    #[cfg(feature = "watch")]
    pub fn changed(&self) -> impl Future<Output = ()> {
        self.replaced.notified()
    }

    /// Waits until the first rules are active or refused.
    #[cfg(feature = "watch")]
    pub async fn tried(&self) {
        let changed = self.replaced.notified();
        let RulesStatus { generation, last_error, .. } = self.status();
        if generation == 0 && last_error.is_none() {
            changed.await;
        }
    }

    /// Activates `rules` of files under the active secret.
    pub fn replace(&self, rules: Rules, now: Timestamp) {
        self.activate(self.prepare(rules), None, now);
    }

    /// Gives each of `rules` the stats of the active rule with the same path, or new ones. This takes long for many rules,
    /// so it is done before they become active. No other rules may become active until these do.
    pub(super) fn prepare(&self, mut rules: Rules) -> PreparedRules {
        let active = self.keyed.load_full();
        let known = active.rules().into_iter().flat_map(Rules::each_stats);
        let mut before: FxHashMap<_, _> =
            known.map(|(domain, rule, stats)| ((&*domain.name, &*rule.path), stats)).collect();
        let mut after = FxHashMap::with_capacity_and_hasher(rules.len(), FxBuildHasher);
        for Domain { name, rules, .. } in &mut rules.domains {
            let name = &**name;
            for Rule { path, stats, .. } in rules {
                let path = (name, &**path);
                let shared = after.entry(path).or_insert_with(|| {
                    before.remove(&path).cloned().unwrap_or_else(|| Arc::new(RuleStats::new(self.names_max)))
                });
                *stats = Some(shared.clone());
            }
        }
        let lacks_a_rule = !before.is_empty();
        PreparedRules { rules: Arc::new(rules), lacks_a_rule }
    }

    /// Activates prepared rules, which have the version of a control plane, and returns what they replace. Dropping many
    /// rules takes long.
    pub(super) fn activate(
        &self,
        prepared: PreparedRules,
        version: Option<String>,
        now: Timestamp,
    ) -> Arc<KeyedRules> {
        let PreparedRules { rules, lacks_a_rule } = prepared;
        let removes = version.is_some() && lacks_a_rule;
        let previous = self.keyed.rcu(|current| current.with_rules(rules.clone()));
        self.version.fetch_add(1, Ordering::Release);
        self.update(|status| {
            status.generation += 1;
            status.removals += u64::from(removes);
            status.hash = Some(rules.hash().to_owned());
            status.version = version;
            status.loaded_at = Some(now);
            status.last_error = None;
        });
        #[cfg(feature = "watch")]
        self.replaced.notify_waiters();
        previous
    }

    /// Records a failed load; the active rules stay.
    pub(crate) fn fail(&self, problems: Arc<Problems>, now: Timestamp) {
        self.update(|status| {
            status.load_errors += 1;
            status.last_error = Some(LoadError { at: now, problems });
        });
        #[cfg(feature = "watch")]
        self.replaced.notify_waiters();
    }

    /// Clears the error of the last load: the source has the active rules again, under this version.
    pub(crate) fn recover(&self, version: Option<&str>) {
        self.update(|status| {
            status.last_error = None;
            status.version = version.map(str::to_owned);
        });
    }

    /// Records whether the overlay file can be used.
    pub(crate) fn set_overlay_problems(&self, problems: Option<Arc<Problems>>) {
        self.update(|status| status.overlay_problems = problems);
    }

    /// Records why changes of rule files are not seen at once.
    #[cfg(feature = "watch")]
    pub(crate) fn set_unseen_changes(&self, why: Option<Arc<str>>) {
        if self.status().unseen_changes != why {
            self.update(|status| status.unseen_changes = why);
        }
    }

    fn update(&self, change: impl FnOnce(&mut RulesStatus)) {
        change(&mut self.status.write().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, thread};

    use super::*;
    use crate::stats::RuleEvent;

    const NOW: Timestamp = Timestamp::from_nanos(7);

    fn rules(limit: u8) -> Rules {
        let rule = format!("{{key: a, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}");
        Rules::parse("test", &format!("domain: d\ndescriptors: [{rule}]\n")).unwrap()
    }

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes([byte; 16])
    }

    fn active_limit(active_rules: &ActiveRules) -> u64 {
        let current = active_rules.current();
        current.domain("d").unwrap().rules().next().unwrap().displayed_limit.requests_per_unit
    }

    fn rules_of(keys: &[&str]) -> Rules {
        let rule = |key: &&str| format!("{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}");
        let rules: Vec<_> = keys.iter().map(rule).collect();
        Rules::parse("test", &format!("domain: d\ndescriptors: [{}]\n", rules.join(", "))).unwrap()
    }

    fn count(active_rules: &ActiveRules, key: usize, name: Cow<'_, str>) {
        let active = active_rules.current();
        let rule = active.domain("d").unwrap().domain.rules().nth(key).unwrap();
        rule.stats.as_ref().unwrap().count(name, RuleEvent { charged: 1, ..RuleEvent::default() });
    }

    fn hits(active_rules: &ActiveRules) -> Vec<(String, u64)> {
        let totals = active_rules.current().rules().unwrap().totals();
        totals.into_iter().map(|(series, totals)| (series.rule, totals.hits)).collect()
    }

    #[test]
    fn reload_keeps_stats_of_remaining_rules_and_drops_others() {
        let active_rules = ActiveRules::from_rules(rules_of(&["a", "b"]), NOW);
        [0, 1].into_iter().for_each(|key| count(&active_rules, key, "".into()));
        active_rules.replace(rules_of(&["c", "b"]), NOW);
        count(&active_rules, 1, "".into());
        assert_eq!(hits(&active_rules), [("d.b".to_owned(), 2), ("d.c".to_owned(), 0)]);
        active_rules.replace(rules_of(&["a", "b"]), NOW);
        assert_eq!(hits(&active_rules), [("d.a".to_owned(), 0), ("d.b".to_owned(), 2)]);
    }

    #[test]
    fn hits_before_prepared_rules_are_active_are_kept() {
        let active_rules = ActiveRules::from_rules(rules_of(&["a", "b"]), NOW);
        let next = active_rules.prepare(rules_of(&["c", "b"]));
        count(&active_rules, 1, "".into());
        assert_eq!(hits(&active_rules), [("d.a".to_owned(), 0), ("d.b".to_owned(), 1)]);
        active_rules.activate(next, None, NOW);
        assert_eq!(hits(&active_rules), [("d.b".to_owned(), 1), ("d.c".to_owned(), 0)]);
    }

    #[test]
    fn equal_names_are_merged_into_one_series() {
        let active_rules = ActiveRules::from_rules(rules_of(&["a", "a_b"]), NOW);
        [0, 1].into_iter().for_each(|key| count(&active_rules, key, "d.a_b_c".to_owned().into()));
        let expected = [("d.a", 0), ("d.a_b", 0), ("d.a_b_c", 2)];
        assert_eq!(hits(&active_rules), expected.map(|(name, hits)| (name.to_owned(), hits)));
    }

    #[test]
    fn secret_set_while_rules_compile_is_kept() {
        let active_rules = ActiveRules::from_rules(rules(1), NOW);
        active_rules.set_secret(secret(1));
        let compiled = rules(2);
        active_rules.set_secret(secret(2));
        active_rules.replace(compiled, NOW);
        assert!(active_rules.secret() == secret(2));
        assert_eq!(active_limit(&active_rules), 2);
    }

    #[test]
    fn sets_of_a_control_plane_that_lack_a_rule_are_counted() {
        let active_rules = ActiveRules::default();
        for (keys, removals) in [
            (&["a"][..], 0),
            (&["a", "b"], 0),
            (&["b", "a"], 0),
            (&["b", "c"], 1),
            (&["b", "c"], 1),
            (&[], 2),
        ] {
            active_rules.activate(active_rules.prepare(rules_of(keys)), Some("1".to_owned()), NOW);
            assert_eq!(active_rules.status().removals, removals, "{keys:?}");
        }
        active_rules.replace(rules_of(&["a"]), NOW);
        active_rules.replace(rules_of(&[]), NOW);
        assert_eq!(active_rules.status().removals, 2, "files are whole");
    }

    #[test]
    fn concurrent_reloads_and_secrets_keep_the_last_of_each() {
        const CHANGES: u8 = 200;
        let active_rules = ActiveRules::default();
        thread::scope(|scope| {
            scope.spawn(|| (1..=CHANGES).for_each(|limit| active_rules.replace(rules(limit), NOW)));
            scope.spawn(|| (1..=CHANGES).for_each(|byte| active_rules.set_secret(secret(byte))));
        });
        assert!(active_rules.secret() == secret(CHANGES));
        assert_eq!(active_limit(&active_rules), u64::from(CHANGES));
    }
}
