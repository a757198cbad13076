//! The decisions on the checks of one call.

use std::{convert::Infallible, ops::Deref};

use smallvec::SmallVec;
use tollgate_counter::algorithm::Decision;

use crate::{Check, OwnTerms};

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

impl Reserved {
    /// The answer with the limits of their own that have decided, in the order of the checks.
    pub fn with_own(self, own: &[Option<OwnTerms>]) -> Self {
        let displayed = own.iter().map(|own| own.as_ref().map(|own| own.requests_per_unit));
        Self { decisions: self.decisions.with_own(displayed), ..self }
    }
}

impl Deref for Decisions {
    type Target = [Decision];

    fn deref(&self) -> &[Decision] {
        &self.each
    }
}
