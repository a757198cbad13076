//! Packs and unpacks each kind of counter.

use crate::{
    algorithm::{
        Algorithm,
        counter::{Counter, own},
        gcra::DebtCounter,
        log_counter::LogCounter,
        sliding_window::SlidingCounter,
        stepped_bucket::StepCounter,
        window::WindowCounter,
    },
    packed_counter::layout::{ApproxNumber, Millis, PackedCounter, UsedShare},
    time::timestamp::Timestamp,
};

/// A kind of counter that is packed.
pub(super) trait Pack: Default {
    /// The packed counter; `None` if it does not fit into 16 bytes.
    fn pack(&self, _: &impl Algorithm<Counter = Self>, _: UsedShare) -> Option<PackedCounter> {
        None
    }

    /// The counter; `None` if it is of another kind.
    fn unpack(_: &PackedCounter, _window_nanos: u64) -> Option<Self> {
        None
    }

    /// A cheap test that holds for every counter that is ahead of `now`: see [`Limit::clamp_ahead`](crate::algorithm::Limit::clamp_ahead).
    #[inline(always)]
    fn may_be_ahead(&self, _window_nanos: u64, given_up: Option<Timestamp>, _now: Timestamp) -> bool {
        given_up.is_some()
    }
}

/// The packed counter of an algorithm; `None` if it does not fit. A counter of another kind becomes a fresh one.
pub(super) fn pack<A>(algorithm: &A, counter: &mut Counter, used: UsedShare) -> Option<PackedCounter>
where
    A: Algorithm<Counter: Pack>,
{
    own::<A::Counter>(counter).pack(algorithm, used)
}

/// The counter of an algorithm; `None` if it is of another kind or not packed.
#[inline(always)]
pub(super) fn unpack<A: Algorithm<Counter: Pack>>(
    packed: &PackedCounter,
    algorithm: &A,
) -> Option<A::Counter> {
    Pack::unpack(packed, window_nanos(algorithm))
}

/// The length of the windows of an algorithm, or its period, in nanoseconds; 0 without either. Of windows that differ,
/// an upper bound that is less than the length of two.
#[inline(always)]
pub(super) fn window_nanos(algorithm: &impl Algorithm) -> u64 {
    match algorithm.window() {
        Some(window) => window.nanos_max(),
        None => algorithm.period().unwrap_or_default(),
    }
}

impl Pack for WindowCounter {
    #[inline(always)]
    fn pack(&self, algorithm: &impl Algorithm<Counter = Self>, used: UsedShare) -> Option<PackedCounter> {
        // A debt lasts longer than its window.
        let fits = algorithm.idle_at(self) <= self.end;
        let count = u32::try_from(self.count).ok().filter(|_| fits)?;
        Some(PackedCounter::Window { used, count, end: self.end })
    }

    #[inline(always)]
    fn unpack(packed: &PackedCounter, _: u64) -> Option<Self> {
        let PackedCounter::Window { count, end, .. } = *packed else { return None };
        Some(Self { end, count: count.into() })
    }

    #[inline(always)]
    fn may_be_ahead(&self, window_nanos: u64, _: Option<Timestamp>, now: Timestamp) -> bool {
        window_nanos < self.end.nanos_since(now)
    }
}

impl Pack for SlidingCounter {
    #[inline(always)]
    fn pack(&self, algorithm: &impl Algorithm<Counter = Self>, used: UsedShare) -> Option<PackedCounter> {
        let previous = u32::try_from(self.previous).ok()?;
        let current = u32::try_from(self.current).ok()?;
        // Hits of the current window weigh something in the next one.
        let until = Millis::from_instant(if current == 0 {
            self.end
        } else {
            self.end.plus(window_nanos(algorithm))
        })?;
        Some(PackedCounter::Sliding { used, until, previous, current })
    }

    #[inline(always)]
    fn unpack(packed: &PackedCounter, window_nanos: u64) -> Option<Self> {
        let PackedCounter::Sliding { until, previous, current, .. } = *packed else { return None };
        let end = if current == 0 { until.timestamp() } else { until.timestamp().minus(window_nanos) };
        Some(Self { end, previous: previous.into(), current: current.into() })
    }

    #[inline(always)]
    fn may_be_ahead(&self, window_nanos: u64, _: Option<Timestamp>, now: Timestamp) -> bool {
        window_nanos < self.end.nanos_since(now)
    }
}

impl Pack for DebtCounter {
    #[inline(always)]
    fn pack(&self, algorithm: &impl Algorithm<Counter = Self>, _: UsedShare) -> Option<PackedCounter> {
        let rest = u32::try_from(self.rest).ok()?;
        let passing_debt_max = ApproxNumber::new(algorithm.passing_debt_max());
        Some(PackedCounter::Debt { passing_debt_max, rest, paid_at: self.paid_at })
    }

    #[inline(always)]
    fn unpack(packed: &PackedCounter, _: u64) -> Option<Self> {
        let PackedCounter::Debt { rest, paid_at, .. } = *packed else { return None };
        Some(Self { paid_at, rest: rest.into() })
    }
}

impl Pack for StepCounter {
    #[inline(always)]
    fn pack(&self, algorithm: &impl Algorithm<Counter = Self>, _: UsedShare) -> Option<PackedCounter> {
        let spare = u32::try_from(self.spare).ok()?;
        let passing_debt_max = ApproxNumber::new(algorithm.passing_debt_max());
        Some(PackedCounter::Step { passing_debt_max, spare, full_at: self.full_at })
    }

    #[inline(always)]
    fn unpack(packed: &PackedCounter, _: u64) -> Option<Self> {
        let PackedCounter::Step { spare, full_at, .. } = *packed else { return None };
        Some(Self { full_at, spare: spare.into() })
    }
}

/// The counter of a limit with a penalty is packed as one of the limit without it, and the record is stored with it.
impl Pack for Counter {}

/// A log is too long.
impl Pack for LogCounter {}
