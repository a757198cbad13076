//! The path of a request: find each descriptor's rule, ask its counter, fold the decisions into one answer.

use std::{borrow::Cow, sync::Arc, time::Duration};

use arc_swap::Guard;
use smallvec::SmallVec;

use crate::{
    algorithm::{Classic, Decision, Limit, Operation},
    cluster::{Cluster, Overloaded, State},
    descriptor::{Entry, KeyText, Secret, SharedSecret},
    rules::{Allowance, Book, Domain, Match, Rules, Unit},
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
    /// Which set of rules applies.
    pub domain: &'a str,
    /// What is asked about, at least one.
    pub descriptors: &'a [Descriptor<'a>],
    /// The longest that the caller waits for the answer; `None` where it did not say.
    pub timeout: Option<Duration>,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Matched one level of the rules each.
    pub entries: &'a [Entry<'a>],
    /// What is wanted of its counter.
    pub operation: Operation,
    /// The limit that the caller wants in place of the configured one.
    pub limit: Option<Override>,
}

/// A limit that a caller brings along. It is classic, whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits that pass in one unit; 0 lets none pass.
    pub requests_per_unit: u32,
    /// The window.
    pub unit: Unit,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// The request names no domain.
    #[error("the domain of the request is empty")]
    EmptyDomain,
    /// The request asks about nothing.
    #[error("the request has no descriptors")]
    NoDescriptors,
    /// No rules were ever good, so nothing can be said.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// This replica does not know yet who holds which counters.
    #[error("still joining the cluster")]
    Joining,
    /// The counters are held by other replicas: [`ActiveView::decide_afar`] asks them.
    #[error("the counters are held by another replica")]
    Remote,
    /// Too many checks of the call, of its connection or of this replica wait for other replicas. Nothing is charged.
    #[error("too many checks wait for other replicas: nothing was charged, try again later")]
    Overloaded,
}

impl From<Overloaded> for LimiterError {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}

/// Decides requests by the rules in force.
#[derive(Clone, Debug)]
pub struct Limiter {
    book: Arc<Book>,
    memory: Arc<Memory>,
    clock: Clock,
    secret: SharedSecret,
    cluster: Option<Cluster>,
    modes: Modes,
    metrics: Arc<Metrics>,
}

/// The rules, the secret and the instant that one request, or one batch of them, is decided by.
#[derive(Debug)]
pub struct ActiveView<'l> {
    limiter: &'l Limiter,
    rules: Guard<Option<Arc<Rules>>>,
    secret: Secret,
    reading: Reading,
}

/// What applies to one descriptor, before any counter is read.
enum AppliedLimit<'s> {
    /// No rule, or one that another descriptor's rule replaces.
    Nothing,
    Unlimited(Match<'s>),
    Rule(Match<'s>, Cow<'s, Limit>),
    Override(CurrentLimit<'s>, Limit),
}

impl Limiter {
    /// A limiter by the rules in `book`, with its counters in `memory` under keys hashed with `secret`.
    pub fn new(book: Arc<Book>, memory: Arc<Memory>, clock: Clock, secret: impl Into<SharedSecret>) -> Self {
        let (secret, modes, metrics) = (secret.into(), Modes::default(), Arc::default());
        Self { book, memory, clock, secret, cluster: None, modes, metrics }
    }

    /// The same limiter, sharing keys with the other replicas of a cluster.
    pub fn with_cluster(self, cluster: Option<Cluster>) -> Self {
        Self { cluster, ..self }
    }

    /// The same limiter, folding decisions in these modes.
    pub fn with_modes(self, modes: Modes) -> Self {
        Self { modes, ..self }
    }

    /// The same limiter, counting in `metrics`.
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// How decisions are folded.
    pub fn modes(&self) -> Modes {
        self.modes
    }

    /// The rules and the secret now in force, and the time now.
    pub fn view(&self) -> ActiveView<'_> {
        let (rules, secret) = (self.book.snapshot(), self.secret.get());
        ActiveView { limiter: self, rules, secret, reading: self.clock.read() }
    }
}

impl ActiveView<'_> {
    /// The instant by which requests are decided.
    pub fn now(&self) -> Timestamp {
        self.reading.now
    }

    /// How long ago it was taken.
    pub fn age(&self) -> Duration {
        self.reading.elapsed()
    }

    /// Answers `request`, charging what it asks to charge, if all that it asks for is counted in this process.
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

    // Never: what it needs room for would be made room for in the usual call, too.
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
            Some(State::Joining) => LimiterError::Joining,
            Some(State::Serving | State::Draining) | None => LimiterError::Remote,
        }
    }

    /// The answer that `decisions` make, counted. `degraded` says which of them were made without their holder.
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
        for (place, decision) in candidate_indexes.iter().zip(&decisions[status_indexes.len()..]) {
            statuses[*place].candidate_refuses = !decision.verdict.passes();
        }
        for (place, degraded) in status_indexes.iter().zip(degraded) {
            statuses[*place].degraded = *degraded;
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
    /// Whether it gives anything back: whoever holds the counter may have told others that nothing is left.
    fn has_refund(&self) -> bool {
        self.descriptors.iter().any(|descriptor| matches!(descriptor.operation, Operation::Refund(_)))
    }

    /// Whether it asks about anything.
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

/// What applies to each descriptor, once those that `replaces` names are dropped.
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
        // A call may hold many descriptors, and their rules name each other.
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

/// The text of a key whose entries all count as they were sent.
fn key_text_as_sent<'e>(domain: &Domain, entries: &[Entry<'e>]) -> KeyText<'e> {
    let mut text = KeyText::new(&domain.name);
    for entry in entries {
        text.entry(*entry);
    }
    text
}
