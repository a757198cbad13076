//! Compiles the descriptors of one document into the prefix tree of their domain.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use tollgate_counter::{algorithm::Limit, printable::escaped};

use crate::{
    OnOwnerUnavailable,
    diagnostics::{Diagnostics, Location, Problems, RuleOrigin},
    file::DescriptorDraft,
    group::GroupedKey,
    key_values::{KeyValues, LimitDraft},
    limit::{self, terms::RuleTerms},
    overlay::{MatchingRules, Overlay, OverlayRule},
    own::OwnBounds,
    pattern::Pattern,
    prefix_tree::{MatchKind, TreeLevel, TreeNode, composite},
    quotas,
    rule::{Allowance, Rule, RuleOptions},
    rule_set::{DESCRIPTORS_MAX, Trial},
    yaml::{self, Located, quote},
};

/// Compiles the descriptors of one document into the prefix tree of their domain.
pub(super) struct DocumentCompiler<'c> {
    pub(super) diagnostics: Diagnostics<'c>,
    pub(super) warnings: Diagnostics<'c>,
    pub(super) descriptors: &'c mut usize,
    pub(super) rules: &'c mut Vec<Rule>,
    pub(super) names: &'c mut FxHashSet<String>,
    pub(super) replaced: &'c mut Vec<(String, Location)>,
    pub(super) overlay: Option<&'c Overlay>,
    pub(super) overlay_use: &'c mut OverlayUse,
    // Descriptors of a control plane that were left out.
    pub(super) conflicts: &'c mut usize,
    pub(super) trial: Option<&'c Trial>,
}

/// A descriptor, or a domain, above a level.
pub(super) struct ParentLevel {
    pub(super) path: String,
    pub(super) is_descriptor: bool,
    // Those of the path.
    pub(super) groups: Vec<GroupedKey>,
    // The descriptors of the path whose values share a counter, also that of the descriptor.
    pub(super) shared: Vec<Pattern>,
    // The rules of the overlay that match the path.
    pub(super) matching: MatchingRules,
}

/// Which rules of an overlay were applied.
#[derive(Default)]
pub(super) struct OverlayUse {
    // For each rule, whether a path matched it.
    pub(super) matched: Vec<bool>,
    // Rules that stayed as they came, because the overlay does not fit them.
    pub(super) misfits: usize,
}

impl OverlayUse {
    pub(super) fn new(overlay: Option<&Overlay>) -> Self {
        let rules = overlay.map_or(0, |overlay| overlay.rules.len());
        Self { matched: vec![false; rules], misfits: 0 }
    }
}

