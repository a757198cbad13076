//! The demand of a subscriber, from what it reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::time::{SECOND, Timestamp};

use crate::divider::assignment::moved;

/// The shortest time over which a rate is measured.
const MEASURED_MIN: Duration = Duration::from_secs(1);
/// A demand that falls keeps this part of what the subscriber was granted: one of so many.
const MEMORY_DIVISOR: f64 = 8.0;

/// Hits that a subscriber requests in each second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SubscriberDemand {
    per_second: f64,
    is_measured: bool,
    hits: u64,
    since: Timestamp,
}

impl SubscriberDemand {
    /// The demand of a subscriber that begins at `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { per_second: 0.0, is_measured: false, hits: 0, since: now }
    }

    /// Counts hits since the last call. Up at once; a demand that falls keeps a part of what was `granted` once more.
    pub(super) fn add(&mut self, hits: u64, granted: u64, now: Timestamp) {
        self.hits = self.hits.saturating_add(hits);
        let time = now.since(self.since);
        if time < MEASURED_MIN {
            return;
        }
        let measured = self.hits as f64 * SECOND as f64 / time.as_nanos() as f64;
        let retained = if measured > 0.0 { granted as f64 / MEMORY_DIVISOR } else { 0.0 };
        self.per_second = measured.max(retained.min(self.per_second));
        (self.is_measured, self.hits, self.since) = (true, 0, now);
    }

    /// Moves the demand to another clock.
    pub(super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.since = moved(self.since, from, to);
    }

    /// Whether the demand is known.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The instant since which hits are counted.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// Hits in each second.
    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }
}
