//! Timestamps and clocks. The only module that reads a clock.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// The slew rate while the wall clock is behind: the clock runs slower than real time by 1/100.
const SLEW_DIVISOR: u64 = 100;

/// The time between two comparisons with the wall clock. The drift of a machine's clock in between is negligible.
pub const FOLLOW_EVERY: Duration = Duration::from_millis(100);

const FOLLOW_NANOS: u64 = FOLLOW_EVERY.as_nanos() as u64;

/// A larger lead over the wall clock is given up at once: regular corrections are smaller, so the wall clock had
/// jumped ahead and was set back.
pub const LEAD_MAX: Duration = Duration::from_secs(60);

/// The start of the year 2500. Windows of years and everything that outlives them end before the last instant, in 2554.
const LAST_START: Timestamp = Timestamp(16_725_225_600 * SECOND);

/// The wall clock shows a time that no server can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the clock of this machine is not between the years 1970 and 2499: set it, then start again")]
pub struct ClockOutOfRange;

/// Nanoseconds since the Unix epoch, up to the year 2554. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, before everything that is counted.
    pub const EPOCH: Self = Self(0);
    /// The last representable instant.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `nanos` later, at most the last one.
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The instant `time` later, at most the last one.
    pub fn after(self, time: Duration) -> Self {
        self.plus(nanos(time))
    }

    /// The instant `time` earlier, at least the epoch.
    pub fn before(self, time: Duration) -> Self {
        self.minus(nanos(time))
    }

    /// The instant `nanos` earlier, at least the epoch.
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this instant; 0 if `earlier` is later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// The time from this instant to the next tick of work that is done every `interval`: the first multiple of the
    /// interval since the epoch that is at least half an interval away. So one wake-up serves all such work of a process,
    /// and what replicas with the same time send each other arrives together.
    pub fn until_tick(self, interval: Duration) -> Duration {
        let interval = nanos(interval);
        let earliest = self.plus(interval / 2);
        earliest.0.checked_next_multiple_of(interval).map_or(Self::MAX, Self).since(self)
    }
}

/// A source of time. Clones share one clock.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Arc<SystemClock>),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The clock of this machine: the wall time at the start, advanced by the monotonic clock.
    pub fn system() -> Self {
        Self(Source::System(Arc::new(SystemClock::start())))
    }

    /// A clock that shows `now` until [`Clock::set`] moves it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(now.as_nanos()))))
    }

    /// Whether this is a manual clock.
    pub fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        self.read().now
    }

    /// The current instant, with a monotonic reading to measure what follows.
    #[inline]
    pub fn read(&self) -> Reading {
        match &self.0 {
            Source::System(clock) => clock.read(),
            Source::Manual(nanos) => {
                let now = Timestamp(nanos.load(Ordering::SeqCst));
                Reading { now, at: Monotonic::default(), must_follow: false }
            }
        }
    }

    /// The time since `reading`, independent of changes of the wall clock; zero for a manual clock.
    pub fn since(&self, reading: &Reading) -> Duration {
        let since = |clock: &SystemClock| clock.monotonic.now().nanos_since(reading.at);
        Duration::from_nanos(self.as_system().map_or(0, since))
    }

    /// The time between two readings, independent of changes of the wall clock; `None` for a manual clock.
    pub fn between(&self, earlier: &Reading, later: &Reading) -> Option<Duration> {
        self.as_system().map(|_| Duration::from_nanos(later.at.nanos_since(earlier.at)))
    }

    /// The wall clock. Certificates are issued and verified by it, as replicas and clients verify by theirs.
    pub fn wall(&self) -> Timestamp {
        self.as_system().map_or_else(|| self.now(), SystemClock::wall)
    }

    /// Fails unless the wall clock is in the years 1970 to 2499.
    pub fn require_in_range(&self) -> Result<(), ClockOutOfRange> {
        // Any time before 1970 reads as 1970.
        let wall = self.wall();
        if Timestamp::EPOCH < wall && wall < LAST_START { Ok(()) } else { Err(ClockOutOfRange) }
    }

    /// Sets a manual clock to `now`. A system clock ignores this.
    pub fn set(&self, now: Timestamp) {
        match &self.0 {
            Source::System(_) => {}
            Source::Manual(nanos) => nanos.store(now.as_nanos(), Ordering::SeqCst),
        }
    }

    /// For tests: makes a system clock see the wall clock `nanos` ahead of (negative: behind) what it shows, as if the
    /// clock of the machine were set. A manual clock ignores this.
    pub fn set_wall_ahead(&self, nanos: i64) {
        if let Some(clock) = self.as_system() {
            clock.wall_ahead.store(nanos, Ordering::SeqCst);
        }
    }

    /// Compares a system clock with the wall clock. Pass the result to [`Clock::follow`], every [`FOLLOW_EVERY`].
    /// `None` for a manual clock.
    pub fn compare_with_wall(&self) -> Option<Comparison> {
        self.as_system().map(SystemClock::compare_with_wall)
    }

    /// Follows the wall clock: with a step if the wall clock is ahead or more than [`LEAD_MAX`] behind, otherwise by
    /// running 1 % slower.
    pub fn follow(&self, comparison: &Comparison) {
        if let Some(clock) = self.as_system() {
            clock.follow(comparison);
        }
    }

    /// The number of steps longer than [`LEAD_MAX`], forward and back.
    pub fn long_steps(&self) -> LongSteps {
        self.as_system().map(SystemClock::long_steps).unwrap_or_default()
    }

    fn as_system(&self) -> Option<&SystemClock> {
        match &self.0 {
            Source::System(clock) => Some(clock),
            Source::Manual(_) => None,
        }
    }
}

