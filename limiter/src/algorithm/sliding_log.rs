//! The sliding log: every charge is stored until it is one window old.
//!
//! With sub-windows, the charges of one sub-window are stored as one entry and expire together.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroU64,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{Admission, Algorithm, Decision, Excess, Held, Operation, Place, Span, Verdict},
    time::Timestamp,
};

/// The maximum number of entries. Beyond it the two oldest are merged at the later instant, which makes the limit
/// slightly stricter, never more lenient.
pub const ENTRIES_MAX: usize = 10_000;

/// At most `limit` hits within any span of the window's length (with sub-windows: of the window less one of them).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingLog {
    /// Hits within the length of the window; 0 lets none pass.
    pub limit: u64,
    /// The length of the window.
    pub span: Span,
    /// Instants are rounded down to a multiple of this many nanoseconds, which divides the window.
    pub sub_window: NonZeroU64,
    /// What happens to a charge larger than what is left. A debt expires with the charge that made it.
    pub excess: Excess,
}

/// Charges within the length of the window, oldest first, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCounter {
    // Invariant: instants increase; no hits are 0.
    pub(crate) entries: VecDeque<LogEntry>,
    // Invariant: the sum of the hits of all entries; if 64 bits cannot hold it, the oldest hits are left out.
    total: u64,
    #[serde(skip)]
    copied: CopiedEntries,
}

/// What the last copy of changes has of a log. It does not distinguish two logs.
#[derive(Clone, Copy, Debug, Default)]
struct CopiedEntries {
    // The number of entries from the oldest one on that are as in the copy, but for the hits of the oldest one.
    kept: u16,
    // The number of entries of the copy that were older and have gone since.
    gone: u16,
    // Whether the kept entries are missing here, except for the oldest one.
    is_partial: bool,
}

impl PartialEq for CopiedEntries {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CopiedEntries {}

/// Hits of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub(crate) at: Timestamp,
    pub(crate) hits: u64,
}

/// A charge at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReceipt(LogEntry);

impl SlidingLog {
    /// Whether charges are counted by sub-windows, not each on its own.
    pub fn has_sub_windows(&self) -> bool {
        self.sub_window > NonZeroU64::MIN
    }

    /// The instant at which a charge at `now` is stored.
    fn instant(&self, counter: &LogCounter, now: Timestamp) -> Timestamp {
        let sub_window = now.minus(now.as_nanos() % self.sub_window);
        // If time goes back, the charge is added to the newest entry.
        counter.entries.back().map_or(sub_window, |newest| newest.at.max(sub_window))
    }

    fn leaves_at(&self, entry: &LogEntry) -> Timestamp {
        entry.at.plus(self.span.nanos())
    }

