//! Algorithms: pure functions of a limit, a counter, an instant and an operation.
//!
//! A limit is policy, a counter is history. Algorithms take no lock, do no I/O and read no clock.

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::time::timestamp::{SECOND, Timestamp};

mod calendar;
mod concurrency;
pub(crate) mod counter;
mod fixed_window;
pub(crate) mod gcra;
mod granted;
pub(crate) mod held;
mod leaky_queue;
pub(crate) mod limit;
pub(crate) mod log_counter;
pub(crate) mod penalty;
mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod stepped_bucket;
mod token_bucket;
pub(crate) mod window;

#[cfg(test)]
mod examples;

#[cfg(any(test, feature = "testing"))]
#[allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    clippy::wildcard_imports,
    reason = "a module of tests"
)]
pub mod laws;

pub use calendar::{Calendar, CalendarUnit};
pub use concurrency::Concurrency;
pub use counter::{Counter, PenalizedCounter, Receipt, Variant};
pub use fixed_window::{Classic, Counted, FixedWindow};
pub use gcra::{DebtCounter, DebtReceipt, Rate};
pub use granted::{Granted, HitRate};
pub use held::{ChargePosition, HeldCharge};
pub use leaky_queue::LeakyQueue;
pub use limit::each_algorithm;
pub use limit::{AlgorithmName, CounterKind, Limit, OwnTerms, Penalized};
pub use log_counter::{LogCounter, LogEntry};
pub use penalty::PenaltyRecord;
pub use penalty::{Penalty, PenaltyState};
pub use sliding_log::ENTRIES_MAX as LOG_ENTRIES_MAX;
pub use sliding_log::SlidingLog;
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
    pub(crate) fn changes(self, passes: bool, excess: impl FnOnce() -> Excess) -> bool {
        match self {
            Self::Peek => false,
            Self::Charge(_) => passes || excess() == Excess::Count,
            Self::Refund(_) => true,
        }
    }

    /// Whether nothing of a passed operation stays after its call is refused and charges are taken back, given what was
    /// `left` before. A refund stays, and so does an overdraft.
    pub fn is_taken_back(self, left: u64) -> bool {
        match self {
            Self::Peek => true,
            Self::Charge(hits) => hits <= left,
            Self::Refund(_) => false,
        }
    }
}

/// Whether a call may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The operation passes now.
    Pass,
    /// The operation passes after this delay.
    Delay(Duration),
    /// The operation is refused.
    Refuse {
        /// The refused operation passes after this time and not before; `None` if it never passes.
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
    /// Refuse the charge without changing the counter.
    #[default]
    Refuse,
    /// Refuse the charge and count it (`count_denied`).
    Count,
    /// Let the charge pass if anything is left, with a debt of at most this many hits (`overdraft`).
    Overdraft(u64),
}

impl Excess {
    /// Whether a charge of `hits` passes when this much is `left`, and how many of them count.
    #[inline(always)]
    fn admitted(self, hits: u64, left: u64) -> (bool, u64) {
        match self {
            _ if hits <= left => (true, hits),
            Self::Refuse => (false, 0),
            Self::Count => (false, hits),
            Self::Overdraft(_) if left == 0 => (false, 0),
            Self::Overdraft(debt) => (true, hits.min(left.saturating_add(debt))),
        }
    }

    /// How many of `hits` must fit for a charge to pass: an overdraft needs only one.
    fn needed(self, hits: u64) -> u64 {
        match self {
            Self::Refuse | Self::Count => hits,
            Self::Overdraft(_) => hits.min(1),
        }
    }

    /// What happens to such a charge if a debt of at most `debt` hits is allowed; an overdraft keeps its own bound.
    fn with_debt(self, debt: u64) -> Self {
        match self {
            Self::Refuse | Self::Count => Self::Overdraft(debt),
            Self::Overdraft(_) => self,
        }
    }
}

/// How an algorithm lets hits pass, and how they come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A hit passes at once or is refused. Time gives it back.
    AtOnce,
    /// A hit that passes may wait for its turn. Later hits are admitted with their delays, so only the last one can be
    /// given back.
    Delayed,
    /// A call holds places until its end. Its caller frees them, so no time is known at which they are free.
    InFlight,
}

/// Makes methods that answer as those of another algorithm, `$part`, do.
macro_rules! forward {
    ($part:ident: $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($argument: $type),*) $(-> $result)? {
            self.$part().$name($($argument),*)
        }
    )*};
}
use forward;

/// A rate limiting algorithm.
pub trait Algorithm: Clone {
    /// The state of one key. The default is the state of an unused key.
    type Counter: Variant<Counter> + Default;
    /// The data for taking one charge back.
    type Receipt: Variant<Receipt> + Copy;
    /// How the algorithm lets hits pass; of a limit with a penalty: see [`Limit::admission`].
    const ADMISSION: Admission = Admission::AtOnce;

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

    /// Where a charge at `now` is in `counter`, to which it has just been charged. Override it for an algorithm that
    /// keeps charges apart.
    fn position(&self, _counter: &Self::Counter, _now: Timestamp) -> ChargePosition {
        ChargePosition::Sum
    }

