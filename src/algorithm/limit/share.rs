//! A limit divided into equal shares, for replicas that decide locally during a partition.

use std::num::NonZeroU64;

use crate::algorithm::{Excess, LeakyQueue, Limit, Rate, SteppedBucket, TokenBucket};

impl Limit {
    /// The share of each of `members` replicas: the limit divided by their number, rounded up, so that all shares
    /// together exceed the limit by at most one hit for each member. Bursts, queues, steps and debts are divided
    /// likewise. Windows stay the same, so that the share uses the same counters.
    pub fn share(&self, members: u32) -> Self {
        let part = |number: u64| number.div_ceil(members.max(1).into());
        let step = |number: NonZeroU64| NonZeroU64::new(part(number.get())).unwrap_or(NonZeroU64::MIN);
        let rate = |whole: Rate| whole.with_hits(step);
        let excess = |whole: Excess| match whole {
            Excess::Refuse | Excess::Count => whole,
            Excess::Overdraft(debt) => Excess::Overdraft(part(debt)),
        };
        let bucket = |whole: &TokenBucket| TokenBucket {
            rate: rate(whole.rate),
            burst: part(whole.burst),
            excess: excess(whole.excess),
        };
        let mut share = self.clone();
        match &mut share {
            Self::Classic(limit) => limit.limit = part(limit.limit),
            Self::FixedWindow(limit) => {
                (limit.limit, limit.excess) = (part(limit.limit), excess(limit.excess));
            }
            Self::SlidingWindow(limit) => {
                (limit.limit, limit.excess) = (part(limit.limit), excess(limit.excess));
            }
            Self::SubWindows(limit) | Self::SlidingLog(limit) => {
                (limit.limit, limit.excess) = (part(limit.limit), excess(limit.excess));
            }
            Self::TokenBucket(limit) | Self::LeakyBucket(limit) => *limit = bucket(limit),
            Self::SteppedBucket(limit) => {
                *limit = SteppedBucket {
                    amount: step(limit.amount),
                    burst: part(limit.burst),
                    excess: excess(limit.excess),
                    ..*limit
                };
            }
            Self::LeakyQueue(limit) => {
                // The hit that leaves at once is divided together with those that wait.
                let burst = limit.burst.map(|burst| part(burst.saturating_add(1)).saturating_sub(1));
                *limit = LeakyQueue { rate: rate(limit.rate), burst, ..*limit };
            }
        }
        share
    }
}
