//! Counters and charges that come from another replica, whose clock may show another time.

use crate::{
    algorithm::{Counter, Excess, FixedWindow, Limit, Operation, SlidingWindow, SteppedBucket, TokenBucket},
    time::Timestamp,
};

impl Limit {
    /// Whether a part of what is left may be given to others to charge by themselves: where a hit that does not
    /// pass leaves no trace that they would have to tell of, and none waits.
    pub fn is_leasable(&self) -> bool {
        match self {
            Self::Classic(_) => true,
            Self::FixedWindow(FixedWindow { excess, .. })
            | Self::SlidingWindow(SlidingWindow { excess, .. })
            | Self::TokenBucket(TokenBucket { excess, .. })
            | Self::LeakyBucket(TokenBucket { excess, .. })
            | Self::SteppedBucket(SteppedBucket { excess, .. }) => *excess == Excess::Refuse,
            Self::SubWindows(_) | Self::SlidingLog(_) | Self::LeakyQueue(_) => false,
        }
    }

    /// Charges `hits` that were taken at `at`, whether they would pass or not. Those that do not count any more
    /// change nothing.
    pub(crate) fn charge_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        match (self, &mut *counter) {
            // What was owed meanwhile is owed after these hits instead of before, which takes as long.
            (Self::TokenBucket(limit) | Self::LeakyBucket(limit), Counter::Debt(counter)) => {
                counter.charge(limit.rate, at, hits);
            }
            (Self::LeakyQueue(limit), Counter::Debt(counter)) => counter.charge(limit.rate, at, hits),
            (Self::SteppedBucket(limit), Counter::Step(counter)) => limit.charge_at(counter, at, hits),
            (limit, counter) => {
                let mut taken = limit.fresh();
                limit.with_debt(hits).decide(&mut taken, at, Operation::Charge(hits));
                limit.absorb(counter, &taken, now);
            }
        }
    }

    /// Takes back `hits` that [`Limit::charge_taken`] charged at `at`, as far as they still count.
    pub(crate) fn refund_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        let mut taken = self.fresh();
        self.charge_at(&mut taken, hits, at, now);
        *counter = self.since(counter, &taken, now);
    }
}
