//! Slots that change hands, and copies of what has changed in them.

use std::sync::atomic::Ordering;

use crate::{
    algorithm::{Counter, Limit, Operation},
    descriptor::Key,
    store::{
        Changes, PendingUsage, Slot, SlotData,
        budget::Reservation,
        memory::{
            Memory,
            ownership::{Changed, SideData, SlotOwnership},
        },
        table::Table,
    },
    time::Timestamp,
};

/// Sharing slots. A memory of its own holds all of them, and none of this changes it.
impl Memory {
    /// Whether the counters of `slot` are held here.
    pub fn owns(&self, slot: Slot) -> bool {
        self.ownerships.as_ref().is_none_or(|ownerships| ownerships.lock(slot).is_owned())
    }

    /// How often a counter of `slot` has changed since it is held; 0 where it is not.
    pub fn version_seq(&self, slot: Slot) -> u64 {
        self.ownerships.as_ref().map_or(0, |ownerships| ownerships.lock(slot).seq())
    }

    /// Takes everything out of `slot`, with how often it has changed; it is not held from then on. What was lent of
    /// it is forgotten. `None` where it was not held.
    pub fn release(&self, slot: Slot) -> Option<(SlotData, u64)> {
        let ownerships = self.ownerships.as_ref()?;
        let (table, ownership) = {
            let mut table = self.table(slot);
            let mut ownership = ownerships.lock(slot);
            if !ownership.is_owned() {
                return None;
            }
            ownerships.unflag(slot);
            (std::mem::take(&mut *table), std::mem::take(&mut *ownership))
        };
        let (bytes, seq) = (table.bytes(), ownership.seq());
        let SideData { pending, unknown, .. } = ownership.into_side_data();
        let data = SlotData::all(table.into_counters(), pending, unknown).with_lead(self.restrictions.lead());
        self.resources.budget.change_table(bytes, 0);
        self.resources.budget.change(data.heap_bytes(), 0);
        Some((data.charged_to(&self.resources.budget), seq))
    }

    /// Holds `slot` from now on, with these counters. It was not held. (One that is stays as it is.)
    pub fn acquire(&self, slot: Slot, data: SlotData, now: Timestamp) {
        let Some(ownerships) = &self.ownerships else { return };
        self.take_in_lead(&data, now);
        let data = data.without_idle(now);
        let heap = data.heap_bytes();
        let (counters, pending, unknown) = data.into_parts();
        let side_data = SideData { pending, unknown, ..self.empty_side_data() };
        let mut table = self.table(slot);
        let mut ownership = ownerships.lock(slot);
        debug_assert!(!ownership.is_owned(), "{slot:?} is held already");
        if ownership.is_owned() {
            return;
        }
        self.resources.budget.change_table(table.bytes(), counters.bytes());
        self.resources.budget.change(0, heap);
        *table = counters;
        *ownership = SlotOwnership::owned(side_data);
        ownerships.record_all_changed(slot, &mut ownership);
    }

    /// Adds consumption of elsewhere to `slot`; each counter absorbs its part at the next check of its key. Says
    /// whether it was added: not where the slot is not held, nor where there is no memory for it.
    pub fn add(&self, slot: Slot, mut pending: PendingUsage, now: Timestamp) -> bool {
        let Some(ownerships) = &self.ownerships else { return false };
        pending.forget_idle(now);
        let table = self.table(slot);
        let mut ownership = ownerships.lock(slot);
        if !ownership.is_owned() {
            return false;
        }
        if self.resources.budget.is_short_of(pending.bytes()) {
            self.refused_full.add(pending.len());
            return false;
        }
        for key in pending.keys() {
            ownerships.record_change(slot, &mut ownership, key, table.len());
        }
        ownership.update_side_data(|| self.empty_side_data(), |side_data| side_data.pending.append(pending));
        true
    }

    /// Answers nothing while it is `distrusted`, whatever it holds: too few others are heard to rely on it.
    pub fn set_suspended(&self, suspended: bool) {
        self.restrictions.set_suspended(suspended);
    }

    /// Nothing yet, but what there will be counts in the budget.
    pub(super) fn empty_side_data(&self) -> SideData {
        SideData { reservation: Reservation::of(&self.resources.budget), ..SideData::default() }
    }

    /// From now on, notes which counters change.
    pub fn track_changes(&self) {
        if let Some(ownerships) = &self.ownerships {
            ownerships.tracking.store(true, Ordering::Relaxed);
        }
    }

    /// The slots in which anything has changed since [`Memory::changes`] or [`Memory::whole`] told of them. It
    /// takes no lock.
    pub fn changed_slots(&self) -> Vec<Slot> {
        self.ownerships.as_ref().map(|ownerships| ownerships.flagged()).unwrap_or_default()
    }

