//! Slots that change hands, and copies of what has changed in them.

use std::sync::atomic::Ordering;

use crate::{
    algorithm::{Ask, Counter, Limit},
    descriptor::Key,
    store::{
        Changes, Contents, Extras, Slot,
        budget::Taken,
        memory::{
            Memory,
            tenure::{Beside, Changed, Tenure},
        },
        table::Table,
    },
    time::Timestamp,
};

/// Sharing slots. A memory of its own holds all of them, and none of this changes it.
impl Memory {
    /// Whether the counters of `slot` are held here.
    pub fn holds(&self, slot: Slot) -> bool {
        self.tenures.as_ref().is_none_or(|tenures| tenures.lock(slot).is_held())
    }

    /// How often a counter of `slot` has changed since it is held; 0 where it is not.
    pub fn version_seq(&self, slot: Slot) -> u64 {
        self.tenures.as_ref().map_or(0, |tenures| tenures.lock(slot).seq())
    }

    /// Takes everything out of `slot`, with how often it has changed; it is not held from then on. What was lent of
    /// it is forgotten. `None` where it was not held.
    pub fn give(&self, slot: Slot) -> Option<(Contents, u64)> {
        let tenures = self.tenures.as_ref()?;
        let (table, tenure) = {
            let mut table = self.table(slot);
            let mut tenure = tenures.lock(slot);
            if !tenure.is_held() {
                return None;
            }
            tenures.unflag(slot);
            (std::mem::take(&mut *table), std::mem::take(&mut *tenure))
        };
        let (bytes, seq) = (table.bytes(), tenure.seq());
        let Beside { extras, unknown, .. } = tenure.into_beside();
        let contents = Contents::all(table.into_cells(), extras, unknown).with_lead(self.caution.lead());
        self.means.budget.change_table(bytes, 0);
        self.means.budget.change(contents.heap_bytes(), 0);
        Some((contents.counted_in(&self.means.budget), seq))
    }

    /// Holds `slot` from now on, with these counters. It was not held. (One that is stays as it is.)
    pub fn hold(&self, slot: Slot, contents: Contents, now: Timestamp) {
        let Some(tenures) = &self.tenures else { return };
        self.take_in_lead(&contents, now);
        let contents = contents.without_idle(now);
        let heap = contents.heap_bytes();
        let (counters, extras, unknown) = contents.into_parts();
        let beside = Beside { extras, unknown, ..self.nothing_beside() };
        let mut table = self.table(slot);
        let mut tenure = tenures.lock(slot);
        debug_assert!(!tenure.is_held(), "{slot:?} is held already");
        if tenure.is_held() {
            return;
        }
        self.means.budget.change_table(table.bytes(), counters.bytes());
        self.means.budget.change(0, heap);
        *table = counters;
        *tenure = Tenure::held(beside);
        tenures.note_all(slot, &mut tenure);
    }

    /// Adds consumption of elsewhere to `slot`; each counter absorbs its part at the next check of its key. Says
    /// whether it was added: not where the slot is not held, nor where there is no memory for it.
    pub fn add(&self, slot: Slot, mut extras: Extras, now: Timestamp) -> bool {
        let Some(tenures) = &self.tenures else { return false };
        extras.forget_idle(now);
        let table = self.table(slot);
        let mut tenure = tenures.lock(slot);
        if !tenure.is_held() {
            return false;
        }
        if self.means.budget.is_short_of(extras.bytes()) {
            self.refused_full.add(extras.len());
            return false;
        }
        for key in extras.keys() {
            tenures.note(slot, &mut tenure, key, table.len());
        }
        tenure.change_beside(|| self.nothing_beside(), |beside| beside.extras.append(extras));
        true
    }

    /// Answers nothing while it is `distrusted`, whatever it holds: too few others are heard to rely on it.
    pub fn distrust(&self, distrusted: bool) {
        self.caution.set_distrusted(distrusted);
    }

    /// Nothing yet, but what there will be counts in the budget.
    pub(super) fn nothing_beside(&self) -> Beside {
        Beside { taken: Taken::of(&self.means.budget), ..Beside::default() }
    }

    /// From now on, notes which counters change.
    pub fn track_changes(&self) {
        if let Some(tenures) = &self.tenures {
            tenures.tracking.store(true, Ordering::Relaxed);
        }
    }

    /// The slots in which anything has changed since [`Memory::changes`] or [`Memory::whole`] told of them. It
    /// takes no lock.
    pub fn changed_slots(&self) -> Vec<Slot> {
        self.tenures.as_ref().map(|tenures| tenures.flagged()).unwrap_or_default()
    }

