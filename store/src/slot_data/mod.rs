//! Slot data: the content of a slot during a hand-off, or as a copy.

use std::{cmp::Reverse, collections::hash_map::Entry, sync::Arc};

use tollgate_counter::{
    algorithm::{Counter, Granted, HitRate, Limit, Operation},
    descriptor::Key,
    packed_counter::{Now, PackedCounter},
    time::{Lead, Timestamp},
};

use crate::{
    OwnTerms,
    budget::{Budget, MemoryReservation},
    held_counter::HeldCounter,
    holds::Holds,
    side_data::{SideData, own::OwnLimit, pending::CounterUsage},
    slot::{ByKey, CUT_DIVISOR, bytes_of_map},
    table::SlotTable,
};

mod codec;
pub(crate) mod consumption;
#[cfg(test)]
mod testing;

pub use consumption::Consumption;
use consumption::HeldConsumption;

/// The content of a slot. What a store releases or accepts counts in its budget until it is dropped.
#[derive(Clone, Debug, Default)]
pub struct SlotData {
    extent: SlotDataExtent,
    // `None` for keys whose counter was removed or is idle; only if the data covers some counters.
    counters: ByKey<Option<PackedCounter>>,
    pub(super) side_data: ByKey<Box<SideData>>,
    // The lead of the sender's clock: some instants may be ahead of it.
    pub(super) lead: Option<Lead>,
    reservation: MemoryReservation,
}

/// How much of the slot the data covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotDataExtent {
    /// Some counters.
    #[default]
    Some,
    /// All counters.
    All,
}

/// A copy of the changes of a slot.
#[derive(Clone, Debug, Default)]
pub struct SlotChanges {
    /// The number of changes since the slot was acquired, including these.
    pub seq: u64,
    /// The changed counters.
    pub data: SlotData,
}

impl SlotData {
    /// The whole slot.
    pub(super) fn all(
        counters: impl Iterator<Item = (Key, PackedCounter)>,
        side_data: ByKey<Box<SideData>>,
    ) -> Self {
        let mut data = Self { extent: SlotDataExtent::All, side_data, ..Self::default() };
        // A map that grows would move the counters several times. A table is at most 3/4 full.
        let (fewest, buckets) = counters.size_hint();
        data.counters.reserve(fewest.max(buckets.unwrap_or_default() / 4 * 3));
        data.counters.extend(counters.map(|(key, packed)| (key, Some(packed))));
        data
    }

    /// The counters of some keys, `None` for removed ones, and all side data of these keys.
    pub(super) fn some(
        cells: impl Iterator<Item = (Key, Option<PackedCounter>)>,
        side_data: ByKey<Box<SideData>>,
    ) -> Self {
        Self { counters: cells.collect(), side_data, ..Self::default() }
    }

    pub(super) fn into_parts(self) -> (SlotTable, ByKey<Box<SideData>>) {
        let len = self.counters.len();
        let (counters, side_data) = self.into_counters();
        (SlotTable::from_counters(len, counters), side_data)
    }

    /// Pending usage: what `counter` has counted of `limit`, for the counter of `key`.
    pub fn from_usage(key: Key, limit: &Limit, counter: Counter, now: Timestamp) -> Self {
        let mut data = Self::default();
        data.add_usage(key, limit, counter, now);
        data
    }

    /// Adds what `counter` has counted of `limit` to the pending usage of the counter of `key`.
    pub fn add_usage(&mut self, key: Key, limit: &Limit, mut counter: Counter, now: Timestamp) {
        let peek = limit.decide(&mut counter, now, Operation::Peek);
        let usage = CounterUsage { packed: PackedCounter::new(limit, counter, &peek), base: None };
        self.side_data.entry(key).or_default().pending.push(usage);
    }

    /// Charges hits that are granted of the counter of `key`, and ends what is granted of its rate.
    pub fn charge_granted(&mut self, key: Key, limit: &Limit, granted: Granted, now: Timestamp) {
        let Granted { rate, hits } = granted;
        if let Some(Some(packed)) = self.counters.get_mut(&key).filter(|_| rate != HitRate::default()) {
            packed.change(limit, Now { now, given_up: None }, |counter| {
                limit.keep_debt(counter, rate, HitRate::default(), now);
                limit.decide(counter, now, Operation::Peek)
            });
        }
        if hits > 0 {
            let mut used = limit.fresh();
            limit.charge_at(&mut used, hits, now, now);
            self.add_usage(key, limit, used, now);
        }
    }

    /// The number of counters, including unknown records.
    pub fn len(&self) -> usize {
        let unknown: usize = self.side_data.values().map(|each| each.unknown.len()).sum();
        self.counters.values().flatten().count() + unknown
    }

