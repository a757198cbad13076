//! The decisions on the checks of one call.

use std::ops::Deref;

use smallvec::SmallVec;
use tollgate_counter::algorithm::{Decision, Receipt};

use crate::reservation::Settled;

/// The decision on one check of a call, read like the decision itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckDecision<R = Receipt> {
    /// The decision.
    pub decision: Decision<R>,
    /// The hits that the check has charged; 0 if they were taken back or there was no memory for the counter.
    pub charged: u64,
    /// What the limit of its own displays that has decided; `None` if the numbers of the rule have.
    pub own: Option<u64>,
}

/// The decisions on the checks of one call, in the order of the checks.
pub type Decisions = SmallVec<[CheckDecision; 2]>;

/// What the counters of a call have answered, here or elsewhere.
#[derive(Clone, Debug, Default)]
pub struct CounterOutcomes {
    /// The decisions, in the order of the checks; none of a settlement.
    pub decisions: Decisions,
    /// For each decision, whether it was made without the counter, which could not be reached. Empty if none was.
    pub degraded: SmallVec<[bool; 2]>,
    /// Whether everything is held. Otherwise nothing is.
    pub is_held: bool,
    /// Whether the id is known and a hold of it has ended: this call holds nothing for it.
    pub has_ended: bool,
    /// How each check was settled, if the call was a settlement.
    pub settled: SmallVec<[Settled; 2]>,
}

/// The outcomes of a call that holds nothing.
impl From<Decisions> for CounterOutcomes {
    fn from(decisions: Decisions) -> Self {
        Self { decisions, ..Self::default() }
    }
}

impl<R> Deref for CheckDecision<R> {
    type Target = Decision<R>;

    #[inline(always)]
    fn deref(&self) -> &Decision<R> {
        &self.decision
    }
}