    /// Copies of the counters of `slot` that have changed since this or [`Memory::whole`] was last called, and which
    /// of them are gone. Nothing where the slot is not held.
    pub fn changes(&self, slot: Slot) -> Changes {
        self.copies_of(slot, Tenure::take_changed)
    }

    /// Copies of all counters of `slot`.
    pub fn whole(&self, slot: Slot) -> Changes {
        let all = |tenure: &mut Tenure| {
            tenure.take_changed();
            Changed::All
        };
        self.copies_of(slot, all)
    }

    /// Copies of all counters of `slot`, also of one that is not shared, for whoever takes no part in the copying of
    /// changes. `None` where there are none.
    pub(in crate::store) fn snapshot(&self, slot: Slot, now: Timestamp) -> Option<Changes> {
        let table = self.table(slot);
        let tenure = self.tenures.as_ref().map(|tenures| tenures.lock(slot));
        let seq = tenure.as_ref().map_or(0, |tenure| tenure.seq());
        let beside = tenure.as_ref().and_then(|tenure| tenure.beside());
        let (extras, unknown) = beside.map(Beside::copies).unwrap_or_default();
        let copies = table.copies();
        drop((tenure, table));
        let contents = Contents::all(copies.into_iter(), extras, unknown).without_idle(now);
        let contents = contents.with_lead(self.caution.lead());
        (!contents.is_empty()).then_some(Changes { seq, contents })
    }

    fn copies_of(&self, slot: Slot, which: impl FnOnce(&mut Tenure) -> Changed) -> Changes {
        let Some(tenures) = &self.tenures else { return Changes::default() };
        let table = self.table(slot);
        let mut tenure = tenures.lock(slot);
        if !tenure.is_held() {
            return Changes::default();
        }
        tenures.unflag(slot);
        let seq = tenure.seq();
        let contents = match which(&mut tenure) {
            Changed::All => {
                let (extras, unknown) = tenure.beside().map(Beside::copies).unwrap_or_default();
                let copies = table.copies();
                drop((tenure, table));
                Contents::all(copies.into_iter(), extras, unknown)
            }
            Changed::Some(keys) => {
                let cell = |key: &Key| (*key, table.get(*key).cloned());
                let extras = tenure.beside().map(|beside| beside.extras.only(&keys)).unwrap_or_default();
                Contents::some(keys.iter().map(cell), extras)
            }
        };
        let contents = contents.with_lead(self.caution.lead());
        Changes { seq, contents: contents.counted_in(&self.means.budget) }
    }

    /// Does a deed to the counter of `key` and notes it as changed; says whether its slot is held.
    pub(super) fn with_counter(
        &self,
        key: Key,
        limit: &Limit,
        now: Timestamp,
        deed: impl FnOnce(&mut Counter),
    ) -> bool {
        let slot = self.slot(key);
        let mut table = self.table(slot);
        let tenure = self.tenures.as_ref().map(|tenures| (tenures, tenures.lock(slot)));
        if tenure.as_ref().is_some_and(|(_, tenure)| !tenure.is_held()) {
            return false;
        }
        self.touch(&mut table, key, limit, now, |counter| {
            deed(counter);
            limit.decide(counter, now, Ask::Look)
        });
        if let Some((tenures, mut tenure)) = tenure {
            tenures.note(slot, &mut tenure, key, table.len());
        }
        true
    }

    /// Lets the counter of `key` absorb what waits for it, where anything does.
    pub(super) fn absorb_extras(
        &self,
        table: &mut Table,
        tenure: &mut Tenure,
        key: Key,
        limit: &Limit,
        now: Timestamp,
    ) -> bool {
        if tenure.beside().is_none_or(|beside| beside.extras.of(key).is_empty()) {
            return false;
        }
        let extras = tenure.change_beside(|| self.nothing_beside(), |beside| beside.extras.take(key));
        self.touch(table, key, limit, now, |counter| {
            for extra in extras.iter().filter(|extra| now < extra.cell.idle_at()) {
                let consumed = extra.cell.counter(limit);
                let base = extra.base.as_ref().map_or_else(|| limit.fresh(), |base| base.counter(limit));
                limit.absorb(counter, &limit.since(&consumed, &base, now), now);
            }
            limit.decide(counter, now, Ask::Look)
        });
        true
    }

    /// The same contents, counted in the memory limit for as long as they live; `None` where there is no memory for
    /// them.
    pub fn within_limit(&self, contents: Contents) -> Option<Contents> {
        let short = self.means.budget.is_short_of(contents.bytes());
        (!short).then(|| contents.counted_in(&self.means.budget))
    }
}

#[cfg(test)]
mod tests;
