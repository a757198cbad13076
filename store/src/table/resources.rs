//! The resources that all tables share, and what is counted of them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tollgate_counter::metrics::MetricCounter;

use crate::{budget::Budget, side_data::SideDataSize};

/// The resources that all tables share.
#[derive(Debug)]
pub(crate) struct TableResources {
    pub(crate) budget: Arc<Budget>,
    /// The number of tables.
    pub(crate) tables: usize,
    pub(crate) evicted_idle: MetricCounter,
    pub(crate) evicted_unexpired: MetricCounter,
    pub(crate) holds: HoldTotals,
    /// Counters with a limit of their own.
    pub(crate) own_limits: AtomicUsize,
    /// The bytes of limits of their own.
    pub(crate) own_limit_bytes: AtomicUsize,
    /// Penalties that began.
    pub(crate) penalties: MetricCounter,
    /// Refusals of limits with a penalty that were not recorded for lack of memory.
    pub(crate) refusals_unrecorded: MetricCounter,
}

/// What all holds take, and what happened to them.
#[derive(Debug, Default)]
pub(crate) struct HoldTotals {
    pub(crate) open: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
    pub(crate) released: MetricCounter,
    pub(crate) charged: MetricCounter,
    pub(crate) exhausted: MetricCounter,
    /// Ids that were forgotten because a counter had too many.
    pub(crate) forgotten: MetricCounter,
}

impl TableResources {
    /// Unused resources of so many tables.
    pub(crate) fn new(budget: Budget, tables: usize) -> Self {
        Self {
            budget: Arc::new(budget),
            tables,
            evicted_idle: MetricCounter::default(),
            evicted_unexpired: MetricCounter::default(),
            holds: HoldTotals::default(),
            own_limits: AtomicUsize::new(0),
            own_limit_bytes: AtomicUsize::new(0),
            penalties: MetricCounter::default(),
            refusals_unrecorded: MetricCounter::default(),
        }
    }

    /// Counts the penalties that have begun. There are fewer than before if some were forgotten.
    pub(crate) fn add_penalties(&self, before: u32, after: u32) {
        if before < after {
            self.penalties.add((after - before).into());
        }
    }

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
