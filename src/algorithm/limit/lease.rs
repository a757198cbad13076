//! Charges made on another replica, whose clock may show another time.

use crate::{
    algorithm::{Counter, Excess, FixedWindow, Limit, Operation, SlidingWindow, SteppedBucket, TokenBucket},
    time::Timestamp,
};

impl Limit {
    /// Whether a part of what is left may be leased to another replica. This requires that a refused hit leaves no
    /// trace and that no hit waits.
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

    /// Charges `hits` that were consumed at `at`, whether they would pass or not. Hits that have expired change
    /// nothing.
    pub(crate) fn charge_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        match (self, &mut *counter) {
            // A debt from meanwhile is owed after these hits instead of before them, which takes as long.
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

    /// Takes back `hits` that [`Limit::charge_at`] charged at `at`, as far as they still count.
    pub(crate) fn refund_at(&self, counter: &mut Counter, hits: u64, at: Timestamp, now: Timestamp) {
        let mut taken = self.fresh();
        self.charge_at(&mut taken, hits, at, now);
        *counter = self.since(counter, &taken, now);
    }
}
