//! The decisions on the checks of one call.

use std::{convert::Infallible, ops::Deref};

use smallvec::SmallVec;
use tollgate_counter::algorithm::Decision;

use crate::Check;

/// Any number of checks.
pub type Checks<'a> = SmallVec<[Check<'a>; 2]>;

/// The decisions on the checks of one call, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    each: SmallVec<[Decision; 2]>,
    // One for each decision.
    charged: SmallVec<[u64; 2]>,
}

/// The decision on the only check of a call. No other check refuses it, so its charge is never taken back.
#[derive(Clone, Copy, Debug)]
pub struct SingleDecision<R = Infallible> {
    /// The decision.
    pub decision: Decision<R>,
    /// The hits that it has charged; 0 if there was no memory for the counter.
    pub charged: u64,
}

/// The decisions of a check set that were made elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteDecisions {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// For each decision, whether it was made without the counter, which could not be reached.
    pub degraded: SmallVec<[bool; 2]>,
}

/// The answer to a reservation.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// Whether everything is held. Otherwise nothing is.
    pub is_held: bool,
    /// Whether the id is known and a hold of it has ended: this call holds nothing for it.
    pub has_ended: bool,
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
}

impl Decisions {
    /// Decisions, with the hits that each has charged.
    pub fn new(each: SmallVec<[Decision; 2]>, charged: SmallVec<[u64; 2]>) -> Self {
        Self { each, charged }
    }

    /// The hits that each check has charged, in order; 0 if they were taken back or there was no memory for the
    /// counter.
    pub fn charged(&self) -> &[u64] {
        &self.charged
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.each
    }
}