/// What a clock and the wall clock show at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    shown: Timestamp,
    wall: Timestamp,
    next: ClockMapping,
}

impl Comparison {
    /// What the clock shows.
    pub fn shown(&self) -> Timestamp {
        self.shown
    }

    /// What the wall clock shows.
    pub fn wall(&self) -> Timestamp {
        self.wall
    }

    /// The step that following takes, if it is longer than [`LEAD_MAX`].
    pub fn long_step(&self) -> Option<ClockStep> {
        let (ahead, behind) = (self.shown.since(self.wall), self.wall.since(self.shown));
        if ahead > LEAD_MAX {
            Some(ClockStep::Back(ahead))
        } else if behind > LEAD_MAX {
            Some(ClockStep::Forward(behind))
        } else {
            None
        }
    }
}

/// A step of a clock, with its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockStep {
    /// The wall clock jumped ahead, or the machine was suspended.
    Forward(Duration),
    /// The clock gives up its lead over a wall clock that was set back.
    Back(Duration),
}

/// The number of clock steps longer than [`LEAD_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongSteps {
    /// The wall clock jumped ahead, or the machine was suspended.
    pub forward: u64,
    /// The clock gave up a lead.
    pub back: u64,
}

/// One reading of a clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// What the clock showed.
    pub now: Timestamp,
    /// Whether a system clock was compared with the wall clock longer than [`FOLLOW_EVERY`] ago.
    pub must_follow: bool,
    at: Monotonic,
}

/// Measures elapsed time, independent of clock changes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

#[expect(clippy::disallowed_methods, reason = "this is a clock too")]
impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.0)
    }
}

/// The mapping from monotonic time to shown time that is active.
#[derive(Debug)]
struct SystemClock {
    monotonic: MonotonicClock,
    mapping: MappingCell,
    // In nanoseconds; 0 except in tests.
    wall_ahead: AtomicI64,
    steps_forward: AtomicU64,
    steps_back: AtomicU64,
}

/// The monotonic clock of the system.
#[cfg(not(feature = "tsc"))]
#[derive(Debug)]
struct MonotonicClock {
    started: Instant,
}

/// The monotonic clock of the processor: its time stamp counter, where that is stable, otherwise the clock of the
/// system. It may drift from the wall clock more than that of the system does, which [`Clock::follow`] corrects.
#[cfg(feature = "tsc")]
#[derive(Debug)]
struct MonotonicClock {
    counter: quanta::Clock,
    started: u64,
}

/// Shown time as a linear function of the monotonic clock, from one point on.
#[derive(Clone, Copy, Debug)]
struct ClockMapping {
    from: Monotonic,
    shown: Timestamp,
    slewing: bool,
}

/// Nanoseconds since a clock was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Monotonic(u64);

