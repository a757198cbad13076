//! A counter in 16 bytes, with what eviction needs to know without its limit.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Counter, DebtCounter, Decision, Limit, Operation, SlidingCounter, Span, StepCounter, WindowCounter,
    },
    time::Timestamp,
};

mod codec;
mod in_place;

pub(super) use codec::{Age, Decoded, put};

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// A counter as stored in a table. What follows from the limit, such as the length of the window, is left out.
#[derive(Clone, Debug)]
pub(super) enum PackedCounter {
    /// Hits in the window that ends at `end`.
    Window { used: UsedShare, count: u32, end: Timestamp },
    /// Hits in two windows. `until` is the end of the last window in which they weigh anything.
    Sliding { used: UsedShare, until: Millis, previous: u32, current: u32 },
    /// A debt, and the largest debt at which a single hit passes.
    Debt { passing_debt_max: ApproxNumber, rest: u32, paid_at: Timestamp },
    /// A debt in steps.
    Step { passing_debt_max: ApproxNumber, spare: u32, full_at: Timestamp },
    /// A counter that does not fit into 16 bytes.
    Large(Box<Large>),
}

/// A counter that does not fit into a packed counter, on the heap.
#[derive(Clone, Debug)]
pub(super) struct Large {
    counter: Counter,
    idle_at: Timestamp,
    used: UsedShare,
}

/// The used share of the allowance, in 254ths rounded down; 255 if the counter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct UsedShare(u8);

/// Milliseconds since the Unix epoch in six bytes, enough for 8,900 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Millis([u16; 3]);

/// A number rounded down to 10 significant bits: an exponent of 6 bits, and the 9 bits after the leading one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ApproxNumber(u16);

// The memory per counter follows from these sizes; docs/algorithms.md states it.
const _: () = assert!(size_of::<PackedCounter>() == 16 && size_of::<Large>() == 56);

impl PackedCounter {
    /// Packs `counter` after `decision` of `limit`.
    pub(super) fn new(limit: &Limit, counter: Counter, decision: &Decision) -> Self {
        let small = match &counter {
            Counter::Window(counter) => Self::window(limit, counter, decision),
            Counter::Sliding(counter) => Self::sliding(limit, counter, decision),
            Counter::Debt(DebtCounter { paid_at, rest }) => {
                u32::try_from(*rest).ok().map(|rest| Self::Debt {
                    passing_debt_max: ApproxNumber::of(limit.passing_debt_max()),
                    rest,
                    paid_at: *paid_at,
                })
            }
            Counter::Step(StepCounter { full_at, spare }) => {
                u32::try_from(*spare).ok().map(|spare| Self::Step {
                    passing_debt_max: ApproxNumber::of(limit.passing_debt_max()),
                    spare,
                    full_at: *full_at,
                })
            }
            Counter::Log(_) => None,
        };
        small.unwrap_or_else(|| {
            let (idle_at, used) = (limit.idle_at(&counter), UsedShare::of(limit, decision));
            Self::Large(Box::new(Large { counter, idle_at, used }))
        })
    }

    fn window(limit: &Limit, counter: &WindowCounter, decision: &Decision) -> Option<Self> {
        let end = limit.window()?.end(counter.start, 0);
        let count = u32::try_from(counter.count).ok()?;
        // A debt lasts longer than its window.
        let pays_off = limit.idle_at(&Counter::Window(*counter)) <= end;
        pays_off.then(|| Self::Window { used: UsedShare::of(limit, decision), count, end })
    }

    fn sliding(limit: &Limit, counter: &SlidingCounter, decision: &Decision) -> Option<Self> {
        let (previous, current) =
            (u32::try_from(counter.previous).ok()?, u32::try_from(counter.current).ok()?);
        let until = Millis::of(counter.start.plus(limit.span()?.nanos() * Self::windows(current)))?;
        Some(Self::Sliding { used: UsedShare::of(limit, decision), until, previous, current })
    }

    /// The number of windows, including the current one, in which the hits weigh anything.
    fn windows(current: u32) -> u64 {
        if current == 0 { 1 } else { 2 }
    }

    /// Unpacks the counter, applies `decide` and packs it again. `limit` must be of the same kind.
    pub(super) fn update(
        &mut self,
        limit: &Limit,
        decide: impl FnOnce(&mut Counter) -> Decision,
    ) -> Decision {
        match self {
            // In place, because it may be long.
            Self::Large(large) => {
                let decision = decide(&mut large.counter);
                large.idle_at = limit.idle_at(&large.counter);
                large.used = UsedShare::of(limit, &decision);
                decision
            }
            Self::Window { .. } | Self::Sliding { .. } | Self::Debt { .. } | Self::Step { .. } => {
                let mut counter = self.counter(limit);
                let decision = decide(&mut counter);
                *self = Self::new(limit, counter, &decision);
                decision
            }
        }
    }

