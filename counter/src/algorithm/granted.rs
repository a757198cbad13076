//! Rates, and what is granted of a limit to clients that decide by themselves.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::time::timestamp::SECOND;

/// Windows shorter than this are divided as rates.
const RATE_WINDOW_NANOS_MAX: u64 = 10 * SECOND;
/// The burst of a window that is divided as a rate: the limit divided by this.
const WINDOW_BURST_DIVISOR: u64 = 10;
/// A bucket of which the whole rate is granted gets one hit in this time, because a rate has at least one.
pub(super) const STILL_NANOS: NonZeroU64 = NonZeroU64::new(1_000 * SECOND).unwrap();

/// A rate of whole hits with its burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HitRate {
    /// Hits in each second.
    pub per_second: u64,
    /// Hits at once.
    pub burst: u64,
}

impl HitRate {
    /// The rate of so many hits in this time, with so many at once; `None` if that is less than a hit a second.
    pub(super) fn new(hits: u64, nanos: u64, burst: u64) -> Option<Self> {
        let per_second = u128::from(hits) * u128::from(SECOND) / u128::from(nanos);
        let per_second = u64::try_from(per_second).unwrap_or(u64::MAX);
        (per_second > 0 && burst > 0).then_some(Self { per_second, burst })
    }

    /// The rate of windows of this length, if they are shorter than 10 s.
    pub(super) fn from_window(limit: u64, nanos: Option<u64>) -> Option<Self> {
        let nanos = nanos.filter(|nanos| *nanos < RATE_WINDOW_NANOS_MAX)?;
        Self::new(limit, nanos, limit.div_ceil(WINDOW_BURST_DIVISOR))
    }

    /// The hits in this time, rounded up.
    pub(super) fn hits_in(self, nanos: u64) -> u64 {
        let hits = (u128::from(self.per_second) * u128::from(nanos)).div_ceil(u128::from(SECOND));
        u64::try_from(hits).unwrap_or(u64::MAX)
    }

    /// The sum of both rates and of both bursts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            per_second: self.per_second.saturating_add(other.per_second),
            burst: self.burst.saturating_add(other.burst),
        }
    }

    /// The larger rate with the larger burst.
    #[must_use]
    pub fn max_of(self, other: Self) -> Self {
        Self { per_second: self.per_second.max(other.per_second), burst: self.burst.max(other.burst) }
    }
}

/// What is granted of a limit, which is stored with its counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// A part of the rate, which the counter does not have until it is given back.
    pub rate: HitRate,
    /// Hits that count as charged until they are used or given back.
    pub hits: u64,
}

impl Granted {
    /// Whether nothing is granted.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{
            Excess, Operation, counter::Counter, fixed_window::Classic, gcra::Rate, limit::Limit,
            token_bucket::TokenBucket, window::Window,
        },
        time::timestamp::Timestamp,
    };

    fn bucket(hits: u64, nanos: u64, burst: u64) -> Limit {
        let [hits, nanos] = [hits, nanos].map(|number| NonZeroU64::new(number).unwrap());
        Limit::TokenBucket(TokenBucket { rate: Rate::new(hits, nanos), burst, excess: Excess::Refuse })
    }

    fn window(limit: u64, nanos: u64) -> Limit {
        Limit::Classic(Classic::new(limit, Window::from_nanos(nanos).unwrap()))
    }

    fn rate(per_second: u64, burst: u64) -> HitRate {
        HitRate { per_second, burst }
    }

    /// How many hits pass at once, and in the ten seconds that follow.
    fn passing(limit: &Limit) -> (usize, usize) {
        let mut counter: Counter = limit.fresh();
        let mut pass = |nanos| {
            let now = Timestamp::from_nanos(1_790_000_000 * SECOND + nanos);
            limit.decide(&mut counter, now, Operation::Charge(1)).verdict.passes()
        };
        let at_once = (0..1_000).take_while(|_| pass(0)).count();
        (at_once, (1..=10_000).filter(|millis| pass(millis * SECOND / 1_000)).count())
    }

    #[test]
    fn buckets_and_short_windows_are_rates() {
        for (limit, expected) in [
            (bucket(100, SECOND, 20), Some(rate(100, 20))),
            (bucket(600, 60 * SECOND, 20), Some(rate(10, 20))),
            (bucket(30, 60 * SECOND, 20), None),
            (window(100, SECOND), Some(rate(100, 10))),
            (window(90, 9 * SECOND), Some(rate(10, 9))),
            (window(100, 10 * SECOND), None),
            (window(0, SECOND), None),
        ] {
            assert_eq!(limit.hit_rate(), expected, "{limit:?}");
        }
    }

    #[test]
    fn limit_without_a_part_of_its_rate_passes_the_rest() {
        for (limit, part, expected) in [
            (bucket(100, SECOND, 20), rate(40, 5), (15, 600)),
            (bucket(600, 60 * SECOND, 20), rate(10, 20), (0, 0)),
            (bucket(100, SECOND, 20), rate(100, 20), (0, 0)),
            (window(100, SECOND), rate(40, 5), (55, 496)),
            (window(100, SECOND), rate(100, 10), (0, 0)),
        ] {
            assert_eq!(passing(&limit.without_rate(part)), expected, "{limit:?}");
        }
    }
}
