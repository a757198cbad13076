//! Combines the decisions on the descriptors of a request into one answer, or says why there is none.

use std::{borrow::Cow, slice, time::Duration};

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Verdict},
    resilience::Overloaded,
};
use tollgate_rules::{DisplayedLimit, Rule, Unit};
use tollgate_store::{CheckDecision, CheckRole, OwnTerms, Refusal};

use crate::limiter::{
    check_set::{AppliedLimit, CheckSet, LimitFrom, LookedUp, Modes},
    request::Override,
};

/// The answer to a request.
pub type Answer<'s> = AnswerOf<SmallVec<[Status<'s>; 2]>>;

/// The answer to a request with one descriptor.
pub(super) type SingleAnswer<'s> = AnswerOf<[Status<'s>; 1]>;

/// The answer to a request, with statuses in an `S`.
#[derive(Clone, Debug)]
pub struct AnswerOf<S> {
    /// Whether the request as a whole may pass.
    pub passes: bool,
    /// Whether the request passes only because of the shadow mode of all rules.
    pub passes_in_shadow: bool,
    /// The delay before the answer may be sent.
    pub delay: Duration,
    /// The statuses, one for each descriptor, in order.
    pub statuses: S,
}

/// The answer for one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'s> {
    /// Whether this descriptor is within its limit.
    pub passes: bool,
    /// The limit that was applied, if any, as it is displayed.
    pub limit: Option<DisplayedLimit>,
    /// Hits that are left; `u64::MAX` if unlimited.
    pub remaining: u64,
    /// The [`Decision::reset_after`] of the counter; `None` without a limit.
    pub reset_after: Option<Duration>,
    /// After a refusal: the time until the same request would pass; `None` if it never would.
    pub retry_after: Option<Duration>,
    /// The rule that was applied; `None` for an override.
    pub rule: Option<&'s Rule>,
    /// Whether the limit would have refused, but its rule is in shadow mode.
    pub refused_in_shadow: bool,
    /// Whether the candidate of the rule would have refused. It influences nothing else.
    pub candidate_refuses: bool,
    /// Whether the descriptor was decided without the owner of the counter, which could not be reached.
    pub degraded: bool,
    /// Whether another descriptor of the request has the same counter.
    pub shares_counter: bool,
    /// Where the limit comes from.
    pub limit_from: LimitFrom,
}

impl<'s> Status<'s> {
    /// The status of a descriptor to which no limit applies.
    pub const WITHOUT_LIMIT: Self = Self {
        passes: true,
        limit: None,
        remaining: 0,
        reset_after: None,
        retry_after: None,
        rule: None,
        refused_in_shadow: false,
        candidate_refuses: false,
        degraded: false,
        shares_counter: false,
        limit_from: LimitFrom::Rule,
    };

    /// The status of a descriptor before its decision.
    #[inline(always)]
    pub(super) fn from_applied(applied: &AppliedLimit<'s>) -> Self {
        match applied {
            AppliedLimit::Nothing => Self::WITHOUT_LIMIT,
            AppliedLimit::Unlimited(matched) => {
                Self { remaining: u64::MAX, rule: Some(matched.rule), ..Self::WITHOUT_LIMIT }
            }
            AppliedLimit::Rule(matched, _, None) => Self::for_rule(matched.rule),
            AppliedLimit::Rule(matched, _, Some(looked_up)) => Self::for_looked_up(matched.rule, *looked_up),
            AppliedLimit::Override(sent, _) => {
                let Override { requests_per_unit, unit } = *sent;
                let limit =
                    Some(DisplayedLimit { requests_per_unit: requests_per_unit.into(), unit: Some(unit) });
                Self { limit, limit_from: LimitFrom::Request, ..Self::WITHOUT_LIMIT }
            }
        }
    }

    /// The status before the decision on the limit of `rule`.
    #[inline(always)]
    pub(super) fn for_rule(rule: &'s Rule) -> Self {
        Self { limit: Some(rule.displayed_limit), rule: Some(rule), ..Self::WITHOUT_LIMIT }
    }

