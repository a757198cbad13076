//! The checks of one call and their decisions, generic over their number: for a single check, the compiler drops what
//! only several checks need.

use std::{convert::Infallible, ops::Deref};

use smallvec::SmallVec;

use crate::{
    algorithm::{Decision, Receipt},
    store::{Check, Slot},
};

/// Any number of checks.
pub type Checks<'a> = SmallVec<[Check<'a>; 2]>;

/// The checks of one call: `[Check; 1]` if there is exactly one, otherwise [`Checks`].
pub trait CheckSet {
    /// A value for each check.
    type Each<T>: AsRef<[T]> + AsMut<[T]>;
    /// What is kept to take a charge back. Nothing, so [`Infallible`], for a single check: no other check refuses it.
    type Receipt: Copy + Into<Receipt>;

    /// Whether a set of this type has exactly one check.
    const IS_SINGLE: bool;

    /// What is kept of a receipt.
    fn keep(receipt: Receipt) -> Option<Self::Receipt>;

    /// The checks.
    fn checks(&self) -> &[Check<'_>];

    /// A value for each check, in order. `value` gets the index too.
    fn each<T>(&self, value: impl FnMut(usize, &Check<'_>) -> T) -> Self::Each<T>;

    /// A value for each of `values`, in order.
    fn map<T, U>(values: &Self::Each<T>, value: impl FnMut(&T) -> U) -> Self::Each<U>;

    /// Each slot once, in the order in which slots are locked: ascending.
    fn in_lock_order(slots: Self::Each<Slot>) -> Self::Each<Slot>;
}

impl CheckSet for [Check<'_>; 1] {
    type Each<T> = [T; 1];
    type Receipt = Infallible;

    const IS_SINGLE: bool = true;

    #[inline(always)]
    fn keep(_: Receipt) -> Option<Infallible> {
        None
    }

    fn checks(&self) -> &[Check<'_>] {
        self
    }

    #[inline(always)]
    fn each<T>(&self, mut value: impl FnMut(usize, &Check<'_>) -> T) -> [T; 1] {
        [value(0, &self[0])]
    }

    #[inline(always)]
    fn map<T, U>(values: &[T; 1], value: impl FnMut(&T) -> U) -> [U; 1] {
        values.each_ref().map(value)
    }

    fn in_lock_order(slots: [Slot; 1]) -> [Slot; 1] {
        slots
    }
}

impl CheckSet for Checks<'_> {
    type Each<T> = SmallVec<[T; 2]>;
    type Receipt = Receipt;

    const IS_SINGLE: bool = false;

    fn keep(receipt: Receipt) -> Option<Receipt> {
        Some(receipt)
    }

    fn checks(&self) -> &[Check<'_>] {
        self
    }

    fn each<T>(&self, mut value: impl FnMut(usize, &Check<'_>) -> T) -> SmallVec<[T; 2]> {
        self.iter().enumerate().map(|(index, check)| value(index, check)).collect()
    }

    fn map<T, U>(values: &SmallVec<[T; 2]>, value: impl FnMut(&T) -> U) -> SmallVec<[U; 2]> {
        values.iter().map(value).collect()
    }

    fn in_lock_order(mut slots: SmallVec<[Slot; 2]>) -> SmallVec<[Slot; 2]> {
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

/// The decisions on a check set, in the order of the checks.
#[derive(Clone, Debug, Default)]
pub struct Decisions<D = SmallVec<[Decision; 2]>, C = SmallVec<[u64; 2]>> {
    each: D,
    // One for each decision.
    charged: C,
}

/// The decisions on a check set of type `S`.
pub type DecisionsOf<S> =
    Decisions<<S as CheckSet>::Each<Decision<<S as CheckSet>::Receipt>>, <S as CheckSet>::Each<u64>>;

/// The decisions of a check set that were made elsewhere.
#[derive(Clone, Debug)]
pub struct RemoteDecisions {
    /// The decisions, in the order of the checks.
    pub decisions: Decisions,
    /// For each decision, whether it was made without the counter, which could not be reached.
    pub degraded: SmallVec<[bool; 2]>,
}

impl<D, C: AsRef<[u64]>> Decisions<D, C> {
    /// Decisions, with the hits that each has charged.
    #[inline(always)]
    pub(crate) fn new(each: D, charged: C) -> Self {
        Self { each, charged }
    }

    /// The hits that each check has charged, in order; 0 if they were taken back or there was no memory for the
    /// counter.
    pub fn charged(&self) -> &[u64] {
        self.charged.as_ref()
    }
}

impl<D, C> Deref for Decisions<D, C> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.each
    }
}
