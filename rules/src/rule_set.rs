//! A compiled set of rules.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_counter::{algorithm::Limit, descriptor::Entry};

use crate::{
    OnDenied,
    denial_body::template::DenialBody,
    diagnostics::Problem,
    prefix_tree::TreeLevel,
    rule::Rule,
    stats::{DecisionTotals, RuleStats, Series},
};

/// The maximum number of descriptors in all files or resources together.
pub const DESCRIPTORS_MAX: usize = 1_000_000;

/// A compiled set of rules.
#[derive(Debug)]
pub struct Rules {
    // In file order.
    pub(super) domains: Vec<Domain>,
    pub(super) by_name: FxHashMap<String, usize>,
    pub(super) hash: String,
    pub(super) warnings: Vec<Problem>,
    /// The number of rules that are without what the overlay has for them, because it does not fit.
    pub overlay_misfits: usize,
    /// The number of descriptors of a control plane that are left out, because one before each of them has a limit for
    /// the same key and value.
    pub conflicts: usize,
    /// The number of descriptors of a control plane with a field that this version does not know.
    pub unknown_fields: usize,
}

impl Rules {
    /// The domain with this name.
    #[inline]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        // Fast path: most rule sets have a single domain.
        if let [only] = &*self.domains {
            return (*only.name == *name).then_some(only);
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

    /// The stats of the active rules, each once with a rule that has them: rules with equal paths share theirs.
    pub fn each_stats(&self) -> impl Iterator<Item = (&Domain, &Rule, &Arc<RuleStats>)> {
        let rules = self.domains().flat_map(|domain| domain.rules().map(move |rule| (domain, rule)));
        let mut seen = FxHashSet::default();
        let stats = rules.filter_map(|(domain, rule)| Some((domain, rule, rule.stats.as_ref()?)));
        stats.filter(move |(_, _, stats)| seen.insert(Arc::as_ptr(stats)))
    }

    /// The totals of the active rules by series, in order; series with equal labels are merged.
    pub fn totals(&self) -> Vec<(Series, DecisionTotals)> {
        let mut all = Vec::new();
        for (domain, rule, stats) in self.each_stats() {
            let series = |rule| Series { domain: domain.name.clone(), rule };
            all.extend(stats.by_name(&rule.path).into_iter().map(|(name, totals)| (series(name), totals)));
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

    /// Adds problems that do not prevent loading.
    pub fn add_warnings(&mut self, more: Vec<Problem>) {
        self.warnings.extend(more);
        self.warnings.sort();
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
    pub name: Arc<str>,
    /// What a refused call charges. `None`: the default of each rule's algorithm.
    pub on_denied: Option<OnDenied>,
    /// The body of refusals by a limit that the request contains. Rules have it as theirs.
    pub denial_body: Option<Arc<DenialBody>>,
    pub(super) root: TreeLevel,
    // In file order.
    pub(super) rules: Vec<Rule>,
    // The number of rules of earlier domains.
    pub(super) rules_before: usize,
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

/// Changes of rules that are compiled for a search of limits.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The numbers, by their names in rule files, in place of those of the rule with this path.
    pub numbers: FxHashMap<String, Vec<(&'static str, u64)>>,
    /// Whether all rules are in shadow mode.
    pub shadow_mode: bool,
}
