//! The active rules: the set of rules that decides requests now.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::watch;

use crate::{
    rules::{Problems, RuleStatsRegistry, Rules},
    time::Timestamp,
};

/// The active rules. Every request reads them; a reload replaces them as a whole. Empty until the first valid set.
#[derive(Debug, Default)]
pub struct ActiveRules {
    rules: ArcSwapOption<Rules>,
    status: watch::Sender<Status>,
    stats: RuleStatsRegistry,
}

/// The outcome of the loads so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The number of rule sets activated so far; 0 before the first.
    pub generation: u64,
    /// The hash of the active rules.
    pub hash: Option<String>,
    /// The time at which the active rules were loaded.
    pub loaded_at: Option<Timestamp>,
    /// The number of distinct file contents that could not be loaded since the start.
    pub load_errors: u64,
    /// The error of the current file contents; `None` while they are active.
    pub last_error: Option<LoadError>,
}

/// A failed load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The time of the attempt.
    pub at: Timestamp,
    /// The problems of the files.
    pub problems: Arc<Problems>,
}

impl ActiveRules {
    /// Active rules that consist of `rules` until `replace` is called.
    pub fn of(rules: Rules, now: Timestamp) -> Self {
        let active_rules = Self::default();
        active_rules.replace(rules, now);
        active_rules
    }

    /// Active rules without a rule set yet, which count in `stats`.
    pub fn with_stats(stats: RuleStatsRegistry) -> Self {
        Self { stats, ..Self::default() }
    }

    /// The stats of the rules.
    pub fn stats(&self) -> &RuleStatsRegistry {
        &self.stats
    }

    /// The active rules. Cheap; the guard stays valid across a reload. Hold it for one request only.
    pub fn current(&self) -> Guard<Option<Arc<Rules>>> {
        self.rules.load()
    }

    /// The outcome of the loads so far.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits for the first valid rule set.
    pub async fn loaded(&self) {
        // `self` owns the sender, so the wait cannot fail.
        let _ = self.status.subscribe().wait_for(|status| status.generation > 0).await;
    }

    /// Activates `rules` and returns the previous ones.
    pub fn replace(&self, rules: Rules, now: Timestamp) -> Option<Arc<Rules>> {
        let hash = rules.hash().to_owned();
        self.stats.attach(&rules);
        let mut previous = None;
        self.update(|status| {
            previous = self.rules.swap(Some(Arc::new(rules)));
            status.generation += 1;
            status.hash = Some(hash);
            status.loaded_at = Some(now);
            status.last_error = None;
        });
        previous
    }

    /// Records a failed load; the active rules stay.
    pub(crate) fn fail(&self, problems: Arc<Problems>, now: Timestamp) {
        self.update(|status| {
            status.load_errors += 1;
            status.last_error = Some(LoadError { at: now, problems });
        });
    }

    /// Clears the error of the last load: the files match the active rules again.
    pub(crate) fn recover(&self) {
        self.update(|status| status.last_error = None);
    }

    fn update(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }
}
