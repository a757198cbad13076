//! What is limited: rules for descriptors, read from files, replaced as a whole while running.

use std::{borrow::Cow, sync::Arc};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value as Json};
use smallvec::SmallVec;

use crate::{
    algorithm::{Kind, Limit},
    descriptor::{Entry, Key, KeyText, Secret},
};

mod active_rules;
mod background;
mod compile;
mod diagnostics;
mod file;
mod key_prefix;
mod keys;
mod limit;
mod mount;
mod pattern;
mod prefix_tree;
mod reader;
mod source;
mod stats;
mod trace;
mod unit;
mod watch;

pub use active_rules::{ActiveRules, LoadError, Status};
pub use compile::{Source, compile};
pub use diagnostics::{Location, Problem, Problems};
pub use key_prefix::CachedMatch;
pub use prefix_tree::MatchKind;
pub use source::load;
pub use stats::{Code, DecisionStats, Outcome, RuleStats, RuleStatsRegistry, Series, Totals};
pub use trace::{LevelTrace, NODES_MAX, NodeTrace};
pub use unit::Unit;
pub use watch::{Settings, Watcher};

use prefix_tree::{Step, Steps};
use stats::StatsHandle;

/// All rules in force at one time.
#[derive(Debug)]
pub struct Rules {
    // In the order of the files.
    domains: Vec<Domain>,
    by_name: FxHashMap<String, usize>,
    hash: String,
    warnings: Vec<Problem>,
}

impl Rules {
    /// The domain of that name.
    #[inline]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        // Nearly always there is one.
        if let [only] = &*self.domains {
            return (only.name == name).then_some(only);
        }
        self.by_name.get(name).map(|index| &self.domains[*index])
    }

    /// All domains, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// A hash of what the files hold, in hexadecimal: equal on all replicas that read the same.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// How many rules there are, in all domains together.
    pub fn len(&self) -> usize {
        self.domains.iter().map(|domain| domain.rules.len()).sum()
    }

    /// Whether there is no rule in any domain.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is allowed but probably not meant.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}

/// The rules for requests that ask under one name.
#[derive(Debug)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// What a refused call charges; without a word on it, each rule's family decides.
    pub on_denied: Option<OnDenied>,
    root: prefix_tree::Level,
    rules: Vec<Arc<Rule>>,
}

/// What a call charges that is refused: of its descriptors, those that would have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDenied {
    /// All of them, as envoyproxy/ratelimit does.
    ChargeAll,
    /// None of them.
    ChargeNone,
}

/// What becomes of a request when the replica that has its count cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOwnerUnavailable {
    /// The replica that was asked lets its share of the limit pass.
    #[default]
    LocalShare,
    /// It passes, uncounted.
    Allow,
    /// It is refused.
    Deny,
}

impl OnOwnerUnavailable {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::LocalShare, Self::Allow, Self::Deny];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalShare => "local_share",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Domain {
    /// What a call that is refused because of another descriptor does to `limit`'s counter. Without a word on it,
    /// a classic limit is charged all the same, and a named one is not.
    pub fn on_denied(&self, limit: &Limit) -> OnDenied {
        self.on_denied.unwrap_or(if limit.is_classic() { OnDenied::ChargeAll } else { OnDenied::ChargeNone })
    }

    /// The rule for a descriptor.
    pub fn find<'r>(&'r self, entries: &[Entry<'_>]) -> Option<Match<'r>> {
        let mut steps = SmallVec::new();
        self.root.walk(entries, &mut steps);
        let rule = steps.last()?.node.rule.as_ref()?;
        (steps.len() == entries.len()).then_some(Match { rule, steps })
    }

    /// How the rule for a descriptor is looked for: a level for each entry, up to the first that nothing matches.
    /// Slower than [`Self::find`]: it looks at every node of these levels.
    pub fn trace(&self, entries: &[Entry<'_>]) -> Vec<LevelTrace<'_>> {
        trace::levels(&self.root, entries)
    }

    /// How many tables and patterns a look-up tries. It does not grow with the number of rules.
    pub fn visits(&self, entries: &[Entry<'_>]) -> usize {
        self.root.walk(entries, &mut SmallVec::new())
    }

    /// All its rules, in the order of the files.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }
}

/// The rule for a descriptor, and how it was found.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// The rule.
    pub rule: &'r Arc<Rule>,
    // One for each entry.
    steps: Steps<'r>,
}

impl<'r> Match<'r> {
    /// The text of the counter's key: the entries as sent, or the pattern where all that match it share one.
    /// `entries` are those that the match was found for.
    pub fn key_text<'a>(&self, domain: &str, entries: &[Entry<'a>]) -> KeyText<'a> {
        let mut text = KeyText::new(domain);
        for (step, entry) in self.steps.iter().zip(entries) {
            if step.is_shared() {
                text.pattern(Entry { key: &step.node.key, value: &step.node.value });
            } else {
                text.entry(*entry);
            }
        }
        text
    }

