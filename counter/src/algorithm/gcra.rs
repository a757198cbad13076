//! A rate, and a debt that time pays off at that rate: the generic cell rate algorithm (ITU-T I.371).
//!
//! The level of a bucket is stored as the instant at which the bucket will be full again. The distance of that instant
//! from now is a debt; an algorithm is a bound on the debt.
//!
//! Debts are integers: a hit costs as many units as the rate has nanoseconds, and each nanosecond pays as many units
//! as the rate has hits. So intervals of a fractional number of nanoseconds are exact.

use std::{num::NonZeroU64, time::Duration};

use serde::{Deserialize, Serialize};

use crate::time::timestamp::Timestamp;

/// A number of hits in a number of nanoseconds, evenly spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    hits: NonZeroU64,
    nanos: NonZeroU64,
}

/// The longest time to pay a debt: 200 years. Longer debts are cut to that.
const NANOS_MAX: u64 = 200 * 365 * 86_400 * crate::time::SECOND;

impl Rate {
    /// `hits` every `nanos`.
    pub const fn new(hits: NonZeroU64, nanos: NonZeroU64) -> Self {
        Self { hits, nanos }
    }

    /// The hits of the rate.
    pub const fn hits(self) -> u64 {
        self.hits.get()
    }

    /// The rate with the hits that `change` returns, at least one, in as many nanoseconds.
    pub(crate) fn with_hits(self, change: impl FnOnce(u64) -> u64) -> Self {
        Self { hits: NonZeroU64::new(change(self.hits.get())).unwrap_or(NonZeroU64::MIN), ..self }
    }

    /// The nanoseconds in which the hits of the rate come.
    pub const fn nanos(self) -> u64 {
        self.nanos.get()
    }

    /// The time it takes to pay for `hits`, in nanoseconds, rounded up.
    pub const fn nanos_for(self, hits: u64) -> u128 {
        self.cost(hits).div_ceil(self.hits.get() as u128)
    }

    /// What `hits` cost, in units.
    pub(crate) const fn cost(self, hits: u64) -> u128 {
        hits as u128 * self.nanos.get() as u128
    }

    /// The whole hits that `units` pay for.
    pub(crate) fn hits_in(self, units: u128) -> u64 {
        u64::try_from(divide(units, self.nanos).0).unwrap_or(u64::MAX)
    }

    /// What `units` of the rate `other` cost under this one: the hits stay the same, a part of a unit is rounded up.
    pub(crate) fn cost_of(self, units: u128, other: Self) -> u128 {
        let (hits, rest) = divide(units, other.nanos);
        let rest = (u128::from(rest) * u128::from(self.nanos.get())).div_ceil(u128::from(other.nanos.get()));
        hits.saturating_mul(u128::from(self.nanos.get())).saturating_add(rest)
    }

    /// The units that are paid in that time.
    pub(crate) fn paid_in(self, time: Duration) -> u128 {
        time.as_nanos().saturating_mul(self.units_per_nano())
    }

    /// The whole nanoseconds in which at most `units` are paid.
    pub(crate) fn nanos_in(self, units: u128) -> u64 {
        u64::try_from(divide(units, self.hits).0).unwrap_or(u64::MAX)
    }

    /// The time after which `units` are paid, rounded up to whole nanoseconds.
    pub(crate) fn time_for(self, units: u128) -> Duration {
        let (whole, rest) = divide(units, self.hits);
        Duration::from_nanos(u64::try_from(whole).unwrap_or(u64::MAX).saturating_add(u64::from(rest > 0)))
    }

    /// `units` of the rate `before`, under this one: the time to pay them stays the same, rounded down.
    pub(crate) fn converted(self, units: u128, before: Self) -> u128 {
        divide(units, before.hits).0.saturating_mul(self.units_per_nano())
    }

    fn units_per_nano(self) -> u128 {
        u128::from(self.hits.get())
    }
}

/// The quotient, rounded down, and the rest.
#[inline]
fn divide(units: u128, by: NonZeroU64) -> (u128, u64) {
    // The units of most limits fit into 64 bits, which the processor divides several times faster.
    match u64::try_from(units) {
        Ok(units) => ((units / by).into(), units % by),
        // The rest is less than `by`, so it fits.
        Err(_) => (units / u128::from(by.get()), (units % u128::from(by.get())) as u64),
    }
}

