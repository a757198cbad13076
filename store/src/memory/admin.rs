//! What operators see of counters: their states, and the decisions that a check set would get.

use smallvec::SmallVec;
use tollgate_counter::{
    algorithm::{Decision, Limit},
    time::Timestamp,
};

use crate::{
    OwnTerms,
    decisions::Decisions,
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
    /// What a peek does not tell.
    pub details: CounterDetails,
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
        Self { idle_at: idle_at.max(remembered), peek, details }
    }

    /// The limit of its own that decides.
    pub fn own_terms(&self) -> Option<&OwnTerms> {
        self.details.own_limit.as_ref()?.terms.as_ref()
    }
}
