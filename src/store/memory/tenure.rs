//! Which slots are held here, and what has changed in them: what replicas that share slots need to know.

use std::{
    collections::{HashMap, HashSet},
    hash::BuildHasherDefault,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    descriptor::Key,
    store::{
        Extras, Slot,
        budget::Taken,
        contents::{self, Unknown},
        memory::KeyHasher,
    },
    time::Timestamp,
};

/// The tenure of each slot, for a memory that shares slots.
#[derive(Debug)]
pub(super) struct Tenures {
    // One for each slot, locked alone or after the lock of its table.
    each: Box<[Mutex<Tenure>]>,
    // A bit for each slot that has changed; set and cleared under the lock of its tenure.
    changed: Box<[AtomicU64]>,
    pub(super) tracking: AtomicBool,
}

/// What is known of one slot beside its counters.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    held: bool,
    seq: u64,
    changed: Changed,
    beside: Option<Box<Beside>>,
}

/// Which counters of a slot have changed since they were last copied.
#[derive(Debug)]
pub(super) enum Changed {
    Some(HashSet<Key, BuildHasherDefault<KeyHasher>>),
    All,
}

/// What few slots have.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) lent: HashMap<Key, u64, BuildHasherDefault<KeyHasher>>,
    pub(super) extras: Extras,
    pub(super) unknown: Unknown,
    pub(super) taken: Taken,
}

impl Default for Changed {
    fn default() -> Self {
        Self::Some(HashSet::default())
    }
}

impl Tenures {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            each: (0..slots).map(|_| Mutex::default()).collect(),
            changed: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            tracking: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self, slot: Slot) -> MutexGuard<'_, Tenure> {
        // A tenure is whole after each of its changes.
        self.each[slot.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the counter of `key` has changed, in a slot that now has so many counters.
    pub(super) fn note(&self, slot: Slot, tenure: &mut Tenure, key: Key, counters: usize) {
        tenure.seq += 1;
        if !self.tracking.load(Ordering::Relaxed) {
            return;
        }
        if let Changed::Some(keys) = &mut tenure.changed {
            if keys.is_empty() {
                self.flag(slot);
            }
            keys.insert(key);
            // Beyond that a copy of everything is no larger than it must be.
            if counters < keys.len() * 2 {
                tenure.changed = Changed::All;
            }
        }
    }

    /// Notes that everything in a slot has changed.
    pub(super) fn note_all(&self, slot: Slot, tenure: &mut Tenure) {
        if self.tracking.load(Ordering::Relaxed) {
            tenure.changed = Changed::All;
            self.flag(slot);
        }
    }

    /// Slots that have changed.
    pub(super) fn flagged(&self) -> Vec<Slot> {
        let mut slots = Vec::new();
        for (word, bits) in self.changed.iter().enumerate() {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                // At most 65,536 slots, so it fits.
                slots.push(Slot((word * 64) as u16 + bits.trailing_zeros() as u16));
                bits &= bits - 1;
            }
        }
        slots
    }

    fn flag(&self, slot: Slot) {
        self.changed[slot.index() / 64].fetch_or(1 << (slot.index() % 64), Ordering::Relaxed);
    }

    pub(super) fn unflag(&self, slot: Slot) {
        self.changed[slot.index() / 64].fetch_and(!(1 << (slot.index() % 64)), Ordering::Relaxed);
    }
}

impl Tenure {
    /// The tenure of a slot that is held from now on.
    pub(super) fn held(beside: Beside) -> Self {
        let mut tenure = Self { held: true, ..Self::default() };
        tenure.change_beside(Beside::default, |empty| *empty = beside);
        tenure
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Hits of `key` that are lent out.
    pub(super) fn lent(&self, key: Key) -> u64 {
        self.beside().and_then(|beside| beside.lent.get(&key)).copied().unwrap_or_default()
    }

    /// Drops consumption that weighs nothing any more.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        if self.beside().is_some_and(|beside| !beside.extras.is_empty()) {
            self.change_beside(Beside::default, |beside| beside.extras.forget_idle(now));
        }
    }

    /// What there is beside counters.
    pub(super) fn beside(&self) -> Option<&Beside> {
        self.beside.as_deref()
    }

    /// Changes what there is beside counters.
    pub(super) fn change_beside<R>(
        &mut self,
        nothing: impl FnOnce() -> Beside,
        change: impl FnOnce(&mut Beside) -> R,
    ) -> R {
        let mut beside = self.beside.take().unwrap_or_else(|| Box::new(nothing()));
        let result = change(&mut beside);
        if !beside.is_empty() {
            beside.account();
            self.beside = Some(beside);
        }
        result
    }

    pub(super) fn into_beside(self) -> Beside {
        self.beside.map(|beside| *beside).unwrap_or_default()
    }

    /// What has changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }
}

impl Beside {
    /// Notes that so many hits of `key` are lent out, all in all.
    pub(super) fn lend(&mut self, key: Key, hits: u64) {
        if hits == 0 {
            self.lent.remove(&key);
        } else {
            self.lent.insert(key, hits);
        }
    }

    /// Copies of what waits to be absorbed, and of what is not known.
    pub(super) fn copies(&self) -> (Extras, Unknown) {
        (self.extras.clone(), self.unknown.clone())
    }

    fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.extras.is_empty() && self.unknown.is_empty()
    }

    fn account(&mut self) {
        let bytes = self.extras.bytes() + contents::bytes_of_unknown(&self.unknown);
        self.taken.set(size_of::<Self>() + contents::bytes_of_map(self.lent.capacity()) + bytes);
    }
}
