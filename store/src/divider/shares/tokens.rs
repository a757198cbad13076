//! What is known of the tokens in the bucket of a client.
//!
//! A change of a share takes tokens from the bucket, and nothing tells how many there were. So they count as used, until
//! a report that was written after the change arrived proves how many were not.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate_counter::{algorithm::HitRate, time::Timestamp};

use crate::divider::assignment::{brought, moved};

/// A report that comes this long after an assignment was sent was written after the assignment arrived.
const DELIVERED: Duration = Duration::from_secs(1);

/// A lower bound on the tokens of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BucketTokens {
    // At least so many, at `at`.
    least: u64,
    at: Timestamp,
    // Hits that have passed since, as reports say.
    used: u64,
    // The change since, until a report proves that it has arrived.
    change: Option<BucketChange>,
}

/// A change of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct BucketChange {
    // `None` if that may not have arrived either.
    before: Option<HitRate>,
    at: Timestamp,
    // What the counter had been paid; `None` if that is not known.
    #[serde(skip)]
    paid: Option<f64>,
}

impl BucketTokens {
    /// The tokens of a client without a bucket.
    pub(super) fn none(now: Timestamp) -> Self {
        Self { least: 0, at: now, used: 0, change: None }
    }

    /// Notes that the bucket `before` is replaced.
    pub(super) fn change(&mut self, before: HitRate, paid: f64, now: Timestamp) {
        // A bucket that begins is full, whatever was before.
        let is_known = self.change.is_none() || before.per_second == 0;
        let before = is_known.then_some(before);
        self.change = Some(BucketChange { before, at: now, paid: Some(paid) });
    }

    /// Forgets what the counter had been paid at the last change.
    pub(super) fn forget_paid(&mut self) {
        if let Some(change) = &mut self.change {
            change.paid = None;
        }
    }

    /// The greatest bucket since the last report, if `granted` is the last one. `None` if it is not known.
    pub(super) fn greatest(&self, granted: HitRate) -> Option<HitRate> {
        match self.change {
            None => Some(granted),
            Some(change) => change.before.map(|before| before.max_of(granted)),
        }
    }

    /// Takes a report of hits that have passed from the bucket `granted`. Returns the tokens that the last change took,
    /// that were not used, and that the counter has not been paid since, if `paid` is all that it has been.
    pub(super) fn report(&mut self, allowed: u64, granted: HitRate, paid: f64, now: Timestamp) -> u64 {
        self.used = self.used.saturating_add(allowed);
        let Some(BucketChange { before, at, paid: paid_before }) = self.change else {
            let least = filled(self.least, granted, self.at, now);
            *self = Self { least: least.saturating_sub(self.used), ..Self::none(now) };
            return 0;
        };
        let arrived_at = at.after(DELIVERED);
        if now < arrived_at {
            return 0;
        }
        let (begins, returned) = match before {
            None => (0, 0),
            Some(before) if before.per_second == 0 => (granted.burst, 0),
            Some(before) => {
                let there = filled(self.least, before, self.at, at);
                let retained = granted.burst.min(before.burst);
                let part = |tokens: u64, of: u64| {
                    let part = u128::from(tokens) * u128::from(of) / u128::from(before.burst.max(1));
                    u64::try_from(part).unwrap_or(u64::MAX)
                };
                (part(there, retained), part(there.saturating_sub(self.used), before.burst - retained))
            }
        };
        let least = filled(begins, granted, arrived_at, now);
        *self = Self { least: least.saturating_sub(self.used), ..Self::none(now) };
        let paid_since = paid_before.map_or(u64::MAX, |before| (paid - before).max(0.0).ceil() as u64);
        returned.saturating_sub(paid_since)
    }

    /// Moves the bound to another clock.
    pub(super) fn move_to(&mut self, from: Timestamp, to: Timestamp) {
        self.at = moved(self.at, from, to);
        if let Some(change) = &mut self.change {
            change.at = moved(change.at, from, to);
        }
    }
}

/// The tokens of a bucket that had `tokens` at `from`, and of which none was taken.
fn filled(tokens: u64, bucket: HitRate, from: Timestamp, now: Timestamp) -> u64 {
    tokens.saturating_add(brought(bucket.per_second, now.since(from))).min(bucket.burst)
}
