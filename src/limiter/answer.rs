//! Combines the decisions on the descriptors of a request into one answer.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Verdict},
    cluster::ForwardPolicy,
    rules::{OnOwnerUnavailable, Rule, Unit},
};

/// Modes that apply to all rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// Every descriptor is in quota mode, whatever its rule says.
    #[serde(rename = "quota_mode")]
    pub quota: bool,
    /// A request that would be refused passes nevertheless.
    #[serde(rename = "shadow_mode")]
    pub shadow: bool,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer<'s> {
    /// Whether the request as a whole may pass.
    pub passes: bool,
    /// Whether it passes only because of the shadow mode of all rules.
    pub passes_in_shadow: bool,
    /// The delay before the answer may be sent.
    pub delay: Duration,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'s>; 2]>,
}

/// The answer for one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'s> {
    /// Whether this descriptor is within its limit.
    pub passes: bool,
    /// The limit that was applied, if any.
    pub limit: Option<CurrentLimit<'s>>,
    /// Hits that are left; `u64::MAX` if unlimited.
    pub remaining: u64,
    /// See [`Decision::reset_after`]; `None` without a limit.
    pub reset_after: Option<Duration>,
    /// After a refusal: the time until the same request would pass; `None` if it never would.
    pub retry_after: Option<Duration>,
    /// The rule that was applied; `None` for an override.
    pub rule: Option<&'s Rule>,
    /// Whether the candidate of the rule would have refused. It influences nothing else.
    pub candidate_refuses: bool,
    /// Whether it was decided without the owner of the counter, which could not be reached.
    pub degraded: bool,
}

/// The description of the limit in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'s> {
    /// The rule's name.
    pub name: Option<&'s str>,
    /// Hits in one unit.
    pub requests_per_unit: u64,
    /// The unit; `None` if the window has no unit.
    pub unit: Option<Unit>,
}

impl<'s> Status<'s> {
    /// No limit applies.
    pub(super) fn without_limit() -> Self {
        Self {
            passes: true,
            limit: None,
            remaining: 0,
            reset_after: None,
            retry_after: None,
            rule: None,
            candidate_refuses: false,
            degraded: false,
        }
    }

    /// The rule is unlimited.
    pub(super) fn unlimited(rule: &'s Rule) -> Self {
        Self { remaining: u64::MAX, rule: Some(rule), ..Self::without_limit() }
    }

    /// A rule applies; not decided yet.
    pub(super) fn of_rule(rule: &'s Rule) -> Self {
        let shown = &rule.displayed_limit;
        let limit = CurrentLimit {
            name: rule.name.as_deref(),
            requests_per_unit: shown.requests_per_unit,
            unit: shown.unit,
        };
        Self { limit: Some(limit), rule: Some(rule), ..Self::without_limit() }
    }

    /// The override of the caller applies; not decided yet.
    pub(super) fn of_override(limit: CurrentLimit<'s>) -> Self {
        Self { limit: Some(limit), ..Self::without_limit() }
    }

    /// Whether a refusal refuses the request only if all other descriptors in quota mode are refused too.
    pub fn in_quota_mode(&self, modes: Modes) -> bool {
        modes.quota || self.rule.is_some_and(|rule| rule.quota_mode)
    }

    /// The name of the rule, or its path if it has none; `override` without a rule.
    pub fn name(&self) -> &'s str {
        self.rule.map_or("override", |rule| rule.name.as_deref().unwrap_or(&rule.path))
    }

    /// The settings of the rule for a counter of another owner.
    pub(super) fn wish(&self) -> ForwardPolicy {
        match self.rule {
            Some(rule) => {
                ForwardPolicy { on_owner_unavailable: rule.on_owner_unavailable, lease: rule.lease }
            }
            None => ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::default(), lease: true },
        }
    }

    /// Whether the rule is unlimited.
    fn is_unlimited(&self) -> bool {
        self.rule.is_some() && self.limit.is_none()
    }

    fn in_shadow_mode(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    fn decide<R>(&mut self, decision: &Decision<R>) {
        self.passes = self.in_shadow_mode() || decision.verdict.passes();
        self.remaining = decision.remaining;
        self.reset_after = Some(decision.reset_after);
        self.retry_after = match decision.verdict {
            Verdict::Refuse { retry_after } if !self.passes => retry_after,
            Verdict::Refuse { .. } | Verdict::Pass | Verdict::Delay(_) => None,
        };
    }
}

/// Whether the decisions refuse the request: one refusal suffices, except that descriptors in quota mode refuse only
/// if all of them are refused. `status_indexes` assigns each decision to a status.
pub(super) fn refuses(
    modes: Modes,
    statuses: &[Status<'_>],
    status_indexes: &[usize],
    decisions: &[Decision],
) -> bool {
    let (mut quotas, mut exhausted) = (0, 0);
    for (status, decision) in status_indexes.iter().map(|index| &statuses[*index]).zip(decisions) {
        let passes = status.in_shadow_mode() || decision.verdict.passes();
        if status.in_quota_mode(modes) {
            quotas += 1;
            exhausted += usize::from(!passes);
        } else if !passes {
            return true;
        }
    }
    // A descriptor without a limit is never exhausted; an unlimited one is ignored.
    let endless = || statuses.iter().any(|status| status.limit.is_none() && !status.is_unlimited());
    quotas > 0 && quotas == exhausted && !(modes.quota && endless())
}

impl<'s> Answer<'s> {
    /// The answer if no limit applies to any descriptor.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let statuses = SmallVec::from_elem(Status::without_limit(), descriptors);
        Self { passes: true, passes_in_shadow: false, delay: Duration::ZERO, statuses }
    }

    /// The same as [`Self::fold`] for the only descriptor of a request.
    // `inline(always)`: an answer is too large to move.
    #[inline(always)]
    pub(super) fn of_one<R>(modes: Modes, rule: &'s Rule, decision: &Decision<R>) -> Self {
        let mut status = Status::of_rule(rule);
        status.decide(decision);
        // The only descriptor is also the only one in quota mode.
        let refused = !status.passes;
        let delay = match decision.verdict {
            Verdict::Delay(turn) if !rule.shadow_mode => turn,
            Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => Duration::ZERO,
        };
        let mut statuses = SmallVec::new();
        statuses.push(status);
        Self { passes: !refused || modes.shadow, passes_in_shadow: refused && modes.shadow, delay, statuses }
    }

    /// The answer from `decisions`, each on the status at the same position of `status_indexes`.
    pub(super) fn fold(
        modes: Modes,
        mut statuses: SmallVec<[Status<'s>; 2]>,
        status_indexes: &[usize],
        decisions: &[Decision],
    ) -> Self {
        let refused = refuses(modes, &statuses, status_indexes, decisions);
        let mut delay = Duration::ZERO;
        for (index, decision) in status_indexes.iter().zip(decisions) {
            statuses[*index].decide(decision);
            match decision.verdict {
                // Neither a shadow rule nor a refused request delays the answer.
                Verdict::Delay(turn) if !refused && !statuses[*index].in_shadow_mode() => {
                    delay = delay.max(turn);
                }
                Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => {}
            }
        }
        Self { passes: !refused || modes.shadow, passes_in_shadow: refused && modes.shadow, delay, statuses }
    }
}
