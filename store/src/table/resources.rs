//! The resources that all tables share, and what is counted of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::{budget::Budget, side_data::SideDataSize};

/// The resources that all tables share.
#[derive(Debug)]
pub(crate) struct TableResources {
    pub(crate) budget: Arc<Budget>,
    /// The number of tables.
    pub(crate) tables: usize,
    pub(crate) evicted_idle: EventCounter,
    pub(crate) evicted_unexpired: EventCounter,
    pub(crate) holds: HoldTotals,
    /// Counters with a limit of their own.
    pub(crate) own_limits: AtomicUsize,
    /// The bytes of limits of their own.
    pub(crate) own_limit_bytes: AtomicUsize,
    /// Penalties that began.
    pub(crate) penalties: EventCounter,
    /// Refusals of limits with a penalty that were not recorded for lack of memory.
    pub(crate) refusals_unrecorded: EventCounter,
}

/// What all holds take, and what happened to them.
#[derive(Debug, Default)]
pub(crate) struct HoldTotals {
    pub(crate) open: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
    pub(crate) released: EventCounter,
    pub(crate) charged: EventCounter,
    pub(crate) exhausted: EventCounter,
    /// Ids that were forgotten because a counter had too many.
    pub(crate) forgotten: EventCounter,
}

/// A counter of events.
#[derive(Debug, Default)]
pub(crate) struct EventCounter(AtomicU64);

impl TableResources {
    /// Records that the side data of a counter has changed.
    pub(crate) fn change_side_data(&self, before: SideDataSize, after: SideDataSize) {
        self.budget.change(before.bytes, after.bytes);
        for (total, before, after) in [
            (&self.holds.open, before.open_holds, after.open_holds),
            (&self.holds.bytes, before.hold_bytes, after.hold_bytes),
            (&self.own_limits, before.own_limits, after.own_limits),
            (&self.own_limit_bytes, before.own_bytes, after.own_bytes),
        ] {
            // Both at once: the difference may be negative.
            total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

impl EventCounter {
    /// Adds the difference of two numbers of penalties. It is negative if some were forgotten.
    pub(crate) fn add_penalties(&self, before: u32, after: u32) {
        if before < after {
            self.add((after - before) as usize);
        }
    }

    pub(crate) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
