//! The rules in force, shared by all that ask for them.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::watch;

use crate::{
    rules::{Ledger, Problems, Rules},
    time::Timestamp,
};

/// The rules in force: read by every request, replaced as a whole. Empty until the first that are valid.
#[derive(Debug, Default)]
pub struct Book {
    rules: ArcSwapOption<Rules>,
    status: watch::Sender<Status>,
    ledger: Ledger,
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

impl Book {
    /// A book with these rules, which stay in force as long as nobody replaces them.
    pub fn of(rules: Rules, now: Timestamp) -> Self {
        let book = Self::default();
        book.replace(rules, now);
        book
    }

    /// An empty book that counts in `ledger`.
    pub fn with_ledger(ledger: Ledger) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// What is counted of the rules.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The rules in force: cheap, and unchanged for as long as it is held. To be held for one request.
    pub fn snapshot(&self) -> Guard<Option<Arc<Rules>>> {
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
        self.ledger.open(&rules);
        let mut before = None;
        self.update(|status| {
            before = self.rules.swap(Some(Arc::new(rules)));
            status.generation += 1;
            status.hash = Some(hash);
            status.loaded_at = Some(now);
            status.last_error = None;
        });
        before
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
