//! The limits that apply to a request, and their checks.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};
use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::{Entry, Key},
    named,
};
use tollgate_rules::{
    Allowance, DisplayedLimit, Domain, ForwardPolicy, KeyedDomain, Match, OnDenied, OnOwnerUnavailable, Rule,
    StoredTerms,
};
use tollgate_store::{Check, CheckRole, Checks, LimitOrigin, OnRefusal, OwnTerms};

use crate::limiter::request::{Charging, Descriptor, Override, Request};

/// Modes that apply to all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Every descriptor is in quota mode, whatever its rule says.
    pub quota_mode: bool,
    /// A request that would be refused passes nevertheless.
    pub shadow_mode: bool,
}

named! {
    /// Where the limit comes from that decides on a descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LimitFrom {
        /// The rule of the descriptor.
        Rule = "the rule",
        /// The rule of the descriptor, because the store did not name the limit of the key in time.
        RuleForUnknown = "the rule, because the store has not answered",
        /// The store that names limits of keys.
        Store = "the store",
        /// The limit that the key has of its own.
        OwnLimit = "set at run time",
        /// The request.
        Request = "the request",
    }
}

/// What was looked up for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookedUp {
    /// The counter.
    key: Key,
    pub(super) displayed_limit: DisplayedLimit,
    pub(super) from: LimitFrom,
}

impl LookedUp {
    /// Whether the store lets everything pass.
    pub(super) fn is_unlimited(self) -> bool {
        self.displayed_limit.requests_per_unit == OwnTerms::UNLIMITED
    }
}

/// The limit that applies to one descriptor, before any counter is read.
pub(super) enum AppliedLimit<'s> {
    /// No rule matches, or another descriptor's rule replaces it.
    Nothing,
    Unlimited(Match<'s>),
    /// The limit of a rule, or what was looked up for its key.
    Rule(Match<'s>, RequestLimit<'s>, Option<LookedUp>),
    Override(Override, RequestLimit<'s>),
}

/// The limit of a descriptor for one request.
pub(super) struct RequestLimit<'s> {
    /// The limit, whose kind gives the key of the counter.
    own: Cow<'s, Limit>,
    /// The limit that decides in place of `own` if a refusal must not be charged.
    without_refused_charges: Option<Limit>,
    charging: Charging,
}

impl<'s> RequestLimit<'s> {
    #[inline(always)]
    pub(super) fn new(own: Cow<'s, Limit>, charging: Charging) -> Self {
        let without_refused_charges = match charging {
            Charging::AsRules => None,
            Charging::AllOrNothing => Some(own.without_refused_charges().into_owned()),
        };
        Self { own, without_refused_charges, charging }
    }

    /// The check of `operation` on the counter of `key`.
    #[inline(always)]
    fn check<'a>(
        &'a self,
        domain: &Domain,
        operation: Operation,
        key: Key,
        origin: LimitOrigin,
    ) -> Check<'a> {
        let limit = self.without_refused_charges.as_ref().unwrap_or(&self.own);
        Check { on_refusal: on_refusal(domain, &self.own, self.charging), key, limit, operation, origin }
    }
}

/// The checks of a request.
#[derive(Default)]
pub(super) struct CheckSet<'a> {
    /// The deciding checks, followed by those of candidates.
    pub(super) checks: Checks<'a>,
    // The index of the descriptor of each check; ascending among the deciding ones.
    pub(super) descriptors: SmallVec<[usize; 2]>,
    pub(super) deciding: usize,
}

/// The limit of each descriptor, after `replaces` has been applied.
pub(super) fn applied_limits<'s>(
    domain: KeyedDomain<'s>,
    request: &Request<'_>,
) -> SmallVec<[AppliedLimit<'s>; 2]> {
    let mut applied = AppliedLimit::for_each_descriptor(domain, request);
    drop_replaced(&mut applied);
    applied
}