    /// The entries that still count.
    fn live<'c>(&self, counter: &'c LogCounter, now: Timestamp) -> impl Iterator<Item = &'c LogEntry> {
        counter.entries.iter().skip_while(move |entry| self.leaves_at(entry) <= now)
    }

    fn sum(&self, counter: &LogCounter, now: Timestamp) -> u64 {
        let left = counter.entries.iter().take_while(|entry| self.leaves_at(entry) <= now);
        counter.total - left.map(|entry| entry.hits).sum::<u64>()
    }

    fn charge(&self, counter: &mut LogCounter, now: Timestamp, hits: u64) -> (bool, Option<LogReceipt>) {
        let sum = self.sum(counter, now);
        let left = self.limit.saturating_sub(sum);
        let (passes, taken) = match self.excess {
            _ if hits <= left => (true, hits),
            Excess::Refuse => (false, 0),
            Excess::Count => (false, hits),
            Excess::Overdraft(_) if left == 0 => (false, 0),
            Excess::Overdraft(debt) => (true, hits.min(left.saturating_add(debt))),
        };
        let entry = LogEntry { at: self.instant(counter, now), hits: taken };
        if taken > 0 {
            self.forget(counter, now);
            counter.add(entry);
            self.bound(counter);
        }
        (passes, (passes && hits <= left).then_some(LogReceipt(entry)))
    }

    /// Removes `hits` that still count, the oldest first, or as many as there are.
    pub(crate) fn free_oldest(&self, counter: &mut LogCounter, now: Timestamp, hits: u64) {
        self.forget(counter, now);
        counter.remove_oldest(hits);
    }

    /// The time until the oldest hits expire.
    pub(crate) fn oldest_leaves_after(&self, counter: &LogCounter, now: Timestamp) -> Duration {
        let oldest = self.live(counter, now).next();
        oldest.map(|entry| self.leaves_at(entry).since(now)).unwrap_or_default()
    }

    /// The longest time for which a hit is counted.
    pub(super) fn longest_kept(&self) -> Duration {
        Duration::from_nanos(self.span.nanos().saturating_add(self.sub_window.get()))
    }

    /// Drops expired entries.
    fn forget(&self, counter: &mut LogCounter, now: Timestamp) {
        while let Some(oldest) = counter.entries.front()
            && self.leaves_at(oldest) <= now
        {
            counter.total -= oldest.hits;
            counter.pop_oldest();
        }
        if counter.entries.len() < counter.entries.capacity() / 4 {
            counter.entries.shrink_to(counter.entries.len() * 2);
        }
    }

    /// Merges entries beyond the bound. With more entries than the limit, the oldest entry alone never decides, so it
    /// can be merged with the next one.
    fn bound(&self, counter: &mut LogCounter) {
        let most = usize::try_from(self.limit).unwrap_or(usize::MAX).clamp(1, ENTRIES_MAX);
        while most < counter.entries.len() {
            let oldest = counter.pop_oldest();
            if let (Some(oldest), Some(next)) = (oldest, counter.entries.front_mut()) {
                // Both are part of the total, so their sum fits.
                next.hits += oldest.hits;
            }
        }
    }

    /// The first instant at which `hits` would pass without further charges; `None` if they never pass.
    fn passes_at(&self, counter: &LogCounter, now: Timestamp, hits: u64) -> Option<Timestamp> {
        let room = self.limit.checked_sub(self.excess.needed(hits))?;
        // Entries expire oldest first until there is room.
        let mut kept = 0_u64;
        let keeps = |entry: &&LogEntry| {
            kept = kept.saturating_add(entry.hits);
            kept <= room
        };
        let fitting = counter.entries.iter().rev().take_while(keeps).count();
        let last_to_leave = counter.entries.iter().rev().nth(fitting)?;
        Some(self.leaves_at(last_to_leave).max(now))
    }
}

impl Algorithm for SlidingLog {
    type Counter = LogCounter;
    type Receipt = LogReceipt;
    const ADMISSION: Admission = Admission::AtOnce;
    const LEASABLE: bool = false;

    fn decide(&self, counter: &mut LogCounter, now: Timestamp, operation: Operation) -> Decision<LogReceipt> {
        let (hits, passes, receipt) = match operation {
            Operation::Peek => (1, self.sum(counter, now) < self.limit, None),
            Operation::Charge(hits) => {
                let (passes, receipt) = self.charge(counter, now, hits);
                (hits, passes, receipt)
            }
            Operation::Refund(hits) => {
                self.forget(counter, now);
                counter.remove_newest(hits);
                (0, true, None)
            }
        };
        let remaining = self.limit.saturating_sub(self.sum(counter, now));
        let oldest_leaves = self.oldest_leaves_after(counter, now);
        if passes {
            return Decision { verdict: Verdict::Pass, remaining, reset_after: oldest_leaves, receipt };
        }
        let retry_after = self.passes_at(counter, now, hits).map(|then| then.since(now));
        let reset_after = retry_after.unwrap_or(oldest_leaves);
        Decision { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt }
    }

    fn undo(&self, counter: &mut LogCounter, LogReceipt(charge): LogReceipt, _now: Timestamp) {
        if let Some(index) = counter.index_of(Place::Instant(charge.at)) {
            counter.remove_at(index, charge.hits);
        }
    }

    fn idle_at(&self, counter: &LogCounter) -> Timestamp {
        counter.entries.back().map_or(Timestamp::EPOCH, |newest| self.leaves_at(newest))
    }

    fn since(&self, counter: &LogCounter, base: &LogCounter, now: Timestamp) -> LogCounter {
        let mut since = counter.clone();
        self.forget(&mut since, now);
        // Not by instants: entries that came through other clocks have other ones.
        since.remove_oldest(self.sum(base, now));
        since
    }