/// A mapping that is replaced as a whole. Every decision reads it, so a reader writes nothing to memory, and waits for
/// no writer: a mapping is written beside the active one. A reader whose mapping was replaced meanwhile reads again.
#[derive(Debug, Default)]
struct MappingCell {
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

impl MappingCell {
    fn new(mapping: ClockMapping) -> Self {
        let cell = Self::default();
        cell.set(mapping);
        cell
    }

    #[inline]
    fn get(&self) -> ClockMapping {
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

    fn set(&self, mapping: ClockMapping) {
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
            shown: Timestamp(self.shown.load(Ordering::Relaxed)),
            slewing: self.slewing.load(Ordering::Relaxed),
        }
    }

    fn store(&self, ClockMapping { from, shown, slewing }: ClockMapping) {
        self.from.store(from.0, Ordering::Relaxed);
        self.shown.store(shown.0, Ordering::Relaxed);
        self.slewing.store(slewing, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "tsc"))]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl MonotonicClock {
    fn start() -> Self {
        Self { started: Instant::now() }
    }

    #[inline]
    fn now(&self) -> Monotonic {
        Monotonic(nanos(Instant::now().saturating_duration_since(self.started)))
    }
}

#[cfg(feature = "tsc")]
impl MonotonicClock {
    fn start() -> Self {
        let counter = quanta::Clock::new();
        let started = counter.raw();
        Self { counter, started }
    }

