//! What another replica has counted in a slot since an earlier state of it.

use std::cmp::Reverse;

use tollgate_counter::time::Timestamp;

use crate::{
    held_counter::HeldCounter,
    side_data::{SideData, own::OwnLimit, pending::CounterUsage},
    slot::{ByKey, CUT_DIVISOR, bytes_of_map},
};

/// What another replica has counted in a slot since an earlier state of it.
#[derive(Clone, Debug, Default)]
pub struct Consumption {
    /// The usage of counters without holds.
    pub(crate) pending: ByKey<Vec<CounterUsage>>,
    pub(crate) held: ByKey<HeldConsumption>,
    /// The limits of their own that another replica has set or removed.
    pub(crate) own: ByKey<Box<OwnLimit>>,
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
        let all = self.pending.len();
        let mut usage: Vec<_> = std::mem::take(&mut self.pending).into_iter().collect();
        usage.sort_by_cached_key(|(_, each)| Reverse(CounterUsage::eviction_cost(each, now)));
        loop {
            self.pending = usage.iter().cloned().collect();
            if self.bytes() <= bytes_max || usage.is_empty() {
                return all - usage.len();
            }
            usage.truncate(usage.len() - usage.len().div_ceil(CUT_DIVISOR));
        }
    }

    /// Drops usage that no longer changes an answer.
    pub(crate) fn forget_idle(&mut self, now: Timestamp) {
        self.pending.retain(|_, each| {
            each.retain(|usage| !usage.is_idle(now));
            !each.is_empty()
        });
    }

    /// The memory of what it adds to a slot, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let pending = self.pending.values().flatten();
        bytes_of_map(self.pending.capacity()) * 5 / 4
            + self.pending.len() * size_of::<SideData>()
            + pending.map(|usage| size_of::<CounterUsage>() + usage.heap_bytes()).sum::<usize>()
            + self.held.values().map(|held| held.now.heap_bytes()).sum::<usize>()
            + self.own.values().map(|own| size_of::<SideData>() + own.bytes()).sum::<usize>()
    }
}
