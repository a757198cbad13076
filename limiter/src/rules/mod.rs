//! Rules: which descriptors are limited, and how. Read from files or from a control plane, and replaced as a whole
//! at run time.

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value as Json};

use crate::{
    algorithm::{Admission, Limit},
    descriptor::Entry,
    named,
};

mod active_rules;
#[cfg(feature = "watch")]
mod background;
mod compile;
mod contents;
mod descriptor_ref;
mod diagnostics;
mod file;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod key_messages;
mod keyed_rules;
mod keys;
mod limit;
#[cfg(feature = "watch")]
mod loader;
mod overlay;
mod pattern;
mod prefix_tree;
mod reader;
mod schema;
mod source;
mod stats;
mod trace;
mod unit;

pub use active_rules::{ActiveRules, LoadError, Status};
pub use compile::compile;
pub use contents::{Contents, ReadDocuments, Source};
pub use descriptor_ref::DescriptorRef;
pub use diagnostics::{Location, Origin, Place, Problem, Problems};
pub use keyed_rules::{KeyedDomain, KeyedRules, Match, OpenMatch};
pub use limit::{KeyValue, algorithm_keys};
#[cfg(feature = "watch")]
pub use loader::Loader;
pub use overlay::Overlay;
pub use prefix_tree::MatchKind;
pub use prefix_tree::composite;
pub use schema::json_schema;
pub use source::load;
pub use source::load_trial;
#[cfg(feature = "watch")]
pub use source::{FileSettings, Watcher};
#[cfg(feature = "watch")]
pub use source::{OverlayFile, OverlayReceiver};
pub use stats::{DecisionStats, RuleEvent, RuleStats, RuleStatsRegistry, Series, StatsHandle, Totals};
pub use trace::{LevelTrace, NODES_MAX, NodeTrace};
pub use unit::Unit;

/// The maximum number of descriptors in all files or resources together.
pub const DESCRIPTORS_MAX: usize = 1_000_000;

/// A compiled set of rules.
#[derive(Debug)]
pub struct Rules {
    // In file order.
    domains: Vec<Domain>,
    by_name: FxHashMap<String, usize>,
    hash: String,
    warnings: Vec<Problem>,
    overlay_misfits: usize,
    conflicts: usize,
}

impl Rules {
    /// The domain with this name.
    #[inline]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        // Fast path: most rule sets have a single domain.
        if let [only] = &*self.domains {
            return (only.name == name).then_some(only);
        }
        self.by_name.get(name).map(|index| &self.domains[*index])
    }

    /// All domains, in file order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// A hash of the contents, in hexadecimal: equal on all replicas that read the same files or resources and overlay.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The number of rules in all domains.
    pub fn len(&self) -> usize {
        self.domains.iter().map(|domain| domain.rules.len()).sum()
    }

    /// Whether no domain has a rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether each rule of `others` has a rule here with the same path.
    fn covers(&self, others: &Self) -> bool {
        let here: FxHashSet<&str> = self.paths().collect();
        others.paths().all(|path| here.contains(path))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().flat_map(Domain::rules).map(|rule| &*rule.path)
    }

    /// The number of rules that are without what the overlay has for them, because it does not fit.
    pub fn overlay_misfits(&self) -> usize {
        self.overlay_misfits
    }

    /// The number of descriptors of a control plane that are left out, because one before each of them has a limit for
    /// the same key and value.
    pub fn conflicts(&self) -> usize {
        self.conflicts
    }

    /// Problems that do not prevent loading but are probably mistakes.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}

/// The rules for requests with one domain name.
#[derive(Debug)]
pub struct Domain {
    /// The name.
    pub name: String,
    /// What a refused call charges. `None`: the default of each rule's algorithm.
    pub on_denied: Option<OnDenied>,
    root: prefix_tree::Level,
    // In file order.
    rules: Vec<Rule>,
    // The number of rules of earlier domains.
    rules_before: usize,
}