    /// The key that this text is hashed to, for a counter of the rule's own kind.
    pub fn key(&self, domain: &Domain, entries: &[Entry<'_>], kind: Kind, secret: &Secret) -> Key {
        match domain.find_cached(entries, secret) {
            Some(usual) => usual.key(entries),
            None => self.key_text(&domain.name, entries).key(&kind.bytes(), secret),
        }
    }

    /// The rule's name in metrics: its path, with the values that `detailed_metric` and `value_to_metric` ask
    /// for. `entries` are those that the match was found for.
    pub fn metric_name(&self, domain: &str, entries: &[Entry<'_>]) -> Cow<'r, str> {
        let detailed = self.rule.detailed_metric;
        if !detailed && self.steps.iter().all(|step| !step.node.value_to_metric) {
            return Cow::Borrowed(&self.rule.path);
        }
        let any_shared = self.steps.iter().any(Step::is_shared);
        let mut name = domain.to_owned();
        for (step, entry) in self.steps.iter().zip(entries) {
            name.push('.');
            if step.is_shared() || !(detailed || step.node.value_to_metric || step.kind == MatchKind::Exact) {
                name.push_str(&step.node.composite());
            } else if detailed && !any_shared {
                name.extend([entry.key, "_", entry.value]);
            } else {
                name.push_str(&prefix_tree::composite(entry.key, entry.value));
            }
        }
        Cow::Owned(name)
    }
}

impl Step<'_> {
    /// Whether all values that match here count together.
    fn is_shared(&self) -> bool {
        self.node.share_threshold && self.kind == MatchKind::Pattern
    }

    /// Whether it is the one value that its node names.
    fn is_exact(&self) -> bool {
        self.kind == MatchKind::Exact
    }
}

/// A descriptor's limit, with everything that is said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Where it stands in its tree: `domain.key_value.key`.
    pub path: String,
    /// The name that `replaces` refers to it by.
    pub name: Option<String>,
    /// How much it lets pass.
    pub allowance: Allowance,
    /// A limit that is tried beside it: it counts for itself and decides nothing.
    pub candidate: Option<Limit>,
    /// What becomes of a request when the replica that has its count cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether a part of what is left may be lent to another replica, where that asks often.
    pub lease: bool,
    /// The names of the limits that do not apply where this rule matches too.
    pub replaces: Vec<String>,
    /// Whether it only counts: what it refuses passes.
    pub shadow_mode: bool,
    /// Whether a call is refused only where all its rules of this kind refuse.
    pub quota_mode: bool,
    /// Whether its name in metrics shows the values of all entries.
    pub detailed_metric: bool,
    /// What answers carry when it passes.
    pub metadata: Option<Map<String, Json>>,
    /// What answers say of it.
    pub displayed_limit: DisplayedLimit,
    /// Where it is written.
    pub location: Location,
    pub(crate) stats: StatsHandle,
}

impl Rule {
    /// What is counted of it; `None` before it is in force.
    pub fn stats(&self) -> Option<&RuleStats> {
        self.stats.get()
    }
}

/// How much a rule lets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Everything; nothing is counted.
    Unlimited,
    /// So much; a limit of 0 lets nothing pass.
    Limited(Limit),
}

/// What answers say of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayedLimit {
    /// As written; 0 where the rule is unlimited.
    pub requests_per_unit: u64,
    /// As written; `None` where no unit is as long as the window.
    pub unit: Option<Unit>,
}

#[cfg(test)]
mod tests;
