//! The way back from a limit to the keys of a rule file.

use std::{fmt, time::Duration};

use tollgate_counter::algorithm::{Limit, Penalty};

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

/// The keys of a rule that only some algorithms have, as written in a rule file.
pub fn algorithm_keys(limit: &Limit) -> Vec<(&'static str, KeyValue)> {
    let time = |nanos| KeyValue::Time(Duration::from_nanos(nanos));
    match limit {
        Limit::Classic(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_) => Vec::new(),
        Limit::SlidingLog(log) => {
            let sub_windows = || ("sub_windows", KeyValue::Number(log.span.nanos() / log.sub_window));
            log.has_sub_windows().then(sub_windows).into_iter().collect()
        }
        // A bucket that lets nothing pass has `requests_per_unit: 0` instead.
        Limit::TokenBucket(bucket) | Limit::LeakyBucket(bucket) => {
            (bucket.burst > 0).then_some(("burst", KeyValue::Number(bucket.burst))).into_iter().collect()
        }
        Limit::SteppedBucket(bucket) => vec![
            ("burst", KeyValue::Number(bucket.burst)),
            ("refill_amount", KeyValue::Number(bucket.amount.get())),
            ("refill_interval", time(bucket.interval.get())),
        ],
        Limit::LeakyQueue(queue) => {
            // A queue that lets nothing pass needs the key too.
            let burst = ("burst", KeyValue::Number(queue.burst.unwrap_or(0)));
            let max_delay = queue.max_delay.map(|longest| ("max_delay", KeyValue::Time(longest)));
            [burst].into_iter().chain(max_delay).collect()
        }
        Limit::Concurrency(limit) => vec![
            ("max_in_flight", KeyValue::Number(limit.max_in_flight)),
            ("hold_max", time(limit.hold_max.nanos())),
        ],
        Limit::Penalized(penalized) => {
            let mut keys = algorithm_keys(penalized.limit());
            keys.push(("penalty", KeyValue::Penalty(*penalized.penalty())));
            keys
        }
    }
}