    /// The status before the decision on the limit that was looked up for a key.
    fn for_looked_up(rule: &'s Rule, looked_up: LookedUp) -> Self {
        let limit = (!looked_up.is_unlimited()).then_some(looked_up.displayed_limit);
        Self { limit, rule: Some(rule), limit_from: looked_up.from, ..Self::WITHOUT_LIMIT }
    }

    /// The status with what the limit of its own of the key displays.
    #[inline(always)]
    pub(super) fn with_own(self, own: Option<u64>) -> Self {
        match own {
            None => self,
            Some(displayed) => self.with_displayed(displayed),
        }
    }

    #[cold]
    fn with_displayed(self, displayed: u64) -> Self {
        let limit_from = LimitFrom::OwnLimit;
        if displayed == OwnTerms::UNLIMITED {
            return Self { limit: None, limit_from, ..self };
        }
        let (requests_per_unit, unit) = OwnTerms::requests_and_unit(displayed);
        let unit = |of_rule| Unit::from_code(unit).or(of_rule);
        // The store may have named none, and a limit that was set takes precedence.
        let limit = self.limit.or(self.rule.map(|rule| rule.displayed_limit));
        let limit = limit.map(|limit| DisplayedLimit { requests_per_unit, unit: unit(limit.unit) });
        Self { limit, limit_from, ..self }
    }

    /// Whether a refusal refuses the request only if all other descriptors in quota mode are refused too.
    pub fn in_quota_mode(&self, modes: Modes) -> bool {
        modes.quota_mode || self.rule.is_some_and(|rule| rule.quota_mode)
    }

    /// Whether this descriptor alone refuses the request.
    pub fn refuses_alone(&self, modes: Modes) -> bool {
        !self.passes && !self.in_quota_mode(modes)
    }

    /// The name of the rule, or its path if it has none; `override` without a rule.
    pub fn name(&self) -> &'s str {
        self.rule.map_or("override", |rule| rule.name())
    }

    /// What people are told of the rule, as [`Rule::label`] has it; `override` without a rule.
    pub fn label(&self) -> Cow<'s, str> {
        self.rule.map_or("override".into(), Rule::label)
    }

    /// Whether clients are not told of the limit.
    pub fn is_hidden(&self) -> bool {
        self.rule.is_some_and(|rule| rule.is_hidden)
    }

    pub(super) fn in_shadow_mode(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    #[inline(always)]
    fn decide<R>(&mut self, decision: &Decision<R>) {
        self.passes = self.in_shadow_mode() || decision.verdict.passes();
        self.refused_in_shadow = self.passes && !decision.verdict.passes();
        self.remaining = decision.remaining;
        self.reset_after = Some(decision.reset_after);
        self.retry_after = match decision.verdict {
            Verdict::Refuse { retry_after } if !self.passes => retry_after,
            Verdict::Refuse { .. } | Verdict::Pass | Verdict::Delay(_) => None,
        };
    }
}

