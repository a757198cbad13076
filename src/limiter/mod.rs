//! Decides requests: finds the rule of each descriptor, checks its counter, combines the decisions into one answer.

use std::{borrow::Cow, sync::Arc, time::Duration};

use arc_swap::Guard;
use smallvec::SmallVec;

use crate::{
    algorithm::{Classic, Decision, Limit, Operation},
    cluster::{Cluster, MemberState, Overloaded},
    descriptor::{Entry, KeyText, Secret, SharedSecret},
    rules::{ActiveRules, Allowance, Domain, Match, Rules, Unit},
    store::{Decisions, Memory},
    time::{Clock, Reading, Timestamp},
};

mod answer;
mod bounds;
mod explain;
mod metrics;
mod plan;
mod remote;
mod single;

pub use answer::{Answer, CurrentLimit, Modes, Status};
pub use bounds::{Bounds, TooLarge};
pub use explain::{CheckExplanation, CounterRef, DescriptorExplanation, Explanation, NoCounter};
pub use metrics::Metrics;

use metrics::DecidedRequest;
use plan::Plan;

/// One request: descriptors of one domain, decided together.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The domain of the rules.
    pub domain: &'a str,
    /// The descriptors, at least one.
    pub descriptors: &'a [Descriptor<'a>],
    /// The time until the deadline of the caller; `None` without a deadline.
    pub timeout: Option<Duration>,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The entries; each matches one level of the rules.
    pub entries: &'a [Entry<'a>],
    /// The operation on the counter.
    pub operation: Operation,
    /// A limit that replaces the configured one.
    pub limit: Option<Override>,
}

/// A limit in the request itself. Its algorithm is classic, whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits that pass in one unit; 0 lets none pass.
    pub requests_per_unit: u32,
    /// The window.
    pub unit: Unit,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// The request names no domain.
    #[error("the domain of the request is empty")]
    EmptyDomain,
    /// The request has no descriptors.
    #[error("the request has no descriptors")]
    NoDescriptors,
    /// No valid rules have been loaded.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// This replica does not know the slot owners yet.
    #[error("still joining the cluster")]
    Joining,
    /// Other replicas own the counters: use [`ActiveView::decide_remote`].
    #[error("the counters are owned by another replica")]
    Remote,
    /// Too many checks of the call, its connection or this replica are being forwarded. Nothing is charged.
    #[error("too many forwarded checks: nothing was charged, try again later")]
    Overloaded,
}

impl From<Overloaded> for LimiterError {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}

/// Decides requests by the active rules.
#[derive(Clone, Debug)]
pub struct Limiter {
    active_rules: Arc<ActiveRules>,
    memory: Arc<Memory>,
    clock: Clock,
    secret: SharedSecret,
    cluster: Option<Cluster>,
    modes: Modes,
    metrics: Arc<Metrics>,
}

/// The active view: rules, secret and time that decide one request or one read batch.
#[derive(Debug)]
pub struct ActiveView<'l> {
    limiter: &'l Limiter,
    rules: Guard<Option<Arc<Rules>>>,
    secret: Secret,
    reading: Reading,
}

/// The limit that applies to one descriptor, before any counter is read.
enum AppliedLimit<'s> {
    /// No rule matches, or another descriptor's rule replaces it.
    Nothing,
    Unlimited(Match<'s>),
    Rule(Match<'s>, Cow<'s, Limit>),
    Override(CurrentLimit<'s>, Limit),
}

impl Limiter {
    /// A limiter with the rules in `active_rules` and the counters in `memory`, whose keys are hashed with `secret`.
    pub fn new(
        active_rules: Arc<ActiveRules>,
        memory: Arc<Memory>,
        clock: Clock,
        secret: impl Into<SharedSecret>,
    ) -> Self {
        let (secret, modes, metrics) = (secret.into(), Modes::default(), Arc::default());
        Self { active_rules, memory, clock, secret, cluster: None, modes, metrics }
    }

    /// The same limiter as part of a cluster.
    pub fn with_cluster(self, cluster: Option<Cluster>) -> Self {
        Self { cluster, ..self }
    }

    /// The same limiter with these modes.
    pub fn with_modes(self, modes: Modes) -> Self {
        Self { modes, ..self }
    }

    /// The same limiter with these metrics.
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// The modes.
    pub fn modes(&self) -> Modes {
        self.modes
    }

    /// A view of the active rules, secret and time.
    pub fn view(&self) -> ActiveView<'_> {
        let (rules, secret) = (self.active_rules.current(), self.secret.get());
        ActiveView { limiter: self, rules, secret, reading: self.clock.read() }
    }
}

