//! Plans requests whose counters are elsewhere, decides them without the request, and answers them.

use std::{sync::Arc, time::Duration};

use arc_swap::Guard;

use crate::{
    limiter::{
        ActiveView, Answer, Limiter, LimiterError, Request, answer,
        plan::{Plan, applied_limits},
        source::{Elsewhere, Source},
    },
    remote::{CounterCheck, CounterChecks},
    resilience::Caller,
    rules::ForwardPolicy,
    store::{Check, Refusal, RemoteDecisions},
};

impl Elsewhere {
    /// Asks the counters, for this connection.
    pub async fn decide(
        &mut self,
        limiter: &Limiter,
        connection: &Caller,
    ) -> Result<RemoteDecisions, LimiterError> {
        let remote = limiter.remote.as_ref().ok_or(LimiterError::Remote)?;
        let (checks, refusal) = (std::mem::take(&mut self.checks), std::mem::take(&mut self.refusal));
        Ok(remote.decide_counters(checks, self.timeout, connection, refusal).await?)
    }

    /// The view by which the request was planned.
    pub fn into_view(self, limiter: &Limiter) -> ActiveView<'_> {
        ActiveView { limiter, rules: Guard::from_inner(self.rules), reading: self.reading }
    }
}

/// For the service.
#[doc(hidden)]
impl ActiveView<'_> {
    /// Decides and charges `request` by the counters in the memory of this process, without waiting. If they are
    /// elsewhere, the error is [`LimiterError::Remote`], and what they are asked is `planned`.
    pub fn decide_or_plan(
        &self,
        request: &Request<'_>,
        planned: &mut Option<Box<Elsewhere>>,
    ) -> Result<Answer<'_>, LimiterError> {
        let source = Source::Here(Some(planned));
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
        decided: &RemoteDecisions,
    ) -> Result<Answer<'_>, LimiterError> {
        self.decide_as(request, Source::Decided(decided), Answer::from, |answer| answer)
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
        let decided = self.plan_elsewhere(request)?.decide(self.limiter, connection).await?;
        self.answer(request, &decided)
    }
}

impl ActiveView<'_> {
    /// What the counters of a request are asked. Its domain has rules: without them it is decided here.
    fn plan_elsewhere(&self, request: &Request<'_>) -> Result<Elsewhere, LimiterError> {
        let Some(domain) = self.rules.domain(request.domain) else { return Err(LimiterError::NoRules) };
        let applied = applied_limits(domain, request);
        let plan = Plan::new(domain, request, &applied);
        let check =
            |(index, check)| CounterCheck::of(check, applied[plan.descriptor(index)].forward_policy());
        let checks = plan.checks.iter().enumerate().map(check).collect();
        let refusal = answer::refusal(self.limiter.modes, &applied, plan.deciding());
        Ok(self.elsewhere(checks, refusal, request.timeout))
    }

    /// Plans the only check of a request, if `error` says that its counter is elsewhere. Returns the error.
    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    pub(super) fn planned(
        &self,
        error: LimiterError,
        check: &Check<'_>,
        policy: ForwardPolicy,
        request: &Request<'_>,
        planned: Option<&mut Option<Box<Elsewhere>>>,
    ) -> LimiterError {
        if let (LimiterError::Remote, Some(planned)) = (error, planned) {
            let checks = CounterChecks::from_buf([CounterCheck::of(check, policy)]);
            // No other check refuses the call.
            *planned = Some(Box::new(self.elsewhere(checks, Refusal::default(), request.timeout)));
        }
        error
    }

    fn elsewhere(&self, checks: CounterChecks, refusal: Refusal, timeout: Option<Duration>) -> Elsewhere {
        Elsewhere { rules: Arc::clone(&self.rules), reading: self.reading, checks, refusal, timeout }
    }
}
