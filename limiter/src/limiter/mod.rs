//! Decides requests: finds the rule of each descriptor, checks its counter, combines the decisions into one answer.

use std::{slice, sync::Arc, time::Duration};

use answer::SingleAnswer;
use arc_swap::Guard;
use check_set::{AppliedLimit, CheckSet, applied_limits};
use limit_source::{CacheHits, LimitSource};
use metrics::CheckOutcome;
use tollgate_counter::time::{Clock, ClockReading, Timestamp};
use tollgate_remote::{Remote, RemoteExtent};
use tollgate_rules::{ActiveRules, KeyedDomain, KeyedRules};
use tollgate_store::{CheckDecision, Memory};
#[cfg(feature = "limits")]
use {
    tollgate_counter::{algorithm::Limit, descriptor::Entry},
    tollgate_rules::Match,
};

pub(crate) mod answer;
mod bounds;
mod check_set;
pub(crate) mod embedded;
mod examples;
mod explain;
pub(crate) mod hold;
#[cfg(feature = "limits")]
mod limit_cache;
mod limit_source;
mod metrics;
pub(crate) mod plan;
mod prepared;
mod request;
mod reserve;
mod retry;

pub use answer::LimiterError;
pub use answer::{Answer, AnswerOf, Status};
pub use bounds::{CallSize, RequestBounds, TooLarge};
pub use check_set::{LimitFrom, Modes};
#[cfg(feature = "redis")]
pub(crate) use embedded::request;
pub use embedded::{CheckError, Checked, Reservation};
pub use examples::{Example, Examples};
pub use explain::{CheckExplanation, CounterRef, DescriptorExplanation, Explanation, NoCounter, OwnLimitsOf};
pub use hold::{HeldAnswer, HoldError, HoldRequest};
#[cfg(feature = "limits")]
pub use limit_cache::{
    ENTRY_BYTES, LimitCache, LimitCacheSettings, LimitCacheStats, LimitLookup, LookupAnswer,
};
pub use metrics::LimiterMetrics;
pub use plan::{AnswerOrPlan, Plan};
pub use prepared::PreparedDescriptor;
pub use request::{Descriptor, Override, OwnedRequest, Request, RequestError, UnknownUnit};

pub use retry::Retry;

/// Decides requests by the active rules.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(crate) active_rules: Arc<ActiveRules>,
    memory: Arc<Memory>,
    // That of the counters.
    pub(crate) clock: Clock,
    remote: Option<Remote>,
    limits: LimitSource,
    modes: Modes,
    metrics: Arc<LimiterMetrics>,
    // Whether calls make the clock follow the wall clock. In the service a task does.
    follows_wall: bool,
}

/// The active view: rules, secret and time that decide one request or one read batch.
#[derive(Debug)]
pub struct ActiveView<'l> {
    limiter: &'l Limiter,
    rules: Guard<Arc<KeyedRules>>,
    reading: ClockReading,
}

/// Methods for the service.
impl Limiter {
    /// A limiter with the rules in `active_rules` and the counters in `memory`.
    pub fn new(active_rules: Arc<ActiveRules>, memory: Arc<Memory>, clock: Clock) -> Self {
        Self {
            active_rules,
            memory,
            clock,
            remote: None,
            limits: LimitSource::default(),
            modes: Modes::default(),
            metrics: Arc::default(),
            follows_wall: false,
        }
    }

    /// Sets where the counters are if they are not in the memory of this process.
    pub fn with_remote(self, remote: Option<Remote>) -> Self {
        Self { remote, ..self }
    }

    /// Sets where rules with `own: {from: source}` look up the limits of their keys.
    #[cfg(feature = "limits")]
    pub fn with_limits(self, cache: Option<Arc<LimitCache>>) -> Self {
        Self { limits: LimitSource { cache }, ..self }
    }

    /// Whether the limiter looks up limits of keys.
    #[cfg(feature = "limits")]
    pub fn looks_up_limits(&self) -> bool {
        self.limits.cache.is_some()
    }

    /// Sets the modes that apply to all rules.
    pub fn with_modes(self, modes: Modes) -> Self {
        Self { modes, ..self }
    }

    /// Sets the metrics in which decisions are counted.
    pub fn with_metrics(self, metrics: Arc<LimiterMetrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Whether all counters are elsewhere.
    #[inline]
    pub fn has_no_counters(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.extent() == RemoteExtent::All)
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<LimiterMetrics> {
        &self.metrics
    }

    /// The time since a view was taken.
    pub fn since(&self, view: &ClockReading) -> Duration {
        self.clock.since(view)
    }

    /// Incremented after each replacement of the rules or of the secret of keys: rules of a view that is taken later are
    /// not older.
    pub fn rules_version(&self) -> u64 {
        self.active_rules.version()
    }

    /// The modes.
    pub fn modes(&self) -> Modes {
        self.modes
    }
}

impl Limiter {
    /// A view of the active rules, secret and time.
    pub fn view(&self) -> ActiveView<'_> {
        ActiveView { limiter: self, rules: self.active_rules.current(), reading: self.read_clock() }
    }