/// Changes of rules that are compiled for a search of limits.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The numbers in place of those of the rule with this path.
    pub numbers: FxHashMap<String, TrialNumbers>,
    /// Whether all rules are in shadow mode.
    pub shadow_mode: bool,
}

/// The numbers of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialNumbers {
    /// `requests_per_unit`, or `refill_amount` of a bucket that refills in steps.
    pub limit: u64,
    /// `None`: that of the rule, or the default.
    pub burst: Option<u64>,
}

/// Which descriptors of a refused call are charged, of those that would have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDenied {
    /// All of them, as envoyproxy/ratelimit does.
    ChargeAll,
    /// None of them.
    ChargeNone,
}

named! {
    /// The decision for a request whose owner cannot be reached, with its name in rule files.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OnOwnerUnavailable {
        /// The local replica admits its share of the limit.
        #[default]
        LocalShare = "local_share",
        /// The request passes without being counted.
        Allow = "allow",
        /// The request is refused.
        Deny = "deny",
    }
}

/// How a check is decided whose counter is elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPolicy {
    /// The decision while the counter cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether the owner may lend hits of the limit to this replica.
    pub lease: bool,
}

impl Domain {
    /// What a call that another descriptor refuses does to the counter of `limit`. By default classic limits are
    /// charged and named ones are not.
    pub fn on_denied(&self, limit: &Limit) -> OnDenied {
        self.on_denied.unwrap_or(if limit.is_classic() { OnDenied::ChargeAll } else { OnDenied::ChargeNone })
    }

    /// The number of tables and patterns that a lookup tries. It does not grow with the number of rules.
    pub fn visits(&self, entries: &[Entry<'_>]) -> usize {
        let mut visits = 0;
        self.root.walk(entries, |_| (), &mut visits);
        visits
    }

    /// All rules, in file order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }
}

/// The rule of a descriptor: limit and options.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The path in the prefix tree: `domain.key_value.key`.
    pub path: String,
    /// The name that `replaces` refers to.
    pub name: Option<String>,
    /// How much the rule lets pass.
    pub allowance: Allowance,
    /// A limit on trial: it has counters of its own and decides nothing.
    pub candidate: Option<Limit>,
    /// The decision for a request whose owner cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether part of the remaining budget may be leased to another replica.
    pub lease: bool,
    /// The names of the limits that do not apply when this rule matches.
    pub replaces: Vec<String>,
    /// Shadow mode: the rule counts, and what it refuses passes.
    pub shadow_mode: bool,
    /// Quota mode: a call is refused only if all of its quota rules refuse.
    pub quota_mode: bool,
    /// Whether the name in metrics contains the values of all entries.
    pub detailed_metric: bool,
    /// Metadata of responses in which the rule passes.
    pub metadata: Option<Map<String, Json>>,
    /// The limit as shown in responses.
    pub displayed_limit: DisplayedLimit,
    /// The location in the rule file or resource.
    pub location: Location,
    /// The location in the overlay of what was added to the rule.
    pub overlay: Option<Location>,
    pub stats: StatsHandle,
}

impl Rule {
    /// The limit; `None` if the rule is unlimited.
    pub fn limit(&self) -> Option<&Limit> {
        match &self.allowance {
            Allowance::Unlimited => None,
            Allowance::Limited(limit) => Some(limit),
        }
    }

    /// The stats of the rule; `None` before it is active.
    pub fn stats(&self) -> Option<&RuleStats> {
        self.stats.get()
    }

    /// How its limit lets hits pass; `None` if the rule is unlimited.
    pub fn admission(&self) -> Option<Admission> {
        self.limit().map(Limit::admission)
    }
}

/// How much a rule lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Everything passes; nothing is counted.
    Unlimited,
    /// Up to the limit; a limit of 0 lets nothing pass.
    Limited(Limit),
}

/// A limit as shown in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayedLimit {
    /// As in the rule file; 0 if the rule is unlimited.
    pub requests_per_unit: u64,
    /// As in the rule file; `None` if no unit has the length of the window.
    pub unit: Option<Unit>,
}

#[cfg(test)]
mod tests;
