//! Where counters live: a check goes in, a decision comes out.

use smallvec::SmallVec;

use crate::{
    algorithm::{Ask, Decision, Limit},
    descriptor::Key,
};

mod memory;

pub use memory::{Memory, sweep};

/// One question to one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Which counter.
    pub key: Key,
    /// The limit that it is held against.
    pub limit: &'a Limit,
    /// What is wanted of it.
    pub ask: Ask,
}

/// The answers to the checks of one call, in their order.
pub type Decisions = SmallVec<[Decision; 2]>;
