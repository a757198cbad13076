//! Counters and histograms that every thread adds to without contention and that are summed when read.

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::{
        LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

mod histogram;
mod top_keys;

pub use histogram::{Buckets, Histogram, micros};
pub use top_keys::{SpaceSaving, TopKey, TopKeys};

/// A single counter.
#[derive(Debug, Default)]
pub struct MetricCounter(ShardedCounters<1>);

impl MetricCounter {
    /// Adds one.
    pub fn increase(&self) {
        self.add(1);
    }

    /// Adds `number`.
    pub fn add(&self, number: u64) {
        self.0.shard().add(0, number);
    }

    /// The sum over all threads.
    pub fn get(&self) -> u64 {
        let [sum] = self.0.sums();
        sum
    }
}

/// The shard of all threads without a shard of their own; written with atomic additions.
const SHARED: usize = 0;
/// The index of a thread that has not counted anything yet.
const UNASSIGNED: usize = usize::MAX;
/// Shards in addition to one for each core: for threads outside the workers.
const SPARE_SHARDS: usize = 3;

static POOL: LazyLock<ShardPool> = LazyLock::new(ShardPool::new);

thread_local! {
    static SHARD_INDEX: Cell<usize> = const { Cell::new(UNASSIGNED) };
    // Kept until the thread ends: dropping it frees the shard for the next thread.
    static LEASE: Cell<Option<ShardLease>> = const { Cell::new(None) };
}

/// The shards and which of them are free.
struct ShardPool {
    shards: usize,
    free: Mutex<Vec<usize>>,
}

/// A shard owned by one thread while it lives.
struct ShardLease(usize);

/// `N` counters. Memory is allocated by the first addition.
#[derive(Debug, Default)]
pub struct ShardedCounters<const N: usize>(OnceLock<Box<[Padded<N>]>>);

#[derive(Debug)]
#[repr(align(64))]
struct Padded<const N: usize>([AtomicU64; N]);

/// The shard of this thread.
#[derive(Debug)]
pub struct CounterShard<'c, const N: usize> {
    counters: &'c [AtomicU64; N],
    is_shared: bool,
    // Makes the type `!Send`: the shard belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl ShardPool {
    fn new() -> Self {
        let shards = 1 + SPARE_SHARDS + thread::available_parallelism().map_or(1, usize::from);
        Self { shards, free: Mutex::new((1..shards).collect()) }
    }

    /// The shards that no thread has.
    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ShardLease {
    fn drop(&mut self) {
        // Destructors that still run on this thread count in the shared shard.
        SHARD_INDEX.set(SHARED);
        POOL.free().push(self.0);
    }
}

/// The shard index of this thread; less than the number of shards.
fn shard_index() -> usize {
    match SHARD_INDEX.get() {
        UNASSIGNED => assign_shard(),
        shard_index => shard_index,
    }
}

#[cold]
fn assign_shard() -> usize {
    let lease = POOL.free().pop().map(ShardLease);
    let shard_index = lease.as_ref().map_or(SHARED, |lease| lease.0);
    SHARD_INDEX.set(shard_index);
    // A thread that is ending cannot store the lease: dropping it here frees the shard again.
    let _ = LEASE.try_with(|held| held.set(lease));
    SHARD_INDEX.get()
}

impl<const N: usize> ShardedCounters<N> {
    /// Counters at zero.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The shard of this thread.
    pub fn shard(&self) -> CounterShard<'_, N> {
        let shard_index = shard_index();
        let shards = self.0.get_or_init(|| {
            (0..POOL.shards).map(|_| Padded(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
        });
        CounterShard {
            counters: &shards[shard_index].0,
            is_shared: shard_index == SHARED,
            _thread: PhantomData,
        }
    }

    /// The sum of each counter over all shards, at most [`u64::MAX`].
    pub fn sums(&self) -> [u64; N] {
        let shards = self.0.get().map_or(&[][..], |shards| shards);
        let sum = |counter: usize| {
            let values = shards.iter().map(|shard| shard.0[counter].load(Ordering::Relaxed));
            values.fold(0, u64::saturating_add)
        };
        std::array::from_fn(sum)
    }
}

impl<const N: usize> CounterShard<'_, N> {
    /// Adds `number` to a counter, whose index is less than `N`. A counter stays at [`u64::MAX`], because a metric that
    /// falls looks like a restart.
    pub fn add(&self, counter: usize, number: u64) {
        let counter = &self.counters[counter];
        if self.is_shared {
            let _ = counter
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_add(number)));
        } else {
            // Only this thread writes to the shard, so no locked instruction is needed. The next thread with this
            // shard takes it from the pool under its lock, and so sees these writes.
            counter.store(counter.load(Ordering::Relaxed).saturating_add(number), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_include_every_thread_that_counted_and_ended() {
        let counters = ShardedCounters::<2>::default();
        let rounds = 20;
        let threads = POOL.shards * 3;
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
    fn counter_at_its_maximum_does_not_fall() {
        let counters = ShardedCounters::<1>::default();
        let add = |numbers: [u64; 2]| numbers.into_iter().for_each(|number| counters.shard().add(0, number));
        // More threads than there are shards, so that one of them shares its shard.
        let all = std::sync::Barrier::new(POOL.shards);
        thread::scope(|scope| {
            for _ in 0..POOL.shards {
                scope.spawn(|| {
                    add([1, u64::MAX]);
                    all.wait();
                });
            }
        });
        assert_eq!(counters.sums(), [u64::MAX]);
        add([u64::MAX, 2]);
        assert_eq!(counters.sums(), [u64::MAX]);
    }

    #[test]
    fn shard_belongs_to_one_thread_at_a_time() {
        let taken = Mutex::new(Vec::new());
        let all = std::sync::Barrier::new(POOL.shards * 2);
        thread::scope(|scope| {
            for _ in 0..POOL.shards * 2 {
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
    fn unused_counters_are_zero_and_take_no_memory() {
        let counters = ShardedCounters::<3>::default();
        assert_eq!((counters.sums(), counters.0.get().is_none()), ([0; 3], true));
    }
}
