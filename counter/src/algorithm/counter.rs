//! `Counter` and `Receipt`: enums of the counters and receipts of all algorithms.

use serde::{Deserialize, Serialize};

use crate::algorithm::{
    gcra::{DebtCounter, DebtReceipt},
    log_counter::{LogCounter, changes::LogEntry},
    penalty::PenaltyRecord,
    sliding_window::{SlidingCounter, SlidingReceipt},
    stepped_bucket::{StepCounter, StepReceipt},
    window::{WindowCounter, WindowReceipt},
};

/// The history of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counter {
    /// Hits in a window.
    Window(WindowCounter),
    /// Hits in a window and the one before it.
    Sliding(SlidingCounter),
    /// Charges and their instants.
    Log(LogCounter),
    /// A debt that time pays off.
    Debt(DebtCounter),
    /// Tokens that are missing.
    Step(StepCounter),
    /// A counter of another kind, with a record of refusals or penalties.
    Penalized(Box<PenalizedCounter>),
}

/// A counter with a record of refusals or penalties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PenalizedCounter<C = Counter> {
    /// The counter of the limit without its penalty. Invariant: has no record itself.
    pub(crate) counter: C,
    pub(crate) record: PenaltyRecord,
}

/// What taking one charge back needs. Replicas number the variants by their order: append at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receipt {
    /// The receipt of a charge to a window.
    Window(WindowReceipt),
    /// The receipt of a charge to a window that slides.
    Sliding(SlidingReceipt),
    /// The receipt of a charge with an entry in a log.
    Log(LogEntry),
    /// The receipt of a charge to a debt.
    Debt(DebtReceipt),
    /// The receipt of a charge in a step.
    Step(StepReceipt),
}

/// A counter of some kind: a limit replaces it by one of its own kind.
impl Default for Counter {
    fn default() -> Self {
        Self::Window(WindowCounter::default())
    }
}

impl From<PenalizedCounter> for Counter {
    fn from(penalized: PenalizedCounter) -> Self {
        Self::Penalized(Box::new(penalized))
    }
}

impl Counter {
    /// The bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Log(log) => log.heap_bytes(),
            Self::Penalized(penalized) => size_of::<PenalizedCounter>() + penalized.counter.heap_bytes(),
            Self::Window(_) | Self::Sliding(_) | Self::Debt(_) | Self::Step(_) => 0,
        }
    }

    /// Releases the memory of a log beyond its entries.
    pub(crate) fn release_spare(&mut self) {
        match self {
            Self::Log(log) => log.entries.shrink_to_fit(),
            Self::Penalized(penalized) => penalized.counter.release_spare(),
            Self::Window(_) | Self::Sliding(_) | Self::Debt(_) | Self::Step(_) => {}
        }
    }
}

/// The record of refusals.
impl Counter {
    /// The record of refusals, if the counter has one.
    pub(crate) fn record(&self) -> Option<&PenaltyRecord> {
        if let Self::Penalized(penalized) = self { Some(&penalized.record) } else { None }
    }

    /// The counter without the record of its refusals.
    pub(crate) fn plain(&self) -> &Self {
        if let Self::Penalized(penalized) = self { &penalized.counter } else { self }
    }

    fn plain_mut(&mut self) -> &mut Self {
        if let Self::Penalized(penalized) = self { &mut penalized.counter } else { self }
    }

    /// Replaces the record of its refusals.
    pub(super) fn set_record(&mut self, record: Option<PenaltyRecord>) {
        // In place, because a refusal replaces the record of the one before.
        if let (Self::Penalized(penalized), Some(record)) = (&mut *self, record) {
            penalized.record = record;
            return;
        }
        let counter = std::mem::take(self.plain_mut());
        *self = match record {
            Some(record) => PenalizedCounter { counter, record }.into(),
            None => counter,
        };
    }

    /// Ends a row of refusals: a charge has passed. The row is forgotten when another one passes.
    pub(super) fn end_row(&mut self) {
        let Some(record) = self.record().copied() else { return };
        let is_new = record.refusals > 0 && !record.has_passed;
        let refusals = if is_new { record.refusals } else { 0 };
        let ended = PenaltyRecord { refusals, has_passed: is_new, ..record };
        self.set_record(Some(ended).filter(|ended| ended.has_passed || ended.penalties > 0));
    }

    /// Resumes a row of refusals: the charge that has ended it is taken back.
    pub(super) fn resume_row(&mut self) {
        if let Some(record) = self.record().copied().filter(|record| record.has_passed) {
            self.set_record(Some(PenaltyRecord { has_passed: false, ..record }));
        }
    }
}

impl Receipt {
    /// A receipt is in no other one.
    fn plain(&self) -> &Self {
        self
    }

    fn plain_mut(&mut self) -> &mut Self {
        self
    }
}

/// The counter of an algorithm. The kind is part of the key, so a counter of another kind appears only if two hashes
/// collide. It is then replaced by a fresh one.
pub(crate) fn own<C: Variant<Counter> + Default>(counter: &mut Counter) -> &mut C {
    if C::from_enum(counter).is_none() {
        *counter = C::default().into();
    }
    C::from_enum_mut(counter).expect("the counter was just made of this kind")
}

/// One variant of the enum `E`. A counter with a record has the variant of the counter without it.
pub trait Variant<E>: Sized + Into<E> {
    /// The value as one of the enum.
    #[inline(always)]
    fn into_enum(self) -> E {
        self.into()
    }

    /// The value, if it is of this variant.
    fn from_enum(value: &E) -> Option<&Self>;
    /// The value for changes, if it is of this variant.
    fn from_enum_mut(value: &mut E) -> Option<&mut Self>;
}

macro_rules! variants {
    ($enum:ident: $($variant:ident($type:ty)),* $(,)?) => {$(
        impl From<$type> for $enum {
            #[inline(always)]
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl Variant<$enum> for $type {
            fn from_enum(value: &$enum) -> Option<&Self> {
                if let $enum::$variant(value) = value.plain() { Some(value) } else { None }
            }

            fn from_enum_mut(value: &mut $enum) -> Option<&mut Self> {
                if let $enum::$variant(value) = value.plain_mut() { Some(value) } else { None }
            }
        }
    )*

        /// The enum as a variant of itself: for a limit with a penalty, whose limit may be of any kind.
        impl Variant<Self> for $enum {
            fn from_enum(value: &Self) -> Option<&Self> {
                Some(value)
            }

            fn from_enum_mut(value: &mut Self) -> Option<&mut Self> {
                Some(value)
            }
        }
    };
}

variants! {
    Counter:
    Window(WindowCounter),
    Sliding(SlidingCounter),
    Log(LogCounter),
    Debt(DebtCounter),
    Step(StepCounter),
}

variants! {
    Receipt:
    Window(WindowReceipt),
    Sliding(SlidingReceipt),
    Log(LogEntry),
    Debt(DebtReceipt),
    Step(StepReceipt),
}