    /// The unpacked counter. `limit` must be of the same kind.
    pub(super) fn counter(&self, limit: &Limit) -> Counter {
        match self {
            Self::Window { count, end, .. } => {
                let start = limit.window().map_or(Timestamp::EPOCH, |window| window.start(end.minus(1)));
                Counter::Window(WindowCounter { start, count: (*count).into() })
            }
            Self::Sliding { until, previous, current, .. } => {
                let back = limit.span().map_or(0, Span::nanos) * Self::windows(*current);
                Counter::Sliding(SlidingCounter {
                    start: until.timestamp().minus(back),
                    previous: (*previous).into(),
                    current: (*current).into(),
                })
            }
            Self::Debt { rest, paid_at, .. } => {
                Counter::Debt(DebtCounter { paid_at: *paid_at, rest: (*rest).into() })
            }
            Self::Step { spare, full_at, .. } => {
                Counter::Step(StepCounter { full_at: *full_at, spare: (*spare).into() })
            }
            Self::Large(large) => large.counter.clone(),
        }
    }

    /// Clamps the counter if it is ahead of `now`. A window may come from a replica whose clock is ahead; it then
    /// becomes the next one. Debts and logs are transferred as ages, so they are ahead only if this clock gave up a
    /// lead, at `given_up`.
    pub(super) fn clamp_ahead(&mut self, limit: &Limit, given_up: Option<Timestamp>, now: Timestamp) {
        let far = |end: Timestamp, nanos| nanos < end.nanos_since(now);
        // A cheap test that holds for every counter that is ahead.
        let may_be_ahead = match self {
            Self::Window { end, .. } => limit.window().is_some_and(|window| far(*end, window.nanos_max())),
            Self::Sliding { until, .. } => {
                limit.span().is_some_and(|span| far(until.timestamp(), 2 * span.nanos()))
            }
            Self::Debt { .. } | Self::Step { .. } => given_up.is_some(),
            Self::Large(large) => match &large.counter {
                Counter::Window(counter) => far(counter.start, 0),
                Counter::Sliding(counter) => far(counter.start, 0),
                Counter::Log(_) | Counter::Debt(_) | Counter::Step(_) => given_up.is_some(),
            },
        };
        if may_be_ahead {
            self.update(limit, |counter| {
                limit.clamp_ahead(counter, given_up.unwrap_or(now), now);
                limit.decide(counter, now, Operation::Peek)
            });
        }
    }

    /// The instant from which the counter may be evicted without changing any answer.
    pub(super) fn idle_at(&self) -> Timestamp {
        match self {
            Self::Window { end, .. } => *end,
            Self::Sliding { until, .. } => until.timestamp(),
            Self::Debt { rest, paid_at, .. } => paid_at.plus(u64::from(*rest > 0)),
            Self::Step { full_at, .. } => *full_at,
            Self::Large(large) => large.idle_at,
        }
    }

    /// How much an eviction would give away, from 0 to 254; `None` if the counter refuses now, because eviction would
    /// admit a refused key.
    pub(super) fn eviction_cost(&self, now: Timestamp) -> Option<u8> {
        let owed = |until: Timestamp, passing_debt_max: ApproxNumber| {
            let (debt, most) = (until.nanos_since(now), passing_debt_max.number());
            // The share is at most 254, as the debt is at most `most`.
            (debt <= most).then(|| (u128::from(debt) * 254 / u128::from(most.max(1))) as u8)
        };
        let counted = |used: UsedShare| (used.0 < u8::MAX).then_some(used.0);
        match self {
            Self::Window { used, .. } | Self::Sliding { used, .. } => counted(*used),
            Self::Debt { passing_debt_max, paid_at, .. } => owed(*paid_at, *passing_debt_max),
            Self::Step { passing_debt_max, full_at, .. } => owed(*full_at, *passing_debt_max),
            Self::Large(large) => counted(large.used),
        }
    }