    /// Whether there is nothing in the data.
    pub fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.side_data.is_empty()
    }

    /// The data with the current lead of the store.
    pub(super) fn with_lead(self, lead: Option<Lead>) -> Self {
        Self { lead, ..self }
    }

    /// Applies changes: a counter in `changes` replaces the counter here with its side data, a removed one is removed. A
    /// copy of the whole slot replaces everything.
    pub fn merge(&mut self, changes: Self) {
        match changes.extent {
            SlotDataExtent::Some => {}
            SlotDataExtent::All => {
                let reservation = std::mem::take(&mut self.reservation);
                *self = Self { reservation, ..changes };
                return self.account();
            }
        }
        for (key, later) in changes.counters {
            if !changes.side_data.contains_key(&key) {
                self.side_data.remove(&key);
            }
            // In place: a map whose keys are removed and inserted again may grow.
            match self.counters.entry(key) {
                Entry::Occupied(mut counter) => {
                    let later = match (later, counter.get_mut().take()) {
                        (Some(later), Some(earlier)) => Some(later.after(earlier)),
                        (later, _) => later,
                    };
                    if later.is_some() || self.extent == SlotDataExtent::Some {
                        counter.insert(later);
                    } else {
                        counter.remove();
                    }
                }
                Entry::Vacant(place) if later.is_some() || self.extent == SlotDataExtent::Some => {
                    place.insert(later);
                }
                Entry::Vacant(_) => {}
            }
        }
        for (key, mut later) in changes.side_data {
            if let Some(packed) = self.counter(key) {
                later.place_in(packed);
            }
            if let Some(earlier) = self.side_data.remove(&key) {
                *later = std::mem::take(&mut *later).since(*earlier);
            }
            if !later.is_empty() {
                self.side_data.insert(key, later);
            }
        }
        self.lead = match (self.lead, changes.lead) {
            (Some(one), Some(other)) => Some(one.and(other)),
            (one, other) => one.or(other),
        };
        self.account();
    }

    /// Whether this copy has what these changes leave out.
    pub(super) fn can_be_followed_by(&self, changes: &Self) -> bool {
        let can_follow = |(key, later): (&Key, &Option<PackedCounter>)| {
            later.as_ref().is_none_or(|later| later.can_follow(self.counter(*key)))
        };
        changes.counters.iter().all(can_follow)
    }

    /// The data with so few counters that it takes at most `bytes_max` bytes, if that is possible, and how many are
    /// dropped. Those that refuse now stay longest, then those that have used most of their limit.
    pub(super) fn cut_to(mut self, bytes_max: usize, now: Timestamp) -> (Self, usize) {
        if self.bytes() <= bytes_max {
            return (self, 0);
        }
        let all = self.counters.len();
        let mut counters: Vec<_> = std::mem::take(&mut self.counters).into_iter().collect();
        let cost = |packed: &Option<PackedCounter>| {
            packed.as_ref().and_then(|packed| packed.eviction_cost(now)).map_or(u16::MAX, u16::from)
        };
        counters.sort_by_cached_key(|(_, packed)| Reverse(cost(packed)));
        loop {
            self.counters = counters.iter().cloned().collect();
            if self.bytes() <= bytes_max || counters.is_empty() {
                break;
            }
            counters.truncate(counters.len() - counters.len().div_ceil(CUT_DIVISOR));
        }
        self.account();
        let lost = all - self.counters.len();
        (self, lost)
    }

    /// The bytes that [`SlotData::merge`] of these changes adds, at most.
    pub(super) fn growth_by(&self, changes: &Self) -> usize {
        match changes.extent {
            SlotDataExtent::Some => {}
            SlotDataExtent::All => return changes.bytes().saturating_sub(self.bytes()),
        }
        let mut added = 0;
        let mut replaced_heap = 0;
        for (key, later) in &changes.counters {
            match (self.counters.get(key), later) {
                // What has not changed stays.
                (Some(_), Some(later)) if later.is_partial() => {}
                (Some(packed), _) => replaced_heap += packed.as_ref().map_or(0, PackedCounter::heap_bytes),
                // A partial copy keeps removed keys too.
                (None, later) => added += usize::from(later.is_some() || self.extent == SlotDataExtent::Some),
            }
        }
        let capacity = self.counters.capacity();
        let len = self.counters.len();
        let wanted = len + added;
        let map = if wanted <= capacity {
            0
        } else {
            bytes_of_map((capacity * 2).max(wanted * 2)) - bytes_of_map(capacity)
        };
        let whole = changes.side_data.iter().filter(|(_, side_data)| !side_data.is_partial());
        let replaced = whole.filter_map(|(key, _)| self.side_data.get(key));
        let replaced = replaced.map(|side_data| side_data.size().bytes).sum();
        let side_data = bytes_of_side_data(&changes.side_data).saturating_sub(replaced);
        let heap = changes.heap_bytes().saturating_sub(replaced_heap);
        map + heap + side_data
    }

    /// What was counted since `ancestor`, an earlier state of the same slot.
    pub fn difference(&self, ancestor: &Self) -> Consumption {
        let mut held: ByKey<HeldConsumption> = ByKey::default();
        for key in self.side_data.keys().chain(ancestor.side_data.keys()) {
            if self.holds(*key).is_none() && ancestor.holds(*key).is_none() {
                continue;
            }
            let now = self.held_counter(*key);
            let base = ancestor.held_counter(*key);
            if now != base {
                held.insert(*key, HeldConsumption { now, base });
            }
        }
        let mut pending: ByKey<Vec<CounterUsage>> = ByKey::default();
        for (key, side_data) in &self.side_data {
            let known = ancestor.side_data.get(key).map_or(&[][..], |known| &known.pending);
            let new = side_data.pending.iter().filter(|usage| !known.contains(usage));
            let new: Vec<CounterUsage> = new.cloned().collect();
            if !new.is_empty() {
                pending.insert(*key, new);
            }
        }
        for (key, packed) in &self.counters {
            let base = ancestor.counter(*key);
            if let Some(packed) = packed.as_ref().filter(|packed| base != Some(*packed))
                && !held.contains_key(key)
            {
                let usage = CounterUsage { packed: packed.clone(), base: base.cloned() };
                pending.entry(*key).or_default().push(usage);
            }
        }
        let mut own: ByKey<Box<OwnLimit>> = ByKey::default();
        for (key, side_data) in &self.side_data {
            let known = ancestor.side_data.get(key).and_then(|known| known.own.as_ref());
            if let Some(new) = side_data.own.as_ref().filter(|new| Some(*new) != known) {
                own.insert(*key, new.clone());
            }
        }
        Consumption { pending, held, own }
    }

    /// The counter of `key`.
    pub(super) fn counter(&self, key: Key) -> Option<&PackedCounter> {
        self.counters.get(&key)?.as_ref()
    }

    /// The limit of its own of `key`.
    pub fn own_terms(&self, key: Key, now: Timestamp) -> Option<&OwnTerms> {
        self.side_data.get(&key)?.own_terms(now)
    }

    pub(super) fn holds(&self, key: Key) -> Option<&Holds> {
        self.side_data.get(&key)?.holds.as_deref()
    }

    /// The counter of `key` with its holds.
    fn held_counter(&self, key: Key) -> HeldCounter {
        let side_data = self.holds(key).map(|holds| Box::new(SideData::from_holds(Box::new(holds.clone()))));
        HeldCounter { packed: self.counter(key).cloned(), side_data }
    }

    /// The data without idle counters. In a partial copy they become removed keys.
    pub fn without_idle(mut self, now: Timestamp) -> Self {
        self.counters.retain(|_, packed| {
            packed.take_if(|packed| packed.idle_at() <= now);
            packed.is_some() || self.extent == SlotDataExtent::Some
        });
        self.side_data.retain(|_, side_data| {
            side_data.pending.retain(|usage| !usage.is_idle(now));
            !side_data.is_empty()
        });
        self.account();
        self
    }

    /// The counters and the side data by key.
    pub(super) fn into_counters(self) -> (impl Iterator<Item = (Key, PackedCounter)>, ByKey<Box<SideData>>) {
        (self.counters.into_iter().filter_map(|(key, packed)| Some((key, packed?))), self.side_data)
    }

    /// The data, counted in `budget`.
    pub(super) fn charged_to(mut self, budget: &Arc<Budget>) -> Self {
        self.reservation = MemoryReservation::new(budget);
        self.account();
        self
    }

    /// The memory of the data, in bytes.
    pub(super) fn bytes(&self) -> usize {
        bytes_of_map(self.counters.capacity()) + self.heap_bytes() + bytes_of_side_data(&self.side_data)
    }

    /// The bytes that the counters take on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.counters.values().flatten().map(PackedCounter::heap_bytes).sum()
    }

    fn account(&mut self) {
        self.reservation.set(self.bytes());
    }
}