pub(super) fn drop_replaced(applied: &mut [AppliedLimit<'_>]) {
    let mut replaced: SmallVec<[&str; 4]> = applied
        .iter()
        .filter_map(AppliedLimit::rule)
        .flat_map(|rule| rule.options().replaces.iter().map(String::as_str))
        .collect();
    if !replaced.is_empty() {
        // Sorted, because a request may have many descriptors that name each other.
        replaced.sort_unstable();
        replaced.dedup();
        for each in applied.iter_mut() {
            let name = each.rule().and_then(|rule| rule.options().name.as_deref());
            if name.is_some_and(|name| replaced.binary_search(&name).is_ok()) {
                *each = AppliedLimit::Nothing;
            }
        }
    }
}

impl<'s> AppliedLimit<'s> {
    /// The limit of a descriptor.
    // `inline(always)`: it is too large to move.
    #[inline(always)]
    pub(super) fn new(domain: KeyedDomain<'s>, descriptor: &Descriptor<'_>, request: &Request<'_>) -> Self {
        if let Some(sent) = descriptor.limit {
            return Self::from_override(sent, request.charging);
        }
        match domain.find(descriptor.entries) {
            None => Self::Nothing,
            Some(matched) => match &matched.rule.allowance {
                Allowance::Unlimited => Self::Unlimited(matched),
                Allowance::Limited(limit) => {
                    let limit = RequestLimit::new(limit.within(request.turn_timeout), request.charging);
                    Self::Rule(matched, limit, None)
                }
            },
        }
    }

    /// The limit that a request sends.
    #[inline(always)]
    pub(super) fn from_override(sent: Override, charging: Charging) -> Self {
        Self::Override(sent, RequestLimit::new(Cow::Owned(sent.limit()), charging))
    }

    /// The limit of each descriptor.
    pub(super) fn for_each_descriptor(domain: KeyedDomain<'s>, request: &Request<'_>) -> SmallVec<[Self; 2]> {
        request.descriptors.iter().map(|descriptor| Self::new(domain, descriptor, request)).collect()
    }

    pub(super) fn matched(&self) -> Option<&Match<'s>> {
        match self {
            Self::Unlimited(matched) | Self::Rule(matched, ..) => Some(matched),
            Self::Nothing | Self::Override(..) => None,
        }
    }

    /// Whether more than the counter of the rule decides: a second check, or a limit that is looked up.
    pub(super) fn needs_more(&self) -> bool {
        let options = self.rule().and_then(|rule| rule.options.as_deref());
        options.is_some_and(|options| {
            options.candidate.is_some() || options.own.as_ref().is_some_and(|own| own.is_from_source())
        })
    }

    /// What was looked up for the key.
    pub(super) fn looked_up(&self) -> Option<LookedUp> {
        if let Self::Rule(.., looked_up) = self { *looked_up } else { None }
    }

    /// The limit that the store names for the key.
    pub(super) fn stored_terms(&self) -> Option<StoredTerms> {
        let Self::Rule(_, limit, Some(looked_up)) = self else { return None };
        let LookedUp { displayed_limit, from, .. } = *looked_up;
        let limit = || limit.own.clone().into_owned();
        (from == LimitFrom::Store).then(|| StoredTerms { limit: limit(), displayed_limit })
    }

    /// Replaces the limit of the rule by the one that the store names for its counter of `key`.
    #[inline]
    pub(super) fn store(
        &mut self,
        key: Key,
        terms: &StoredTerms,
        entries: &[Entry<'_>],
        request: &Request<'_>,
    ) {
        let Self::Rule(matched, rule, looked_up) = self else { return };
        let StoredTerms { limit, displayed_limit } = terms;
        // With another window it has a counter of its own.
        let key = if rule.own.kind() == limit.kind() { key } else { matched.key_of_kind(entries, limit) };
        *looked_up = Some(LookedUp { key, displayed_limit: *displayed_limit, from: LimitFrom::Store });
        let limit = Cow::Owned(limit.within(request.turn_timeout).into_owned());
        *rule = RequestLimit::new(limit, request.charging);
    }

    /// Keeps the limit of the rule, because the store names none for its counter of `key`.
    pub(super) fn keep(&mut self, key: Key, from: LimitFrom) {
        if let Self::Rule(matched, _, looked_up) = self {
            let displayed_limit = matched.rule.displayed_limit;
            *looked_up = Some(LookedUp { key, displayed_limit, from });
        }
    }

    /// The settings of the rule for a counter elsewhere.
    pub(super) fn forward_policy(&self) -> ForwardPolicy {
        match self.rule() {
            Some(rule) => {
                ForwardPolicy { on_owner_unavailable: rule.on_owner_unavailable, lease: rule.lease }
            }
            None => ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::default(), lease: true },
        }
    }

    pub(super) fn rule(&self) -> Option<&'s Rule> {
        self.matched().map(|matched| matched.rule)
    }

    /// What a refusal of this descriptor means for the request.
    #[inline(always)]
    pub(super) fn role(&self) -> CheckRole {
        self.rule().map(role_of).unwrap_or_default()
    }

    /// The deciding check, if there is one.
    #[inline(always)]
    pub(super) fn check<'a>(
        &'a self,
        domain: KeyedDomain<'_>,
        descriptor: &Descriptor<'_>,
    ) -> Option<Check<'a>> {
        let (key, limit, origin) = match self {
            Self::Rule(matched, limit, None) => {
                (matched.key(descriptor.entries, &limit.own), limit, LimitOrigin::Rule)
            }
            Self::Rule(_, limit, Some(looked_up)) => (looked_up.key, limit, LimitOrigin::Rule),
            Self::Override(_, limit) => {
                (domain.key_as_sent(descriptor.entries, &limit.own), limit, LimitOrigin::Request)
            }
            Self::Nothing | Self::Unlimited(_) => return None,
        };
        Some(limit.check(&domain, descriptor.operation, key, origin))
    }

    /// The check of the candidate, if there is one.
    fn candidate_check(
        &self,
        domain: KeyedDomain<'_>,
        descriptor: &Descriptor<'_>,
        charging: Charging,
    ) -> Option<Check<'s>> {
        let matched = self.matched()?;
        let candidate = matched.rule.options().candidate.as_ref()?;
        let key = matched.candidate_key(descriptor.entries, candidate);
        let on_refusal = on_refusal(&domain, candidate, charging);
        Some(Check {
            key,
            limit: candidate,
            operation: descriptor.operation,
            on_refusal,
            origin: LimitOrigin::Rule,
        })
    }
}