impl ActiveView<'_> {
    /// The instant at which requests are decided.
    pub fn now(&self) -> Timestamp {
        self.reading.now
    }

    /// The time since the view was taken.
    pub fn age(&self) -> Duration {
        self.reading.elapsed()
    }

    /// Decides and charges `request` if this replica decides all its counters.
    pub fn decide(&self, request: &Request<'_>) -> Result<Answer<'_>, LimiterError> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        if self.limiter.cluster.is_some() && request.has_refund() {
            return Err(LimiterError::Remote);
        }
        if let Some((usual, decision)) = self.decide_single(domain, request)? {
            return Ok(Answer::of_one(self.limiter.modes, usual.rule, &decision));
        }
        self.decide_set(domain, request)
    }

    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    fn decide_set<'s>(
        &'s self,
        domain: &'s Domain,
        request: &Request<'_>,
    ) -> Result<Answer<'s>, LimiterError> {
        let applied = applied_limits(domain, request);
        let plan = Plan::new(domain, request.descriptors, &applied, &self.secret);
        let modes = self.limiter.modes;
        let refused =
            |decisions: &[Decision]| answer::refuses(modes, &plan.statuses, &plan.status_indexes, decisions);
        let decisions = self.limiter.memory.apply(&plan.checks, self.now(), refused);
        let decisions = decisions.map_err(|_| self.not_local_error())?;
        Ok(self.counted_answer(domain, request, &applied, plan, &decisions, &[]))
    }

    #[inline]
    fn domain_of(&self, request: &Request<'_>) -> Result<Option<&Domain>, LimiterError> {
        request.validate()?;
        let rules = self.rules.as_deref().ok_or(LimiterError::NoRules)?;
        let domain = rules.domain(request.domain);
        if domain.is_none() {
            self.limiter.metrics.unknown_domains.increase();
        }
        Ok(domain)
    }

    fn not_local_error(&self) -> LimiterError {
        match self.limiter.cluster.as_ref().map(Cluster::state) {
            Some(MemberState::Joining) => LimiterError::Joining,
            Some(MemberState::Serving | MemberState::Draining) | None => LimiterError::Remote,
        }
    }

    /// Combines the decisions into an answer and counts it. `degraded` marks decisions made without the owner.
    fn counted_answer<'s>(
        &'s self,
        domain: &Domain,
        request: &Request<'_>,
        applied: &[AppliedLimit<'s>],
        plan: Plan<'_, 's>,
        decisions: &Decisions,
        degraded: &[bool],
    ) -> Answer<'s> {
        let Plan { mut statuses, checks, status_indexes, candidate_indexes } = plan;
        for (index, decision) in candidate_indexes.iter().zip(&decisions[status_indexes.len()..]) {
            statuses[*index].candidate_refuses = !decision.verdict.passes();
        }
        for (index, degraded) in status_indexes.iter().zip(degraded) {
            statuses[*index].degraded = *degraded;
        }
        let answer = Answer::fold(self.limiter.modes, statuses, &status_indexes, decisions);
        let descriptors = request.descriptors;
        let decided = DecidedRequest {
            domain,
            descriptors,
            applied,
            status_indexes: &status_indexes,
            checks: &checks,
            decisions,
        };
        self.limiter.metrics.count(&decided, &answer);
        answer
    }
}

impl Request<'_> {
    /// Whether the request refunds hits: the owner may have reported the counter as exhausted to other replicas.
    fn has_refund(&self) -> bool {
        self.descriptors.iter().any(|descriptor| matches!(descriptor.operation, Operation::Refund(_)))
    }

    /// Refuses a request without domain or descriptors.
    #[inline]
    fn validate(&self) -> Result<(), LimiterError> {
        if self.domain.is_empty() {
            return Err(LimiterError::EmptyDomain);
        }
        if self.descriptors.is_empty() {
            return Err(LimiterError::NoDescriptors);
        }
        Ok(())
    }
}

/// The limit of each descriptor, after `replaces` has been applied.
fn applied_limits<'s>(domain: &'s Domain, request: &Request<'_>) -> SmallVec<[AppliedLimit<'s>; 2]> {
    let each = |descriptor| applied_limit(domain, descriptor, request.timeout);
    let mut applied: SmallVec<[AppliedLimit<'s>; 2]> = request.descriptors.iter().map(each).collect();
    drop_replaced(&mut applied);
    applied
}

fn drop_replaced(applied: &mut [AppliedLimit<'_>]) {
    let mut replaced: SmallVec<[&str; 4]> = applied
        .iter()
        .filter_map(AppliedLimit::matched)
        .flat_map(|matched| matched.rule.replaces.iter().map(String::as_str))
        .collect();
    if !replaced.is_empty() {
        // Sorted, because a request may have many descriptors that name each other.
        replaced.sort_unstable();
        replaced.dedup();
        for each in applied.iter_mut() {
            let name = each.matched().and_then(|matched| matched.rule.name.as_deref());
            if name.is_some_and(|name| replaced.binary_search(&name).is_ok()) {
                *each = AppliedLimit::Nothing;
            }
        }
    }
}

fn applied_limit<'s>(
    domain: &'s Domain,
    descriptor: &Descriptor<'_>,
    timeout: Option<Duration>,
) -> AppliedLimit<'s> {
    if let Some(Override { requests_per_unit, unit }) = descriptor.limit {
        let limit = Classic { limit: requests_per_unit.into(), window: unit.window() };
        let current =
            CurrentLimit { name: None, requests_per_unit: requests_per_unit.into(), unit: Some(unit) };
        return AppliedLimit::Override(current, Limit::Classic(limit));
    }
    match domain.find(descriptor.entries) {
        None => AppliedLimit::Nothing,
        Some(matched) => match &matched.rule.allowance {
            Allowance::Unlimited => AppliedLimit::Unlimited(matched),
            Allowance::Limited(limit) => AppliedLimit::Rule(matched, limit.within(timeout)),
        },
    }
}

impl<'s> AppliedLimit<'s> {
    fn matched(&self) -> Option<&Match<'s>> {
        match self {
            Self::Unlimited(matched) | Self::Rule(matched, _) => Some(matched),
            Self::Nothing | Self::Override(..) => None,
        }
    }
}

/// The key text of a descriptor with all its values.
fn key_text_as_sent<'e>(domain: &Domain, entries: &[Entry<'e>]) -> KeyText<'e> {
    let mut text = KeyText::new(&domain.name);
    for entry in entries {
        text.entry(*entry);
    }
    text
}