/// Whether the decisions refuse the request. `deciding` assigns each decision to a descriptor.
#[inline(always)]
pub(super) fn refuses<R>(
    modes: Modes,
    applied: &[AppliedLimit<'_>],
    deciding: &[usize],
    decisions: &[CheckDecision<R>],
) -> bool {
    let roles = deciding.iter().map(|index| in_modes(modes, applied[*index].role()));
    tollgate_store::refuses(roles, decisions, || do_quotas_refuse(modes, applied))
}

#[inline(always)]
fn in_modes(modes: Modes, role: CheckRole) -> CheckRole {
    CheckRole { is_quota: role.is_quota || modes.quota_mode, ..role }
}

/// What refuses the request among decisions that are made elsewhere. `deciding` assigns each decision to a descriptor.
pub(super) fn refusal(modes: Modes, applied: &[AppliedLimit<'_>], deciding: &[usize]) -> Refusal {
    Refusal {
        roles: deciding.iter().map(|index| in_modes(modes, applied[*index].role())).collect(),
        do_quotas_refuse: do_quotas_refuse(modes, applied),
    }
}

/// A descriptor without a limit is never exhausted; an unlimited one is ignored.
fn do_quotas_refuse(modes: Modes, applied: &[AppliedLimit<'_>]) -> bool {
    !(modes.quota_mode && applied.iter().any(|applied| matches!(applied, AppliedLimit::Nothing)))
}

impl<'s, S: AsMut<[Status<'s>]>> AnswerOf<S> {
    /// The answer before its decisions, which refuse it or not.
    #[inline(always)]
    fn new(modes: Modes, refused: bool, statuses: S) -> Self {
        Self {
            passes: !refused || modes.shadow_mode,
            passes_in_shadow: refused && modes.shadow_mode,
            delay: Duration::ZERO,
            statuses,
        }
    }

    /// Applies the decision on a descriptor.
    #[inline(always)]
    fn decide<R>(&mut self, descriptor: usize, decision: &Decision<R>, refused: bool) {
        let status = &mut self.statuses.as_mut()[descriptor];
        status.decide(decision);
        match decision.verdict {
            // Neither a shadow rule nor a refused request delays the answer.
            Verdict::Delay(turn) if !refused && !status.in_shadow_mode() => {
                self.delay = self.delay.max(turn);
            }
            Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => {}
        }
    }
}

impl<'s> SingleAnswer<'s> {
    /// The answer from the decision on the only check, which has this role, and the status before it.
    #[inline(always)]
    pub(super) fn from_decision<R>(
        modes: Modes,
        role: CheckRole,
        status: Status<'s>,
        decision: &CheckDecision<R>,
    ) -> Self {
        let refused = tollgate_store::refuses([in_modes(modes, role)], slice::from_ref(decision), || true);
        let mut answer = Self::new(modes, refused, [status]);
        answer.decide(0, decision, refused);
        answer
    }
}

impl<'s> From<SingleAnswer<'s>> for Answer<'s> {
    #[inline]
    fn from(SingleAnswer { passes, passes_in_shadow, delay, statuses }: SingleAnswer<'s>) -> Self {
        Self { passes, passes_in_shadow, delay, statuses: statuses.into_iter().collect() }
    }
}

impl<'s> Answer<'s> {
    /// The answer if no limit applies to any descriptor.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let statuses = SmallVec::from_elem(Status::WITHOUT_LIMIT, descriptors);
        Self { passes: true, passes_in_shadow: false, delay: Duration::ZERO, statuses }
    }

    /// The answer from the decisions on the checks of `set`.
    pub(super) fn fold(
        modes: Modes,
        applied: &[AppliedLimit<'s>],
        set: &CheckSet<'_>,
        decisions: &[CheckDecision],
    ) -> Self {
        let refused = refuses(modes, applied, set.deciding(), decisions);
        let mut answer = Self::new(modes, refused, applied.iter().map(Status::from_applied).collect());
        for (index, decision) in set.deciding().iter().zip(decisions) {
            answer.decide(*index, decision, refused);
            let status = &mut answer.statuses[*index];
            *status = status.with_own(decision.own);
            if decision.own.is_none() && applied[*index].looked_up().is_some_and(LookedUp::is_unlimited) {
                status.remaining = u64::MAX;
            }
        }
        if set.deciding().len() > 1 {
            for index in set.with_shared_counters() {
                answer.statuses[index].shares_counter = true;
            }
        }
        for (index, decision) in set.candidates().iter().zip(&decisions[set.deciding().len()..]) {
            answer.statuses[*index].candidate_refuses = !decision.verdict.passes();
        }
        answer
    }
}

/// Why a valid request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimiterError {
    /// No valid rules have been loaded.
    #[error("no valid rules are loaded yet")]
    NoRules,
    /// This replica does not know the slot owners yet.
    #[error("still joining the cluster")]
    Joining,
    /// The counters are elsewhere: use [`ActiveView::decide`](crate::limiter::ActiveView::decide).
    #[error("the counters are in another replica or in the shared store")]
    Remote,
    /// The shared store cannot be used.
    #[error("the shared store cannot be used; see /readyz")]
    NoStore,
    /// Too many checks of the call, its connection or this replica wait for counters elsewhere. Nothing is charged.
    #[error("too many checks wait for counters elsewhere: nothing was charged, try again later")]
    Overloaded,
}

impl From<Overloaded> for LimiterError {
    fn from(Overloaded: Overloaded) -> Self {
        Self::Overloaded
    }
}
