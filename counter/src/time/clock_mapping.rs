//! The mapping from monotonic time to the time that a clock shows, and the cell that readers take it from.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use crate::time::{monotonic::Monotonic, timestamp::Timestamp};

/// The slew rate while the wall clock is behind: the clock runs slower than real time by 1/100.
const SLEW_DIVISOR: u64 = 100;

/// A larger lead over the wall clock is given up at once: regular corrections are smaller, so the wall clock had
/// jumped ahead and was set back.
pub const LEAD_MAX: Duration = Duration::from_secs(60);

/// Shown time as a linear function of the monotonic clock, from one point on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockMapping {
    pub(super) from: Monotonic,
    pub(super) shown: Timestamp,
    pub(super) slewing: bool,
}

/// A mapping that is replaced as a whole. Every decision reads it, so a reader writes nothing to memory, and waits for
/// no writer: a mapping is written to the place that is not active. A reader whose mapping was replaced meanwhile reads
/// again.
#[derive(Debug, Default)]
pub(super) struct MappingCell {
    // Incremented by each replacement. The lowest bit is the index of the active mapping.
    version: AtomicUsize,
    mappings: [AtomicMapping; 2],
    // Held by the writer.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct AtomicMapping {
    from: AtomicU64,
    shown: AtomicU64,
    slewing: AtomicBool,
}

impl ClockMapping {
    pub(super) fn at(&self, monotonic: Monotonic) -> Timestamp {
        let passed = monotonic.nanos_since(self.from);
        self.shown.plus(if self.slewing { passed - passed / SLEW_DIVISOR } else { passed })
    }

    /// The mapping to continue with if the wall clock shows `wall` at the instant `monotonic`.
    pub(super) fn next(&self, monotonic: Monotonic, wall: Timestamp) -> Self {
        let shown = self.at(monotonic);
        if shown <= wall || shown.since(wall) > LEAD_MAX {
            return Self { from: monotonic, shown: wall, slewing: false };
        }
        // Slewing for one more round must not overshoot, or the clock would oscillate around the wall clock.
        let round = monotonic.nanos_since(self.from);
        Self { from: monotonic, shown, slewing: round / SLEW_DIVISOR <= shown.nanos_since(wall) }
    }
}

impl MappingCell {
    pub(super) fn new(mapping: ClockMapping) -> Self {
        let cell = Self::default();
        cell.set(mapping);
        cell
    }

    #[inline]
    pub(super) fn get(&self) -> ClockMapping {
        loop {
            // Acquire: the mapping of this version is complete.
            let version = self.version.load(Ordering::Acquire);
            let mapping = self.mappings[version % 2].load();
            // If any part is already of a later mapping, this fence meets the one in `set`, and the version is no
            // longer the same.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return mapping;
            }
        }
    }

    pub(super) fn set(&self, mapping: ClockMapping) {
        // It protects no data, so a poisoned lock is harmless.
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.version.load(Ordering::Relaxed).wrapping_add(1);
        // A reader that sees a part of this mapping sees the version before it too, and not the one that it began with.
        fence(Ordering::Release);
        self.mappings[next % 2].store(mapping);
        self.version.store(next, Ordering::Release);
    }
}

impl AtomicMapping {
    #[inline]
    fn load(&self) -> ClockMapping {
        ClockMapping {
            from: Monotonic(self.from.load(Ordering::Relaxed)),
            shown: Timestamp::from_nanos(self.shown.load(Ordering::Relaxed)),
            slewing: self.slewing.load(Ordering::Relaxed),
        }
    }

    fn store(&self, ClockMapping { from, shown, slewing }: ClockMapping) {
        self.from.store(from.0, Ordering::Relaxed);
        self.shown.store(shown.as_nanos(), Ordering::Relaxed);
        self.slewing.store(slewing, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::time::timestamp::SECOND;

    const HOUR: u64 = 3_600 * SECOND;

    #[test]
    fn clock_follows_forward_step_of_wall_at_once() {
        let from = Monotonic(HOUR);
        let mapping = ClockMapping { from, shown: Timestamp::from_nanos(10 * HOUR), slewing: false };
        let next = mapping.next(Monotonic(HOUR + SECOND / 10), Timestamp::from_nanos(11 * HOUR));
        assert_eq!(next.at(next.from), Timestamp::from_nanos(11 * HOUR));
    }

    #[test]
    fn clock_slews_one_percent_until_it_meets_wall() {
        let mut monotonic = Monotonic(HOUR);
        let start = Timestamp::from_nanos(10 * HOUR);
        let mut mapping = ClockMapping { from: monotonic, shown: start, slewing: false };
        let mut wall = start.minus(SECOND / 2);
        let mut shown = mapping.at(monotonic);
        for _ in 0..1_000 {
            mapping = mapping.next(monotonic, wall);
            monotonic.0 += SECOND / 10;
            wall = wall.plus(SECOND / 10);
            let next = mapping.at(monotonic);
            assert!(
                next.nanos_since(shown) >= SECOND / 10 * 99 / 100,
                "the clock slews by at most 1 % and never goes back"
            );
            shown = next;
        }
        assert!(shown.nanos_since(wall) <= SECOND / 100, "the lead has shrunk to 10 ms");
        assert!(wall.nanos_since(shown) <= SECOND / 100, "the clock does not fall behind the wall clock");
    }

    #[test]
    fn clock_with_long_lead_gives_it_up_at_once() {
        let from = Monotonic(HOUR);
        let mapping = ClockMapping { from, shown: Timestamp::from_nanos(10 * HOUR), slewing: false };
        let minute = Timestamp::from_nanos(10 * HOUR).before(LEAD_MAX);
        assert!(mapping.next(from, minute).slewing, "a lead of a minute is slewed away");
        let next = mapping.next(from, minute.minus(1));
        assert_eq!((next.at(from), next.slewing), (minute.minus(1), false));
    }

    #[test]
    fn mapping_read_while_others_replace_it_is_one_of_them() {
        const REPLACEMENTS: u64 = 100_000;
        let of = |number: u64| ClockMapping {
            from: Monotonic(number),
            shown: Timestamp::from_nanos(number),
            slewing: !number.is_multiple_of(2),
        };
        let cell = MappingCell::new(of(0));
        thread::scope(|scope| {
            let writers =
                [0, 1].map(|_| scope.spawn(|| (0..=REPLACEMENTS).for_each(|number| cell.set(of(number)))));
            while !writers.iter().all(|writer| writer.is_finished()) {
                let ClockMapping { from, shown, slewing } = cell.get();
                assert_eq!((from.0, !from.0.is_multiple_of(2)), (shown.as_nanos(), slewing));
            }
        });
        assert_eq!(cell.get().from, Monotonic(REPLACEMENTS));
    }
}
