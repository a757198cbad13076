//! Folds the decisions on each descriptor into the answer to the request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Verdict},
    cluster::Wish,
    rules::{OnOwnerUnavailable, Rule, Unit},
};

/// How decisions are folded, for all rules alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Modes {
    /// Every descriptor is in quota mode, whatever its rule says.
    #[serde(rename = "quota_mode")]
    pub quota: bool,
    /// A request that would be refused passes all the same.
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
    /// How long the caller has to be kept waiting for this answer.
    pub delay: Duration,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'s>; 2]>,
}

/// The answer for one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Status<'s> {
    /// Whether this descriptor is within its limit.
    pub passes: bool,
    /// The limit it was held against, if any.
    pub limit: Option<CurrentLimit<'s>>,
    /// Hits that are left; `u64::MAX` where there is no end of them.
    pub remaining: u64,
    /// See [`Decision::reset_after`]; `None` without a limit.
    pub reset_after: Option<Duration>,
    /// Of a refusal: when the same would pass; `None` where it never would.
    pub retry_after: Option<Duration>,
    /// The rule that decided. An override has none.
    pub rule: Option<&'s Rule>,
    /// Whether the rule's candidate would have refused. It has no say in anything else.
    pub candidate_refuses: bool,
    /// Whether it was decided without the replica that holds the counter, which could not be reached.
    pub degraded: bool,
}

/// What a status says of the limit in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'s> {
    /// The rule's name.
    pub name: Option<&'s str>,
    /// Hits in one unit.
    pub requests_per_unit: u64,
    /// The unit; `None` for a length of time that has no name.
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

    /// A rule says that nothing is limited.
    pub(super) fn unlimited(rule: &'s Rule) -> Self {
        Self { remaining: u64::MAX, rule: Some(rule), ..Self::without_limit() }
    }

    /// A rule applies, and is yet to be decided.
    pub(super) fn of_rule(rule: &'s Rule) -> Self {
        let shown = &rule.displayed_limit;
        let limit = CurrentLimit {
            name: rule.name.as_deref(),
            requests_per_unit: shown.requests_per_unit,
            unit: shown.unit,
        };
        Self { limit: Some(limit), rule: Some(rule), ..Self::without_limit() }
    }

    /// The caller's own limit applies, and is yet to be decided.
    pub(super) fn of_override(limit: CurrentLimit<'s>) -> Self {
        Self { limit: Some(limit), ..Self::without_limit() }
    }

    /// Whether its refusal refuses the request only together with all others in quota mode.
    pub fn in_quota_mode(&self, modes: Modes) -> bool {
        modes.quota || self.rule.is_some_and(|rule| rule.quota_mode)
    }

    /// What to call whoever decided: the rule by its name, or by its path; `override` where there was none.
    pub fn name(&self) -> &'s str {
        self.rule.map_or("override", |rule| rule.name.as_deref().unwrap_or(&rule.path))
    }

    /// What its rule says of a counter that another replica holds.
    pub(super) fn wish(&self) -> Wish {
        match self.rule {
            Some(rule) => Wish { otherwise: rule.on_owner_unavailable, lease: rule.lease },
            None => Wish { otherwise: OnOwnerUnavailable::default(), lease: true },
        }
    }

    /// Whether its rule lets everything pass.
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

/// Whether decisions refuse the request as a whole: one refusal is enough, but of the descriptors in quota mode
/// all have to be refused. `places` says which of the statuses each decision is on.
pub(super) fn refuses(
    modes: Modes,
    statuses: &[Status<'_>],
    places: &[usize],
    decisions: &[Decision],
) -> bool {
    let (mut quotas, mut exhausted) = (0, 0);
    for (status, decision) in places.iter().map(|place| &statuses[*place]).zip(decisions) {
        let passes = status.in_shadow_mode() || decision.verdict.passes();
        if status.in_quota_mode(modes) {
            quotas += 1;
            exhausted += usize::from(!passes);
        } else if !passes {
            return true;
        }
    }
    // A descriptor without a limit is never exhausted; one that is unlimited does not take part.
    let endless = || statuses.iter().any(|status| status.limit.is_none() && !status.is_unlimited());
    0 < quotas && quotas == exhausted && !(modes.quota && endless())
}

impl<'s> Answer<'s> {
    /// The answer where no limit applies to any of the descriptors.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let statuses = SmallVec::from_elem(Status::without_limit(), descriptors);
        Self { passes: true, passes_in_shadow: false, delay: Duration::ZERO, statuses }
    }

    /// What [`Self::fold`] makes of one decision, on the only descriptor that there is.
    // Always: an answer is too large to be handed on from place to place.
    #[inline(always)]
    pub(super) fn of_one<R>(modes: Modes, rule: &'s Rule, decision: &Decision<R>) -> Self {
        let mut status = Status::of_rule(rule);
        status.decide(decision);
        // In quota mode it is all that there is, too.
        let refused = !status.passes;
        let delay = match decision.verdict {
            Verdict::Delay(turn) if !rule.shadow_mode => turn,
            Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => Duration::ZERO,
        };
        let mut statuses = SmallVec::new();
        statuses.push(status);
        Self { passes: !refused || modes.shadow, passes_in_shadow: refused && modes.shadow, delay, statuses }
    }

    /// The answer made of `decisions`, each on the status at the same position of `places`.
    pub(super) fn fold(
        modes: Modes,
        mut statuses: SmallVec<[Status<'s>; 2]>,
        places: &[usize],
        decisions: &[Decision],
    ) -> Self {
        let refused = refuses(modes, &statuses, places, decisions);
        let mut delay = Duration::ZERO;
        for (place, decision) in places.iter().zip(decisions) {
            statuses[*place].decide(decision);
            match decision.verdict {
                // A rule that only counts keeps nobody waiting, nor does one of a call that is refused.
                Verdict::Delay(turn) if !refused && !statuses[*place].in_shadow_mode() => {
                    delay = delay.max(turn);
                }
                Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => {}
            }
        }
        Self { passes: !refused || modes.shadow, passes_in_shadow: refused && modes.shadow, delay, statuses }
    }
}