    fn absorb(&self, counter: &mut LogCounter, other: &LogCounter, now: Timestamp) {
        self.forget(counter, now);
        // The other clock may be ahead; at most one window of that is kept.
        let latest = now.plus(self.span.nanos());
        for entry in self.live(other, now) {
            counter.add(LogEntry { at: entry.at.min(latest), hits: entry.hits });
        }
        self.bound(counter);
    }

    fn clamp_ahead(&self, counter: &mut LogCounter, at: Timestamp, now: Timestamp) {
        // The last entries are the newest.
        if counter.entries.back().is_some_and(|newest| now < newest.at) {
            let moved = |(instant, hits)| (if now < instant { at } else { instant }, hits);
            *counter = LogCounter::of(counter.hits().map(moved));
        }
    }

    fn place(&self, counter: &LogCounter, now: Timestamp) -> Place {
        Place::Instant(self.instant(counter, now))
    }

    fn weight(&self, counter: &LogCounter, place: Place, now: Timestamp) -> u128 {
        let entry = counter.index_of(place).map(|index| &counter.entries[index]);
        entry.filter(|entry| now < self.leaves_at(entry)).map_or(0, |entry| entry.hits.into())
    }

    fn lighten(&self, counter: &mut LogCounter, held: &Held, units: u128, _now: Timestamp) {
        if let Some(index) = counter.index_of(held.place) {
            counter.remove_at(index, u64::try_from(units).unwrap_or(u64::MAX));
        }
    }

    fn refund_beside(
        &self,
        counter: &mut LogCounter,
        held: &[Held],
        hits: u64,
        now: Timestamp,
    ) -> Decision<LogReceipt> {
        self.forget(counter, now);
        let rest = counter.remove_newest_beside(held, hits);
        self.decide(counter, now, Operation::Refund(rest))
    }

    fn converted(&self, units: u128, _before: &Self) -> u128 {
        units
    }

    fn allowance(&self) -> u64 {
        self.limit
    }

    fn excess(&self) -> Excess {
        self.excess
    }

    fn period(&self) -> Option<u64> {
        Some(self.span.nanos())
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess) {
        (self.limit, self.excess) = (number(self.limit), excess(self.excess));
    }
}

impl LogCounter {
    /// A log of these hits, in any order.
    pub(crate) fn of(hits: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        let mut log = Self::default();
        hits.for_each(|(at, hits)| log.add(LogEntry { at, hits }));
        log
    }

    /// The hits with their instants, oldest first.
    pub(crate) fn hits(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.entries.iter().map(|entry| (entry.at, entry.hits))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<LogEntry>()
    }

    pub(crate) fn shift_back(&mut self, back: u64) {
        for entry in &mut self.entries {
            entry.at = entry.at.minus(back);
        }
        self.change_from(0);
    }

    /// A copy for a backup that has the last copy: the changes since then, if the backup can keep any entry.
    pub(crate) fn copy_changes(&mut self) -> Self {
        let CopiedEntries { kept, gone, .. } = self.copied;
        let copy = match usize::from(kept) {
            0 => self.clone(),
            kept_entries => {
                let entries = self.entries.iter().take(1).chain(self.entries.iter().skip(kept_entries));
                let hits = entries.map(|entry| (entry.at, entry.hits));
                Self::of_changes((gone, kept), hits)
            }
        };
        self.copied = CopiedEntries { kept: self.len(), ..CopiedEntries::default() };
        copy
    }

    /// A copy of everything. The next copy of changes has what changes from now on.
    pub(crate) fn copy_all(&mut self) -> Self {
        self.copied = CopiedEntries { kept: self.len(), ..CopiedEntries::default() };
        self.clone()
    }

    /// The changes, if this is a copy of changes only.
    pub(crate) fn changes(&self) -> Option<(u16, u16)> {
        let CopiedEntries { kept, gone, is_partial } = self.copied;
        is_partial.then_some((gone, kept))
    }

    /// A copy of changes only.
    pub(crate) fn of_changes((gone, kept): (u16, u16), hits: impl Iterator<Item = (Timestamp, u64)>) -> Self {
        Self { copied: CopiedEntries { kept, gone, is_partial: true }, ..Self::of(hits) }
    }

