//! Values of keys, as text that a rule file takes.

use std::{fmt, time::Duration};

use tollgate_counter::algorithm::Penalty;

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
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Penalty(Penalty { after, first, factor, max, forget_after }) => {
                let [first, max, forget_after] =
                    [first, max, forget_after].map(|span| Self::Time(Duration::from_nanos(span.nanos())));
                write!(
                    formatter,
                    "{{after: {after}, first: {first}, factor: {factor}, max: {max}, forget_after: {forget_after}}}"
                )
            }
            // In hours and less: rule files take no days, whose lengths differ.
            Self::Time(time) => match jiff::SignedDuration::try_from(*time) {
                Ok(time) => write!(formatter, "{time:#}"),
                Err(_beyond_its_range) => write!(formatter, "{time:?}"),
            },
        }
    }
}
