//! Checks of counters, and how the decisions on a check set refuse a call.

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
};

use crate::decisions::CheckDecision;

/// A check of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The counter.
    pub key: Key,
    /// The limit.
    pub limit: &'a Limit,
    /// The operation on the counter.
    pub operation: Operation,
    /// What happens to the charge if another check refuses the call.
    pub on_refusal: OnRefusal,
    /// Where the limit comes from.
    pub origin: LimitOrigin,
}

/// Any number of checks.
pub type Checks<'a> = SmallVec<[Check<'a>; 2]>;

/// Where the limit of a check comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOrigin {
    /// A rule has the limit. If the counter has a limit of its own, that decides instead.
    Rule,
    /// The request itself has the limit. It decides whatever the counter has.
    Request,
}

impl LimitOrigin {
    /// The limit of its own that decides in place of the limit of the check.
    pub fn replaced_by<T>(self, own: Option<T>) -> Option<T> {
        match self {
            Self::Rule => own,
            Self::Request => None,
        }
    }
}

impl Check<'_> {
    /// The hits that the check charges; 0 if it peeks or refunds.
    pub fn hits(&self) -> u64 {
        match self.operation {
            Operation::Charge(hits) => hits,
            Operation::Peek | Operation::Refund(_) => 0,
        }
    }

    /// The hits that the check refunds; 0 if it peeks or charges.
    pub fn refunded(&self) -> u64 {
        match self.operation {
            Operation::Refund(hits) => hits,
            Operation::Peek | Operation::Charge(_) => 0,
        }
    }
}

/// What happens to a passed charge of a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// The charge stays.
    Keep,
    /// The charge is taken back.
    TakeBack,
}

/// What happens to a charge to a new key without memory for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Refuse the charge.
    #[default]
    Deny,
    /// Let the charge pass without counting it.
    Allow,
}

/// What the decision on a check means for the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckRole {
    /// The check never refuses (`shadow_mode`).
    pub is_shadow: bool,
    /// The check refuses only together with all others in quota mode.
    pub is_quota: bool,
}

/// The roles of the deciding checks of a call. Further checks, of candidates, decide nothing.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// The role of each deciding check.
    pub roles: SmallVec<[CheckRole; 2]>,
    /// Whether exhausted quotas refuse the call. They do not if something else of the call is without a limit.
    pub do_quotas_refuse: bool,
}

impl Refusal {
    /// Whether `decisions` refuse the call.
    pub fn is_refused(&self, decisions: &[CheckDecision]) -> bool {
        refuses(self.roles.iter().copied(), decisions, || self.do_quotas_refuse)
    }
}

/// Whether decisions with these roles refuse the call. One refusal suffices, except that checks in quota mode refuse
/// only if all of them are refused and `do_quotas_refuse`.
// `inline(always)`: part of every decision.
#[inline(always)]
pub fn refuses<R>(
    roles: impl IntoIterator<Item = CheckRole>,
    decisions: &[CheckDecision<R>],
    do_quotas_refuse: impl FnOnce() -> bool,
) -> bool {
    let mut quotas = 0;
    let mut exhausted = 0;
    for (role, decision) in roles.into_iter().zip(decisions) {
        let passes = role.is_shadow || decision.verdict.passes();
        if role.is_quota {
            quotas += 1;
            exhausted += usize::from(!passes);
        } else if !passes {
            return true;
        }
    }
    quotas > 0 && quotas == exhausted && do_quotas_refuse()
}