    #[inline]
    fn now(&self) -> Monotonic {
        // The counter of another core may be a little behind that of the start.
        let raw = self.counter.raw().max(self.started);
        Monotonic(self.counter.delta_as_nanos(self.started, raw))
    }
}

impl Monotonic {
    fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl SystemClock {
    fn start() -> Self {
        let monotonic = MonotonicClock::start();
        let mapping = ClockMapping { from: monotonic.now(), shown: wall(), slewing: false };
        Self {
            monotonic,
            mapping: MappingCell::new(mapping),
            wall_ahead: AtomicI64::new(0),
            steps_forward: AtomicU64::new(0),
            steps_back: AtomicU64::new(0),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp(wall().0.saturating_add_signed(self.wall_ahead.load(Ordering::Relaxed)))
    }

    #[inline]
    fn read(&self) -> Reading {
        let (at, mapping) = (self.monotonic.now(), self.mapping.get());
        let must_follow = at.nanos_since(mapping.from) >= FOLLOW_NANOS;
        Reading { now: mapping.at(at), must_follow, at }
    }

    fn follow(&self, comparison: &Comparison) {
        match comparison.long_step() {
            Some(ClockStep::Forward(_)) => {
                self.steps_forward.fetch_add(1, Ordering::Relaxed);
            }
            Some(ClockStep::Back(_)) => {
                self.steps_back.fetch_add(1, Ordering::Relaxed);
            }
            None => {}
        }
        self.mapping.set(comparison.next);
    }

    fn long_steps(&self) -> LongSteps {
        let [forward, back] =
            [&self.steps_forward, &self.steps_back].map(|steps| steps.load(Ordering::Relaxed));
        LongSteps { forward, back }
    }

    fn compare_with_wall(&self) -> Comparison {
        let mapping = self.mapping.get();
        let (at, wall) = (self.monotonic.now(), self.wall());
        Comparison { shown: mapping.at(at), wall, next: mapping.next(at, wall) }
    }
}

impl ClockMapping {
    fn at(&self, monotonic: Monotonic) -> Timestamp {
        let passed = monotonic.nanos_since(self.from);
        self.shown.plus(if self.slewing { passed - passed / SLEW_DIVISOR } else { passed })
    }

    /// The mapping to continue with if the wall clock shows `wall` at the instant `monotonic`.
    fn next(&self, monotonic: Monotonic, wall: Timestamp) -> Self {
        let shown = self.at(monotonic);
        if shown <= wall || shown.since(wall) > LEAD_MAX {
            return Self { from: monotonic, shown: wall, slewing: false };
        }
        // Slewing for one more round must not overshoot, or the clock would oscillate around the wall clock.
        let round = monotonic.nanos_since(self.from);
        Self { from: monotonic, shown, slewing: round / SLEW_DIVISOR <= shown.nanos_since(wall) }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    // A wall clock before 1970 reads as 1970.
    Timestamp(nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(SECOND).saturating_add(duration.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const HOUR: u64 = 3_600 * SECOND;

    #[test]
    fn ticks_are_multiples_at_least_half_an_interval_away() {
        let interval = Duration::from_millis(100);
        let start = Timestamp(HOUR);
        for (millis, until) in [(0, 100), (1, 99), (50, 50), (51, 149), (99, 101)] {
            let now = start.after(Duration::from_millis(millis));
            assert_eq!(now.until_tick(interval), Duration::from_millis(until));
        }
        assert_eq!(Timestamp::MAX.until_tick(interval), Duration::ZERO);
    }

    #[test]
    fn clock_follows_forward_step_of_wall_at_once() {
        let from = Monotonic(HOUR);
        let mapping = ClockMapping { from, shown: Timestamp(10 * HOUR), slewing: false };
        let next = mapping.next(Monotonic(HOUR + SECOND / 10), Timestamp(11 * HOUR));
        assert_eq!(next.at(next.from), Timestamp(11 * HOUR));
    }

    #[test]
    fn clock_slews_one_percent_until_it_meets_wall() {
        let mut monotonic = Monotonic(HOUR);
        let start = Timestamp(10 * HOUR);
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
        let mapping = ClockMapping { from, shown: Timestamp(10 * HOUR), slewing: false };
        let minute = Timestamp(10 * HOUR).before(LEAD_MAX);
        assert!(mapping.next(from, minute).slewing, "a lead of a minute is slewed away");
        let next = mapping.next(from, minute.minus(1));
        assert_eq!((next.at(from), next.slewing), (minute.minus(1), false));
    }

    #[test]
    fn mapping_read_while_others_replace_it_is_one_of_them() {
        const REPLACEMENTS: u64 = 100_000;
        let of = |number: u64| ClockMapping {
            from: Monotonic(number),
            shown: Timestamp(number),
            slewing: !number.is_multiple_of(2),
        };
        let cell = MappingCell::new(of(0));
        thread::scope(|scope| {
            let writers =
                [0, 1].map(|_| scope.spawn(|| (0..=REPLACEMENTS).for_each(|number| cell.set(of(number)))));
            while !writers.iter().all(|writer| writer.is_finished()) {
                let ClockMapping { from, shown, slewing } = cell.get();
                assert_eq!((from.0, !from.0.is_multiple_of(2)), (shown.0, slewing));
            }
        });
        assert_eq!(cell.get().from, Monotonic(REPLACEMENTS));
    }

    #[test]
    fn system_clock_follows_wall_that_jumps_and_is_put_right() {
        const DAYS: i64 = 3 * 24 * HOUR as i64;
        let clock = Clock::system();
        let follow = || {
            let comparison = clock.compare_with_wall().unwrap();
            clock.follow(&comparison);
            (comparison.long_step(), clock.wall().since(clock.now()), clock.now().since(clock.wall()))
        };
        let start = clock.now();
        clock.set_wall_ahead(DAYS);
        assert!(clock.now().since(start) < LEAD_MAX, "only the wall clock has moved");
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(ClockStep::Forward(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && clock.now().since(start) > LEAD_MAX);
        assert_eq!(follow().0, None);
        clock.set_wall_ahead(0);
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(ClockStep::Back(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && clock.now().since(start) < LEAD_MAX);
    }

    #[test]
    fn clock_is_in_range_from_1970_to_2499() {
        let last = jiff::civil::date(2500, 1, 1).to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
        assert_eq!(LAST_START.as_nanos(), last.as_nanosecond() as u64);
        assert_eq!(Clock::system().require_in_range(), Ok(()));
        let clock = Clock::system();
        clock.set_wall_ahead(i64::MIN);
        assert_eq!(clock.require_in_range(), Err(ClockOutOfRange), "a clock that was never set");
        for (at, expected) in [
            (Timestamp::EPOCH.plus(1), Ok(())),
            (LAST_START.minus(1), Ok(())),
            (LAST_START, Err(ClockOutOfRange)),
            (Timestamp::MAX, Err(ClockOutOfRange)),
        ] {
            assert_eq!(Clock::manual(at).require_in_range(), expected, "{at:?}");
        }
    }

    #[test]
    fn manual_clock_stands_still_until_set() {
        let clock = Clock::manual(Timestamp(5));
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp(5));
        other.set(Timestamp(3));
        assert_eq!(clock.now(), Timestamp(3));
    }
}
