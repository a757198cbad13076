//! Rules with a queue.

use std::{num::NonZeroU64, time::Duration};

use tollgate_counter::algorithm::{LeakyQueue, Limit, Rate, Span};

use crate::{
    diagnostics::Diagnostics,
    file::RateLimitDraft,
    limit::{KeyValue, period, terms::AtRate},
};

/// A queue that `requests` leave in each period.
pub(super) fn leaky_queue(
    draft: &RateLimitDraft,
    AtRate { period, requests, .. }: AtRate,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Limit> {
    if draft.given("burst").is_none() {
        diagnostics.add(
            draft.mark,
            "`burst` is missing; with `leaky_queue` it must say how many may wait; 0 lets no request wait",
        );
    }
    let max_delay = match (draft.text("max_delay"), draft.given("max_delay")) {
        (None, None) => None,
        (None, Some(_reported)) => return None,
        (Some(text), _) => {
            Some(Duration::from_nanos(period::nanos(text, "max_delay", 0, period::NANOS_MAX, diagnostics)?))
        }
    };
    let burst = draft.integer("burst")?.value;
    let Some(hits) = NonZeroU64::new(requests) else {
        let rate = Rate::new(NonZeroU64::MIN, period.nanos());
        return Some(Limit::LeakyQueue(LeakyQueue { rate, burst: None, max_delay, timeout: None }));
    };
    let rate = Rate::new(hits, period.nanos());
    if rate.nanos_for(burst.saturating_add(1)) > u128::from(Span::NANOS_MAX) {
        let mark = draft.given("burst").unwrap_or(draft.mark);
        diagnostics.add(mark, "a full queue takes more than 100 years to leave at this rate; lower `burst`");
        return None;
    }
    Some(Limit::LeakyQueue(LeakyQueue { rate, burst: Some(burst), max_delay, timeout: None }))
}

/// The keys of a queue.
pub(super) fn keys(queue: &LeakyQueue) -> Vec<(&'static str, KeyValue)> {
    // A queue that lets nothing pass needs the key too.
    let burst = ("burst", KeyValue::Number(queue.burst.unwrap_or(0)));
    let max_delay = queue.max_delay.map(|longest| ("max_delay", KeyValue::Time(longest)));
    [burst].into_iter().chain(max_delay).collect()
}
