//! Limits that clients may see.

use std::{cmp::Reverse, time::Duration};

use tollgate_limiter::limiter::{Answer, CurrentLimit, Modes, Status};
use tollgate_wire::proto::envoy::config::core::v3::HeaderValue;

/// A limit that clients may see.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleLimit<'s> {
    /// The index of its descriptor.
    pub(super) descriptor: usize,
    pub(super) status: &'s Status<'s>,
    pub(super) limit: &'s CurrentLimit<'s>,
    pub(super) reset_after: Duration,
}

impl VisibleLimit<'_> {
    /// The smaller, the tighter: of denied descriptors the one with the longest wait, otherwise the one with the fewest
    /// remaining hits.
    pub(super) fn rank(&self, modes: Modes) -> (bool, u64, Reverse<Duration>) {
        let refuses = self.status.refuses_alone(modes);
        (!refuses, self.status.remaining, Reverse(if refuses { self.reset_after } else { Duration::ZERO }))
    }
}

/// The limits that apply, but those that are hidden.
pub(super) fn visible<'s>(answer: &'s Answer<'_>) -> impl Iterator<Item = VisibleLimit<'s>> {
    answer.statuses.iter().enumerate().filter(|(_, status)| !status.is_hidden()).filter_map(
        |(descriptor, status)| {
            let limit = status.limit.as_ref()?;
            let reset_after = status.reset_after?;
            Some(VisibleLimit { descriptor, status, limit, reset_after })
        },
    )
}

/// Whole seconds, rounded up, at least one.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

pub(super) fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, raw_value: Vec::new() }
}
