//! Cells that many threads add to. Each thread has a place of its own, so that no two write to one cache line;
//! whoever reads sums all places.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{
        LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// The place of all threads that have none of their own.
const SHARED: usize = 0;
/// A thread that has never counted anything has no place yet.
const UNASSIGNED: usize = usize::MAX;
/// Places besides one for each core: for threads that are not the runtime's.
const SPARE_SHARDS: usize = 3;

static POOL: LazyLock<ShardPool> = LazyLock::new(ShardPool::new);

thread_local! {
    static SHARD_INDEX: Cell<usize> = const { Cell::new(UNASSIGNED) };
    // Held, because dropping it frees the place for the next thread.
    static LEASE: Cell<Option<ShardLease>> = const { Cell::new(None) };
}

/// The places there are.
struct ShardPool {
    shards: usize,
    free: Mutex<Vec<usize>>,
}

/// A place that belongs to one thread while it lives.
struct ShardLease(usize);

/// `N` sums. The memory for them is taken when the first thread adds to one.
#[derive(Debug, Default)]
pub struct ShardedCounters<const N: usize>(OnceLock<Box<[Padded<N>]>>);

#[derive(Debug)]
#[repr(align(64))]
struct Padded<const N: usize>([AtomicU64; N]);

/// Where this thread adds to some cells.
#[derive(Debug)]
pub struct Shard<'c, const N: usize> {
    counters: &'c [AtomicU64; N],
    is_shared: bool,
    // Stays with its thread.
    _thread: PhantomData<*const ()>,
}

impl ShardPool {
    fn new() -> Self {
        let shards = 1 + SPARE_SHARDS + thread::available_parallelism().map_or(1, usize::from);
        Self { shards, free: Mutex::new((1..shards).collect()) }
    }

    fn take(&self) -> Option<usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, shard: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(shard);
    }
}

impl Drop for ShardLease {
    fn drop(&mut self) {
        // What this thread still counts while it ends goes where it may.
        SHARD_INDEX.set(SHARED);
        POOL.give_back(self.0);
    }
}

/// The number of this thread's place, below that of all places.
pub(super) fn shard_index() -> usize {
    match SHARD_INDEX.get() {
        UNASSIGNED => assign_shard(),
        shard_index => shard_index,
    }
}

/// How many places there are.
pub(super) fn shard_count() -> usize {
    POOL.shards
}

#[cold]
fn assign_shard() -> usize {
    let lease = POOL.take().map(ShardLease);
    let shard_index = lease.as_ref().map_or(SHARED, |lease| lease.0);
    SHARD_INDEX.set(shard_index);
    // A thread that is ending already cannot hold it: then it is dropped here, and the place is free again.
    let _ = LEASE.try_with(|held| held.set(lease));
    SHARD_INDEX.get()
}

impl<const N: usize> ShardedCounters<N> {
    /// Cells that hold zero.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Where this thread adds.
    pub fn shard(&self) -> Shard<'_, N> {
        let shard_index = shard_index();
        let shards = self.0.get_or_init(|| {
            (0..shard_count()).map(|_| Padded(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
        });
        Shard { counters: &shards[shard_index].0, is_shared: shard_index == SHARED, _thread: PhantomData }
    }

    /// What all threads have added to each cell.
    pub fn sums(&self) -> [u64; N] {
        let shards = self.0.get().map_or(&[][..], |shards| shards);
        let sum = |counter: usize| {
            let values = shards.iter().map(|shard| shard.0[counter].load(Ordering::Relaxed));
            values.fold(0, u64::wrapping_add)
        };
        std::array::from_fn(sum)
    }
}

impl<const N: usize> Shard<'_, N> {
    /// Adds `number` to a cell, which is below `N`.
    pub fn add(&self, counter: usize, number: u64) {
        let counter = &self.counters[counter];
        if self.is_shared {
            counter.fetch_add(number, Ordering::Relaxed);
        } else {
            // Nobody else writes here, so this needs no locked instruction. The next thread in this place has
            // gone through the lock of the room, and so sees what this one has written.
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_however_many_threads_count_and_end() {
        let counters = ShardedCounters::<2>::default();
        let rounds = 20;
        let threads = shard_count() * 3;
        for _ in 0..rounds {
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| (0..1_000).for_each(|_| counters.shard().add(1, 2)));
                }
            });
        }
        assert_eq!(counters.sums(), [0, rounds * threads as u64 * 2_000]);
    }

    #[test]
    fn a_place_of_its_own_belongs_to_one_thread_at_a_time() {
        let taken = Mutex::new(Vec::new());
        let all = std::sync::Barrier::new(shard_count() * 2);
        thread::scope(|scope| {
            for _ in 0..shard_count() * 2 {
                scope.spawn(|| {
                    taken.lock().unwrap().push(shard_index());
                    all.wait();
                });
            }
        });
        let mut own: Vec<_> =
            taken.into_inner().unwrap().into_iter().filter(|shard_index| *shard_index != SHARED).collect();
        let indices = own.len();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), indices);
    }

    #[test]
    fn cells_that_nobody_has_added_to_take_no_memory_and_are_zero() {
        let counters = ShardedCounters::<3>::default();
        assert_eq!((counters.sums(), counters.0.get().is_none()), ([0; 3], true));
    }
}
