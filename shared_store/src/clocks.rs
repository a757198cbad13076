//! The clocks of the shared store: one for durations, and the servers' for counters, as far as their answers tell.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tollgate_counter::{
    lock::lock,
    packed_counter::Now,
    time::{Clock, Stopwatch, Timestamp},
};
use tollgate_store::Lead;

/// The offset is the largest of this span and the one before, so that a local clock that runs too fast does not carry
/// the estimate away.
const SPAN: Duration = Duration::from_secs(10);
/// If the servers' clock falls behind the estimate by more, the estimate gives up its lead at once. A smaller lead ends
/// while the estimate stands still.
const LEAD_MAX: Duration = Duration::from_secs(1);

/// The clocks. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    started: Stopwatch,
    /// The clock of this replica.
    clock: Clock,
    servers: Arc<Mutex<ServerClock>>,
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instants {
    pub(super) local: Timestamp,
    pub(super) server: Now,
}

impl Clocks {
    /// The clocks before the first answer. A manual `clock` takes the place of the servers' clock.
    pub(super) fn new(clock: Clock) -> Self {
        Self { started: Stopwatch::start(), clock, servers: Arc::default() }
    }

    /// The local instant: monotonic, and of no meaning elsewhere.
    pub(super) fn local(&self) -> Timestamp {
        Timestamp::EPOCH.after(self.started.elapsed())
    }

    /// Adds the time that an answer shows, which arrived at the local instant `local`.
    pub(super) fn observe(&self, server: Timestamp, local: Timestamp) {
        lock(&self.servers).observe(server, local);
    }

    /// The current instants; `None` before the first answer.
    pub(super) fn now(&self) -> Option<Instants> {
        let local = self.local();
        if self.clock.is_manual() {
            return Some(Instants { local, server: Now { now: self.clock.now(), given_up: None } });
        }
        let server = lock(&self.servers).now(local)?;
        Some(Instants { local, server })
    }

    /// The instant of decisions without the store: by the servers' clock if it is known.
    pub(super) fn degraded(&self) -> Timestamp {
        self.now().map_or_else(|| self.clock.now(), |instants| instants.server.now)
    }
}

/// Estimates the servers' clock. An answer that shows `server` proves that the servers' clock shows at least that when
/// the answer arrives, so the estimate is behind the server by the fastest answer's way back at most, and never ahead.
/// With several servers the estimate follows the one whose clock is ahead of the others.
///
/// Local instants are monotonic. The estimate never goes back, except when it gives up a lead.
#[derive(Clone, Debug, Default)]
struct ServerClock {
    spans: Option<OffsetSpans>,
    shown: Timestamp,
    /// The lead that was given up: until the clock shows its end again, counters may be ahead of the clock.
    given_up: Option<Lead>,
}

/// The largest offsets of the current span and the one before.
#[derive(Clone, Copy, Debug)]
struct OffsetSpans {
    began: Timestamp,
    current: i128,
    previous: i128,
}

impl ServerClock {
    /// Adds the time that an answer shows, which arrived at the local instant `local`.
    fn observe(&mut self, server: Timestamp, local: Timestamp) {
        let offset = i128::from(server.as_nanos()) - i128::from(local.as_nanos());
        let spans = self.spans.get_or_insert(OffsetSpans { began: local, current: offset, previous: offset });
        if local.since(spans.began) >= SPAN {
            *spans = OffsetSpans { began: local, current: offset, previous: spans.current };
        }
        spans.current = spans.current.max(offset);
    }

    /// What the servers' clock shows at the local instant `local`; `None` before the first answer.
    fn now(&mut self, local: Timestamp) -> Option<Now> {
        let spans = self.spans?;
        let nanos = i128::from(local.as_nanos()) + spans.current.max(spans.previous);
        let estimate = Timestamp::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
        if self.shown.since(estimate) > LEAD_MAX {
            let until = self.given_up.map_or(self.shown, |given_up| given_up.until.max(self.shown));
            self.given_up = Some(Lead { at: estimate, until });
            self.shown = estimate;
        }
        self.shown = self.shown.max(estimate);
        self.given_up = self.given_up.filter(|given_up| self.shown < given_up.until);
        Some(Now { now: self.shown, given_up: self.given_up.map(|given_up| given_up.at) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER: u64 = 1_700_000_000_000_000_000;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn clock_is_unknown_before_first_answer() {
        assert!(ServerClock::default().now(at(5)).is_none());
    }

    proptest! {
        /// Answers that take their time on the way back make the estimate late, never early.
        #[test]
        fn estimate_is_never_ahead_and_late_by_the_fastest_answer(
            answers in prop::collection::vec((1..1_000_000_000_u64, 0..50_000_000_u64), 1..100),
        ) {
            let mut clock = ServerClock::default();
            let (mut local, mut shown, mut fastest) = (0, Timestamp::EPOCH, u64::MAX);
            for (pause, way_back) in answers {
                local += pause;
                fastest = fastest.min(way_back);
                clock.observe(at(SERVER + local - way_back.min(local)), at(local));
                let now = clock.now(at(local)).unwrap().now;
                prop_assert!(now <= at(SERVER + local), "not ahead of the server");
                prop_assert!(now >= shown, "never back");
                if local < 10_000_000_000 {
                    prop_assert!(now >= at(SERVER + local - fastest.min(local)), "late by the fastest answer at most");
                }
                shown = now;
            }
        }
    }

    #[test]
    fn fast_local_clock_does_not_carry_estimate_away() {
        // The local clock gains 100 µs each second.
        let mut clock = ServerClock::default();
        for second in 1..1_000_u64 {
            let (server, local) = (SERVER + second * 1_000_000_000, second * 1_000_100_000);
            clock.observe(at(server), at(local));
            let ahead = clock.now(at(local)).unwrap().now.nanos_since(at(server));
            assert!(ahead <= 2 * 10 * 100_000 + 200_000, "{ahead} ns after {second} s");
        }
    }

    #[test]
    fn short_step_back_stops_the_clock_and_long_one_is_followed() {
        let mut clock = ServerClock::default();
        clock.observe(at(SERVER), at(0));
        let shown = clock.now(at(0)).unwrap().now;
        // Two spans later only answers of the stepped clock count.
        let step_back = |clock: &mut ServerClock, from: u64, back: u64| {
            for second in 0..=30 {
                let local = from + second * 1_000_000_000;
                clock.observe(at(SERVER + local - back), at(local));
                clock.now(at(local)).unwrap();
            }
            clock.now(at(from + 30_000_000_000)).unwrap()
        };
        let half = step_back(&mut clock, 0, 500_000_000);
        assert!(half.now > shown && half.given_up.is_none());
        let minute = step_back(&mut clock, 30_000_000_000, 60_000_000_000);
        assert_eq!((minute.now, minute.given_up.is_some()), (at(SERVER), true));
        // The lead is over when the clock shows what it had shown before.
        clock.observe(at(SERVER + 90_000_000_000), at(91_000_000_000));
        assert!(clock.now(at(91_000_000_000)).unwrap().given_up.is_none());
    }
}
