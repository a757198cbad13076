//! Values of keys, as text that a rule file takes.

use std::{fmt, time::Duration};

use crate::algorithm::{Penalty, Span};

/// The value of a key in a rule file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// A number.
    Number(u64),
    /// A time.
    Time(Duration),
    /// The value of `penalty`.
    Penalty(Penalty),
}

impl fmt::Display for KeyValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = Span::NANOS_MAX / (100 * 365);
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Penalty(Penalty { after, first, factor, max, forget_after }) => {
                // Rule files take no days.
                let [first, max, forget_after] = [first, max, forget_after].map(|span| {
                    let time = jiff::SignedDuration::try_from(Duration::from_nanos(span.nanos()));
                    format!("{:#}", time.unwrap_or(jiff::SignedDuration::MAX))
                });
                write!(
                    formatter,
                    "{{after: {after}, first: {first}, factor: {factor}, max: {max}, forget_after: {forget_after}}}"
                )
            }
            // Whole days are more readable than hours.
            Self::Time(time) if !time.is_zero() && time.as_nanos().is_multiple_of(u128::from(DAY)) => {
                write!(formatter, "{}d", time.as_nanos() / u128::from(DAY))
            }
            Self::Time(time) => match jiff::SignedDuration::try_from(*time) {
                Ok(time) => write!(formatter, "{time:#}"),
                Err(_beyond_its_range) => write!(formatter, "{time:?}"),
            },
        }
    }
}