    #[inline(always)]
    fn read_clock(&self) -> ClockReading {
        let reading = self.clock.read();
        if self.follows_wall && reading.must_follow { self.follow_wall() } else { reading }
    }
}

impl ActiveView<'_> {
    /// Decides and charges `request` by the counters in the memory of this process, or plans what is asked of counters
    /// elsewhere. It waits for nothing.
    ///
    /// # Errors
    ///
    /// There are no rules, or this replica joins its cluster.
    #[inline]
    pub fn decide(&self, request: &Request<'_>) -> Result<AnswerOrPlan<Answer<'_>>, LimiterError> {
        self.decide_as(request, Answer::from, |answer| answer)
    }
}

/// Methods for the service.
impl ActiveView<'_> {
    /// The instant at which requests are decided.
    pub fn now(&self) -> Timestamp {
        self.reading.now
    }

    /// The rules.
    pub fn rules(&self) -> &KeyedRules {
        &self.rules
    }

    /// The reading of the clock when the view was taken.
    pub fn reading(&self) -> ClockReading {
        self.reading
    }

    /// The time since the view was taken.
    pub fn age(&self) -> Duration {
        self.limiter.since(&self.reading)
    }

    /// The limit that the store names for the counter of these entries, in place of that of their rule. `None` if it
    /// names none, or is still asked: then a later call has it.
    #[cfg(feature = "limits")]
    pub fn stored_limit(
        &self,
        domain: KeyedDomain<'_>,
        matched: &Match<'_>,
        entries: &[Entry<'_>],
    ) -> Option<Limit> {
        self.limiter.limits.stored(domain, matched, entries, self.now())
    }

    /// Whether this replica may decide `request` if it has all counters.
    #[inline]
    fn is_tried_here(&self, request: &Request<'_>) -> bool {
        match self.limiter.remote.as_ref().map(Remote::extent) {
            None => true,
            // The owner may have reported the counter as exhausted to other replicas.
            Some(RemoteExtent::OtherOwners) => !request.has_refund(),
            Some(RemoteExtent::All) => false,
        }
    }

    /// The answer to a request, in a form that the caller chooses, so that an answer for one descriptor need not be moved.
    // `inline(always)`: an answer is too large to move.
    #[inline(always)]
    fn decide_as<'s, A>(
        &'s self,
        request: &Request<'_>,
        of_single: impl FnOnce(SingleAnswer<'s>) -> A,
        of_set: impl FnOnce(Answer<'s>) -> A,
    ) -> Result<AnswerOrPlan<A>, LimiterError> {
        let Some(domain) = self.domain_of(request)? else {
            return Ok(AnswerOrPlan::Answer(of_set(Answer::without_limits(request.descriptors.len()))));
        };
        if self.is_tried_here(request)
            && let [descriptor] = &*request.descriptors
        {
            match self.decide_single(domain, descriptor, request)? {
                Some(AnswerOrPlan::Answer(answer)) => return Ok(AnswerOrPlan::Answer(of_single(answer))),
                Some(AnswerOrPlan::Plan(plan)) => return Ok(AnswerOrPlan::Plan(plan)),
                None => {}
            }
        }
        Ok(match self.decide_set(domain, request)? {
            AnswerOrPlan::Answer(answer) => AnswerOrPlan::Answer(of_set(answer)),
            AnswerOrPlan::Plan(plan) => AnswerOrPlan::Plan(plan),
        })
    }

    /// Decides the only descriptor of a request as [`Self::decide_set`] does, without what only several checks need: a
    /// decision costs a third less. `None` unless it has exactly one check.
    // `inline(always)`: decision and answer are too large to move.
    #[inline(always)]
    fn decide_single<'s>(
        &'s self,
        domain: KeyedDomain<'s>,
        descriptor: &Descriptor<'_>,
        request: &Request<'_>,
    ) -> Result<Option<AnswerOrPlan<SingleAnswer<'s>>>, LimiterError> {
        // `replaces` cannot apply here: there is no other descriptor.
        let mut applied = AppliedLimit::new(domain, descriptor, request);
        if applied.needs_more() && !self.is_looked_up(domain, request, &mut applied) {
            return Ok(None);
        }
        let Some(check) = applied.check(domain, descriptor) else { return Ok(None) };
        let Ok(decision) = self.limiter.memory.apply_single(&check, self.now()) else {
            self.require_elsewhere()?;
            let set = CheckSet::single(check);
            let plan = Plan::new(self, request, slice::from_ref(&applied), &set, None);
            return Ok(Some(AnswerOrPlan::Plan(plan)));
        };
        let status = Status::from_applied(&applied).with_own(decision.own);
        let answer = SingleAnswer::from_decision(self.limiter.modes, applied.role(), status, &decision);
        let checked = CheckOutcome { check: &check, decision: &decision };
        let metrics = &self.limiter.metrics;
        metrics.count_shadow_pass(answer.passes_in_shadow);
        metrics.count_descriptor(&domain, descriptor, &applied, Some(checked), &answer.statuses[0]);
        Ok(Some(AnswerOrPlan::Answer(answer)))
    }

    /// Looks up the limit of the only descriptor. Returns whether its check can be decided alone.
    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    fn is_looked_up<'s>(
        &'s self,
        domain: KeyedDomain<'s>,
        request: &Request<'_>,
        applied: &mut AppliedLimit<'s>,
    ) -> bool {
        // A candidate is a second check.
        if applied.rule().is_some_and(|rule| rule.options().candidate.is_some()) {
            return false;
        }
        let pending = self.limiter.limits.apply(
            domain,
            request,
            self.now(),
            CacheHits::Counted,
            slice::from_mut(applied),
        );
        pending.is_empty() && applied.looked_up().is_none_or(|found| !found.is_unlimited())
    }

    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    fn decide_set<'s>(
        &'s self,
        domain: KeyedDomain<'s>,
        request: &Request<'_>,
    ) -> Result<AnswerOrPlan<Answer<'s>>, LimiterError> {
        let mut applied = applied_limits(domain, request);
        let pending =
            self.limiter.limits.apply(domain, request, self.now(), CacheHits::Counted, &mut applied);
        if !pending.is_empty() {
            return Ok(AnswerOrPlan::Plan(Plan::after(pending, self, request, None)));
        }
        let set = CheckSet::new(domain, request, &applied);
        if self.is_tried_here(request) {
            let modes = self.limiter.modes;
            let refused =
                |decisions: &[CheckDecision]| answer::refuses(modes, &applied, set.deciding(), decisions);
            if let Ok(decisions) = self.limiter.memory.apply(&set.checks, self.now(), refused) {
                let answer = self.recorded_answer(domain, request, &applied, &set, &decisions, &[]);
                return Ok(AnswerOrPlan::Answer(answer));
            }
            self.require_elsewhere()?;
        }
        Ok(AnswerOrPlan::Plan(Plan::new(self, request, &applied, &set, None)))
    }

    #[inline]
    fn domain_of(&self, request: &Request<'_>) -> Result<Option<KeyedDomain<'_>>, LimiterError> {
        self.require_rules()?;
        let domain = self.rules.domain(request.domain);
        if domain.is_none() {
            self.limiter.metrics.unknown_domains.increase();
            self.limiter.metrics.unknown_examples.add(request.domain, &[]);
        }
        Ok(domain)
    }

    fn require_rules(&self) -> Result<(), LimiterError> {
        self.rules.rules().map(drop).ok_or(LimiterError::NoRules)
    }

    /// Whether counters that are not in this process can be asked.
    #[cold]
    fn require_elsewhere(&self) -> Result<(), LimiterError> {
        match &self.limiter.remote {
            Some(remote) if remote.is_joining() => Err(LimiterError::Joining),
            Some(_) => Ok(()),
            None => Err(LimiterError::Remote),
        }
    }

    /// Combines the decisions into an answer and counts it. `degraded` marks decisions made without the owner.
    fn recorded_answer<'s>(
        &'s self,
        domain: KeyedDomain<'s>,
        request: &Request<'_>,
        applied: &[AppliedLimit<'s>],
        set: &CheckSet<'_>,
        decisions: &[CheckDecision],
        degraded: &[bool],
    ) -> Answer<'s> {
        let mut answer = Answer::fold(self.limiter.modes, applied, set, decisions);
        for (index, degraded) in set.deciding().iter().zip(degraded) {
            answer.statuses[*index].degraded = *degraded;
        }
        self.limiter.metrics.count(domain, request, applied, set, decisions, &answer);
        answer
    }
}

#[cfg(test)]
mod tests;

impl ActiveView<'_> {
    /// A name of the counter that decides the descriptor at this index: a keyed hash of its key, from which neither the
    /// key nor the position of the counter follows. `None` if there is no counter.
    pub fn partition_key(&self, request: &Request<'_>, descriptor: usize) -> Option<[u8; 8]> {
        let domain = self.rules.domain(request.domain)?;
        let descriptor = request.descriptors.get(descriptor)?;
        let applied = AppliedLimit::new(domain, descriptor, request);
        let key = applied.check(domain, descriptor)?.key;
        Some(self.rules.secret().hash(key).to_le_bytes())
    }
}