    /// Whether the changes can be applied to an earlier copy.
    pub(crate) fn can_follow(&self, earlier: &Self) -> bool {
        let CopiedEntries { kept, gone, is_partial } = self.copied;
        !is_partial || usize::from(kept) + usize::from(gone) <= earlier.entries.len()
    }

    /// Applies the changes to an earlier copy.
    pub(crate) fn after(self, mut earlier: Self) -> Self {
        let CopiedEntries { kept, gone, is_partial } = self.copied;
        if !is_partial {
            return self;
        }
        earlier.entries.drain(..usize::from(gone).min(earlier.entries.len()));
        earlier.entries.truncate(kept.into());
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

    /// The number of entries, at most [`ENTRIES_MAX`] and one more.
    fn len(&self) -> u16 {
        u16::try_from(self.entries.len()).unwrap_or(u16::MAX)
    }

    fn pop_oldest(&mut self) -> Option<LogEntry> {
        if self.copied.kept > 0 {
            self.copied.kept -= 1;
            self.copied.gone += 1;
        }
        self.entries.pop_front()
    }

    /// Records that the hits of the entry at `index` have changed. Those of the oldest one are always copied.
    fn change_at(&mut self, index: usize) {
        if index > 0 {
            self.change_from(index);
        }
    }

    /// Records that the entries from `index` on have changed.
    fn change_from(&mut self, index: usize) {
        self.copied.kept = self.copied.kept.min(u16::try_from(index).unwrap_or(u16::MAX));
    }

    fn add(&mut self, new: LogEntry) {
        let hits = new.hits - self.make_room(new);
        if hits == 0 {
            return;
        }
        self.total += hits;
        match self.entries.binary_search_by_key(&new.at, |entry| entry.at) {
            Ok(index) => {
                self.entries[index].hits += hits;
                self.change_at(index);
            }
            Err(index) => {
                self.entries.insert(index, LogEntry { hits, ..new });
                self.change_from(index);
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

    /// The index of the entry at `place`, if there is one.
    fn index_of(&self, place: Place) -> Option<usize> {
        let Place::Instant(at) = place else { return None };
        self.entries.binary_search_by_key(&at, |entry| entry.at).ok()
    }

    /// Removes `hits` from one entry, or as many as it has.
    fn remove_at(&mut self, index: usize, hits: u64) {
        let entry = &mut self.entries[index];
        let taken = entry.hits.min(hits);
        entry.hits -= taken;
        self.total -= taken;
        match (entry.hits, index) {
            (0, 0) => drop(self.pop_oldest()),
            (0, _) => {
                self.entries.remove(index);
                self.change_from(index);
            }
            (_, _) => self.change_at(index),
        }
    }

    /// Removes `hits`, the oldest first, or as many as there are.
    fn remove_oldest(&mut self, mut hits: u64) {
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
    fn remove_newest_beside(&mut self, held: &[Held], mut hits: u64) -> u64 {
        let mut kept: BTreeMap<Timestamp, u128> = BTreeMap::new();
        for Held { place, taken, floor } in held {
            if let Place::Instant(at) = place {
                *kept.entry(*at).or_default() += (*taken).min(*floor);
            }
        }
        for entry in self.entries.iter_mut().rev() {
            let kept = kept.get(&entry.at).copied().unwrap_or_default();
            let taken = u128::from(entry.hits).saturating_sub(kept).min(hits.into());
            // At most the hits of the entry.
            let taken = taken as u64;
            entry.hits -= taken;
            self.total -= taken;
            hits -= taken;
        }
        self.entries.retain(|entry| entry.hits > 0);
        self.change_from(0);
        hits
    }

    /// Removes `hits`, the newest first, or as many as there are.
    fn remove_newest(&mut self, mut hits: u64) {
        while let Some(newest) = self.entries.back_mut() {
            let taken = newest.hits.min(hits);
            newest.hits -= taken;
            hits -= taken;
            self.total -= taken;
            let is_gone = newest.hits == 0;
            if is_gone {
                self.entries.pop_back();
            }
            if !is_gone {
                return self.change_at(self.entries.len() - 1);
            }
            self.change_from(self.entries.len());
        }
    }
}
