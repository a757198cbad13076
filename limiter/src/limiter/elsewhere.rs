//! Plans requests whose counters are elsewhere, decides them without the request, and answers them.

use std::{sync::Arc, time::Duration};

use arc_swap::Guard;
use tollgate_counter::resilience::Caller;
use tollgate_remote::{CounterCheck, CounterChecks, RemoteOutcomes};
use tollgate_rules::RuleEvent;
use tollgate_store::{Check, Refusal, SingleDecision};

use crate::limiter::{
    ActiveView, Answer, Limiter, LimiterError, Request, Status,
    answer::{self, SingleAnswer},
    metrics::near_limit,
    plan::{AppliedLimit, Plan, applied_limits, role_of},
    source::{DecidedElsewhere, DecisionSource, Elsewhere},
};

impl Elsewhere {
    /// Submits the operations to the counters, for this connection.
    pub async fn decide(
        &self,
        limiter: &Limiter,
        connection: &Caller,
    ) -> Result<RemoteOutcomes, LimiterError> {
        let remote = limiter.remote.as_ref().ok_or(LimiterError::Remote)?;
        Ok(remote.decide_counters(&self.checks, self.timeout, connection, &self.refusal).await?)
    }

    /// The view by which the request was planned.
    pub fn view<'l>(&self, limiter: &'l Limiter) -> ActiveView<'l> {
        ActiveView { limiter, rules: Guard::from_inner(self.rules.clone()), reading: self.reading }
    }

    /// The time that the caller waits.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }
}

/// Methods for the service.
impl ActiveView<'_> {
    /// Decides and charges `request` by the counters in the memory of this process, without waiting. If they are
    /// elsewhere, the error is [`LimiterError::Remote`], and the operations on them are `planned`.
    pub fn decide_or_plan(
        &self,
        request: &Request<'_>,
        planned: &mut Option<Box<Elsewhere>>,
    ) -> Result<Answer<'_>, LimiterError> {
        let source = DecisionSource::Here(Some(planned));
        let decided = self.decide_as(request, source, Answer::from, |answer| answer);
        if let Err(LimiterError::Remote) = decided
            && planned.is_none()
        {
            *planned = Some(Box::new(self.plan_elsewhere(request)?));
        }
        decided
    }

    /// The answer to a request from the decisions of its counters elsewhere. The view is that of its plan.
    pub fn answer(
        &self,
        request: &Request<'_>,
        decided: DecidedElsewhere<'_>,
    ) -> Result<Answer<'_>, LimiterError> {
        self.decide_as(request, DecisionSource::Decided(decided), Answer::from, |answer| answer)
    }

    /// The answer to a request with a single check that passes and whose rule counts under its path alone: it needs only
    /// what was planned. To decode the request and look its rule up again takes 1,900 instructions, of 15,000 that a
    /// forwarded call takes in addition to a local one.
    pub fn answer_planned(&self, decided: DecidedElsewhere<'_>) -> Option<Answer<'_>> {
        let rule = self.rules.rule(decided.planned.plain_rule?)?;
        let (check, SingleDecision { decision, charged }, degraded) = decided.single()?;
        if !decision.verdict.passes() {
            return None;
        }
        let status = Status { degraded, ..Status::for_rule(rule) };
        let answer = SingleAnswer::from_decision(self.limiter.modes, role_of(rule), status, &decision);
        if let Some(stats) = rule.stats() {
            let near_limit = near_limit(&check, &decision, charged);
            stats.count_plain(RuleEvent { charged, near_limit, ..RuleEvent::default() });
        }
        Some(answer.into())
    }

    /// Decides and charges `request`: here, or `elsewhere` for this connection. What [`ActiveView::decide_here`] has left
    /// with [`LimiterError::Remote`] is not tried here again, because the cluster decides the counters that are here.
    #[inline]
    pub async fn decide(
        &self,
        request: &Request<'_>,
        elsewhere: Option<&Caller>,
    ) -> Result<Answer<'_>, LimiterError> {
        let Some(connection) = elsewhere else { return self.decide_here(request) };
        if self.domain_of(request)?.is_none() {
            return Ok(Answer::without_limits(request.descriptors.len()));
        }
        let planned = &self.plan_elsewhere(request)?;
        let outcomes = &planned.decide(self.limiter, connection).await?;
        self.answer(request, DecidedElsewhere { planned, outcomes })
    }
}

impl ActiveView<'_> {
    /// The operations on the counters of a request. Its domain has rules: without them it is decided here.
    fn plan_elsewhere(&self, request: &Request<'_>) -> Result<Elsewhere, LimiterError> {
        let Some(domain) = self.rules.domain(request.domain) else { return Err(LimiterError::NoRules) };
        let applied = applied_limits(domain, request);
        let plan = Plan::new(domain, request, &applied);
        let check =
            |(index, check)| CounterCheck::new(check, applied[plan.descriptor(index)].forward_policy());
        let checks = plan.checks.iter().enumerate().map(check).collect();
        let refusal = answer::refusal(self.limiter.modes, &applied, plan.deciding());
        let plain_rule = if let [only] = &*applied { only.plain_rule() } else { None };
        Ok(self.elsewhere(checks, plain_rule, refusal, request.timeout))
    }

    /// Plans the only check of a request, if `error` says that its counter is elsewhere. Returns the error.
    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    pub(super) fn planned(
        &self,
        error: LimiterError,
        check: &Check<'_>,
        applied: &AppliedLimit<'_>,
        request: &Request<'_>,
        planned: Option<&mut Option<Box<Elsewhere>>>,
    ) -> LimiterError {
        if let (LimiterError::Remote, Some(planned)) = (error, planned) {
            let checks = CounterChecks::from_buf([CounterCheck::new(check, applied.forward_policy())]);
            // No other check refuses the call.
            let refusal = Refusal::default();
            let planning = self.elsewhere(checks, applied.plain_rule(), refusal, request.timeout);
            *planned = Some(Box::new(planning));
        }
        error
    }

    fn elsewhere(
        &self,
        checks: CounterChecks,
        plain_rule: Option<usize>,
        refusal: Refusal,
        timeout: Option<Duration>,
    ) -> Elsewhere {
        let rules = Arc::clone(&self.rules);
        let reading = self.reading;
        Elsewhere { rules, reading, checks, plain_rule, refusal, timeout }
    }
}
