//! Folds the decisions on each descriptor into the answer to the request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Verdict},
    rules::{Rule, Unit},
};

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer<'s> {
    /// Whether the request as a whole may pass.
    pub passes: bool,
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
    /// The rule that decided. An override has none.
    pub rule: Option<&'s Rule>,
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
        Self { passes: true, limit: None, remaining: 0, reset_after: None, rule: None }
    }

    /// A rule says that nothing is limited.
    pub(super) fn unlimited(rule: &'s Rule) -> Self {
        Self { remaining: u64::MAX, rule: Some(rule), ..Self::without_limit() }
    }

    /// A rule applies, and is yet to be decided.
    pub(super) fn of_rule(rule: &'s Rule) -> Self {
        let shown = &rule.shown;
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

    fn in_quota_mode(&self) -> bool {
        self.rule.is_some_and(|rule| rule.quota_mode)
    }

    fn in_shadow_mode(&self) -> bool {
        self.rule.is_some_and(|rule| rule.shadow_mode)
    }

    fn decide(&mut self, decision: &Decision) {
        self.passes = self.in_shadow_mode() || decision.verdict.passes();
        self.remaining = decision.remaining;
        self.reset_after = Some(decision.reset_after);
    }
}

/// Whether these decisions refuse the request as a whole: one refusal is enough, but of the rules in quota mode
/// all have to refuse.
pub(super) fn refuses<'a>(decided: impl Iterator<Item = (&'a Status<'a>, &'a Decision)>) -> bool {
    let (mut quotas, mut exhausted) = (0, 0);
    for (status, decision) in decided {
        let passes = status.in_shadow_mode() || decision.verdict.passes();
        if status.in_quota_mode() {
            quotas += 1;
            exhausted += usize::from(!passes);
        } else if !passes {
            return true;
        }
    }
    0 < quotas && quotas == exhausted
}

impl<'s> Answer<'s> {
    /// The answer where no limit applies to any of the descriptors.
    pub(super) fn without_limits(descriptors: usize) -> Self {
        let statuses = SmallVec::from_elem(Status::without_limit(), descriptors);
        Self { passes: true, delay: Duration::ZERO, statuses }
    }

    /// The answer made of `decisions`, each on the status at the same position of `places`.
    pub(super) fn fold(
        mut statuses: SmallVec<[Status<'s>; 2]>,
        places: &[usize],
        decisions: &[Decision],
    ) -> Self {
        let passes = !refuses(places.iter().map(|place| &statuses[*place]).zip(decisions));
        let mut delay = Duration::ZERO;
        for (place, decision) in places.iter().zip(decisions) {
            statuses[*place].decide(decision);
            match decision.verdict {
                // A rule that only counts keeps nobody waiting, nor does one of a call that is refused.
                Verdict::Delay(turn) if passes && !statuses[*place].in_shadow_mode() => {
                    delay = delay.max(turn);
                }
                Verdict::Delay(_) | Verdict::Pass | Verdict::Refuse { .. } => {}
            }
        }
        Self { passes, delay, statuses }
    }
}