/// What a refusal by `rule` means for the request.
#[inline(always)]
pub(super) fn role_of(rule: &Rule) -> CheckRole {
    CheckRole { is_shadow: rule.shadow_mode, is_quota: rule.quota_mode }
}

#[inline(always)]
fn on_refusal(domain: &Domain, limit: &Limit, charging: Charging) -> OnRefusal {
    match (charging, domain.on_denied(limit)) {
        (Charging::AsRules, OnDenied::ChargeAll) => OnRefusal::Keep,
        (Charging::AsRules, OnDenied::ChargeNone) | (Charging::AllOrNothing, _) => OnRefusal::TakeBack,
    }
}

impl<'a> CheckSet<'a> {
    /// The checks of any request.
    pub(super) fn new(
        domain: KeyedDomain<'_>,
        request: &Request<'_>,
        applied: &'a [AppliedLimit<'_>],
    ) -> Self {
        let each = || request.descriptors.iter().zip(applied).enumerate();
        let mut set = Self { checks: SmallVec::new(), descriptors: SmallVec::new(), deciding: 0 };
        for (index, (descriptor, applied)) in each() {
            set.add(index, applied.check(domain, descriptor));
        }
        set.deciding = set.checks.len();
        for (index, (descriptor, applied)) in each() {
            set.add(index, applied.candidate_check(domain, descriptor, request.charging));
        }
        set
    }

    /// The only check of a request with one descriptor.
    pub(super) fn single(check: Check<'a>) -> Self {
        Self { checks: smallvec![check], descriptors: smallvec![0], deciding: 1 }
    }

    /// The index of the descriptor of each deciding check.
    pub(super) fn deciding(&self) -> &[usize] {
        &self.descriptors[..self.deciding]
    }

    /// The index of each descriptor that shares its counter with another one.
    pub(super) fn with_shared_counters(&self) -> SmallVec<[usize; 2]> {
        let keys = self.checks[..self.deciding].iter().map(|check| check.key);
        let mut counters: SmallVec<[(Key, usize); 4]> = keys.zip(self.deciding().iter().copied()).collect();
        counters.sort_unstable();
        let of_one_counter = counters.chunk_by(|(one, _), (other, _)| one == other);
        of_one_counter.filter(|same| same.len() > 1).flatten().map(|(_, index)| *index).collect()
    }

    /// The index of the descriptor of each check of a candidate.
    pub(super) fn candidates(&self) -> &[usize] {
        &self.descriptors[self.deciding..]
    }

    fn add(&mut self, descriptor: usize, check: Option<Check<'a>>) {
        if let Some(check) = check {
            self.checks.push(check);
            self.descriptors.push(descriptor);
        }
    }
}
