//! The layout of a packed counter, and the numbers in it.

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        Decision,
        counter::{Counter, PenalizedCounter},
    },
    time::timestamp::Timestamp,
};

/// Nanoseconds in a millisecond.
pub(in crate::packed_counter) const MILLISECOND: u64 = 1_000_000;

/// A counter as stored in a table. What follows from the limit, such as the length of the window, is left out.
#[derive(Clone, Debug)]
pub enum PackedCounter {
    /// Hits in one window.
    Window {
        /// The used share of the allowance.
        used: UsedShare,
        /// Hits.
        count: u32,
        /// The end of the window.
        end: Timestamp,
    },
    /// Hits in two windows.
    Sliding {
        /// The used share of the allowance.
        used: UsedShare,
        /// The end of the last window in which they weigh anything.
        until: Millis,
        /// Hits in the earlier window.
        previous: u32,
        /// Hits in the later window.
        current: u32,
    },
    /// A debt.
    Debt {
        /// The largest debt at which a single hit passes.
        passing_debt_max: ApproxNumber,
        /// The part of the debt below a nanosecond.
        rest: u32,
        /// When the debt is paid.
        paid_at: Timestamp,
    },
    /// A debt in steps.
    Step {
        /// The largest debt at which a single hit passes.
        passing_debt_max: ApproxNumber,
        /// Units beyond whole steps.
        spare: u32,
        /// When the bucket is full.
        full_at: Timestamp,
    },
    /// A counter that does not fit into 16 bytes.
    Large(Box<Large>),
    /// A counter with a record of refusals or penalties.
    Penalized(Box<PenalizedCounter<PackedCounter>>),
}

/// A counter that does not fit into a packed counter, on the heap.
#[derive(Clone, Debug)]
pub struct Large {
    pub(in crate::packed_counter) counter: Counter,
    pub(in crate::packed_counter) idle_at: Timestamp,
    pub(in crate::packed_counter) used: UsedShare,
}

/// The used share of the allowance, in 254ths rounded down; 255 if the counter refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UsedShare(pub(in crate::packed_counter) u8);

/// Milliseconds since the Unix epoch in six bytes, enough for 8,900 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub(in crate::packed_counter) [u16; 3]);

/// A number rounded down to 10 significant bits: an exponent of 6 bits, and the 9 bits after the leading one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApproxNumber(u16);

// The memory per counter follows from these sizes; docs/algorithms.md states it.
const _: () = assert!(size_of::<PackedCounter>() == 16 && size_of::<Large>() == 64);
const _: () = assert!(size_of::<PenalizedCounter<PackedCounter>>() == 48);

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
            (Self::Penalized(one), Self::Penalized(other)) => one == other,
            _two_kinds => false,
        }
    }
}

impl Eq for PackedCounter {}

impl UsedShare {
    #[inline(always)]
    pub(in crate::packed_counter) fn new<R>(allowance: u64, decision: &Decision<R>) -> Self {
        if decision.remaining == 0 || !decision.verdict.passes() {
            return Self(u8::MAX);
        }
        Self::share(decision.remaining, allowance.max(1))
    }

    #[inline(always)]
    pub(in crate::packed_counter) fn share(left: u64, all: u64) -> Self {
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
    pub(in crate::packed_counter) fn from_instant(instant: Timestamp) -> Option<Self> {
        let millis = instant.as_nanos() / MILLISECOND;
        let parts = [millis, millis >> 16, millis >> 32].map(|part| (part & 0xffff) as u16);
        instant.as_nanos().is_multiple_of(MILLISECOND).then_some(Self(parts))
    }

    pub(in crate::packed_counter) fn timestamp(self) -> Timestamp {
        let [low, middle, high] = self.0.map(u64::from);
        Timestamp::from_nanos((low | middle << 16 | high << 32).saturating_mul(MILLISECOND))
    }
}

impl ApproxNumber {
    const BITS: u32 = 9;

    pub(in crate::packed_counter) fn new(number: u64) -> Self {
        let Some(exponent) = number.checked_ilog2().and_then(|log| log.checked_sub(Self::BITS)) else {
            return Self(number as u16);
        };
        let rest = (number >> exponent) as u16 & ((1 << Self::BITS) - 1);
        Self((exponent as u16 + 1) << Self::BITS | rest)
    }

    pub(in crate::packed_counter) fn number(self) -> u64 {
        let exponent = self.0 >> Self::BITS;
        let rest = u64::from(self.0 & ((1 << Self::BITS) - 1));
        if exponent == 0 {
            return rest;
        }
        // Larger exponents are never written, but may be received.
        (rest | 1 << Self::BITS).checked_shl(u32::from(exponent) - 1).unwrap_or(u64::MAX)
    }
}
