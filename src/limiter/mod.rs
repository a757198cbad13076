//! The path of a request: find each descriptor's rule, ask its counter, fold the decisions into one answer.

use std::{borrow::Cow, sync::Arc, time::Duration};

use arc_swap::Guard;
use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Classic, Decision, Limit},
    cluster::{Cluster, Overloaded, State},
    descriptor::{Entry, KeyText, Secret, SharedSecret},
    rules::{ActiveRules, Allowance, Domain, Match, Rules, Unit},
    store::{Decisions, Memory},
    time::{Clock, Reading, Timestamp},
};

mod afar;
mod alone;
mod answer;
mod bounds;
mod explain;
mod metrics;
mod plan;

pub use answer::{Answer, CurrentLimit, Modes, Status};
pub use bounds::{Bounds, TooLarge};
pub use explain::{Checked, Counted, Explanation, Part, Uncounted};
pub use metrics::Metrics;

use metrics::Asked;
use plan::Plan;

/// One request: descriptors of one domain, decided together.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which set of rules applies.
    pub domain: &'a str,
    /// What is asked about, at least one.
    pub descriptors: &'a [Descriptor<'a>],
    /// The longest that the caller waits for the answer; `None` where it did not say.
    pub patience: Option<Duration>,
}

/// One descriptor of a request.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Matched one level of the rules each.
    pub entries: &'a [Entry<'a>],
    /// What is wanted of its counter.
    pub ask: Ask,
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
pub enum Unanswered {
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
    /// The counters are held by other replicas: [`Snapshot::decide_afar`] asks them.
    #[error("the counters are held by another replica")]
    Elsewhere,
    /// Too many checks of the call, of its connection or of this replica wait for other replicas. Nothing is charged.
    #[error("too many checks wait for other replicas: nothing was charged, try again later")]
    Overloaded,
}

impl From<Overloaded> for Unanswered {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}

/// Decides requests by the rules in force.
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

/// The rules, the secret and the instant that one request, or one batch of them, is decided by.
#[derive(Debug)]
pub struct Snapshot<'l> {
    limiter: &'l Limiter,
    rules: Guard<Option<Arc<Rules>>>,
    secret: Secret,
    reading: Reading,
}

/// What applies to one descriptor, before any counter is read.
enum Applies<'s> {
    /// No rule, or one that another descriptor's rule replaces.
    Nothing,
    Unlimited(Match<'s>),
    Rule(Match<'s>, Cow<'s, Limit>),
    Override(CurrentLimit<'s>, Limit),
}

impl Limiter {
    /// A limiter by the rules in `active_rules`, with its counters in `memory` under keys hashed with `secret`.
    pub fn new(
        active_rules: Arc<ActiveRules>,
        memory: Arc<Memory>,
        clock: Clock,
        secret: impl Into<SharedSecret>,
    ) -> Self {
        let (secret, modes, metrics) = (secret.into(), Modes::default(), Arc::default());
        Self { active_rules, memory, clock, secret, cluster: None, modes, metrics }
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
    pub fn snapshot(&self) -> Snapshot<'_> {
        let (rules, secret) = (self.active_rules.current(), self.secret.get());
        Snapshot { limiter: self, rules, secret, reading: self.clock.read() }
    }
}

impl Snapshot<'_> {
    /// The instant by which requests are decided.
    pub fn now(&self) -> Timestamp {
        self.reading.now
    }

    /// How long ago it was taken.
    pub fn age(&self) -> Duration {
        self.reading.elapsed()
    }

    /// Answers `request`, charging what it asks to charge, if all that it asks for is counted in this process.
    pub fn decide(&self, request: &Request<'_>) -> Result<Answer<'_>, Unanswered> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(Answer::without_limits(request.descriptors.len()));
        };
        if self.limiter.cluster.is_some() && request.frees() {
            return Err(Unanswered::Elsewhere);
        }
        if let Some((usual, decision)) = self.decide_alone(domain, request)? {
            return Ok(Answer::of_one(self.limiter.modes, usual.rule, &decision));
        }
        self.decide_together(domain, request)
    }

    // Never: what it needs room for would be made room for in the usual call, too.
    #[inline(never)]
    fn decide_together<'s>(
        &'s self,
        domain: &'s Domain,
        request: &Request<'_>,
    ) -> Result<Answer<'s>, Unanswered> {
        let applies = applying(domain, request);
        let plan = Plan::draw(domain, request.descriptors, &applies, &self.secret);
        let modes = self.limiter.modes;
        let refused =
            |decisions: &[Decision]| answer::refuses(modes, &plan.statuses, &plan.places, decisions);
        let decisions = self.limiter.memory.apply(&plan.checks, self.now(), refused);
        let decisions = decisions.map_err(|_| self.why_not_here())?;
        Ok(self.told(domain, request, &applies, plan, &decisions, &[]))
    }

    #[inline]
    fn domain_of(&self, request: &Request<'_>) -> Result<Option<&Domain>, Unanswered> {
        request.is_sound()?;
        let rules = self.rules.as_deref().ok_or(Unanswered::NoRules)?;
        let domain = rules.domain(request.domain);
        if domain.is_none() {
            self.limiter.metrics.unknown_domains.increase();
        }
        Ok(domain)
    }

    fn why_not_here(&self) -> Unanswered {
        match self.limiter.cluster.as_ref().map(Cluster::state) {
            Some(State::Joining) => Unanswered::Joining,
            Some(State::Serving | State::Draining) | None => Unanswered::Elsewhere,
        }
    }

    /// The answer that `decisions` make, counted. `degraded` says which of them were made without their holder.
    fn told<'s>(
        &'s self,
        domain: &Domain,
        request: &Request<'_>,
        applies: &[Applies<'s>],
        plan: Plan<'_, 's>,
        decisions: &Decisions,
        degraded: &[bool],
    ) -> Answer<'s> {
        let Plan { mut statuses, checks, places, tried } = plan;
        for (place, decision) in tried.iter().zip(&decisions[places.len()..]) {
            statuses[*place].candidate_refuses = !decision.verdict.passes();
        }
        for (place, degraded) in places.iter().zip(degraded) {
            statuses[*place].degraded = *degraded;
        }
        let answer = Answer::fold(self.limiter.modes, statuses, &places, decisions);
        let descriptors = request.descriptors;
        let asked = Asked { domain, descriptors, applies, places: &places, checks: &checks, decisions };
        self.limiter.metrics.count(&asked, &answer);
        answer
    }
}

