//! The concurrency limit: a charge takes places, a refund frees the oldest ones, and a place that is never freed is
//! free again after a time.
//!
//! Places are the entries of a log: each leaves it when it has been held for the longest time. Only refunds and
//! refusals differ from those of a sliding log.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Admission, Algorithm, Decision, Excess, Operation, Verdict, forward,
        held::{ChargePosition, HeldCharge},
        log_counter::{LogCounter, changes::LogEntry},
        sliding_log::SlidingLog,
        window::Span,
    },
    time::timestamp::Timestamp,
};

/// At most `max_in_flight` places are taken at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The number of places.
    pub max_in_flight: u64,
    /// A place is freed this long after it was taken.
    pub hold_max: Span,
}

impl Concurrency {
    /// The log of the places.
    fn log(&self) -> SlidingLog {
        SlidingLog {
            limit: self.max_in_flight,
            span: self.hold_max,
            sub_window: NonZeroU64::MIN,
            excess: Excess::Refuse,
        }
    }
}

impl Algorithm for Concurrency {
    type Counter = LogCounter;
    type Receipt = LogEntry;
    const ADMISSION: Admission = Admission::InFlight;

    fn decide(&self, counter: &mut LogCounter, now: Timestamp, operation: Operation) -> Decision<LogEntry> {
        let log = self.log();
        if let Operation::Refund(places) = operation {
            log.free_oldest(counter, now, places);
            return log.decide(counter, now, Operation::Refund(0));
        }
        let decision = log.decide(counter, now, operation);
        if decision.verdict.passes() {
            return decision;
        }
        // Places are freed when their callers say so, so no time is known at which the same charge passes.
        let reset_after = log.oldest_leaves_after(counter, now);
        Decision { verdict: Verdict::Refuse { retry_after: None }, reset_after, ..decision }
    }

    forward! {
        log:
        fn undo(counter: &mut LogCounter, receipt: LogEntry, now: Timestamp);
        fn idle_at(counter: &LogCounter) -> Timestamp;
        fn since(counter: &LogCounter, base: &LogCounter, now: Timestamp) -> LogCounter;
        fn absorb(counter: &mut LogCounter, other: &LogCounter, now: Timestamp);
        fn clamp_ahead(counter: &mut LogCounter, at: Timestamp, now: Timestamp);
        fn position(counter: &LogCounter, now: Timestamp) -> ChargePosition;
        fn weight(counter: &LogCounter, position: ChargePosition, now: Timestamp) -> u128;
        fn lighten(counter: &mut LogCounter, held: &HeldCharge, units: u128, now: Timestamp);
        fn charge_at(counter: &mut LogCounter, hits: u64, at: Timestamp, now: Timestamp);
    }

    fn allowance(&self) -> u64 {
        self.max_in_flight
    }

    fn change(&mut self, number: impl Fn(u64) -> u64, _: impl Fn(Excess) -> Excess) {
        self.max_in_flight = number(self.max_in_flight);
    }
}