    /// What everything in `position` weighs at `now`, in units.
    fn weight(&self, counter: &Self::Counter, position: ChargePosition, now: Timestamp) -> u128;

    /// Lowers the weight of what is in the position of `held` by `units`, at most its floor.
    fn lighten(&self, counter: &mut Self::Counter, held: &HeldCharge, units: u128, now: Timestamp);

    /// The weight of `hits` in the units of [`Algorithm::weight`].
    fn units(&self, hits: u64) -> u128 {
        hits.into()
    }

    /// `units` that were charged under the limit `before`, under this one. They come back in the same time. Override it
    /// for an algorithm whose units are no hits.
    fn converted(&self, units: u128, _before: &Self) -> u128 {
        units
    }

    /// Hits that pass when nothing was charged.
    fn allowance(&self) -> u64;

    /// What happens to a charge that is larger than what is left.
    fn excess(&self) -> Excess {
        Excess::Refuse
    }

    /// The windows that hits are counted in, if they are whole windows.
    fn window(&self) -> Option<&Window> {
        None
    }

    /// Hits that come back in each period.
    fn hits_per_period(&self) -> u64 {
        self.allowance()
    }

    /// The time in which the whole allowance comes back, in nanoseconds, if that is constant.
    fn period(&self) -> Option<u64> {
        self.window().and_then(Window::period)
    }

    /// For limits that keep a debt as time: the longest time to pay a debt, in nanoseconds, at which a single hit is
    /// sure to pass. 0 for all others.
    fn passing_debt_max(&self) -> u64 {
        0
    }

    /// Replaces the numbers of hits (of the limit, a burst, a step; not the length of windows), and what happens to a
    /// charge that is larger than what is left.
    fn change(&mut self, number: impl Fn(u64) -> u64, excess: impl Fn(Excess) -> Excess);

    /// The limit as a rate that can be divided over clients, of at least one hit a second. Override it for buckets and
    /// windows; windows from 10 s on are divided as budgets.
    fn hit_rate(&self) -> Option<HitRate> {
        None
    }

    /// Leaves out a part of its rate and of its burst. Override it for buckets: one of which the whole rate is left out
    /// keeps what it holds.
    fn reduce(&mut self, part: HitRate) {
        let hits = part.hits_in(self.period().unwrap_or(SECOND)).saturating_add(part.burst);
        self.change(|number| number.saturating_sub(hits), |excess| excess);
    }

    /// Refunds `hits`: those of calls before those that are `held`. Override it for an algorithm that keeps charges apart.
    fn refund_with_held(
        &self,
        counter: &mut Self::Counter,
        _held: &[HeldCharge],
        hits: u64,
        now: Timestamp,
    ) -> Decision<Self::Receipt> {
        self.decide(counter, now, Operation::Refund(hits))
    }

    /// Charges `hits` that were consumed at `at`, not after `now`, whether they would pass or not. Hits that have
    /// expired change nothing. Override it for an algorithm without overdrafts: the default takes one.
    fn charge_at(&self, counter: &mut Self::Counter, hits: u64, at: Timestamp, now: Timestamp) {
        let mut limit = self.clone();
        let mut taken = Self::Counter::default();
        limit.change(|number| number, |excess| excess.with_debt(hits));
        limit.decide(&mut taken, at, Operation::Charge(hits));
        self.absorb(counter, &taken, now);
    }
}

impl<R> Decision<R> {
    /// A decision that passes with this receipt, or is refused. Everything comes back at `end`.
    #[inline(always)]
    fn new(
        passes: bool,
        receipt: Option<R>,
        remaining: u64,
        end: Duration,
        retry_after: impl FnOnce() -> Option<Duration>,
    ) -> Self {
        if passes {
            return Self { verdict: Verdict::Pass, remaining, reset_after: end, receipt };
        }
        let retry_after = retry_after();
        let reset_after = retry_after.unwrap_or(end);
        Self { verdict: Verdict::Refuse { retry_after }, remaining, reset_after, receipt: None }
    }

    /// The decision after the charges of its call are taken back, where `left` is a peek at what is left then.
    pub fn after_take_back<S>(self, left: &Decision<S>) -> Self {
        // The time of a refusal stays, and a peek that is refused has the time until it passes.
        let both_pass = self.verdict.passes() && left.verdict.passes();
        let reset_after = if both_pass { left.reset_after } else { self.reset_after };
        Self { remaining: left.remaining, reset_after, ..self }
    }

    /// The decision with what `keep` returns for its receipt.
    #[inline(always)]
    pub fn keep_receipt<S>(self, keep: impl FnOnce(R) -> Option<S>) -> Decision<S> {
        Decision {
            verdict: self.verdict,
            remaining: self.remaining,
            reset_after: self.reset_after,
            receipt: self.receipt.and_then(keep),
        }
    }
}

/// The part of a limit to which a bucket is entitled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaTerms {
    /// The weight of the demand of the bucket if the limit is below the sum of demands.
    pub weight: NonZeroU32,
    /// Hits a second of a rate, or hits of a budget, that the bucket may let pass whatever the demand of others is.
    pub floor: u64,
}

impl Default for QuotaTerms {
    fn default() -> Self {
        Self { weight: NonZeroU32::MIN, floor: 0 }
    }
}
