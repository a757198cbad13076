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
const UNSEATED: usize = usize::MAX;
/// Places besides one for each core: for threads that are not the runtime's.
const SPARE: usize = 3;

static ROOM: LazyLock<Room> = LazyLock::new(Room::new);

thread_local! {
    static SEAT: Cell<usize> = const { Cell::new(UNSEATED) };
    // Held, because dropping it frees the place for the next thread.
    static LEASE: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// The places there are.
struct Room {
    places: usize,
    free: Mutex<Vec<usize>>,
}

/// A place that belongs to one thread while it lives.
struct Lease(usize);

/// `N` sums. The memory for them is taken when the first thread adds to one.
#[derive(Debug, Default)]
pub struct Cells<const N: usize>(OnceLock<Box<[Padded<N>]>>);

#[derive(Debug)]
#[repr(align(64))]
struct Padded<const N: usize>([AtomicU64; N]);

/// Where this thread adds to some cells.
#[derive(Debug)]
pub struct Place<'c, const N: usize> {
    cells: &'c [AtomicU64; N],
    is_shared: bool,
    // Stays with its thread.
    _thread: PhantomData<*const ()>,
}

impl Room {
    fn new() -> Self {
        let places = 1 + SPARE + thread::available_parallelism().map_or(1, usize::from);
        Self { places, free: Mutex::new((1..places).collect()) }
    }

    fn take(&self) -> Option<usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, place: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(place);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What this thread still counts while it ends goes where it may.
        SEAT.set(SHARED);
        ROOM.give_back(self.0);
    }
}

/// The number of this thread's place, below that of all places.
pub(super) fn seat() -> usize {
    match SEAT.get() {
        UNSEATED => take_seat(),
        seat => seat,
    }
}

/// How many places there are.
pub(super) fn places() -> usize {
    ROOM.places
}

#[cold]
fn take_seat() -> usize {
    let lease = ROOM.take().map(Lease);
    let seat = lease.as_ref().map_or(SHARED, |lease| lease.0);
    SEAT.set(seat);
    // A thread that is ending already cannot hold it: then it is dropped here, and the place is free again.
    let _ = LEASE.try_with(|held| held.set(lease));
    SEAT.get()
}

impl<const N: usize> Cells<N> {
    /// Cells that hold zero.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Where this thread adds.
    pub fn place(&self) -> Place<'_, N> {
        let seat = seat();
        let places = self.0.get_or_init(|| {
            (0..places()).map(|_| Padded(std::array::from_fn(|_| AtomicU64::new(0)))).collect()
        });
        Place { cells: &places[seat].0, is_shared: seat == SHARED, _thread: PhantomData }
    }

    /// What all threads have added to each cell.
    pub fn sums(&self) -> [u64; N] {
        let places = self.0.get().map_or(&[][..], |places| places);
        let sum = |cell: usize| {
            let values = places.iter().map(|place| place.0[cell].load(Ordering::Relaxed));
            values.fold(0, u64::wrapping_add)
        };
        std::array::from_fn(sum)
    }
}

impl<const N: usize> Place<'_, N> {
    /// Adds `number` to a cell, which is below `N`.
    pub fn add(&self, cell: usize, number: u64) {
        let cell = &self.cells[cell];
        if self.is_shared {
            cell.fetch_add(number, Ordering::Relaxed);
        } else {
            // Nobody else writes here, so this needs no locked instruction. The next thread in this place has
            // gone through the lock of the room, and so sees what this one has written.
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_however_many_threads_count_and_end() {
        let cells = Cells::<2>::default();
        let rounds = 20;
        let threads = places() * 3;
        for _ in 0..rounds {
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| (0..1_000).for_each(|_| cells.place().add(1, 2)));
                }
            });
        }
        assert_eq!(cells.sums(), [0, rounds * threads as u64 * 2_000]);
    }

    #[test]
    fn a_place_of_its_own_belongs_to_one_thread_at_a_time() {
        let taken = Mutex::new(Vec::new());
        let all = std::sync::Barrier::new(places() * 2);
        thread::scope(|scope| {
            for _ in 0..places() * 2 {
                scope.spawn(|| {
                    taken.lock().unwrap().push(seat());
                    all.wait();
                });
            }
        });
        let mut own: Vec<_> =
            taken.into_inner().unwrap().into_iter().filter(|seat| *seat != SHARED).collect();
        let seats = own.len();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), seats);
    }

    #[test]
    fn cells_that_nobody_has_added_to_take_no_memory_and_are_zero() {
        let cells = Cells::<3>::default();
        assert_eq!((cells.sums(), cells.0.get().is_none()), ([0; 3], true));
    }
}
