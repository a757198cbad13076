//! Algorithms: pure functions of a limit, a counter, an instant and an operation.
//!
//! A limit is policy, a counter is history. Algorithms take no lock, do no I/O and read no clock.

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

/// What a call does to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Read only: charges nothing.
    Peek,
    /// Charge this many hits, all or none.
    Charge(u64),
    /// Give this many hits back, the newest first. Never refused; never leaves more than the limit.
    Refund(u64),
}

impl Operation {
    /// Whether the operation changes the counter, given whether it passes and how excess charges are handled.
    pub(crate) fn changes(self, passes: bool, excess: Excess) -> bool {
        match self {
            Self::Peek => false,
            Self::Charge(_) => passes || excess == Excess::Count,
            Self::Refund(_) => true,
        }
    }
}

/// Whether a call may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It passes now.
    Pass,
    /// It passes after this delay.
    Delay(Duration),
    /// It is refused.
    Refuse {
        /// The same operation passes after this time and not before; `None` if it never passes.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Whether the call passes, now or after a delay.
    pub const fn passes(self) -> bool {
        match self {
            Self::Pass | Self::Delay(_) => true,
            Self::Refuse { .. } => false,
        }
    }
}

/// The answer to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision<R = Receipt> {
    /// Whether the call may pass.
    pub verdict: Verdict,
    /// Hits that would pass now. Of a classic limit: the limit less the count.
    pub remaining: u64,
    /// After a pass: the time until the window ends or the bucket is full. After a refusal: the time until the same
    /// operation passes, or as after a pass if it never does.
    pub reset_after: Duration,
    /// What [`Algorithm::undo`] needs to take this charge back; `None` if there is nothing to take back.
    pub receipt: Option<R>,
}

/// What happens to a charge that is larger than what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Excess {
    /// Refuse it without changing the counter.
    #[default]
    Refuse,
    /// Refuse it and count it (`count_denied`).
    Count,
    /// Let it pass if anything is left, with a debt of at most this many hits (`overdraft`).
    Overdraft(u64),
}

/// A rate limiting algorithm.
pub trait Algorithm {
    /// The state of one key. The default is the state of an unused key.
    type Counter: Default;
    /// The data for taking one charge back.
    type Receipt;

    /// Answers `operation`, and charges or refunds `counter` accordingly.
    fn decide(
        &self,
        counter: &mut Self::Counter,
        now: Timestamp,
        operation: Operation,
    ) -> Decision<Self::Receipt>;

    /// Takes back what still counts of one charge, never more.
    fn undo(&self, counter: &mut Self::Counter, receipt: Self::Receipt, now: Timestamp);

    /// The instant from which `counter` may be evicted without changing any answer.
    fn idle_at(&self, counter: &Self::Counter) -> Timestamp;

    /// What was consumed after `base`, an earlier state of the same counter.
    fn since(&self, counter: &Self::Counter, base: &Self::Counter, now: Timestamp) -> Self::Counter;

    /// Adds what was consumed on another replica.
    fn absorb(&self, counter: &mut Self::Counter, other: &Self::Counter, now: Timestamp);

    /// Clamps `counter` after a clock gave up a lead at `at`, not after `now`: a window more than one ahead of `now`
    /// becomes the next one after `at`, hits ahead of `now` move to `at`, and a debt larger than this limit allows is
    /// cut to the largest one at `at`. This frees nothing. Other counters stay unchanged.
    fn clamp_ahead(&self, counter: &mut Self::Counter, at: Timestamp, now: Timestamp);
}

impl<R> Decision<R> {
    /// The same decision without its receipt.
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
