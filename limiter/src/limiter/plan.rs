//! Plans: what requests ask of counters that are elsewhere, and all that their answers need.

use std::{borrow::Cow, mem, sync::Arc, time::Duration};

use arc_swap::Guard;
use smallvec::SmallVec;
use tollgate_counter::{resilience::Caller, time::ClockReading};
use tollgate_remote::{
    CounterCheck, CounterChecks, Remote, refund_operations, refunded, settle_operations, settled,
};
use tollgate_rules::{KeyedRules, MatchPosition};
use tollgate_store::{CheckDecision, Checks, CounterOutcomes, Refusal, UnknownId};

use crate::limiter::{
    ActiveView, Limiter,
    answer::{self, LimiterError},
    check_set::{AppliedLimit, CheckSet, LookedUp, RequestLimit, applied_limits},
    hold::{HeldAnswer, HoldError, HoldRequest},
    limit_source::{CacheHits, PendingLimits},
    request::{Charging, Override, OwnedRequest, Request},
};

/// A request whose counters are elsewhere: the view by which it is decided, and what is asked of each counter. It borrows
/// nothing.
#[derive(Debug)]
pub struct Plan {
    rules: Arc<KeyedRules>,
    reading: ClockReading,
    request: OwnedRequest,
    // One for each descriptor.
    applied: SmallVec<[PlannedLimit; 1]>,
    checks: CounterChecks,
    // The parts of a check set.
    descriptors: SmallVec<[usize; 2]>,
    deciding: usize,
    refusal: Refusal,
    // `None` for a request whose operations are decided.
    hold: Option<HoldRequest>,
    // The limits to wait for. Until they are known, nothing is applied.
    pending: PendingLimits,
}

/// The limit that applies to a descriptor, without its rules.
#[derive(Clone, Copy, Debug)]
enum PlannedLimit {
    Nothing,
    Unlimited(MatchPosition),
    Rule(MatchPosition, Option<LookedUp>),
    Override(Override),
}

/// What becomes of a request.
#[derive(Debug)]
pub enum AnswerOrPlan<A> {
    /// Counters in memory have answered it.
    Answer(A),
    /// The counters of the request are elsewhere, or a limit is looked up first.
    Plan(Box<Plan>),
}

impl<A> AnswerOrPlan<A> {
    /// The answer of counters in memory.
    ///
    /// # Errors
    ///
    /// The counters are elsewhere.
    pub fn answer(self) -> Result<A, LimiterError> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Plan(_) => Err(LimiterError::Remote),
        }
    }
}