    /// The bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Window { .. } | Self::Sliding { .. } | Self::Debt { .. } | Self::Step { .. } => 0,
            Self::Large(large) => size_of::<Large>() + large.counter.heap_bytes(),
        }
    }

    /// The same with all instants `back` nanoseconds earlier.
    pub(super) fn shifted_back(mut self, back: u64) -> Self {
        match &mut self {
            Self::Window { end: instant, .. }
            | Self::Debt { paid_at: instant, .. }
            | Self::Step { full_at: instant, .. } => *instant = instant.minus(back),
            Self::Sliding { until, .. } => {
                // Whole milliseconds stay whole and in range.
                *until =
                    Millis::of(until.timestamp().minus(back / MILLISECOND * MILLISECOND)).unwrap_or(*until);
            }
            Self::Large(large) => {
                large.idle_at = large.idle_at.minus(back);
                large.counter.shift_back(back);
            }
        }
        self
    }
}

/// Compares counters without the used share, which depends on the last limit.
impl PartialEq for PackedCounter {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Window { count, end, .. }, Self::Window { count: counted, end: ends, .. }) => {
                (count, end) == (counted, ends)
            }
            (
                Self::Sliding { until, previous, current, .. },
                Self::Sliding { until: ends, previous: before, current: counted, .. },
            ) => (until, previous, current) == (ends, before, counted),
            (Self::Debt { rest, paid_at, .. }, Self::Debt { rest: owed, paid_at: paid, .. }) => {
                (rest, paid_at) == (owed, paid)
            }
            (Self::Step { spare, full_at, .. }, Self::Step { spare: left, full_at: full, .. }) => {
                (spare, full_at) == (left, full)
            }
            (Self::Large(one), Self::Large(other)) => one.counter == other.counter,
            _two_kinds => false,
        }
    }
}

impl Eq for PackedCounter {}

impl UsedShare {
    fn of<R>(limit: &Limit, decision: &Decision<R>) -> Self {
        if decision.remaining == 0 || !decision.verdict.passes() {
            return Self(u8::MAX);
        }
        Self::share(decision.remaining, limit.allowance().max(1))
    }

    fn share(left: u64, all: u64) -> Self {
        let used = all.saturating_sub(left);
        // The share is below 254, as something is left.
        match used.checked_mul(254) {
            Some(parts) => Self((parts / all) as u8),
            None => Self((u128::from(used) * 254 / u128::from(all)) as u8),
        }
    }
}

impl Millis {
    /// `None` if `instant` is not a whole number of milliseconds.
    fn of(instant: Timestamp) -> Option<Self> {
        let millis = instant.as_nanos() / MILLISECOND;
        let parts = [millis, millis >> 16, millis >> 32].map(|part| (part & 0xffff) as u16);
        instant.as_nanos().is_multiple_of(MILLISECOND).then_some(Self(parts))
    }

    fn timestamp(self) -> Timestamp {
        let [low, middle, high] = self.0.map(u64::from);
        Timestamp::from_nanos((low | middle << 16 | high << 32).saturating_mul(MILLISECOND))
    }
}

impl ApproxNumber {
    const BITS: u32 = 9;

    fn of(number: u64) -> Self {
        let Some(exponent) = number.checked_ilog2().and_then(|log| log.checked_sub(Self::BITS)) else {
            return Self(number as u16);
        };
        let rest = (number >> exponent) as u16 & ((1 << Self::BITS) - 1);
        Self((exponent as u16 + 1) << Self::BITS | rest)
    }

    fn number(self) -> u64 {
        let (exponent, rest) = (self.0 >> Self::BITS, u64::from(self.0 & ((1 << Self::BITS) - 1)));
        if exponent == 0 {
            return rest;
        }
        // Larger exponents are never written, but may be received.
        (rest | 1 << Self::BITS).checked_shl(u32::from(exponent) - 1).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn approx_number_is_low_by_at_most_one_in_512(number: u64) {
            let approx = ApproxNumber::of(number).number();
            prop_assert!(approx <= number && number - approx <= number / 512);
        }

        #[test]
        fn used_share_is_rounded_down_for_all_magnitudes(left in 1_u64.., all in 1_u64.., cut in 0_u32..64) {
            let [left, all] = [left, all].map(|number: u64| (number >> cut).max(1));
            let exact = u128::from(all.saturating_sub(left)) * 254 / u128::from(all);
            prop_assert_eq!(u128::from(UsedShare::share(left, all).0), exact);
        }

        #[test]
        fn whole_milliseconds_round_trip_in_six_bytes(millis in 0..u64::MAX / MILLISECOND) {
            let instant = Timestamp::from_nanos(millis * MILLISECOND);
            prop_assert_eq!(Millis::of(instant).unwrap().timestamp(), instant);
            prop_assert_eq!(Millis::of(instant.plus(1)), None);
        }
    }
}
