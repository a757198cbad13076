//! Transfer of slots between replicas, and copies of their changes.

use std::sync::atomic::Ordering;

use tollgate_counter::{descriptor::Key, packed_counter::PackedCounter, time::Timestamp};

use crate::{
    budget::{Budget, MemoryReservation},
    check::OnFull,
    memory::{
        Memory,
        ownership::{ChangedCounters, SlotOwnership},
    },
    slot::{ByKey, Slot},
    slot_copy::{Epoch, SlotCopy, StoredSlot},
    slot_data::{
        SlotChanges, SlotData,
        consumption::{Consumption, HeldConsumption},
    },
};

/// Slots in a cluster. Without a cluster, a store owns all slots and these methods do nothing.
impl Memory {
    /// Whether this replica owns `slot`.
    pub fn owns(&self, slot: Slot) -> bool {
        self.ownerships.as_ref().is_none_or(|ownerships| ownerships.lock(slot).is_owned())
    }

    /// The number of changes to `slot` since it was acquired; 0 if it is not owned.
    pub fn version_seq(&self, slot: Slot) -> u64 {
        self.ownerships.as_ref().map_or(0, |ownerships| ownerships.lock(slot).seq)
    }

    /// Releases `slot` and returns its data with the number of changes. Its leases are dropped. `None` if it was not
    /// owned.
    pub fn release(&self, slot: Slot) -> Option<(SlotData, u64)> {
        let ownerships = self.ownerships.as_ref()?;
        let (mut table, ownership) = {
            let mut table = self.tables.lock(slot);
            let mut ownership = ownerships.lock(slot);
            if !ownership.is_owned() {
                return None;
            }
            ownerships.unflag(slot);
            (std::mem::take(&mut *table), std::mem::take(&mut *ownership))
        };
        let side_data = table.take_all_side_data(&self.tables.resources);
        let bytes = table.bytes();
        let seq = ownership.seq;
        let data = SlotData::all(self.with_keys(slot, table.into_counters()), side_data);
        let data = data.with_lead(self.restrictions.lead());
        self.tables.resources.budget.change_table(bytes, 0);
        self.tables.resources.budget.change(data.heap_bytes(), 0);
        Some((data.charged_to(&self.tables.resources.budget), seq))
    }

    /// Acquires `slot` with this data. Afterwards memory may be overfull. Does nothing if the slot is owned already.
    pub fn acquire(&self, slot: Slot, data: SlotData, now: Timestamp) {
        let Some(ownerships) = &self.ownerships else { return };
        self.adopt_lead(&data, now);
        let data = data.without_idle(now);
        let heap = data.heap_bytes();
        let (counters, side_data) = data.into_parts();
        let mut table = self.tables.lock(slot);
        let mut ownership = ownerships.lock(slot);
        debug_assert!(!ownership.is_owned(), "{slot:?} is owned already");
        if ownership.is_owned() {
            return;
        }
        self.tables.resources.budget.change_table(table.bytes(), counters.bytes());
        self.tables.resources.budget.change(0, heap);
        *table = counters;
        table.add_side_data(side_data, &self.tables.resources);
        *ownership = SlotOwnership::owned();
        ownerships.record_all_changed(slot, &mut ownership);
    }

    /// Whether more memory is used than new data may take.
    pub fn is_overfull(&self) -> bool {
        self.tables.resources.budget.is_exceeded()
    }

    /// Whether memory is overfull and copies take more than half of it.
    pub fn is_overfull_of_copies(&self) -> bool {
        self.is_overfull() && self.tables.resources.budget.is_mostly_outside_tables()
    }

    /// Evicts counters of all slots, from `first` on, until memory is no longer overfull or nothing can be evicted: those
    /// that have used least of their limit before all others.
    pub fn shed(&self, first: Slot, now: Timestamp) {
        self.tables.shed_while(first, now, Budget::is_exceeded);
    }

    /// Drops usage that waits for a check in `slot`, and then its counters, until memory is no longer overfull; at last
    /// those that refuse now. Usage and counters that refuse count as refused.
    pub fn cut(&self, slot: Slot, now: Timestamp) {
        let resources = &self.tables.resources;
        if self.is_overfull() {
            let mut table = self.tables.lock(slot);
            self.tables.refused_full.add(table.drop_pending_while_overfull(now, resources) as u64);
            let bytes_max = table.all_bytes().saturating_sub(resources.budget.excess());
            self.tables.refused_full.add(table.cut_to(bytes_max, now, resources) as u64);
        }
    }

