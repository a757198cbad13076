//! When a replica ticks, and whether it ticks on time.

use std::time::Duration;

use tollgate_counter::time::Timestamp;

/// The time from one tick to the next while something waits for a tick.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// The longest time from one tick to the next.
pub(crate) const TICK_IDLE: Duration = Duration::from_millis(100);
/// A tick that comes this long after it was due shows that this replica was too busy, or stopped.
const TICK_LATE: Duration = Duration::from_millis(15);

/// The ticks of a replica.
#[derive(Debug)]
pub(super) struct NodeTicks {
    /// The last tick.
    at: Timestamp,
    /// The next tick.
    pub(super) due: Timestamp,
    /// The last tick that judged silence and lateness.
    pub(super) judged_at: Timestamp,
    /// The last tick that came late, because this replica was too busy or stopped. Since then it has sent and read on
    /// time.
    pub(super) on_time_since: Timestamp,
}

impl NodeTicks {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { at: now, due: now.after(TICK), judged_at: now, on_time_since: now }
    }

    /// Begins a tick. Returns whether it judges silence and lateness: batches that wait in the links are read before a
    /// late tick does. Two late ticks in a row do not both defer, so that nothing is delayed for long when every tick is
    /// late.
    pub(super) fn begin(&mut self, now: Timestamp) -> bool {
        let last = std::mem::replace(&mut self.at, now);
        let is_late = now.since(self.due) >= TICK_LATE;
        self.due = now.after(TICK);
        let defers = is_late && self.on_time_since != last;
        if is_late {
            self.on_time_since = now;
        }
        if !defers {
            self.judged_at = now;
        }
        !defers
    }

    /// Delays the next tick to the first of these instants, because nothing waits for a tick before.
    pub(super) fn rest(&mut self, judges_at: impl Iterator<Item = Timestamp>) {
        let idle_until = judges_at.fold(self.at.after(TICK_IDLE), Timestamp::min);
        self.due = self.due.max(idle_until);
    }

    /// When the next tick may be instead, if it is due later.
    pub(super) fn earlier(&self, now: Timestamp) -> Option<Timestamp> {
        let soonest = self.at.after(TICK).max(now);
        (soonest < self.due).then_some(soonest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START.after(Duration::from_millis(millis))
    }

    #[test]
    fn of_late_ticks_in_a_row_only_the_first_defers() {
        let mut ticks = NodeTicks::new(START);
        assert!(ticks.begin(at(10)));
        assert!(!ticks.begin(at(500)));
        assert_eq!((ticks.judged_at, ticks.on_time_since), (at(10), at(500)));
        assert!(ticks.begin(at(900)));
        assert_eq!((ticks.judged_at, ticks.on_time_since), (at(900), at(900)));
        assert!(ticks.begin(at(910)) && ticks.on_time_since == at(900));
        assert!(!ticks.begin(at(2_000)));
    }

    #[test]
    fn idle_replica_ticks_when_it_must_judge_or_is_hastened() {
        let mut ticks = NodeTicks::new(START);
        ticks.begin(at(10));
        assert_eq!((ticks.due, ticks.earlier(at(10))), (at(20), None));
        ticks.rest([at(70), at(5_000)].into_iter());
        assert_eq!(ticks.due, at(70));
        assert_eq!((ticks.earlier(at(12)), ticks.earlier(at(40))), (Some(at(20)), Some(at(40))));
        ticks.rest(std::iter::empty());
        assert_eq!(ticks.due, at(110));
    }
}
