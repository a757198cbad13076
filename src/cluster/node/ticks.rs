//! When a replica ticks, and whether it ticks on time.

use std::time::Duration;

use tollgate_limiter::time::Timestamp;

/// The time from one tick to the next while something waits for a tick.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// The longest time from one tick to the next.
pub(crate) const TICK_IDLE: Duration = Duration::from_millis(100);
/// A tick that comes this long after it was due shows that this replica was too busy, or stopped.
const TICK_LATE: Duration = Duration::from_millis(15);

/// The ticks of a replica.
#[derive(Debug)]
pub(super) struct Ticks {
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

impl Ticks {
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
