//! Instants, and the one place that reads a clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// How much slower than real time a clock runs while the wall clock is behind it: 1 %.
const SLEW_DIVISOR: u64 = 100;

/// A larger lead over the wall clock is given up at once: no real clock is corrected by that much, so the wall had
/// jumped ahead and was put right.
pub const LEAD_MAX: Duration = Duration::from_secs(60);

/// An instant: nanoseconds since the Unix epoch. Reaches to the year 2554; arithmetic stops there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, before everything that is ever counted.
    pub const EPOCH: Self = Self(0);
    /// The last instant there is.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The instant `nanos` later, at most the last one there is.
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// The instant this much later, at most the last one there is.
    pub fn after(self, time: Duration) -> Self {
        self.plus(nanos(time))
    }

    /// The instant this much earlier, at least the epoch.
    pub fn before(self, time: Duration) -> Self {
        self.minus(nanos(time))
    }

    /// The instant `nanos` earlier, at least the epoch.
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to here; 0 where `earlier` is in fact later.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `earlier` to here; zero where `earlier` is in fact later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

/// Tells the time. Cloning gives another handle of the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Arc<SystemClock>),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The clock of this machine: the wall's time at the start, carried on by the monotonic clock.
    pub fn system() -> Self {
        Self(Source::System(Arc::new(SystemClock::start())))
    }

    /// A clock that stands still at `now` until [`Clock::set`] moves it.
    pub fn manual(now: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(now.as_nanos()))))
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System(clock) => clock.now(),
            Source::Manual(nanos) => Timestamp(nanos.load(Ordering::SeqCst)),
        }
    }

    /// The current instant, and the beginning of what happens from now on.
    pub fn read(&self) -> Reading {
        match &self.0 {
            Source::System(clock) => clock.read(),
            Source::Manual(_) => Reading { now: self.now(), at: None },
        }
    }

    /// What the system's clock shows. Certificates are judged and issued by it: replicas and clients judge by theirs.
    pub fn wall(&self) -> Timestamp {
        match &self.0 {
            Source::System(clock) => clock.wall(),
            Source::Manual(_) => self.now(),
        }
    }

    /// Moves a manual clock to `now`; a system clock cannot be set and stays as it is.
    pub fn set(&self, now: Timestamp) {
        match &self.0 {
            Source::System(_) => {}
            Source::Manual(nanos) => nanos.store(now.as_nanos(), Ordering::SeqCst),
        }
    }

    /// Lets a system clock take the machine's wall clock for `nanos` ahead of what it shows (behind, if negative), as
    /// if the machine's clock were set: for tests. A manual clock stays as it is.
    pub fn set_wall_ahead(&self, nanos: i64) {
        match &self.0 {
            Source::System(clock) => clock.wall_ahead.store(nanos, Ordering::SeqCst),
            Source::Manual(_) => {}
        }
    }

    /// Compares a system clock with the wall clock. [`Clock::follow`] is to be called with the result, about ten
    /// times a second. `None` for a manual clock.
    pub fn compare_with_wall(&self) -> Option<Comparison> {
        match &self.0 {
            Source::System(clock) => Some(clock.compare_with_wall()),
            Source::Manual(_) => None,
        }
    }

    /// Follows the wall clock: at once where the wall is ahead or more than [`LEAD_MAX`] behind, otherwise by running
    /// 1 % slower.
    pub fn follow(&self, comparison: &Comparison) {
        match &self.0 {
            Source::System(clock) => clock.follow(comparison),
            Source::Manual(_) => {}
        }
    }

    /// How often it has stepped by more than [`LEAD_MAX`]: forward, and back.
    pub fn long_steps(&self) -> LongSteps {
        match &self.0 {
            Source::System(clock) => LongSteps {
                forward: clock.steps_forward.load(Ordering::Relaxed),
                back: clock.steps_back.load(Ordering::Relaxed),
            },
            Source::Manual(_) => LongSteps::default(),
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

    /// The step that the clock takes by following: only if it is longer than [`LEAD_MAX`].
    pub fn long_step(&self) -> Option<Step> {
        let (ahead, behind) = (self.shown.since(self.wall), self.wall.since(self.shown));
        if LEAD_MAX < ahead {
            Some(Step::Back(ahead))
        } else if LEAD_MAX < behind {
            Some(Step::Forward(behind))
        } else {
            None
        }
    }
}

/// A step of a clock, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The wall clock jumped ahead, or the machine slept.
    Forward(Duration),
    /// The clock gives up its lead over a wall clock that was put right.
    Back(Duration),
}

/// How often a clock has stepped by more than [`LEAD_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongSteps {
    /// The wall clock jumped ahead, or the machine slept.
    pub forward: u64,
    /// The clock gave up a lead.
    pub back: u64,
}

/// One reading of a clock, which also tells how long ago it was.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// What it showed.
    pub now: Timestamp,
    at: Option<Instant>,
}

impl Reading {
    /// The time since then, whatever clocks are set to meanwhile; none by a manual clock, which stands still.
    pub fn elapsed(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |at| Stopwatch(at).elapsed())
    }
}

/// Measures a length of time, whatever clocks are set to meanwhile.
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

