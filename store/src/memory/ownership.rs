//! Ownership of slots, and the changes of each slot since its last copy.

use std::{
    collections::HashSet,
    sync::{
        MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tollgate_counter::{descriptor::Key, lock::Lock};

use crate::{
    slot::{KeyHash, Slot},
    table::SlotTable,
};

/// Beyond that many changed keys without a counter, a slot is copied as a whole.
const GONE_KEYS_MAX: usize = 1_024;

/// The ownership state of all slots, for a replica in a cluster.
#[derive(Debug)]
pub(super) struct OwnershipTable {
    // One for each slot. Lock order: after the table of the same slot.
    each: Box<[Lock<SlotOwnership>]>,
    // One bit for each slot with changes, written under the lock of its ownership.
    changed: Box<[AtomicU64]>,
    pub(super) tracking: AtomicBool,
}

/// The state of one slot other than its counters.
#[derive(Debug, Default)]
pub(super) struct SlotOwnership {
    owned: bool,
    // The number of changes since it was acquired.
    pub(super) seq: u64,
    changed: ChangedCounters,
}

/// Which counters of a slot have changed since their last copy.
#[derive(Debug, Default)]
pub(super) struct ChangedCounters {
    /// Whether all counters count as changed. Then there are no keys.
    pub(super) are_all: bool,
    pub(super) keys: HashSet<Key, KeyHash>,
    // Whether the slot is known to have a log.
    accompany_log: bool,
}

impl ChangedCounters {
    /// All counters of a slot.
    pub(super) fn all() -> Self {
        Self { are_all: true, ..Self::default() }
    }

    /// Whether a counter of the slot is a log, of which a copy of the whole slot has all entries.
    fn accompany_log(&mut self, table: &SlotTable) -> bool {
        self.accompany_log = self.accompany_log || table.has_log();
        self.accompany_log
    }
}

impl OwnershipTable {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            each: (0..slots).map(|_| Lock::default()).collect(),
            changed: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            tracking: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self, slot: Slot) -> MutexGuard<'_, SlotOwnership> {
        self.each[slot.index()].lock()
    }

    /// Records a change of the counter of `key` in the table of its slot.
    pub(super) fn record_change(
        &self,
        slot: Slot,
        ownership: &mut SlotOwnership,
        key: Key,
        table: &SlotTable,
    ) {
        ownership.seq += 1;
        if !self.tracking.load(Ordering::Relaxed) {
            return;
        }
        let changed = &mut ownership.changed;
        if changed.are_all {
            return;
        }
        if changed.keys.is_empty() {
            self.flag(slot);
        }
        changed.keys.insert(key);
        // With more changes than this, a copy of the whole slot is cheaper, unless counters are copied in part. The keys
        // of counters that have gone since are bounded in any case.
        let all = table.len();
        let keys = changed.keys.len();
        let is_cheaper = all < keys * 2 && !table.has_side_data() && !changed.accompany_log(table);
        if is_cheaper || GONE_KEYS_MAX + all < keys {
            *changed = ChangedCounters::all();
        }
    }

    /// Records that the whole slot has changed.
    pub(super) fn record_all_changed(&self, slot: Slot, ownership: &mut SlotOwnership) {
        if self.tracking.load(Ordering::Relaxed) {
            ownership.changed = ChangedCounters::all();
            self.flag(slot);
        }
    }

    /// The slots with changes.
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

impl SlotOwnership {
    /// The state of a slot that was just acquired.
    pub(super) fn owned() -> Self {
        Self { owned: true, ..Self::default() }
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owned
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changed(&mut self) -> ChangedCounters {
        std::mem::take(&mut self.changed)
    }
}
