//! The resources that all tables share, and what is counted of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::store::{budget::Budget, holds::HoldSize};

/// The resources that all tables share.
#[derive(Debug)]
pub(in crate::store) struct TableResources {
    pub(in crate::store) budget: Arc<Budget>,
    /// The number of tables.
    pub(in crate::store) tables: usize,
    pub(in crate::store) evicted_idle: EventCounter,
    pub(in crate::store) evicted_unexpired: EventCounter,
    pub(in crate::store) holds: HoldTotals,
    /// Penalties that began.
    pub(in crate::store) penalties: EventCounter,
    /// Refusals of limits with a penalty that were not recorded for lack of memory.
    pub(in crate::store) refusals_unrecorded: EventCounter,
}

/// What all holds take, and what happened to them.
#[derive(Debug, Default)]
pub(in crate::store) struct HoldTotals {
    pub(in crate::store) open: AtomicUsize,
    pub(in crate::store) bytes: AtomicUsize,
    pub(in crate::store) released: EventCounter,
    pub(in crate::store) charged: EventCounter,
    pub(in crate::store) exhausted: EventCounter,
    /// Ids that were forgotten because a counter had too many.
    pub(in crate::store) forgotten: EventCounter,
}

/// A counter of events.
#[derive(Debug, Default)]
pub(in crate::store) struct EventCounter(AtomicU64);

impl TableResources {
    /// Records that the holds of a counter have changed.
    pub(in crate::store) fn change_holds(&self, before: HoldSize, after: HoldSize) {
        self.budget.change(before.bytes, after.bytes);
        for (total, before, after) in
            [(&self.holds.open, before.open, after.open), (&self.holds.bytes, before.bytes, after.bytes)]
        {
            // Both at once: the difference may be negative.
            total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

impl EventCounter {
    /// Adds the difference of two numbers of penalties. It is negative if some were forgotten.
    pub(in crate::store) fn add_penalties(&self, before: u32, after: u32) {
        if before < after {
            self.add((after - before) as usize);
        }
    }

    pub(in crate::store) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(in crate::store) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
