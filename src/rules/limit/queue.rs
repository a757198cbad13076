//! Rules that let wait.

use std::{num::NonZeroU64, time::Duration};

use crate::{
    algorithm::{LeakyQueue, Limit, Rate, Span},
    rules::{
        file::RateLimit,
        limit::{Length, length},
        place::Report,
    },
};

/// A queue that `requests` leave in each length.
pub(super) fn leaky(
    draft: &RateLimit,
    length: &Length,
    requests: u64,
    report: &mut Report<'_>,
) -> Option<Limit> {
    if draft.given("burst").is_none() {
        report.add(
            draft.mark,
            "`burst` is missing; with `leaky_queue` it must say how many may wait; 0 lets nobody wait",
        );
    }
    let max_delay = match (&draft.max_delay, draft.given("max_delay")) {
        (None, None) => None,
        (None, Some(_reported)) => return None,
        (Some(text), _) => Some(Duration::from_nanos(length::nanos(text, "max_delay", 0, report)?)),
    };
    let burst = draft.burst.as_ref()?.value;
    let Some(hits) = NonZeroU64::new(requests) else {
        let pace = Rate::new(NonZeroU64::MIN, length.nanos());
        return Some(Limit::LeakyQueue(LeakyQueue { rate: pace, burst: None, max_delay, timeout: None }));
    };
    let pace = Rate::new(hits, length.nanos());
    if u128::from(Span::NANOS_MAX) < pace.nanos_for(burst.saturating_add(1)) {
        let mark = draft.given("burst").unwrap_or(draft.mark);
        report.add(mark, "a full queue takes more than 100 years to leave at this rate; lower `burst`");
        return None;
    }
    Some(Limit::LeakyQueue(LeakyQueue { rate: pace, burst: Some(burst), max_delay, timeout: None }))
}
