//! Where counters live: a check goes in, a decision comes out.

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

/// One question to one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Which counter.
    pub key: Key,
    /// The limit that it is held against.
    pub limit: &'a Limit,
    /// What is wanted of it.
    pub operation: Operation,
    /// What becomes of the charge where the call as a whole is refused for another check.
    pub on_refusal: OnRefusal,
}

/// What becomes of a charge that passed in a call that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// It stays.
    Keep,
    /// It is taken back.
    TakeBack,
}

/// What becomes of a charge to a new key for which there is no memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, uncounted.
    Allow,
}

/// The answers to the checks of one call, in their order.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    each: SmallVec<[Decision; 2]>,
    // One for each decision.
    charged: SmallVec<[u64; 2]>,
}

impl Decisions {
    /// Decisions, and the hits that each has charged.
    pub(crate) fn new(each: SmallVec<[Decision; 2]>, charged: SmallVec<[u64; 2]>) -> Self {
        debug_assert_eq!(each.len(), charged.len());
        Self { each, charged }
    }

    /// The hits that each check has charged to its counter, in their order; 0 where they were taken back or there
    /// was no memory for the counter.
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
