//! How a decision is made: pure functions of a limit, a counter, an instant and an ask.
//!
//! A limit is policy, a counter is history. Nothing here locks, waits, logs or reads a clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

mod calendar;
mod classic;
mod fixed_window;
mod gcra;
mod leaky_queue;
mod limit;
mod sliding_log;
mod sliding_window;
mod stepped_bucket;
mod token_bucket;
mod window;

#[cfg(test)]
mod examples;
#[cfg(test)]
mod laws;

pub use calendar::{Calendar, CalendarUnit};
pub use classic::Classic;
pub use fixed_window::FixedWindow;
pub use gcra::{DebtCounter, DebtReceipt, Rate};
pub use leaky_queue::LeakyQueue;
pub use limit::{Counter, CounterKind, Limit, Receipt};
pub(crate) use sliding_log::ENTRIES_MAX as LOG_ENTRIES_MAX;
pub use sliding_log::{LogCounter, LogReceipt, SlidingLog};
pub use sliding_window::{SlidingCounter, SlidingReceipt, SlidingWindow};
pub use stepped_bucket::{StepCounter, StepReceipt, SteppedBucket};
pub use token_bucket::TokenBucket;
pub use window::{Span, Window, WindowCounter, WindowReceipt};

/// What a caller wants of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Only look: nothing is taken.
    Peek,
    /// Take this many hits, or none.
    Charge(u64),
    /// Give this many hits back, the newest first. Never refused, never gives more than the limit.
    Refund(u64),
}

impl Operation {
    /// Whether it changes the counter, given whether it passes and what becomes of what does not.
    pub(crate) fn changes(self, passes: bool, excess: Excess) -> bool {
        match self {
            Self::Peek => false,
            Self::Charge(_) => passes || excess == Excess::Count,
            Self::Refund(_) => true,
        }
    }
}

/// Whether it may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It may, now.
    Pass,
    /// It may, after this time.
    Delay(Duration),
    /// It may not.
    Refuse {
        /// The same ask passes after this time and not before; `None` where it never would.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether it may pass, now or later.
    pub const fn passes(self) -> bool {
        match self {
            Self::Pass | Self::Delay(_) => true,
            Self::Refuse { .. } => false,
        }
    }
}

/// The answer to one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision<R = Receipt> {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// Hits that would pass now. (Of a classic limit: the limit less what was counted.)
    pub remaining: u64,
    /// Passed: until the window ends or the bucket is full. Refused: until the same ask passes; where it
    /// never does, as if it had passed.
    pub reset_after: Duration,
    /// What [`Algorithm::undo`] needs to take this charge back; `None` where there is nothing to take back.
    pub receipt: Option<R>,
}

/// What happens to a charge that is larger than what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Excess {
    /// It is refused and changes nothing.
    #[default]
    Refuse,
    /// It is refused and counted all the same (`count_denied`).
    Count,
    /// It passes as long as anything is left, and leaves a debt of at most this many hits (`overdraft`).
    Overdraft(u64),
}

/// One way to limit.
pub trait Algorithm {
    /// The history it keeps for one key. The default is that of a key never seen.
    type Counter: Default;
    /// What taking one charge back needs.
    type Receipt;

    /// Answers `ask`, and charges or refunds `counter` accordingly.
    fn decide(
        &self,
        counter: &mut Self::Counter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<Self::Receipt>;

    /// Takes back what still counts of one charge, never more.
    fn undo(&self, counter: &mut Self::Counter, receipt: Self::Receipt, now: Timestamp);

    /// The instant from which `counter` may be forgotten without changing any answer.
    fn idle_at(&self, counter: &Self::Counter) -> Timestamp;

    /// What was consumed after `base`, an earlier state of the same counter.
    fn since(&self, counter: &Self::Counter, base: &Self::Counter, now: Timestamp) -> Self::Counter;

    /// Adds what was consumed elsewhere.
    fn absorb(&self, counter: &mut Self::Counter, other: &Self::Counter, now: Timestamp);

    /// Cuts what `counter` has of a time that a clock gave up at `at`, not after `now`: a window more than one ahead of
    /// `now` becomes the next one after `at`, hits ahead of `now` are moved to `at`, and a debt that is larger than this
    /// limit lets arise is cut to the largest at `at`. Frees nothing. A counter without such time stays as it is.
    fn clamp_ahead(&self, counter: &mut Self::Counter, at: Timestamp, now: Timestamp);
}

impl<R> Decision<R> {
    /// The same for whoever does not take it back.
    #[inline(always)]
    pub(crate) fn without_receipt(self) -> Decision<()> {
        let Self { verdict, remaining, reset_after, receipt: _ } = self;
        Decision { verdict, remaining, reset_after, receipt: None }
    }

    pub(crate) fn map<S>(self, wrap: impl FnOnce(R) -> S) -> Decision<S> {
        Decision {
            verdict: self.verdict,
            remaining: self.remaining,
            reset_after: self.reset_after,
            receipt: self.receipt.map(wrap),
        }
    }
}