    /// Adds what other replicas have counted to `slot`. A counter without holds merges its part at the next check of
    /// its key, because that depends on the limit; the limit of a counter with holds is known. Returns whether it was
    /// added: not if the slot is not owned, nor if there is no memory for counters with holds. If there is too little
    /// memory, the parts of counters that have used least are refused.
    pub fn add(&self, slot: Slot, mut consumption: Consumption, now: Timestamp) -> bool {
        let Some(ownerships) = &self.ownerships else { return false };
        consumption.forget_idle(now);
        let fair = consumption.bytes().min(self.tables.resources.budget.bytes_max() / self.slots());
        let is_needed = |budget: &Budget| budget.is_short_of(fair) && !budget.is_mostly_outside_tables();
        self.tables.shed_while(slot, now, is_needed);
        let mut table = self.tables.lock(slot);
        let mut ownership = ownerships.lock(slot);
        if !ownership.is_owned() {
            return false;
        }
        let budget = &self.tables.resources.budget;
        if budget.is_short_of(consumption.bytes()) {
            self.tables.refused_full.add(consumption.cut_to(budget.free(), now) as u64);
        }
        if budget.is_short_of(consumption.bytes()) {
            self.tables.refused_full.add(consumption.held.len() as u64);
            return false;
        }
        let Consumption { pending, held, own } = consumption;
        for (key, there) in own {
            table.change_side_data(key, &self.tables.resources, |side_data| {
                side_data.own = Some(match side_data.own.take() {
                    Some(here) => here.later(there),
                    None => there,
                });
            });
            ownerships.record_change(slot, &mut ownership, key, &table);
        }
        for (key, there) in held {
            let HeldConsumption { now: there, base } = there;
            self.tables.with_held(&mut table, key, now, |counter| {
                counter.absorb(there, base, self.at(now), self.tables.room());
            });
            ownerships.record_change(slot, &mut ownership, key, &table);
        }
        for (key, usage) in pending {
            table.change_side_data(key, &self.tables.resources, |side_data| side_data.add_pending(usage));
            ownerships.record_change(slot, &mut ownership, key, &table);
        }
        true
    }

    /// Suspends all decisions, whatever this replica owns, while it receives from too few members.
    pub fn set_suspended(&self, suspended: bool) {
        self.restrictions.set_suspended(suspended);
    }

