//! What operators see of counters: their states, and the decisions that a check set would get.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Limit, PenaltyState},
    time::Timestamp,
};

use crate::{
    Decisions, OpenHolds, OwnLimitState, OwnTerms, Subscribers,
    operation::{CounterDetails, HoldOutcome, OperationOutcome},
};

/// The decisions that a check set would get, with the state of its counters.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// The states of the counters, in the order of the checks.
    pub before: SmallVec<[CounterState; 2]>,
}

/// The state of one counter.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterState {
    /// The instant from which the counter may be evicted; `None` if there is no counter, or an idle one.
    pub idle_at: Option<Timestamp>,
    /// The answer to a peek.
    pub peek: Decision,
    /// The open holds, if the caller requests them.
    pub holds: Arc<OpenHolds>,
    /// The record of refusals, if the caller requests it.
    pub penalty: Option<PenaltyState>,
    /// Clients with parts of the limit, if a replica of a cluster divides it.
    pub subscribers: Option<Arc<Subscribers>>,
    /// The limit of its own.
    pub own_limit: Option<OwnLimitState>,
}

/// A counter before and after its replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The counter before its replacement.
    pub before: CounterState,
    /// The counter after its replacement.
    pub after: CounterState,
}

impl CounterState {
    /// The state of a counter elsewhere from the outcome of a peek at `now`.
    pub fn from_outcome(limit: &Limit, outcome: &OperationOutcome, now: Timestamp) -> Self {
        let peek = outcome.decision;
        let shown = if let HoldOutcome::Shown(shown) = &outcome.hold { Some(&**shown) } else { None };
        let details = shown.cloned().unwrap_or_default();
        let own = details.own_limit.as_ref().filter(|_| outcome.own.is_some());
        let limit = own.and_then(|own| own.terms.as_ref()).map_or(limit, |own| &own.limit);
        let is_used = peek.remaining < limit.allowance() && !peek.reset_after.is_zero();
        let idle_at = is_used.then(|| now.after(peek.reset_after));
        let remembered = details.penalty.map(|penalty| now.after(penalty.forgotten_after));
        Self::new(idle_at.max(remembered), peek, details)
    }

    pub(super) fn new(idle_at: Option<Timestamp>, peek: Decision, details: CounterDetails) -> Self {
        let CounterDetails { holds, penalty, subscribers, own_limit } = details;
        Self { idle_at, peek, holds, penalty, subscribers, own_limit }
    }

    /// The limit of its own that decides.
    pub fn own_terms(&self) -> Option<&OwnTerms> {
        self.own_limit.as_ref()?.terms.as_ref()
    }
}
