//! The sliding log: every charge is stored until it is one window old.
//!
//! With sub-windows, the charges of one sub-window are stored as one entry and expire together.

use std::{num::NonZeroU64, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Algorithm, Decision, Excess, Operation,
        held::{ChargePosition, HeldCharge},
        log_counter::{LogCounter, changes::LogEntry},
        window::Span,
    },
    time::timestamp::Timestamp,
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

    fn charge(&self, counter: &mut LogCounter, now: Timestamp, hits: u64) -> (bool, Option<LogEntry>) {
        let sum = self.sum(counter, now);
        let left = self.limit.saturating_sub(sum);
        let (passes, taken) = self.excess.admitted(hits, left);
        let entry = LogEntry { at: self.instant(counter, now), hits: taken };
        if taken > 0 {
            self.forget(counter, now);
            counter.add(entry);
            self.bound(counter);
        }
        (passes, (hits <= left).then_some(entry))
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

    /// The longest time for which a hit is retained.
    pub(super) fn retention(&self) -> Duration {
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
        let mut retained = 0_u64;
        let keeps = |entry: &&LogEntry| {
            retained = retained.saturating_add(entry.hits);
            retained <= room
        };
        let fitting = counter.entries.iter().rev().take_while(keeps).count();
        let last_to_leave = counter.entries.iter().rev().nth(fitting)?;
        Some(self.leaves_at(last_to_leave).max(now))
    }
}

impl Algorithm for SlidingLog {
    type Counter = LogCounter;
    type Receipt = LogEntry;

    fn decide(&self, counter: &mut LogCounter, now: Timestamp, operation: Operation) -> Decision<LogEntry> {
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
        Decision::new(passes, receipt, remaining, oldest_leaves, || {
            self.passes_at(counter, now, hits).map(|then| then.since(now))
        })
    }

    fn undo(&self, counter: &mut LogCounter, charge: LogEntry, _now: Timestamp) {
        if let Some(index) = counter.index_of(ChargePosition::Instant(charge.at)) {
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
        // The other clock may be ahead; at most one window of that is retained.
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
            *counter = LogCounter::from_hits(counter.hits().map(moved));
        }
    }

    fn position(&self, counter: &LogCounter, now: Timestamp) -> ChargePosition {
        ChargePosition::Instant(self.instant(counter, now))
    }

    fn weight(&self, counter: &LogCounter, position: ChargePosition, now: Timestamp) -> u128 {
        let entry = counter.index_of(position).map(|index| &counter.entries[index]);
        entry.filter(|entry| now < self.leaves_at(entry)).map_or(0, |entry| entry.hits.into())
    }

    fn lighten(&self, counter: &mut LogCounter, held: &HeldCharge, units: u128, _now: Timestamp) {
        if let Some(index) = counter.index_of(held.position) {
            counter.remove_at(index, u64::try_from(units).unwrap_or(u64::MAX));
        }
    }

    fn refund_with_held(
        &self,
        counter: &mut LogCounter,
        held: &[HeldCharge],
        hits: u64,
        now: Timestamp,
    ) -> Decision<LogEntry> {
        self.forget(counter, now);
        let rest = counter.remove_newest_unheld(held, hits);
        self.decide(counter, now, Operation::Refund(rest))
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