impl DocumentCompiler<'_> {
    /// Reads a node as a descriptor of `level`.
    pub(super) fn read(&mut self, node: &yaml::YamlNode<'_>, level: &mut TreeLevel, parent: &ParentLevel) {
        let above = parent.is_descriptor.then_some(&*parent.path);
        if let Some(draft) = DescriptorDraft::read(node, above, &self.diagnostics) {
            self.descriptor(draft, level, parent);
        }
    }

    fn descriptor(&mut self, mut draft: DescriptorDraft<'_>, level: &mut TreeLevel, parent: &ParentLevel) {
        *self.descriptors += 1;
        if *self.descriptors > DESCRIPTORS_MAX {
            if *self.descriptors == DESCRIPTORS_MAX + 1 {
                let what = format!("more than {DESCRIPTORS_MAX} descriptors in all; write fewer");
                self.diagnostics.add(draft.mark, what);
            }
            return;
        }
        let key = draft.key.as_deref().unwrap_or_default();
        let composite = composite(key, &draft.value);
        let path = [&*parent.path, ".", &*composite].concat();
        let narrowed = |overlay: &Overlay| overlay.narrowed(&parent.matching, key, &draft.value);
        let matching = self.overlay.map(narrowed).unwrap_or_default();
        let before = level.get_mut(&composite).filter(|_| draft.key.is_some());
        if let Some(before) = &before
            && self.conflict(before, &draft, &path)
        {
            return;
        }
        self.flags(&draft, &composite);
        let own = draft.keys.flag("share_threshold").and_then(|_| Pattern::parse(&composite));
        let shared = parent.shared.iter().cloned().chain(own).collect();
        let mut here =
            ParentLevel { path, is_descriptor: true, groups: parent.groups.clone(), shared, matching };
        let rule = draft.rate_limit.take().and_then(|limit| self.rule(limit, &mut draft, &here));
        here.groups.extend(draft.grouped_key());
        let mut children = before.and_then(|node| node.children.take());
        if !draft.descriptors.is_empty() {
            let children = children.get_or_insert_with(|| Box::new(TreeLevel::new()));
            children.reserve(draft.descriptors.len().min(DESCRIPTORS_MAX));
            draft.descriptors.iter().for_each(|child| self.read(child, children, &here));
        }
        let Some(key) = draft.key else { return };
        let group = draft.group.map(|group| group.value);
        if let Some(before) = level.get_mut(&composite) {
            before.children = children;
            before.rule = before.rule.or(rule);
            before.group = before.group.or(group);
        } else {
            let node = TreeNode {
                location: self.diagnostics.location(draft.mark),
                // Without a kind there is a problem, and the rules are dropped.
                declared_kind: draft.kind.unwrap_or(MatchKind::Exact),
                key: key.into(),
                value: draft.value.into(),
                rule,
                value_to_metric: draft.keys.is_set("value_to_metric"),
                share_threshold: draft.keys.is_set("share_threshold"),
                group,
                children,
            };
            level.push(node, composite);
        }
    }

    /// Reports that `before` has the key and the value of this descriptor. Returns whether this one is left out.
    ///
    /// In a file that is a problem. A control plane has the rules of several tenants, and a mistake of one of them must
    /// not keep the changes of the others from applying: two descriptors are one unless both have a limit.
    fn conflict(&mut self, before: &TreeNode, draft: &DescriptorDraft<'_>, path: &str) -> bool {
        let location = &before.location;
        match &*location.origin {
            RuleOrigin::File(_) => {
                let path = quote(path);
                let what =
                    format!("{path} is already given at {location}; keys and values together must differ");
                self.diagnostics.add(draft.mark, what);
            }
            RuleOrigin::Resource { name, .. } if before.rule.is_some() && draft.rate_limit.is_some() => {
                *self.conflicts += 1;
                let what = format!(
                    "this descriptor is left out: resource {} has a limit for the same key and value before it",
                    escaped(name)
                );
                self.warnings.add(draft.mark, what);
                return true;
            }
            RuleOrigin::Resource { .. } => {}
        }
        false
    }

    /// Warns of texts in files that probably equal none of a request. A control plane writes what it sends to Envoy too.
    pub(super) fn misspellings(&mut self, found: &[Located<String>]) {
        for Located { value: what, mark } in found {
            if self.warnings.location(*mark).is_in_file() {
                self.warnings.add(*mark, what);
            }
        }
    }

    fn flags(&mut self, draft: &DescriptorDraft<'_>, composite: &str) {
        // A control plane may write every field of a descriptor.
        if let Some(mark) = draft.empty_value.filter(|mark| self.warnings.location(*mark).is_in_file()) {
            self.warnings
                .add(mark, "`value` is empty, so any value matches; give a value, or leave the key out");
        }
        self.misspellings(&draft.misspellings);
        if draft.is_network_as_text() && self.warnings.location(draft.mark).is_in_file() {
            let what = format!(
                "{} is compared as text and matches no address; add `match: cidr` to match the addresses of the network",
                quote(composite)
            );
            self.warnings.add(draft.mark, what);
        }
        let is_single = draft.kind.is_some_and(|kind| !kind.has_several_values());
        if let Some(mark) = draft.keys.flag("share_threshold").filter(|_| is_single) {
            let what = format!(
                "`share_threshold` needs a `*` in `key` or `value`, or `match: cidr`, but this is {}",
                quote(composite)
            );
            self.diagnostics.add(mark, what);
        }
        if let Some((group, what)) = draft.group.as_ref().zip(group_misfit(draft)) {
            self.diagnostics.add(group.mark, what);
        }
        if draft.rate_limit.is_some() {
            return;
        }
        let metadata = draft.metadata.as_ref().map(|metadata| metadata.mark);
        for (name, mark) in [
            ("shadow_mode", draft.keys.flag("shadow_mode")),
            ("quota_mode", draft.keys.flag("quota_mode")),
            ("detailed_metric", draft.keys.flag("detailed_metric")),
            ("metadata", metadata),
        ] {
            if let Some(mark) = mark {
                self.warnings.add(mark, format!("`{name}` has no effect without a `rate_limit` beside it"));
            }
        }
    }

    /// Adds a rule and returns its index.
    fn rule(
        &mut self,
        mut limit: KeyValues,
        draft: &mut DescriptorDraft<'_>,
        here: &ParentLevel,
    ) -> Option<usize> {
        for replaced in limit.replaces() {
            if limit.name() == Some(&*replaced.value) {
                self.diagnostics
                    .add(replaced.mark, "`replaces` names the limit itself; it takes the names of others");
            }
            self.replaced.push((replaced.value.clone(), self.diagnostics.location(replaced.mark)));
        }
        self.names.extend(limit.name().map(str::to_owned));
        if let Some(numbers) = self.trial.and_then(|trial| trial.numbers.get(&here.path)) {
            numbers.iter().for_each(|(name, number)| limit.set(name, *number));
        }
        let (limit, terms, overlay) = match self.overlaid(&limit, draft, here) {
            Some((with_overlay, terms, rule)) => {
                if rule.metadata.is_some() {
                    draft.metadata.clone_from(&rule.metadata);
                }
                if rule.group.is_some() {
                    draft.group.clone_from(&rule.group);
                }
                (with_overlay, Some(terms), Some(rule.location.clone()))
            }
            None => {
                let draft = LimitDraft { keys: &limit, diagnostics: &self.diagnostics };
                let terms = DescriptorTerms::read(draft, &here.shared);
                (limit, terms, None)
            }
        };
        let DescriptorTerms { rule: terms, candidate, own } = terms?;
        // Otherwise they are in another file.
        if let (Allowance::Limited(limited), None) = (&terms.allowance, &overlay) {
            quotas::check_floors(limit.quotas(), limited, &self.warnings);
        }
        let lease = limit.boolean("lease").is_none_or(|lease| lease.value);
        let is_hidden = limit.boolean("headers").is_some_and(|shown| !shown.value);
        let options = RuleOptions {
            name: limit.name().map(str::to_owned),
            candidate,
            quota_unit: limit.text("quota_unit").map(|unit| unit.value.clone()),
            replaces: limit.replaces().iter().map(|replaced| replaced.value.clone()).collect(),
            groups: here.groups.iter().cloned().chain(draft.grouped_key()).collect(),
            metadata: draft.metadata.take().map(|metadata| metadata.value),
            quotas: limit.quotas().iter().map(|quota| quota.value.clone()).collect(),
            own: own.map(Arc::new),
            overlay,
        };
        self.rules.push(Rule {
            path: here.path.as_str().into(),
            allowance: terms.allowance,
            on_owner_unavailable: limit
                .choice("on_owner_unavailable", &OnOwnerUnavailable::NAMED)
                .map(|what| what.value)
                .unwrap_or_default(),
            lease,
            shadow_mode: draft.keys.is_set("shadow_mode")
                || self.trial.is_some_and(|trial| trial.shadow_mode),
            quota_mode: draft.keys.is_set("quota_mode"),
            detailed_metric: draft.keys.is_set("detailed_metric"),
            is_hidden,
            denial_body: limit.denial_body().map(|body| Arc::new(body.value.clone())),
            displayed_limit: terms.displayed_limit,
            location: self.diagnostics.location(limit.mark),
            options: options.boxed(),
            stats: None,
        });
        Some(self.rules.len() - 1)
    }

    /// The limit with what the overlay adds to it; `None` if the overlay adds nothing, or does not fit.
    fn overlaid(
        &mut self,
        limit: &KeyValues,
        draft: &DescriptorDraft<'_>,
        here: &ParentLevel,
    ) -> Option<(KeyValues, DescriptorTerms, &OverlayRule)> {
        let overlay = self.overlay?;
        let index = overlay.first(&here.matching)?;
        self.overlay_use.matched[index] = true;
        let rule = &overlay.rules[index];
        let with_overlay = rule.added_to(limit);
        let mut problems = Problems::default();
        let origin = rule.location.origin.clone();
        let diagnostics = &Diagnostics::new(origin, &mut problems);
        let terms = DescriptorTerms::read(LimitDraft { keys: &with_overlay, diagnostics }, &here.shared);
        let group_misfit = rule.group.as_ref().and_then(|_| group_misfit(draft));
        let problem = problems.iter().next().map(|problem| &*problem.what).or(group_misfit);
        match (terms, problem) {
            (Some(terms), None) => Some((with_overlay, terms, rule)),
            (_, why) => {
                self.overlay_use.misfits += 1;
                let why = why.unwrap_or_default();
                let what =
                    format!("the overlay at {} does not fit this rule and is left out: {why}", rule.location);
                self.warnings.add(limit.mark, what);
                None
            }
        }
    }
}