impl Plan {
    /// The plan of a request with these limits and checks.
    // `inline(never)`: keeps the stack frame of the common path small.
    #[inline(never)]
    pub(super) fn new(
        view: &ActiveView<'_>,
        request: &Request<'_>,
        applied: &[AppliedLimit<'_>],
        set: &CheckSet<'_>,
        hold: Option<HoldRequest>,
    ) -> Box<Self> {
        let check = |(check, index): (_, &usize)| CounterCheck::new(check, applied[*index].forward_policy());
        Box::new(Self {
            rules: Arc::clone(&view.rules),
            reading: view.reading,
            request: request.to_owned(),
            applied: applied.iter().map(PlannedLimit::new).collect(),
            checks: set.checks.iter().zip(&set.descriptors).map(check).collect(),
            descriptors: set.descriptors.clone(),
            deciding: set.deciding,
            refusal: answer::refusal(view.limiter.modes, applied, set.deciding()),
            hold,
            pending: PendingLimits::default(),
        })
    }

    /// The plan of a request that waits for the limits of its keys first.
    #[cold]
    pub(super) fn after(
        pending: PendingLimits,
        view: &ActiveView<'_>,
        request: &Request<'_>,
        hold: Option<HoldRequest>,
    ) -> Box<Self> {
        Box::new(Self { pending, ..*Self::new(view, request, &[], &CheckSet::default(), hold) })
    }

    /// The plan of a request that waits no longer for the limits of its keys.
    fn again(
        view: &ActiveView<'_>,
        request: &Request<'_>,
        hold: Option<HoldRequest>,
    ) -> Result<Self, LimiterError> {
        view.require_rules()?;
        let Some(domain) = view.rules.domain(request.domain) else {
            return Ok(*Self::new(view, request, &[], &CheckSet::default(), hold));
        };
        let mut applied = applied_limits(domain, request);
        view.limiter.limits.apply(domain, request, view.now(), CacheHits::Ignored, &mut applied);
        let set = CheckSet::new(domain, request, &applied);
        let hold = hold.map(|hold| hold.for_checks(&set));
        Ok(*Self::new(view, request, &applied, &set, hold))
    }

    /// Looks up the limits that are not known yet, and asks the counters, for this caller.
    pub async fn outcomes(
        &mut self,
        limiter: &Limiter,
        caller: &Caller,
    ) -> Result<CounterOutcomes, HoldError> {
        if !self.pending.is_empty() {
            // Boxed, because it is rare.
            let here = Box::pin(async {
                mem::take(&mut self.pending).ended(self.request.timeout).await;
                *self =
                    self.request.with(|request| Self::again(&limiter.view(), request, self.hold.clone()))?;
                self.outcomes_here(limiter, caller)
            });
            if let Some(outcomes) = here.await? {
                return Ok(outcomes);
            }
        }
        let remote = limiter.remote.as_ref().ok_or(LimiterError::Remote)?;
        let timeout = self.request.timeout;
        if let Some(hold) = &self.hold {
            // Boxed, because it is larger.
            return Box::pin(async {
                let remote = RemoteCaller { remote, timeout, caller };
                self.view(limiter).hold_elsewhere(hold, &self.checks(), &self.refusal, remote).await
            })
            .await;
        }
        Ok(remote.decide(&self.checks, timeout, caller, &self.refusal).await.map_err(LimiterError::from)?)
    }

    /// Asks counters in the memory of this process, if they can decide the request.
    fn outcomes_here(
        &self,
        limiter: &Limiter,
        caller: &Caller,
    ) -> Result<Option<CounterOutcomes>, HoldError> {
        let view = self.view(limiter);
        if self.applied.is_empty() {
            // The domain has no rules any more.
            return Ok(Some(CounterOutcomes::default()));
        }
        let (checks, refusal) = (self.checks(), &self.refusal);
        match &self.hold {
            Some(hold) if limiter.remote.is_none() => {
                view.hold_here(hold, &checks, refusal, caller).map(Some)
            }
            None if self.request.with(|request| view.is_tried_here(request)) => {
                let refused = |decisions: &[CheckDecision]| refusal.is_refused(decisions);
                match limiter.memory.apply(&checks, view.now(), refused) {
                    Ok(decisions) => Ok(Some(decisions.into())),
                    Err(_elsewhere) => {
                        view.require_elsewhere()?;
                        Ok(None)
                    }
                }
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Passes the view, the request and its answer to `take`, and counts the answer.
    pub fn answer<R>(
        &self,
        limiter: &Limiter,
        outcomes: &CounterOutcomes,
        take: impl FnOnce(&ActiveView<'_>, &Request<'_>, &HeldAnswer<'_>) -> R,
    ) -> R {
        let view = self.view(limiter);
        self.request.with(|request| take(&view, request, &self.answer_by(&view, request, outcomes)))
    }

    fn answer_by<'v>(
        &self,
        view: &'v ActiveView<'_>,
        request: &Request<'_>,
        outcomes: &CounterOutcomes,
    ) -> HeldAnswer<'v> {
        // The domain had rules when the request was planned, and the rules are the same.
        let Some(domain) = view.rules.domain(request.domain) else {
            return HeldAnswer::without_limits(request.descriptors.len());
        };
        let applied: SmallVec<[AppliedLimit<'_>; 2]> =
            self.applied.iter().map(|limit| limit.applied(&view.rules)).collect();
        let set = CheckSet {
            checks: self.checks(),
            descriptors: self.descriptors.clone(),
            deciding: self.deciding,
        };
        match &self.hold {
            None => {
                let CounterOutcomes { decisions, degraded, .. } = outcomes;
                view.recorded_answer(domain, request, &applied, &set, decisions, degraded).into()
            }
            Some(hold) => view.held_answer(hold, domain, request, &applied, &set, outcomes),
        }
    }

    /// The view by which the request is decided.
    fn view<'l>(&self, limiter: &'l Limiter) -> ActiveView<'l> {
        ActiveView { limiter, rules: Guard::from_inner(self.rules.clone()), reading: self.reading }
    }

    /// The checks of the request.
    fn checks(&self) -> Checks<'_> {
        self.checks.iter().map(CounterCheck::to_check).collect()
    }
}

impl PlannedLimit {
    fn new(applied: &AppliedLimit<'_>) -> Self {
        let position = applied.matched().and_then(|matched| matched.position());
        match (applied, position) {
            (AppliedLimit::Override(sent, _), _) => Self::Override(*sent),
            (AppliedLimit::Unlimited(_), Some(position)) => Self::Unlimited(position),
            (AppliedLimit::Rule(.., looked_up), Some(position)) => Self::Rule(position, *looked_up),
            (AppliedLimit::Nothing | AppliedLimit::Unlimited(_) | AppliedLimit::Rule(..), _) => Self::Nothing,
        }
    }

    /// The limit by the rules in which it was found.
    fn applied(self, rules: &KeyedRules) -> AppliedLimit<'_> {
        // What decides is in the checks.
        let applied = match self {
            Self::Nothing => None,
            Self::Unlimited(position) => rules.match_at(position).map(AppliedLimit::Unlimited),
            Self::Rule(position, looked_up) => rules.match_at(position).and_then(|matched| {
                let limit = RequestLimit::new(Cow::Borrowed(matched.rule.limit()?), Charging::AsRules);
                Some(AppliedLimit::Rule(matched, limit, looked_up))
            }),
            Self::Override(sent) => Some(AppliedLimit::from_override(sent, Charging::AsRules)),
        };
        applied.unwrap_or(AppliedLimit::Nothing)
    }
}

/// Counters elsewhere, the caller for whom they are asked, and the time that it waits.
#[derive(Clone, Copy)]
pub(super) struct RemoteCaller<'r> {
    pub(super) remote: &'r Remote,
    pub(super) timeout: Option<Duration>,
    pub(super) caller: &'r Caller,
}

impl RemoteCaller<'_> {
    /// Asks the counters. `unknown` says what becomes of an id that a settlement does not find.
    pub(super) async fn ask(
        self,
        hold: &HoldRequest,
        checks: &Checks<'_>,
        refusal: &Refusal,
        unknown: UnknownId,
    ) -> Result<CounterOutcomes, HoldError> {
        let Self { remote, timeout, caller } = self;
        Ok(match hold {
            HoldRequest::Reserve(terms) | HoldRequest::ChargeOnce(terms) => {
                remote.reserve(checks, terms, timeout, caller, refusal.clone()).await?
            }
            HoldRequest::RefundOnce(terms) => {
                let operations = refund_operations(checks, terms);
                refunded(&remote.ask(operations, timeout, caller).await?)?.into()
            }
            HoldRequest::Settle(id) => {
                let operations = settle_operations(checks, id, unknown);
                let settled = settled(&remote.ask(operations, timeout, caller).await?)?;
                CounterOutcomes { settled, ..CounterOutcomes::default() }
            }
        })
    }
}
