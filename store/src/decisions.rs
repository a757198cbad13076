//! The decisions on the checks of one call.

use std::{convert::Infallible, ops::Deref};

use smallvec::SmallVec;
use tollgate_counter::algorithm::Decision;

use crate::{Check, Settled};

/// Any number of checks.
pub type Checks<'a> = SmallVec<[Check<'a>; 2]>;

/// The decisions on the checks of one call, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    each: SmallVec<[Decision; 2]>,
    // One for each decision.
    charged: SmallVec<[u64; 2]>,
    // What limits of their own display that have decided, up to the last counter that has one.
    own: Vec<Option<u64>>,
}

/// The decision on the only check of a call. No other check refuses it, so its charge is never taken back.
#[derive(Clone, Copy, Debug)]
pub struct SingleDecision {
    /// The decision.
    pub decision: Decision<Infallible>,
    /// The hits that it has charged; 0 if there was no memory for the counter.
    pub charged: u64,
    /// What the limit of its own displays that has decided; `None` if the numbers of the rule have.
    pub own: Option<u64>,
}

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

impl Decisions {
    /// Decisions, with the hits that each has charged.
    pub fn new(each: SmallVec<[Decision; 2]>, charged: SmallVec<[u64; 2]>) -> Self {
        Self { each, charged, own: Vec::new() }
    }

    /// The decisions with what limits of their own display, in the order of the checks.
    pub fn with_own(mut self, own: impl Iterator<Item = Option<u64>>) -> Self {
        for (index, displayed) in own.enumerate().filter(|(_, displayed)| displayed.is_some()) {
            self.own.resize(index, None);
            self.own.push(displayed);
        }
        self
    }

    /// What the limit of its own displays that has decided a check; `None` if the numbers of the rule have.
    pub fn own(&self, index: usize) -> Option<u64> {
        self.own.get(index).copied().flatten()
    }

    /// The hits that each check has charged, in order; 0 if they were taken back or there was no memory for the
    /// counter.
    pub fn charged(&self) -> &[u64] {
        &self.charged
    }
}

/// The outcomes of a call that holds nothing.
impl From<Decisions> for CounterOutcomes {
    fn from(decisions: Decisions) -> Self {
        Self { decisions, ..Self::default() }
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.each
    }
}
