//! Where counters live: a check goes in, a decision comes out.

use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Decision, Limit},
    descriptor::Key,
};

mod budget;
mod cell;
mod keeping;
mod memory;
mod snapshot;
mod table;

pub use budget::{BYTES_MIN, machine_memory};
pub use keeping::{Keeping, Settings};
pub use memory::{Figures, Kept, Memory, Rehearsal, Replaced, sweep};
pub use snapshot::SnapshotError;

/// One question to one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Which counter.
    pub key: Key,
    /// The limit that it is held against.
    pub limit: &'a Limit,
    /// What is wanted of it.
    pub ask: Ask,
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
pub type Decisions = SmallVec<[Decision; 2]>;
