//! The table behind one lock: what it takes, and how it makes room when it may not grow.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    descriptor::Key,
    store::{budget::Budget, cell::Cell},
    time::Timestamp,
};

mod places;

use places::{Places, bytes_of, capacity_of, next_after, places_for};

/// One eighth of a table is cleared at a time, so that clearing is rare.
const ROOM_SHARE: usize = 8;
/// Where clearing frees less than this share, the next is put off.
const WORTH_SHARE: usize = 64;
/// For how long, in nanoseconds.
const REST: u64 = 50_000_000;
/// How many harms there are, as a byte tells them.
const HARMS: usize = 1 << u8::BITS;
/// The bytes of the first places that a table has.
pub(super) const BYTES_FIRST: usize = bytes_of(next_after(0));

/// Counters by their keys.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: Places,
    // Until then it need not be cleared again, because that would free too little.
    rests_until: Timestamp,
}

/// What all tables share.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) budget: Arc<Budget>,
    pub(super) evicted_idle: Tally,
    pub(super) evicted_unexpired: Tally,
}

/// Counts what happens.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    pub(super) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Table {
    /// A table of these counters.
    pub(super) fn of(cells: impl ExactSizeIterator<Item = (Key, Cell)>) -> Self {
        let mut places = Places::new(places_for(cells.len()));
        cells.for_each(|(key, cell)| places.put(key, cell));
        Self { places, ..Self::default() }
    }

    /// How many counters there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The bytes that it takes, besides what its cells take elsewhere.
    pub(super) fn bytes(&self) -> usize {
        bytes_of(self.places.number())
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Cell> {
        self.places.get(key)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Cell> {
        self.places.get_mut(key)
    }

    /// Copies of all counters.
    pub(super) fn copies(&self) -> Vec<(Key, Cell)> {
        let mut copies = Vec::with_capacity(self.len());
        copies.extend(self.places.iter().cloned());
        copies
    }

    /// All counters.
    pub(super) fn into_cells(self) -> impl Iterator<Item = (Key, Cell)> {
        self.places.into_cells()
    }

    /// Forgets a counter, if there is one.
    pub(super) fn remove(&mut self, key: Key, means: &Means) {
        if let Some(cell) = self.places.remove(key) {
            means.budget.change(cell.heap_bytes(), 0);
        }
    }

    /// Keeps a new counter if it can: within the budget, or in the place of others that are missed less.
    pub(super) fn insert(&mut self, key: Key, cell: Cell, now: Timestamp, means: &Means) -> bool {
        let heap = cell.heap_bytes();
        if self.places.is_full() {
            self.tidy(now, means);
        }
        if self.is_short(heap, means) {
            self.clear(now, means);
            if self.is_short(heap, means) {
                return false;
            }
        }
        if self.places.is_full() {
            self.resize(next_after(self.places.number()), means);
        }
        self.places.put(key, cell);
        means.budget.change(0, heap);
        true
    }

    /// Whether there is too little memory for one more counter that takes so much elsewhere.
    fn is_short(&self, heap: usize, means: &Means) -> bool {
        let places = self.places.number();
        let more = if self.places.is_full() { bytes_of(next_after(places)) } else { 0 };
        if places == 0 {
            means.budget.is_short_of_first(more + heap)
        } else {
            means.budget.is_short_of(more + heap)
        }
    }

    /// Forgets what is idle in a full table, so that it does not grow for that. Where it was not worth the while, it
    /// grows if it may.
    fn tidy(&mut self, now: Timestamp, means: &Means) {
        let all = self.len();
        let forgotten = self.forget_idle(now, means);
        let larger = next_after(self.places.number());
        if forgotten * ROOM_SHARE < all && !means.budget.is_short_of(bytes_of(larger)) {
            self.resize(larger, means);
        }
    }

    /// Forgets what is idle, and says how many counters that were.
    pub(super) fn forget_idle(&mut self, now: Timestamp, means: &Means) -> usize {
        let forgotten = self.forget(means, |cell| cell.idle_at() <= now);
        means.evicted_idle.add(forgotten);
        forgotten
    }

    /// Makes room without growing: what is idle goes, then what is missed least, until an eighth is free. Those that
    /// refuse now stay.
    pub(super) fn clear(&mut self, now: Timestamp, means: &Means) {
        if now < self.rests_until {
            return;
        }
        let all = self.len();
        let idle = self.forget_idle(now, means);
        let enough = (all / ROOM_SHARE).max(1);
        let least = self.forget_least(enough.saturating_sub(idle), now, means);
        means.evicted_unexpired.add(least);
        if idle + least <= all / WORTH_SHARE {
            self.rests_until = now.plus(REST);
        }
    }

    /// Forgets so many counters, those that are missed least, but none that refuses now. Says how many.
    fn forget_least(&mut self, number: usize, now: Timestamp, means: &Means) -> usize {
        let harm = |cell: &Cell| cell.harm(now).map(usize::from);
        let mut by_harm = [0; HARMS];
        self.places.iter().filter_map(|(_, cell)| harm(cell)).for_each(|harm| by_harm[harm] += 1);
        // All go that do less harm than `bound`, and `left` of those that do as much.
        let (mut bound, mut left) = (0, number);
        while bound < HARMS && by_harm[bound] <= left {
            left -= by_harm[bound];
            bound += 1;
        }
        // These are taken evenly from the whole table: were always the first to go, its end would fill up.
        let mut due = 0;
        self.forget(means, |cell| match harm(cell) {
            Some(harm) if harm == bound => {
                due += left;
                let goes = by_harm[bound] <= due;
                due -= if goes { by_harm[bound] } else { 0 };
                goes
            }
            Some(harm) => harm < bound,
            None => false,
        })
    }

    /// Forgets those for which `goes` says so, and says how many they were.
    fn forget(&mut self, means: &Means, mut goes: impl FnMut(&Cell) -> bool) -> usize {
        let (before, mut heap) = (self.len(), 0);
        self.places.retain(|cell| {
            let goes = goes(cell);
            heap += if goes { cell.heap_bytes() } else { 0 };
            !goes
        });
        means.budget.change(heap, 0);
        before - self.len()
    }

    /// Gives memory back where it has become much too large.
    pub(super) fn shrink(&mut self, means: &Means) {
        if self.len() * 4 < capacity_of(self.places.number()) {
            self.resize(places_for(self.len() * 2), means);
        }
    }

    fn resize(&mut self, places: usize, means: &Means) {
        let before = self.bytes();
        self.places.resize(places);
        means.budget.change_table(before, self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        algorithm::{Ask, Counter, Excess, Limit, Pace, PaceCounter, SlidingLog, Span, TokenBucket},
        time::SECOND,
    };

    const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

    /// One of many keys, with an upper half that tells which.
    pub(super) fn key(index: u64) -> Key {
        // A step of SplitMix64, so that the lower halves are spread as those of a hash.
        let mut low = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        low = (low ^ low >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        low = (low ^ low >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Key::from_halves(index, low ^ low >> 31)
    }

    /// A bucket that is full at that instant, in nanoseconds.
    pub(super) fn cell(idle_at: u64) -> Cell {
        let hour = NonZeroU64::new(3_600 * SECOND).unwrap();
        let pace = Pace::new(NonZeroU64::MIN, hour);
        let counter = PaceCounter { paid_at: Timestamp::from_nanos(idle_at), rest: 0 };
        let limit = Limit::TokenBucket(TokenBucket { pace, burst: 11, excess: Excess::Refuse });
        told(&limit, Counter::Pace(counter))
    }

    /// One that keeps bytes elsewhere.
    fn log(now: Timestamp) -> Cell {
        let (span, grain) = (Span::of_nanos(3_600 * SECOND).unwrap(), NonZeroU64::MIN);
        let limit = Limit::SlidingLog(SlidingLog { limit: 100, span, grain, excess: Excess::Refuse });
        let mut counter = limit.fresh();
        limit.decide(&mut counter, now, Ask::Charge(7));
        told(&limit, counter)
    }

    fn told(limit: &Limit, mut counter: Counter) -> Cell {
        let look = limit.decide(&mut counter, NOW, Ask::Look);
        Cell::new(limit, counter, &look)
    }

    fn means(bytes_max: usize) -> Means {
        Means {
            budget: Arc::new(Budget::new(bytes_max as u64, 1, BYTES_FIRST)),
            evicted_idle: Tally::default(),
            evicted_unexpired: Tally::default(),
        }
    }

    /// A bucket that is full in so many hours. With more than ten to go it refuses.
    fn bucket(hours: u64) -> Cell {
        cell(NOW.plus(hours * 3_600 * SECOND).as_nanos())
    }

    fn hours(cell: &Cell) -> u64 {
        cell.idle_at().nanos_since(NOW) / (3_600 * SECOND)
    }

    proptest! {
        #[test]
        fn the_bytes_that_are_told_are_those_that_are_taken(
            bytes_max in 200..6_000_usize,
            steps in prop::collection::vec((0..4_u8, 0..200_u64, 0..13_u64), 1..200),
        ) {
            let (mut table, means) = (Table::default(), means(bytes_max));
            for (deed, index, hour) in steps {
                let now = NOW.plus(hour * 3_600 * SECOND);
                match deed {
                    0 => table.remove(key(index), &means),
                    1 => {
                        table.forget_idle(now, &means);
                        table.shrink(&means);
                    }
                    _ if table.get(key(index)).is_some() => {}
                    2 => drop(table.insert(key(index), log(now), NOW, &means)),
                    _ => drop(table.insert(key(index), bucket(hour), NOW, &means)),
                }
                let heap: usize = table.places.iter().map(|(_, cell)| cell.heap_bytes()).sum();
                prop_assert_eq!(means.budget.taken(), table.bytes() + heap);
                prop_assert!(means.budget.taken() <= bytes_max);
            }
        }

        #[test]
        fn a_clearing_frees_an_eighth_of_those_that_are_missed_least(
            all in prop::collection::vec(0..13_u64, 1..400),
        ) {
            let (mut table, means) = (Table::default(), means(1 << 20));
            for (index, hours) in all.iter().enumerate() {
                table.places.resize(places_for(index + 1));
                table.places.put(key(index as u64), bucket(*hours));
            }
            table.clear(NOW, &means);
            let mut stay: Vec<u64> = table.copies().iter().map(|(_, cell)| hours(cell)).collect();
            let mut expected = all.clone();
            expected.sort_unstable();
            stay.sort_unstable();
            let (idle, may_go) =
                (all.iter().filter(|hours| **hours == 0).count(), all.iter().filter(|hours| bucket(**hours).harm(NOW).is_some()).count());
            let gone = idle.max((all.len() / ROOM_SHARE).max(1)).min(may_go);
            prop_assert_eq!(stay, &expected[gone..]);
            prop_assert_eq!(means.evicted_idle.get() + means.evicted_unexpired.get(), gone as u64);
        }
    }

    #[test]
    fn a_table_that_is_cleared_again_and_again_has_room_everywhere() {
        let (mut table, means) = (Table::default(), means(bytes_of(2_000)));
        for index in 0..20_000 {
            assert!(table.insert(key(index), bucket(5), NOW, &means));
        }
        assert!(10_000 < means.evicted_unexpired.get());
        let (all, longest) = table.places.ways();
        assert!(
            all <= 3 * table.len() && longest <= 100,
            "{all} places for {}, {longest} for one",
            table.len()
        );
    }
}
