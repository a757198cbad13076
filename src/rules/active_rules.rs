//! The rules in force, shared by all that ask for them.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::watch;

use crate::{
    rules::{Problems, RuleStatsRegistry, Rules},
    time::Timestamp,
};

/// The rules in force: read by every request, replaced as a whole. Empty until the first that are valid.
#[derive(Debug, Default)]
pub struct ActiveRules {
    rules: ArcSwapOption<Rules>,
    status: watch::Sender<Status>,
    stats: RuleStatsRegistry,
}

/// How the rules in force came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// How many sets of rules have been in force; 0 while there are none.
    pub generation: u64,
    /// The hash of those in force.
    pub hash: Option<String>,
    /// Since when they are in force.
    pub loaded_at: Option<Timestamp>,
    /// How many different contents could not be loaded, since the start.
    pub load_errors: u64,
    /// Why what the files hold now is not in force; `None` while it is.
    pub last_error: Option<LoadError>,
}

/// An attempt to load that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// When.
    pub at: Timestamp,
    /// What is wrong with the files.
    pub problems: Arc<Problems>,
}

impl ActiveRules {
    /// A book with these rules, which stay in force as long as nobody replaces them.
    pub fn of(rules: Rules, now: Timestamp) -> Self {
        let active_rules = Self::default();
        active_rules.replace(rules, now);
        active_rules
    }

    /// An empty book that counts in `stats`.
    pub fn with_stats(stats: RuleStatsRegistry) -> Self {
        Self { stats, ..Self::default() }
    }

    /// What is counted of the rules.
    pub fn stats(&self) -> &RuleStatsRegistry {
        &self.stats
    }

    /// The rules in force: cheap, and unchanged for as long as it is held. To be held for one request.
    pub fn current(&self) -> Guard<Option<Arc<Rules>>> {
        self.rules.load()
    }

    /// How they came about.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until there are any.
    pub async fn loaded(&self) {
        // The sender is ours, so this ends only when there are.
        let _ = self.status.subscribe().wait_for(|status| 0 < status.generation).await;
    }

    /// Puts other rules in force, and returns those that were.
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

    /// Keeps the rules in force, because others could not be loaded.
    pub(crate) fn fail(&self, problems: Arc<Problems>, now: Timestamp) {
        self.update(|status| {
            status.load_errors += 1;
            status.last_error = Some(LoadError { at: now, problems });
        });
    }

    /// Keeps the rules in force, because the files hold the same again.
    pub(crate) fn recover(&self) {
        self.update(|status| status.last_error = None);
    }

    fn update(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }
}
