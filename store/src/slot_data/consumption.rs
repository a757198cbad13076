//! What another replica has counted in a slot since an earlier state of it.

use std::cmp::Reverse;

use tollgate_counter::time::Timestamp;

use crate::{
    held_counter::HeldCounter,
    key_hasher::{ByKey, CUT_DIVISOR},
    slot_data::pending_usage::{CounterUsage, PendingUsage},
};

/// What another replica has counted in a slot since an earlier state of it.
#[derive(Clone, Debug, Default)]
pub struct Consumption {
    /// The usage of counters without holds.
    pub(crate) pending: PendingUsage,
    pub(crate) held: ByKey<HeldConsumption>,
}

/// A counter that had or has holds on another replica.
#[derive(Clone, Debug)]
pub(crate) struct HeldConsumption {
    pub(crate) now: HeldCounter,
    pub(crate) base: HeldCounter,
}

impl Consumption {
    /// Drops usage until the rest takes at most `bytes_max` bytes, if that is possible: first that of counters that have
    /// used least of their limit. Returns how many keys lose theirs.
    pub(crate) fn cut_to(&mut self, bytes_max: usize, now: Timestamp) -> usize {
        if self.bytes() <= bytes_max {
            return 0;
        }
        let all = self.pending.by_key.len();
        let mut usage: Vec<_> = std::mem::take(&mut self.pending.by_key).into_iter().collect();
        let cost = |usage: &CounterUsage| usage.packed.eviction_cost(now).map_or(u16::MAX, u16::from);
        usage.sort_by_cached_key(|(_, each)| Reverse(each.iter().map(cost).max()));
        loop {
            self.pending.by_key = usage.iter().cloned().collect();
            if self.bytes() <= bytes_max || usage.is_empty() {
                return all - usage.len();
            }
            usage.truncate(usage.len() - usage.len().div_ceil(CUT_DIVISOR));
        }
    }

    /// The memory of what it adds to a slot, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pending.bytes() + self.held.values().map(|held| held.now.heap_bytes()).sum::<usize>()
    }
}

impl From<PendingUsage> for Consumption {
    fn from(pending: PendingUsage) -> Self {
        Self { pending, ..Self::default() }
    }
}