/// The approximate memory, in bytes.
fn bytes_of_side_data(side_data: &ByKey<Box<SideData>>) -> usize {
    let capacity = side_data.capacity() * size_of::<(Key, Box<SideData>)>() * 5 / 4;
    capacity + side_data.values().map(|side_data| side_data.size().bytes).sum::<usize>()
}

/// Compares the content: neither removed keys nor the budget.
impl PartialEq for SlotData {
    fn eq(&self, other: &Self) -> bool {
        fn present(data: &SlotData) -> ByKey<&PackedCounter> {
            data.counters.iter().filter_map(|(key, packed)| Some((*key, packed.as_ref()?))).collect()
        }
        present(self) == present(other) && self.side_data == other.side_data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_that_changes_again_and_again_does_not_grow() {
        // As many keys as fit into a map before it grows.
        for keys in [28_u64, 56, 112, 224, 448, 896] {
            let changes = || {
                SlotData::some(
                    (0..keys).map(|number| {
                        (Key::from_halves(number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), None)
                    }),
                    ByKey::default(),
                )
            };
            let mut copy = SlotData::default();
            let growth = copy.growth_by(&changes());
            copy.merge(changes());
            let bytes = copy.bytes();
            assert!(bytes <= growth, "{keys} keys take {bytes} bytes, {growth} at most");
            for _ in 0..20 {
                copy.merge(changes());
            }
            assert_eq!(copy.bytes(), bytes, "{keys} keys");
        }
    }
}
