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
    pub(crate) events: CounterEvents,
    pub(crate) open_holds: AtomicUsize,
    pub(crate) hold_bytes: AtomicUsize,
    /// Counters with a limit of their own.
    pub(crate) own_limits: AtomicUsize,
    /// The bytes of limits of their own.
    pub(crate) own_limit_bytes: AtomicUsize,
    /// Refusals of limits with a penalty that were not recorded for lack of memory.
    pub(crate) refusals_unrecorded: MetricCounter,
}

/// What happened to counters, in this store or by this replica in a shared one.
#[derive(Debug, Default)]
pub struct CounterEvents {
    /// Reservations that their expiry released.
    pub holds_released: MetricCounter,
    /// Reservations that their expiry charged.
    pub holds_charged: MetricCounter,
    /// Reservations that were refused because there were too many.
    pub holds_exhausted: MetricCounter,
    /// Ids of ended reservations that were forgotten because their counter had too many.
    pub ids_forgotten: MetricCounter,
    /// Penalties that began.
    pub penalties: MetricCounter,
}

impl TableResources {
    /// Unused resources of so many tables.
    pub(crate) fn new(budget: Budget, tables: usize) -> Self {
        Self {
            budget: Arc::new(budget),
            tables,
            evicted_idle: MetricCounter::default(),
            evicted_unexpired: MetricCounter::default(),
            events: CounterEvents::default(),
            open_holds: AtomicUsize::new(0),
            hold_bytes: AtomicUsize::new(0),
            own_limits: AtomicUsize::new(0),
            own_limit_bytes: AtomicUsize::new(0),
            refusals_unrecorded: MetricCounter::default(),
        }
    }

    /// Counts the penalties that have begun. There are fewer than before if some were forgotten.
    pub(crate) fn add_penalties(&self, before: u32, after: u32) {
        if before < after {
            self.events.penalties.add((after - before).into());
        }
    }

    /// Records that the side data of a counter has changed.
    pub(crate) fn change_side_data(&self, before: SideDataSize, after: SideDataSize) {
        self.budget.change(before.bytes, after.bytes);
        for (total, before, after) in [
            (&self.open_holds, before.open_holds, after.open_holds),
            (&self.hold_bytes, before.hold_bytes, after.hold_bytes),
            (&self.own_limits, before.own_limits, after.own_limits),
            (&self.own_limit_bytes, before.own_bytes, after.own_bytes),
        ] {
            // Both at once: the difference may be negative.
            total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}
