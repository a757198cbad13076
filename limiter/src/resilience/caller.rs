//! What one caller uses of what all callers share.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rustc_hash::FxHashMap;

use crate::time::Timestamp;

/// What one caller, such as a connection, uses of what all callers share. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Caller(Arc<Use>);

#[derive(Debug, Default)]
struct Use {
    // Checks that wait for a remote decision.
    open_checks: AtomicUsize,
    ids: Mutex<Ids>,
}

/// The ids that counters remember for a caller.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    // By their hash.
    each: FxHashMap<u64, Remembered>,
    order: BTreeSet<(Timestamp, u64)>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    until: Timestamp,
    bytes: usize,
}

impl Caller {
    pub(crate) fn open_checks(&self) -> usize {
        self.0.open_checks.load(Relaxed)
    }

    /// The caller of this excludes other changes since its [`Caller::open_checks`].
    pub(crate) fn set_open_checks(&self, checks: usize) {
        self.0.open_checks.store(checks, Relaxed);
    }

    /// The ids that are remembered at `now`.
    pub(crate) fn ids(&self, now: Timestamp) -> MutexGuard<'_, Ids> {
        // Each change is whole before anything can panic.
        let mut ids = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.forget(now);
        ids
    }
}

impl Ids {
    /// The bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.each.contains_key(&id)
    }

    /// An id is remembered until this instant, in so many bytes. An id that is known keeps its bytes.
    pub(crate) fn set(&mut self, id: u64, until: Timestamp, bytes: usize) {
        let remembered = self.each.entry(id).or_insert_with(|| {
            self.bytes += bytes;
            Remembered { until, bytes }
        });
        self.order.remove(&(remembered.until, id));
        remembered.until = until;
        self.order.insert((until, id));
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((until, id)) = self.order.first().copied().filter(|(until, _)| *until <= now) {
            self.order.remove(&(until, id));
            self.bytes -= self.each.remove(&id).map_or(0, |remembered| remembered.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    const NOW: Timestamp = Timestamp::from_nanos(SECOND);

    #[test]
    fn ids_count_until_they_are_forgotten() {
        let caller = Caller::default();
        caller.ids(NOW).set(1, NOW.plus(5), 100);
        caller.clone().ids(NOW).set(2, NOW.plus(50), 10);
        assert_eq!(caller.ids(NOW.plus(4)).bytes(), 110);
        assert_eq!(caller.ids(NOW.plus(5)).bytes(), 10);
        caller.ids(NOW.plus(5)).set(2, NOW.plus(9), 7);
        assert!(caller.ids(NOW.plus(8)).contains(2));
        assert_eq!(caller.ids(NOW.plus(9)).bytes(), 0);
    }
}
