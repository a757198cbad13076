//! Rules: which descriptors are limited, and how. Read from files and replaced as a whole at run time.

use std::{borrow::Cow, sync::Arc};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value as Json};
use smallvec::SmallVec;

use crate::{
    algorithm::{CounterKind, Limit},
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

/// A compiled set of rules.
#[derive(Debug)]
pub struct Rules {
    // In file order.
    domains: Vec<Domain>,
    by_name: FxHashMap<String, usize>,
    hash: String,
    warnings: Vec<Problem>,
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

    /// A hash of the file contents, in hexadecimal: equal on all replicas that read the same contents.
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
    rules: Vec<Arc<Rule>>,
}

/// Which descriptors of a refused call are charged, of those that would have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDenied {
    /// All of them, as envoyproxy/ratelimit does.
    ChargeAll,
    /// None of them.
    ChargeNone,
}

/// The decision for a request whose owner cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOwnerUnavailable {
    /// The local replica admits its share of the limit.
    #[default]
    LocalShare,
    /// The request passes without being counted.
    Allow,
    /// The request is refused.
    Deny,
}

impl OnOwnerUnavailable {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::LocalShare, Self::Allow, Self::Deny];

    /// The name in rule files.
    pub fn name(self) -> &'static str {
        match self {
            Self::LocalShare => "local_share",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl Domain {
    /// What a call that another descriptor refuses does to the counter of `limit`. By default classic limits are
    /// charged and named ones are not.
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

    /// A trace of the lookup: one level for each entry, up to the first entry without a match. Slower than
    /// [`Self::find`]: it visits every node of these levels.
    pub fn trace(&self, entries: &[Entry<'_>]) -> Vec<LevelTrace<'_>> {
        trace::levels(&self.root, entries)
    }

    /// The number of tables and patterns that a lookup tries. It does not grow with the number of rules.
    pub fn visits(&self, entries: &[Entry<'_>]) -> usize {
        self.root.walk(entries, &mut SmallVec::new())
    }

    /// All rules, in file order.
    pub fn rules(&self) -> impl ExactSizeIterator<Item = &Arc<Rule>> {
        self.rules.iter()
    }
}

/// The rule for a descriptor and the path to it.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// The rule.
    pub rule: &'r Arc<Rule>,
    // One step for each entry.
    steps: Steps<'r>,
}

impl<'r> Match<'r> {
    /// The text of the counter's key: the entries as sent, or the pattern if all values that match it share a
    /// counter. `entries` are those that the match was found for.
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

    /// The hash of this text as the key of a counter of `kind`.
    pub fn key(&self, domain: &Domain, entries: &[Entry<'_>], kind: CounterKind, secret: &Secret) -> Key {
        match domain.find_cached(entries, secret) {
            Some(cached) => cached.key(entries),
            None => self.key_text(&domain.name, entries).key(&kind.bytes(), secret),
        }
    }

    /// The rule's name in metrics: the path, with the values that `detailed_metric` and `value_to_metric` add.
    /// `entries` are those that the match was found for.
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
    /// Whether all values that match here share a counter.
    fn is_shared(&self) -> bool {
        self.node.share_threshold && self.kind == MatchKind::Pattern
    }

    /// Whether the entry has the literal value of its node.
    fn is_exact(&self) -> bool {
        self.kind == MatchKind::Exact
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
    /// The location in the rule file.
    pub location: Location,
    pub(crate) stats: StatsHandle,
}

impl Rule {
    /// The stats of the rule; `None` before it is active.
    pub fn stats(&self) -> Option<&RuleStats> {
        self.stats.get()
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
