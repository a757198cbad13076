//! Where the decisions of a request come from.

use std::{sync::Arc, time::Duration};

use tollgate_counter::time::ClockReading;
use tollgate_remote::{CounterChecks, DecidedBy, RemoteOutcome, RemoteOutcomes};
use tollgate_rules::KeyedRules;
use tollgate_store::{Check, Refusal, SingleDecision};

/// A request whose counters are elsewhere: the view that it is decided by, and the operations on its counters. It does
/// not borrow the request, so that it is small while it waits.
#[derive(Debug)]
pub struct Elsewhere {
    pub(super) rules: Arc<KeyedRules>,
    pub(super) reading: ClockReading,
    pub(super) checks: CounterChecks,
    // The number of the rule of the only check, if it counts under its path alone.
    pub(super) plain_rule: Option<usize>,
    pub(super) refusal: Refusal,
    pub(super) timeout: Option<Duration>,
}

/// A request that was decided elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct DecidedElsewhere<'d> {
    /// The operations on its counters.
    pub planned: &'d Elsewhere,
    /// The outcomes of these operations.
    pub outcomes: &'d RemoteOutcomes,
}

/// Where the decisions of a request come from.
#[derive(Debug)]
pub(super) enum DecisionSource<'d> {
    /// The memory of this process. If the counters are elsewhere, they may be planned.
    Here(Option<&'d mut Option<Box<Elsewhere>>>),
    /// The decisions were made elsewhere.
    Decided(DecidedElsewhere<'d>),
}

impl<'d> DecisionSource<'d> {
    /// The decisions that were made elsewhere.
    #[inline(always)]
    pub(super) fn decided(&self) -> Option<DecidedElsewhere<'d>> {
        match self {
            Self::Here(_) => None,
            Self::Decided(decided) => Some(*decided),
        }
    }
}

impl<'d> DecidedElsewhere<'d> {
    /// The only check of the request, its decision, and whether it was decided without the counter. `None` unless there is
    /// exactly one check.
    #[inline(always)]
    pub(super) fn single(self) -> Option<(Check<'d>, SingleDecision, bool)> {
        let ([check], [RemoteOutcome { outcome, decided_by }]) = (&*self.planned.checks, &**self.outcomes)
        else {
            return None;
        };
        let decision = outcome.decision.keep_receipt(|_| None);
        let decided = SingleDecision { decision, charged: outcome.charged };
        Some((check.to_check(), decided, *decided_by == DecidedBy::Degraded))
    }
}