/// Which line between monotonic and told time is in force.
#[derive(Debug)]
struct SystemClock {
    mapping: ArcSwap<ClockMapping>,
    // Nanoseconds; 0 but in tests.
    wall_ahead: AtomicI64,
    steps_forward: AtomicU64,
    steps_back: AtomicU64,
}

/// Told time as a function of the monotonic clock, from one point on.
#[derive(Clone, Copy, Debug)]
struct ClockMapping {
    from: Instant,
    shown: Timestamp,
    slewing: bool,
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl SystemClock {
    fn start() -> Self {
        let mapping = ClockMapping { from: Instant::now(), shown: wall(), slewing: false };
        Self {
            mapping: ArcSwap::from_pointee(mapping),
            wall_ahead: AtomicI64::new(0),
            steps_forward: AtomicU64::new(0),
            steps_back: AtomicU64::new(0),
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp(wall().0.saturating_add_signed(self.wall_ahead.load(Ordering::Relaxed)))
    }

    fn now(&self) -> Timestamp {
        self.read().now
    }

    fn read(&self) -> Reading {
        let at = Instant::now();
        Reading { now: self.mapping.load().at(at), at: Some(at) }
    }

    fn follow(&self, comparison: &Comparison) {
        match comparison.long_step() {
            Some(Step::Forward(_)) => drop(self.steps_forward.fetch_add(1, Ordering::Relaxed)),
            Some(Step::Back(_)) => drop(self.steps_back.fetch_add(1, Ordering::Relaxed)),
            None => {}
        }
        self.mapping.store(Arc::new(comparison.next));
    }

    fn compare_with_wall(&self) -> Comparison {
        let mapping = **self.mapping.load();
        let (at, wall) = (Instant::now(), self.wall());
        Comparison { shown: mapping.at(at), wall, next: mapping.next(at, wall) }
    }
}

impl ClockMapping {
    fn at(&self, monotonic: Instant) -> Timestamp {
        let passed = nanos(monotonic.saturating_duration_since(self.from));
        self.shown.plus(if self.slewing { passed - passed / SLEW_DIVISOR } else { passed })
    }

    /// The line to go on with when the wall clock shows `wall` at the instant `monotonic`.
    fn next(&self, monotonic: Instant, wall: Timestamp) -> Self {
        let shown = self.at(monotonic);
        if shown <= wall || LEAD_MAX < shown.since(wall) {
            return Self { from: monotonic, shown: wall, slewing: false };
        }
        // Being slow for one more round must not overshoot: then the clock would swing around the wall's.
        let round = nanos(monotonic.saturating_duration_since(self.from));
        Self { from: monotonic, shown, slewing: round / SLEW_DIVISOR <= shown.nanos_since(wall) }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    // A wall clock before 1970 reads as 1970.
    Timestamp(nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an arbitrary start for the lines under test")]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600 * SECOND;

    #[test]
    fn a_wall_that_steps_forward_is_followed_at_once() {
        let from = Instant::now();
        let mapping = ClockMapping { from, shown: Timestamp(10 * HOUR), slewing: false };
        let next = mapping.next(from + Duration::from_millis(100), Timestamp(11 * HOUR));
        assert_eq!(next.at(next.from), Timestamp(11 * HOUR));
    }

    #[test]
    fn a_wall_that_steps_back_slows_the_clock_by_one_percent_until_they_meet() {
        let mut monotonic = Instant::now();
        let start = Timestamp(10 * HOUR);
        let mut mapping = ClockMapping { from: monotonic, shown: start, slewing: false };
        let mut wall = start.minus(SECOND / 2);
        let mut shown = mapping.at(monotonic);
        for _ in 0..1_000 {
            mapping = mapping.next(monotonic, wall);
            monotonic += Duration::from_millis(100);
            wall = wall.plus(SECOND / 10);
            let next = mapping.at(monotonic);
            assert!(next.nanos_since(shown) >= SECOND / 10 * 99 / 100, "at most 1 % slower, and never back");
            shown = next;
        }
        assert!(shown.nanos_since(wall) <= SECOND / 100, "it has approached the wall");
        assert!(wall.nanos_since(shown) <= SECOND / 100, "and does not fall behind it");
    }

    #[test]
    fn clock_with_long_lead_gives_it_up_at_once() {
        let from = Instant::now();
        let mapping = ClockMapping { from, shown: Timestamp(10 * HOUR), slewing: false };
        let minute = Timestamp(10 * HOUR).before(LEAD_MAX);
        assert!(mapping.next(from, minute).slewing, "a lead of a minute is approached");
        let next = mapping.next(from, minute.minus(1));
        assert_eq!((next.at(from), next.slewing), (minute.minus(1), false));
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
        assert!(clock.now().since(start) < LEAD_MAX, "the wall alone is set");
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(Step::Forward(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && LEAD_MAX < clock.now().since(start));
        assert_eq!(follow().0, None);
        clock.set_wall_ahead(0);
        let (step, ahead, behind) = follow();
        assert!(matches!(step, Some(Step::Back(_))), "{step:?}");
        assert!(ahead < LEAD_MAX && behind < LEAD_MAX && clock.now().since(start) < LEAD_MAX);
    }

    #[test]
    fn a_manual_clock_stands_until_it_is_set() {
        let clock = Clock::manual(Timestamp(5));
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp(5));
        other.set(Timestamp(3));
        assert_eq!(clock.now(), Timestamp(3));
    }
}
