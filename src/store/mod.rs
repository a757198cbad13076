//! The store of counters: it takes checks and returns decisions.

use std::ops::Deref;

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Limit, Operation},
    descriptor::Key,
};

mod budget;
mod memory;
mod packed_counter;
mod persistence;
mod slot;
mod slot_data;
mod snapshot;
mod table;

pub use budget::BYTES_MIN;
pub use memory::{
    CounterState, DryRun, Lead, Memory, NotLocal, Replacement, SingleDecision, StoreStats, UsedHits, sweep,
};
pub use persistence::{Epochs, Persistence, Settings};
pub use slot::{SLOTS, Slot};
pub use slot_data::{Changes, DecodeError, PendingUsage, SlotData};
pub use snapshot::{SnapshotError, StoredSlot};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Refuse it.
    #[default]
    Deny,
    /// Let it pass without counting it.
    Allow,
}

/// The decisions on a check set, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    each: SmallVec<[Decision; 2]>,
    // One for each decision.
    charged: SmallVec<[u64; 2]>,
}

impl Decisions {
    /// Decisions, with the hits that each has charged.
    pub(crate) fn new(each: SmallVec<[Decision; 2]>, charged: SmallVec<[u64; 2]>) -> Self {
        debug_assert_eq!(each.len(), charged.len());
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
