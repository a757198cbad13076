//! The ids that counters retain for a caller.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rustc_hash::FxHashMap;

use crate::time::timestamp::Timestamp;

/// An id and the memory that it takes.
#[derive(Clone, Copy, Debug)]
pub struct IdRecord {
    /// The hash of the id.
    pub id: u64,
    /// The instant at which counters forget the id.
    pub until: Timestamp,
    /// The bytes that the id takes at its counters.
    pub bytes: usize,
}

/// The ids that counters retain for one caller.
#[derive(Debug, Default)]
pub(super) struct IdAccount {
    ids: Mutex<Ids>,
    all: Arc<AllIds>,
}

/// The sums over all accounts.
#[derive(Debug, Default)]
pub(super) struct AllIds {
    bytes: AtomicUsize,
    // Accounts that have ids.
    accounts: AtomicUsize,
}

#[derive(Debug, Default)]
struct Ids {
    each: FxHashMap<u64, IdRecord>,
    order: BTreeSet<(Timestamp, u64)>,
    bytes: usize,
}

impl IdAccount {
    pub(super) fn new(all: Arc<AllIds>) -> Self {
        Self { ids: Mutex::default(), all }
    }

    /// The bytes that the ids take at `now`.
    pub(super) fn bytes(&self, now: Timestamp) -> usize {
        self.change(now, |ids| ids.bytes)
    }

    pub(super) fn contains(&self, id: u64, now: Timestamp) -> bool {
        self.change(now, |ids| ids.each.contains_key(&id))
    }

    /// Retains an id. An id that is known keeps its bytes.
    ///
    /// Counters forget the oldest ids if there are too many of them, which is not reported here. So if all accounts
    /// have more than `bytes_max`, an account with more than the average forgets its oldest ids too.
    pub(super) fn remember(&self, record: IdRecord, bytes_max: usize, now: Timestamp) {
        self.change(now, |ids| {
            ids.set(record);
            let average = bytes_max / self.all.accounts.load(Relaxed).max(1);
            // Two for each that is added, so that the sum becomes less.
            for _ in 0..2 {
                if self.all.bytes.load(Relaxed) > bytes_max && ids.bytes > average {
                    ids.forget_first();
                }
            }
        });
    }

    fn change<T>(&self, now: Timestamp, change: impl FnOnce(&mut Ids) -> T) -> T {
        // Each change is whole before anything can panic.
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let before = ids.bytes;
        while ids.order.first().is_some_and(|(until, _)| *until <= now) {
            ids.forget_first();
        }
        let result = change(&mut ids);
        self.all.replace(before, ids.bytes);
        result
    }
}

impl Drop for IdAccount {
    fn drop(&mut self) {
        self.change(Timestamp::MAX, |_| ());
    }
}

impl AllIds {
    fn replace(&self, before: usize, after: usize) {
        self.bytes.fetch_add(after, Relaxed);
        self.bytes.fetch_sub(before, Relaxed);
        match (before > 0, after > 0) {
            (false, true) => _ = self.accounts.fetch_add(1, Relaxed),
            (true, false) => _ = self.accounts.fetch_sub(1, Relaxed),
            (true, true) | (false, false) => {}
        }
    }
}

impl Ids {
    fn set(&mut self, record: IdRecord) {
        let IdRecord { id, until, bytes } = record;
        let known = self.each.entry(id).or_insert_with(|| {
            self.bytes += bytes;
            record
        });
        self.order.remove(&(known.until, id));
        known.until = until;
        self.order.insert((until, id));
    }

    fn forget_first(&mut self) {
        if let Some((_, id)) = self.order.pop_first() {
            self.bytes -= self.each.remove(&id).map_or(0, |record| record.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::timestamp::SECOND;

    const NOW: Timestamp = Timestamp::from_nanos(SECOND);
    const PLENTY: usize = 1_000_000;

    fn record(id: u64, nanos: u64, bytes: usize) -> IdRecord {
        IdRecord { id, until: NOW.plus(nanos), bytes }
    }

    #[test]
    fn ids_count_until_they_are_forgotten() {
        let account = IdAccount::default();
        account.remember(record(1, 5, 100), PLENTY, NOW);
        account.remember(record(2, 50, 10), PLENTY, NOW);
        assert_eq!(account.bytes(NOW.plus(4)), 110);
        assert_eq!(account.bytes(NOW.plus(5)), 10);
        account.remember(record(2, 9, 7), PLENTY, NOW.plus(5));
        assert!(account.contains(2, NOW.plus(8)));
        assert_eq!(account.bytes(NOW.plus(9)), 0);
    }

    #[test]
    fn account_above_the_average_forgets_its_oldest_ids() {
        let all = Arc::<AllIds>::default();
        let [large, small] = [(); 2].map(|()| IdAccount::new(all.clone()));
        small.remember(record(1, 1, 10), 1_000, NOW);
        for id in 0..1_000 {
            large.remember(record(id, id + 1, 10), 1_000, NOW);
        }
        assert!(all.bytes.load(Relaxed) <= 1_010);
        assert!(small.contains(1, NOW) && large.contains(999, NOW) && !large.contains(0, NOW));
        drop((large, small));
        assert_eq!((all.bytes.load(Relaxed), all.accounts.load(Relaxed)), (0, 0));
    }
}