    /// The memory limit, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.tables.resources.budget.bytes_max() as u64
    }

    /// The bytes in use.
    pub fn bytes(&self) -> usize {
        self.tables.resources.budget.used()
    }

    /// What decides on new keys without memory.
    pub fn on_full(&self) -> OnFull {
        self.tables.on_full
    }

    /// Bytes outside of tables that count in the memory limit.
    pub fn reservation(&self) -> MemoryReservation {
        MemoryReservation::new(&self.tables.resources.budget)
    }

    /// Starts to record which counters change.
    pub fn track_changes(&self) {
        if let Some(ownerships) = &self.ownerships {
            ownerships.tracking.store(true, Ordering::Relaxed);
        }
    }

    /// The slots that have changed since [`Memory::changes`] or [`Memory::whole`] copied them. Takes no lock.
    pub fn changed_slots(&self) -> Vec<Slot> {
        self.ownerships.as_ref().map(|ownerships| ownerships.flagged()).unwrap_or_default()
    }

    /// Copies of the counters of `slot` that were changed or removed since the last call of this or [`Memory::whole`].
    /// Empty if the slot is not owned.
    pub fn changes(&self, slot: Slot) -> SlotChanges {
        self.copies_of(slot, SlotOwnership::take_changed)
    }

    /// Copies of all counters of `slot`.
    pub fn whole(&self, slot: Slot) -> SlotChanges {
        let all = |ownership: &mut SlotOwnership| {
            ownership.take_changed();
            ChangedCounters::all()
        };
        self.copies_of(slot, all)
    }

    /// A copy of `slot`, with or without a cluster. Hits that are granted count as charged, because nothing is known
    /// about their use after a restart. Does not affect [`Memory::changes`].
    pub fn copy(&self, slot: Slot, epoch: Epoch) -> SlotCopy {
        let table = self.tables.lock(slot);
        let ownership = self.ownerships.as_ref().map(|ownerships| ownerships.lock(slot));
        let seq = ownership.as_ref().map_or(0, |ownership| ownership.seq);
        // A list and not a map, because a caller may wait for the lock meanwhile.
        let counters = self.with_keys(slot, table.copies().into_iter());
        let side_data = table.copies_of_side_data();
        let granted = table.granted();
        drop((ownership, table));
        let lead = self.restrictions.lead();
        Box::new(move |now| {
            let mut data = SlotData::all(counters, side_data).with_lead(lead);
            for (key, limit, granted) in granted {
                data.charge_granted(key, &limit, granted, now);
            }
            StoredSlot { slot, epoch, seq, data }
        })
    }

    fn copies_of(
        &self,
        slot: Slot,
        which: impl FnOnce(&mut SlotOwnership) -> ChangedCounters,
    ) -> SlotChanges {
        let Some(ownerships) = &self.ownerships else { return SlotChanges::default() };
        let resources = &self.tables.resources;
        let mut table = self.tables.lock(slot);
        let mut ownership = ownerships.lock(slot);
        if !ownership.is_owned() {
            return SlotChanges::default();
        }
        ownerships.unflag(slot);
        let seq = ownership.seq;
        let ChangedCounters { are_all, keys, .. } = which(&mut ownership);
        let data = if are_all {
            let copies = table.copy_all(resources);
            let side_data = table.copy_all_side_data(resources);
            drop((ownership, table));
            SlotData::all(self.with_keys(slot, copies.into_iter()), side_data)
        } else {
            let mut counters = Vec::with_capacity(keys.len());
            let mut side_data = ByKey::default();
            for key in keys {
                let (counter, changed) = table.copy_changes(key, resources);
                counters.push((key, counter));
                side_data.extend(changed.map(|changed| (key, changed)));
            }
            SlotData::some(counters.into_iter(), side_data)
        };
        SlotChanges { seq, data: data.with_lead(self.restrictions.lead()) }
    }

    /// The counters of the table of `slot` with their keys.
    fn with_keys<I: Iterator<Item = (u64, PackedCounter)>>(
        &self,
        slot: Slot,
        counters: I,
    ) -> impl Iterator<Item = (Key, PackedCounter)> + use<I> {
        let slots = self.slots();
        counters.map(move |(low, packed)| (slot.key(slots, low), packed))
    }

    /// `data`, counted in the memory limit until it is dropped; `None` if there is no memory for it.
    pub fn within_limit(&self, data: SlotData) -> Option<SlotData> {
        self.within_limit_in_place_of(&SlotData::default(), data)
    }

    /// `data` in place of an older copy, which is about to be dropped; counted in the memory limit until it is dropped.
    /// `None` if there is no memory for it. If most of the memory holds copies, they leave some to counters.
    pub fn within_limit_in_place_of(&self, older: &SlotData, data: SlotData) -> Option<SlotData> {
        let short = self.has_no_room_for(data.bytes().saturating_sub(older.bytes()));
        (!short).then(|| data.charged_to(&self.tables.resources.budget))
    }

    /// Whether there is memory for so many bytes of a copy in place of those that are reserved.
    pub fn has_room_in_place_of(&self, older: &MemoryReservation, bytes: usize) -> bool {
        !self.has_no_room_for(bytes.saturating_sub(older.bytes()))
    }

    /// Whether these changes can be merged into a copy: they continue it, and there is memory for them.
    pub fn can_merge(&self, copy: &SlotData, changes: &SlotData) -> bool {
        copy.can_be_followed_by(changes) && !self.has_no_room_for(copy.growth_by(changes))
    }

    /// Copies from a snapshot, counted in the memory limit. If they take more, each loses counters: first those that have
    /// used least of their limit.
    pub fn fit(&self, stored: Vec<StoredSlot>, now: Timestamp) -> Vec<StoredSlot> {
        let all: usize = stored.iter().map(|stored| stored.data.bytes()).sum();
        let bytes_max = self.tables.resources.budget.free();
        let fit = |stored: StoredSlot| {
            let share = stored.data.bytes() as u128 * bytes_max as u128 / all.max(1) as u128;
            let (data, lost) =
                stored.data.cut_to(if all <= bytes_max { usize::MAX } else { share as usize }, now);
            self.tables.resources.evicted_unexpired.add(lost as u64);
            let is_short = data.bytes() > 0 && self.tables.resources.budget.is_short_of(data.bytes());
            (!is_short).then(|| StoredSlot { data: self.accounted(data), ..stored })
        };
        stored.into_iter().filter_map(fit).collect()
    }

    /// `data`, counted in the memory limit until it is dropped, whether or not there is memory for it.
    pub fn accounted(&self, data: SlotData) -> SlotData {
        data.charged_to(&self.tables.resources.budget)
    }

    fn has_no_room_for(&self, bytes: usize) -> bool {
        bytes > 0 && self.tables.resources.budget.is_short_of_copy(bytes)
    }
}

#[cfg(test)]
mod tests;