/// A debt, as the instant at which it is paid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebtCounter {
    /// The last whole nanosecond before the debt is paid.
    pub paid_at: Timestamp,
    /// Units that are then still owed: less than one nanosecond pays.
    pub rest: u64,
}

/// A charge to a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebtReceipt {
    at: Timestamp,
    hits: u64,
    /// The counter after the charge.
    pub(super) after: DebtCounter,
}

impl DebtCounter {
    /// The units owed at `now`.
    pub(crate) fn debt(&self, rate: Rate, now: Timestamp) -> u128 {
        if self.paid_at < now {
            return 0;
        }
        // Under another rate the rest may be worth more than a nanosecond: it is cut to less.
        let rest = self.rest.min(rate.hits.get() - 1);
        u128::from(self.paid_at.nanos_since(now)) * rate.units_per_nano() + u128::from(rest)
    }

    /// Owes `units` at `now`. Returns the time until they are paid, as [`Rate::time_for`].
    pub(crate) fn owe(&mut self, rate: Rate, now: Timestamp, units: u128) -> Duration {
        let units = units.min(u128::from(NANOS_MAX) * rate.units_per_nano());
        let (whole, rest) = divide(units, rate.hits);
        // It fits: it is at most NANOS_MAX.
        let whole = whole as u64;
        self.paid_at = now.plus(whole);
        self.rest = rest;
        Duration::from_nanos(whole + u64::from(rest > 0))
    }

    /// What [`DebtCounter::undo`] needs to take back `hits` just charged at `now`.
    pub(crate) fn receipt(&self, now: Timestamp, hits: u64) -> DebtReceipt {
        DebtReceipt { at: now, hits, after: *self }
    }

    /// Takes back the part of a charge that cannot have been paid since. Whatever else was charged or taken back
    /// meanwhile, this is at most what that charge still weighs.
    pub(crate) fn undo(&mut self, rate: Rate, receipt: DebtReceipt, now: Timestamp) {
        let paid = u128::from(now.nanos_since(receipt.at)) * rate.units_per_nano();
        self.forgive(rate, now, rate.cost(receipt.hits).saturating_sub(paid));
    }

    /// Lowers the debt by `units`, or to nothing.
    pub(crate) fn forgive(&mut self, rate: Rate, now: Timestamp, units: u128) {
        let debt = self.debt(rate, now);
        self.owe(rate, now, debt.saturating_sub(units));
    }

    /// Cuts a debt of more than `most` units at `now` to `most` units at `at`.
    pub(crate) fn clamp_ahead(&mut self, rate: Rate, most: u128, at: Timestamp, now: Timestamp) {
        if most < self.debt(rate, now) {
            self.owe(rate, at, most);
        }
    }
}

/// What algorithms have in common that keep a debt at their `rate`: types and methods of
/// [`Algorithm`](crate::algorithm::Algorithm).
macro_rules! debt_at_rate {
    () => {
        type Counter = DebtCounter;
        type Receipt = DebtReceipt;

        fn idle_at(&self, counter: &DebtCounter) -> Timestamp {
            counter.paid_at.plus(u64::from(counter.rest > 0))
        }

        fn since(&self, counter: &DebtCounter, base: &DebtCounter, now: Timestamp) -> DebtCounter {
            let mut since = *counter;
            since.forgive(self.rate, now, base.debt(self.rate, now));
            since
        }

        fn absorb(&self, counter: &mut DebtCounter, other: &DebtCounter, now: Timestamp) {
            let debt = counter.debt(self.rate, now).saturating_add(other.debt(self.rate, now));
            counter.owe(self.rate, now, debt);
        }

        fn lighten(&self, counter: &mut DebtCounter, _: &HeldCharge, units: u128, now: Timestamp) {
            counter.forgive(self.rate, now, units);
        }

        fn units(&self, hits: u64) -> u128 {
            self.rate.cost(hits)
        }

        fn converted(&self, units: u128, before: &Self) -> u128 {
            self.rate.converted(units, before.rate)
        }

        // A debt from meanwhile is owed after these hits instead of before them, which takes as long.
        fn charge_at(&self, counter: &mut DebtCounter, hits: u64, at: Timestamp, _now: Timestamp) {
            let debt = counter.debt(self.rate, at).saturating_add(self.rate.cost(hits));
            counter.owe(self.rate, at, debt);
        }

        fn period(&self) -> Option<u64> {
            Some(self.rate.nanos())
        }
    };
}
pub(super) use debt_at_rate;
