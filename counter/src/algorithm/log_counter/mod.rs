//! The counter of a log: hits with the instants at which they were charged.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::held::{ChargePosition, HeldCharge},
    time::timestamp::Timestamp,
};

pub(crate) mod changes;

pub use changes::LogEntry;
use changes::{LogChanges, SinceCopy};

/// Charges within the length of the window, oldest first, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounter {
    // Invariant: instants increase; no hits are 0.
    pub(crate) entries: VecDeque<LogEntry>,
    // Invariant: the sum of the hits of all entries; if 64 bits cannot hold it, the oldest hits are left out.
    pub(super) total: u64,
    #[serde(skip)]
    pub(crate) changes: LogChanges,
}

impl LogCounter {
    /// A log of these hits, in any order.
    pub(crate) fn from_hits(hits: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        let mut log = Self::default();
        hits.for_each(|(at, hits)| log.add(LogEntry { at, hits }));
        log
    }

    /// The hits with their instants, oldest first.
    pub fn hits(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.entries.iter().map(|entry| (entry.at, entry.hits))
    }

    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>() + self.changes.heap_bytes()
    }

    /// A copy for a backup that has the last copy: the changes since then, if the backup can keep any entry.
    pub(crate) fn copy_changes(&mut self) -> Self {
        let changes = self.take_changes();
        let retained = changes.retained();
        let Some(changes) = changes.into_partial() else { return self.clone() };
        let entries = self.entries.iter().take(1).chain(self.entries.range(retained..));
        let hits = entries.map(|entry| (entry.at, entry.hits));
        Self { changes, ..Self::from_hits(hits) }
    }

    /// A copy of everything. The next copy of changes has what changes from now on.
    pub(crate) fn copy_all(&mut self) -> Self {
        let copy = Self { entries: self.entries.clone(), total: self.total, changes: LogChanges::default() };
        self.take_changes();
        copy
    }

    fn take_changes(&mut self) -> LogChanges {
        std::mem::replace(&mut self.changes, LogChanges::none(self.entries.len()))
    }

    /// Whether this is a copy of changes only.
    pub(crate) fn is_partial(&self) -> bool {
        self.changes.sent().is_some()
    }

    /// How many entries an earlier copy has of the log of which this is a copy of changes.
    pub fn retained(&self) -> usize {
        self.changes.retained()
    }

    /// A copy of changes only.
    pub(crate) fn from_changes(changes: SinceCopy, hits: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        Self { changes: LogChanges::from_sent(changes), ..Self::from_hits(hits) }
    }

    /// Whether the changes can be applied to an earlier copy.
    pub(crate) fn can_follow(&self, earlier: &Self) -> bool {
        self.changes.can_follow(earlier.entries.len())
    }

    /// Applies the changes to an earlier copy.
    pub(crate) fn after(self, mut earlier: Self) -> Self {
        if !self.is_partial() {
            return self;
        }
        self.changes.apply(&mut earlier.entries);
        earlier.changes = LogChanges::default();
        let mut changed = self.entries.into_iter();
        if let (Some(oldest), Some(changed)) = (earlier.entries.front_mut(), changed.next()) {
            oldest.hits = changed.hits;
        }
        earlier.total = earlier.entries.iter().fold(0, |total, entry| total.saturating_add(entry.hits));
        for entry in changed {
            // It took another time to arrive than those before it.
            let newest = earlier.entries.back().map_or(Timestamp::EPOCH, |newest| newest.at.plus(1));
            earlier.add(LogEntry { at: entry.at.max(newest), ..entry });
        }
        earlier
    }

    /// The instant of the entry at `position`, if there is one.
    pub fn instant_of(&self, position: usize) -> Option<Timestamp> {
        self.entries.get(position).map(|entry| entry.at)
    }

    pub(super) fn pop_oldest(&mut self) -> Option<LogEntry> {
        self.changes.remove_oldest();
        self.entries.pop_front()
    }

    pub(super) fn add(&mut self, new: LogEntry) {
        let hits = new.hits - self.make_room(new);
        if hits == 0 {
            return;
        }
        self.total += hits;
        match self.entries.binary_search_by_key(&new.at, |entry| entry.at) {
            Ok(index) => {
                self.entries[index].hits += hits;
                self.changes.set(index, self.entries[index].hits);
            }
            Err(index) => {
                self.entries.insert(index, LogEntry { hits, ..new });
                self.changes.replace_from(index);
            }
        }
    }

    /// If 64 bits cannot hold the sum with the hits of `new`, removes older hits, the oldest first, and returns how
    /// many of the new hits are still too many. So after some hits have expired the sum is exact, or the largest
    /// possible.
    fn make_room(&mut self, new: LogEntry) -> u64 {
        let mut over = new.hits.saturating_sub(u64::MAX - self.total);
        while over > 0
            && let Some(oldest) = self.entries.front_mut()
            && oldest.at < new.at
        {
            let taken = oldest.hits.min(over);
            oldest.hits -= taken;
            over -= taken;
            self.total -= taken;
            if oldest.hits == 0 {
                self.pop_oldest();
            }
        }
        over
    }

    /// The index of the entry at `position`, if there is one.
    pub fn index_of(&self, position: ChargePosition) -> Option<usize> {
        let ChargePosition::Instant(at) = position else { return None };
        self.entries.binary_search_by_key(&at, |entry| entry.at).ok()
    }

    /// Removes `hits` from one entry, or as many as it has.
    pub(super) fn remove_at(&mut self, index: usize, hits: u64) {
        let entry = &mut self.entries[index];
        let taken = entry.hits.min(hits);
        entry.hits -= taken;
        self.total -= taken;
        match (entry.hits, index) {
            (0, 0) => drop(self.pop_oldest()),
            (0, _) => {
                self.entries.remove(index);
                self.changes.set(index, 0);
            }
            (hits, _) => self.changes.set(index, hits),
        }
    }

    /// Removes `hits`, the oldest first, or as many as there are.
    pub(super) fn remove_oldest(&mut self, mut hits: u64) {
        while let Some(oldest) = self.entries.front_mut() {
            let taken = oldest.hits.min(hits);
            oldest.hits -= taken;
            hits -= taken;
            self.total -= taken;
            if oldest.hits > 0 {
                return;
            }
            self.pop_oldest();
        }
    }

    /// Removes `hits` that are not held, the newest first, and returns how many are left to remove.
    pub(super) fn remove_newest_unheld(&mut self, held: &[HeldCharge], mut hits: u64) -> u64 {
        let mut retained: BTreeMap<Timestamp, u128> = BTreeMap::new();
        for HeldCharge { position, taken, floor } in held {
            if let ChargePosition::Instant(at) = position {
                *retained.entry(*at).or_default() += (*taken).min(*floor);
            }
        }
        for (index, entry) in self.entries.iter_mut().enumerate().rev() {
            let retained = retained.get(&entry.at).copied().unwrap_or_default();
            let taken = u128::from(entry.hits).saturating_sub(retained).min(hits.into());
            // At most the hits of the entry.
            let taken = taken as u64;
            if taken == 0 {
                continue;
            }
            entry.hits -= taken;
            self.total -= taken;
            hits -= taken;
            match (index, entry.hits) {
                (0, 0) => self.changes.remove_oldest(),
                (_, hits) => self.changes.set(index, hits),
            }
        }
        self.entries.retain(|entry| entry.hits > 0);
        hits
    }

    /// Removes `hits`, the newest first, or as many as there are.
    pub(super) fn remove_newest(&mut self, mut hits: u64) {
        while let Some(newest) = self.entries.back_mut() {
            let taken = newest.hits.min(hits);
            newest.hits -= taken;
            hits -= taken;
            self.total -= taken;
            let left = newest.hits;
            if left > 0 {
                return self.changes.set(self.entries.len() - 1, left);
            }
            self.entries.pop_back();
            self.changes.replace_from(self.entries.len());
        }
    }
}
