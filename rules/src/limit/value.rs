//! The way back from a limit to the keys of a rule file.

use std::time::Duration;

use tollgate_counter::algorithm::{Limit, Penalty};

/// A time as rule files take it: in hours and less, because the lengths of days differ.
pub(crate) fn time_text(time: Duration) -> String {
    match jiff::SignedDuration::try_from(time) {
        Ok(time) => format!("{time:#}"),
        Err(_beyond_its_range) => format!("{time:?}"),
    }
}

/// The keys of a rule that only some algorithms have, as written in a rule file.
pub fn algorithm_keys(limit: &Limit) -> Vec<(&'static str, String)> {
    let nanos_text = |nanos| time_text(Duration::from_nanos(nanos));
    match limit {
        Limit::Classic(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_) => Vec::new(),
        Limit::SlidingLog(log) => {
            let sub_windows = || ("sub_windows", (log.span.nanos() / log.sub_window).to_string());
            log.has_sub_windows().then(sub_windows).into_iter().collect()
        }
        // A bucket that lets nothing pass has `requests_per_unit: 0` instead.
        Limit::TokenBucket(bucket) | Limit::LeakyBucket(bucket) => {
            (bucket.burst > 0).then(|| ("burst", bucket.burst.to_string())).into_iter().collect()
        }
        Limit::SteppedBucket(bucket) => vec![
            ("burst", bucket.burst.to_string()),
            ("refill_amount", bucket.amount.to_string()),
            ("refill_interval", nanos_text(bucket.interval.get())),
        ],
        Limit::LeakyQueue(queue) => {
            // A queue that lets nothing pass needs the key too.
            let burst = ("burst", queue.burst.unwrap_or(0).to_string());
            let max_delay = queue.max_delay.map(|longest| ("max_delay", time_text(longest)));
            [burst].into_iter().chain(max_delay).collect()
        }
        Limit::Concurrency(limit) => vec![
            ("max_in_flight", limit.max_in_flight.to_string()),
            ("hold_max", nanos_text(limit.hold_max.nanos())),
        ],
        Limit::Penalized(penalized) => {
            let Penalty { after, first, factor, max, forget_after } = penalized.penalty();
            let [first, max, forget_after] = [first, max, forget_after].map(|span| nanos_text(span.nanos()));
            let penalty = format!(
                "{{after: {after}, first: {first}, factor: {factor}, max: {max}, forget_after: {forget_after}}}"
            );
            let mut keys = algorithm_keys(penalized.limit());
            keys.push(("penalty", penalty));
            keys
        }
    }
}