    /// Copies of the counters of `slot` that have changed since this or [`Memory::whole`] was last called, and which
    /// of them are gone. Nothing where the slot is not held.
    pub fn changes(&self, slot: Slot) -> Changes {
        self.copies_of(slot, SlotOwnership::take_changed)
    }

    /// Copies of all counters of `slot`.
    pub fn whole(&self, slot: Slot) -> Changes {
        let all = |ownership: &mut SlotOwnership| {
            ownership.take_changed();
            Changed::All
        };
        self.copies_of(slot, all)
    }

    /// Copies of all counters of `slot`, also of one that is not shared, for whoever takes no part in the copying of
    /// changes. `None` where there are none.
    pub(in crate::store) fn snapshot(&self, slot: Slot, now: Timestamp) -> Option<Changes> {
        let table = self.table(slot);
        let ownership = self.ownerships.as_ref().map(|ownerships| ownerships.lock(slot));
        let seq = ownership.as_ref().map_or(0, |ownership| ownership.seq());
        let side_data = ownership.as_ref().and_then(|ownership| ownership.side_data());
        let (pending, unknown) = side_data.map(SideData::copies).unwrap_or_default();
        let copies = table.copies();
        drop((ownership, table));
        let data = SlotData::all(copies.into_iter(), pending, unknown).without_idle(now);
        let data = data.with_lead(self.restrictions.lead());
        (!data.is_empty()).then_some(Changes { seq, data })
    }

    fn copies_of(&self, slot: Slot, which: impl FnOnce(&mut SlotOwnership) -> Changed) -> Changes {
        let Some(ownerships) = &self.ownerships else { return Changes::default() };
        let table = self.table(slot);
        let mut ownership = ownerships.lock(slot);
        if !ownership.is_owned() {
            return Changes::default();
        }
        ownerships.unflag(slot);
        let seq = ownership.seq();
        let data = match which(&mut ownership) {
            Changed::All => {
                let (pending, unknown) = ownership.side_data().map(SideData::copies).unwrap_or_default();
                let copies = table.copies();
                drop((ownership, table));
                SlotData::all(copies.into_iter(), pending, unknown)
            }
            Changed::Some(keys) => {
                let packed = |key: &Key| (*key, table.get(*key).cloned());
                let pending =
                    ownership.side_data().map(|side_data| side_data.pending.only(&keys)).unwrap_or_default();
                SlotData::some(keys.iter().map(packed), pending)
            }
        };
        let data = data.with_lead(self.restrictions.lead());
        Changes { seq, data: data.charged_to(&self.resources.budget) }
    }

    /// Does a deed to the counter of `key` and notes it as changed; says whether its slot is held.
    pub(super) fn with_counter(
        &self,
        key: Key,
        limit: &Limit,
        now: Timestamp,
        action: impl FnOnce(&mut Counter),
    ) -> bool {
        let slot = self.slot(key);
        let mut table = self.table(slot);
        let ownership = self.ownerships.as_ref().map(|ownerships| (ownerships, ownerships.lock(slot)));
        if ownership.as_ref().is_some_and(|(_, ownership)| !ownership.is_owned()) {
            return false;
        }
        self.touch(&mut table, key, limit, now, |counter| {
            action(counter);
            limit.decide(counter, now, Operation::Peek)
        });
        if let Some((ownerships, mut ownership)) = ownership {
            ownerships.record_change(slot, &mut ownership, key, table.len());
        }
        true
    }

    /// Lets the counter of `key` absorb what waits for it, where anything does.
    pub(super) fn absorb_pending(
        &self,
        table: &mut Table,
        ownership: &mut SlotOwnership,
        key: Key,
        limit: &Limit,
        now: Timestamp,
    ) -> bool {
        if ownership.side_data().is_none_or(|side_data| side_data.pending.of(key).is_empty()) {
            return false;
        }
        let pending =
            ownership.update_side_data(|| self.empty_side_data(), |side_data| side_data.pending.take(key));
        self.touch(table, key, limit, now, |counter| {
            for usage in pending.iter().filter(|usage| now < usage.packed.idle_at()) {
                let consumed = usage.packed.counter(limit);
                let base = usage.base.as_ref().map_or_else(|| limit.fresh(), |base| base.counter(limit));
                limit.absorb(counter, &limit.since(&consumed, &base, now), now);
            }
            limit.decide(counter, now, Operation::Peek)
        });
        true
    }

    /// The same contents, counted in the memory limit for as long as they live; `None` where there is no memory for
    /// them.
    pub fn within_limit(&self, data: SlotData) -> Option<SlotData> {
        let short = self.resources.budget.is_short_of(data.bytes());
        (!short).then(|| data.charged_to(&self.resources.budget))
    }
}

#[cfg(test)]
mod tests;
