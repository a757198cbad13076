//! A rule.

use std::{borrow::Cow, fmt, sync::Arc};

use serde_json::{Map, Value as Json};
use tollgate_counter::{
    algorithm::{Admission, Limit, QuotaTerms},
    descriptor::Entry,
};

use crate::{
    OnOwnerUnavailable, denial_body::template::DenialBody, diagnostics::Location, group::GroupedKey,
    own::OwnBounds, stats::RuleStats, unit::DisplayedLimit,
};

/// The rule of a descriptor: limit and options.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The path in the prefix tree: `domain.key_value.key`.
    pub path: Arc<str>,
    /// How much the rule lets pass.
    pub allowance: Allowance,
    /// The decision for a request whose owner cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether part of the remaining budget may be leased to another replica.
    pub lease: bool,
    /// Shadow mode: the rule counts, and what it refuses passes.
    pub shadow_mode: bool,
    /// Quota mode: a call is refused only if all of its quota rules refuse.
    pub quota_mode: bool,
    /// Whether the name in metrics contains the values of all entries.
    pub detailed_metric: bool,
    /// Whether clients are not told of the limit: it is in no response header and in no body of a refusal.
    pub is_hidden: bool,
    /// The body of refusals: that of the rule, or of its domain; `None` if the settings decide.
    pub denial_body: Option<Arc<DenialBody>>,
    /// The limit as displayed in responses.
    pub displayed_limit: DisplayedLimit,
    /// The location in the rule file or resource.
    pub location: Location,
    /// Behind a pointer, because a large file has many rules, and most have none. Read by [`Rule::options`].
    pub options: Option<Box<RuleOptions>>,
    /// What is counted of the rule; `None` before it is active.
    pub stats: Option<Arc<RuleStats>>,
}

/// What few rules have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleOptions {
    /// The name that `replaces` refers to.
    pub name: Option<String>,
    /// A limit on trial: it has counters of its own and decides nothing.
    pub candidate: Option<Limit>,
    /// The names of the limits that do not apply when this rule matches.
    pub replaces: Vec<String>,
    /// The keys on the path of the rule of which networks are counted instead of addresses.
    pub groups: Vec<GroupedKey>,
    /// Metadata of responses in which the rule passes.
    pub metadata: Option<Map<String, Json>>,
    /// What the limit counts, for response headers; `None` for requests, or requests at a time.
    pub quota_unit: Option<String>,
    /// How the limit is divided over the buckets of the rate limit quota service.
    pub quotas: Vec<Quota>,
    /// What keys of the rule may have of their own; `None` if nothing.
    pub own: Option<Arc<OwnBounds>>,
    /// The location in the overlay of what was added to the rule.
    pub overlay: Option<Location>,
}

/// The terms of the buckets with a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The key of the pair.
    pub key: String,
    /// The value of the pair.
    pub value: String,
    /// What the buckets with the pair are entitled to.
    pub terms: QuotaTerms,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, terms: QuotaTerms { weight, floor } } = self;
        write!(f, "{key}: {value} {{weight: {weight}, floor: {floor}}}")
    }
}

impl RuleOptions {
    const NONE: Self = Self {
        name: None,
        candidate: None,
        replaces: Vec::new(),
        groups: Vec::new(),
        metadata: None,
        quota_unit: None,
        quotas: Vec::new(),
        own: None,
        overlay: None,
    };

    /// The options in a box, if there are any.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        (self != Self::NONE).then(|| Box::new(self))
    }
}

impl Rule {
    /// What few rules have.
    #[inline]
    pub fn options(&self) -> &RuleOptions {
        static NONE: RuleOptions = RuleOptions::NONE;
        self.options.as_deref().unwrap_or(&NONE)
    }

    /// Whether keys of the rule look up their limits in a store.
    pub fn looks_up_limits(&self) -> bool {
        self.options().own.as_ref().is_some_and(|own| own.is_from_source())
    }

    /// The name in answers: that of the limit, or the path.
    pub fn name(&self) -> &str {
        self.options().name.as_deref().unwrap_or(&self.path)
    }

    /// What people are told of the rule: its name with its path, as in `per_user (edge.user)`, or its path.
    pub fn label(&self) -> Cow<'_, str> {
        match &self.options().name {
            Some(name) => format!("{name} ({})", self.path).into(),
            None => (&*self.path).into(),
        }
    }

    /// The limit; `None` if the rule is unlimited.
    pub fn limit(&self) -> Option<&Limit> {
        match &self.allowance {
            Allowance::Unlimited => None,
            Allowance::Limited(limit) => Some(limit),
        }
    }

    /// The part of the limit to which the bucket of these entries is entitled, by the first item that has a pair of it.
    pub fn quota_terms(&self, entries: &[Entry<'_>]) -> QuotaTerms {
        let is_of = |quota: &Quota, entry: &Entry<'_>| Entry::new(&quota.key, &quota.value) == *entry;
        let mut quotas = self.options().quotas.iter();
        let found = quotas.find(|quota| entries.iter().any(|entry| is_of(quota, entry)));
        found.map(|quota| quota.terms).unwrap_or_default()
    }

    /// How the limit lets hits pass; `None` if the rule is unlimited.
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

/// How a check is decided whose counter is elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct ForwardPolicy {
    /// The decision while the counter cannot be reached.
    pub on_owner_unavailable: OnOwnerUnavailable,
    /// Whether the owner may lend hits of the limit to this replica.
    pub lease: bool,
}
