//! Checks of counters.

use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
};

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

impl Check<'_> {
    /// The hits of its charge.
    pub fn hits(&self) -> u64 {
        match self.operation {
            Operation::Charge(hits) => hits,
            Operation::Peek | Operation::Refund(_) => 0,
        }
    }

    /// The hits of its refund.
    pub fn refunded(&self) -> u64 {
        match self.operation {
            Operation::Refund(hits) => hits,
            Operation::Peek | Operation::Charge(_) => 0,
        }
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Refuse it.
    #[default]
    Deny,
    /// Let it pass without counting it.
    Allow,
}