/// Why a group does not fit a descriptor, if it does not.
fn group_misfit(draft: &DescriptorDraft<'_>) -> Option<&'static str> {
    if draft.kind == Some(MatchKind::Exact) {
        return Some(
            "`group` has no effect on a single value; leave `value` out, or give a network with `match: cidr`",
        );
    }
    draft.keys.is_set("share_threshold").then_some(
        "`group` cannot be combined with `share_threshold`, which counts all values as one; remove one of them",
    )
}

/// What a rule allows, and the limit that it tries.
struct DescriptorTerms {
    rule: RuleTerms,
    candidate: Option<Limit>,
    own: Option<OwnBounds>,
}

impl DescriptorTerms {
    /// `None` after reporting a problem.
    fn read(draft: LimitDraft<'_>, shared: &[Pattern]) -> Option<Self> {
        quotas::check_pairs(draft.quotas(), shared, draft.diagnostics);
        let rule = limit::terms(draft);
        let candidate = match draft.mapping("candidate") {
            Some(keys) => limit::candidate(LimitDraft { keys, ..draft }).map(Some),
            None => Some(None),
        };
        let rule = rule?;
        let candidate = candidate?;
        let fits = candidate.as_ref().is_none_or(|tried| limit::candidate_fits(draft, &rule, tried));
        let own = match &rule.allowance {
            Allowance::Limited(limited) => limit::own::own_bounds(draft, limited),
            Allowance::Unlimited => None,
        };
        fits.then_some(Self { rule, candidate, own })
    }
}