impl Request<'_> {
    /// Whether it gives anything back: whoever holds the counter may have told others that nothing is left.
    fn frees(&self) -> bool {
        self.descriptors.iter().any(|descriptor| matches!(descriptor.ask, Ask::Refund(_)))
    }

    /// Whether it asks about anything.
    #[inline]
    fn is_sound(&self) -> Result<(), Unanswered> {
        if self.domain.is_empty() {
            return Err(Unanswered::EmptyDomain);
        }
        if self.descriptors.is_empty() {
            return Err(Unanswered::NoDescriptors);
        }
        Ok(())
    }
}

/// What applies to each descriptor, once those that `replaces` names are dropped.
fn applying<'s>(domain: &'s Domain, request: &Request<'_>) -> SmallVec<[Applies<'s>; 2]> {
    let each = |descriptor| what_applies(domain, descriptor, request.patience);
    let mut applies: SmallVec<[Applies<'s>; 2]> = request.descriptors.iter().map(each).collect();
    drop_replaced(&mut applies);
    applies
}

fn drop_replaced(applies: &mut [Applies<'_>]) {
    let mut replaced: SmallVec<[&str; 4]> = applies
        .iter()
        .filter_map(Applies::matched)
        .flat_map(|matched| matched.rule.replaces.iter().map(String::as_str))
        .collect();
    if !replaced.is_empty() {
        // A call may hold many descriptors, and their rules name each other.
        replaced.sort_unstable();
        replaced.dedup();
        for each in applies.iter_mut() {
            let name = each.matched().and_then(|matched| matched.rule.name.as_deref());
            if name.is_some_and(|name| replaced.binary_search(&name).is_ok()) {
                *each = Applies::Nothing;
            }
        }
    }
}

fn what_applies<'s>(
    domain: &'s Domain,
    descriptor: &Descriptor<'_>,
    patience: Option<Duration>,
) -> Applies<'s> {
    if let Some(Override { requests_per_unit, unit }) = descriptor.limit {
        let limit = Classic { limit: requests_per_unit.into(), window: unit.window() };
        let current =
            CurrentLimit { name: None, requests_per_unit: requests_per_unit.into(), unit: Some(unit) };
        return Applies::Override(current, Limit::Classic(limit));
    }
    match domain.find(descriptor.entries) {
        None => Applies::Nothing,
        Some(matched) => match &matched.rule.allowance {
            Allowance::Unlimited => Applies::Unlimited(matched),
            Allowance::Limited(limit) => Applies::Rule(matched, limit.within(patience)),
        },
    }
}

impl<'s> Applies<'s> {
    fn matched(&self) -> Option<&Match<'s>> {
        match self {
            Self::Unlimited(matched) | Self::Rule(matched, _) => Some(matched),
            Self::Nothing | Self::Override(..) => None,
        }
    }
}

/// The text of a key whose entries all count as they were sent.
fn sent<'e>(domain: &Domain, entries: &[Entry<'e>]) -> KeyText<'e> {
    let mut text = KeyText::new(&domain.name);
    for entry in entries {
        text.entry(*entry);
    }
    text
}
