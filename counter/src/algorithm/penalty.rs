//! Penalties: when a key is refused for a time, and the record of refusals that decides it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{algorithm::window::Span, time::timestamp::Timestamp};

/// When a key is refused whatever its limit has left, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Penalty {
    /// The refusals in a row, with no pass between, after which a penalty begins.
    pub after: u32,
    /// The length of the first penalty.
    pub first: Span,
    /// Each penalty is this many times as long as the one before.
    pub factor: u32,
    /// The greatest length of a penalty.
    pub max: Span,
    /// Refusals and penalties are forgotten this long after the last refusal, or at the end of a penalty that lasts
    /// longer.
    pub forget_after: Span,
}

/// The record of the refusals of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PenaltyRecord {
    /// Refusals in a row since the last penalty began.
    pub(crate) refusals: u32,
    /// Whether the last charge has passed, so that the row has ended. If that charge is taken back, it has not.
    pub(crate) has_passed: bool,
    /// Penalties so far.
    pub(crate) penalties: u32,
    /// The end of the last penalty.
    pub(crate) until: Timestamp,
    // Invariant: not before `until`.
    pub(crate) forgotten_at: Timestamp,
}

/// The record of the refusals of one key, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PenaltyState {
    /// Refusals in a row that count for the next penalty.
    pub refusals: u32,
    /// Penalties so far, with one that lasts.
    pub penalties: u32,
    /// The time until the penalty ends; `None` if none lasts.
    pub ends_after: Option<Duration>,
    /// The time until everything is forgotten, unless the key is refused before.
    pub forgotten_after: Duration,
}

impl Penalty {
    /// The length of the penalty that follows this many others, in nanoseconds.
    pub(crate) fn nanos(&self, others: u32) -> u64 {
        let nanos = u64::from(self.factor).saturating_pow(others).saturating_mul(self.first.nanos());
        nanos.min(self.max.nanos())
    }
}

impl PenaltyRecord {
    /// The record of a key that was not refused.
    pub(super) const NONE: Self = Self {
        refusals: 0,
        has_passed: false,
        penalties: 0,
        until: Timestamp::EPOCH,
        forgotten_at: Timestamp::EPOCH,
    };

    /// Adds a refusal outside of a penalty. Returns the end of the penalty that it begins, an earlier instant if none.
    pub(super) fn add_refusal(&mut self, penalty: &Penalty, now: Timestamp) -> Timestamp {
        self.refusals = if self.has_passed { 1 } else { self.refusals.saturating_add(1) };
        self.has_passed = false;
        if self.refusals >= penalty.after {
            self.until = now.plus(penalty.nanos(self.penalties));
            self.penalties = self.penalties.saturating_add(1);
            self.refusals = 0;
        }
        *self = self.after_refusal(penalty, now);
        self.until
    }

    /// The record after a refusal at `now`.
    pub(super) fn after_refusal(self, penalty: &Penalty, now: Timestamp) -> Self {
        let forgotten_at = self.until.max(now.plus(penalty.forget_after.nanos()));
        Self { forgotten_at: self.forgotten_at.max(forgotten_at), ..self }
    }

    /// The stricter of two records.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            refusals: self.refusals.max(other.refusals),
            has_passed: self.has_passed && other.has_passed,
            penalties: self.penalties.max(other.penalties),
            until: self.until.max(other.until),
            forgotten_at: self.forgotten_at.max(other.forgotten_at),
        }
    }

    /// The record after a clock gave up a lead at `at`: what lies further ahead than this penalty allows is cut.
    pub(super) fn clamped(self, penalty: &Penalty, at: Timestamp, now: Timestamp) -> Self {
        let cut = |instant: Timestamp, nanos: u64| {
            if now.plus(nanos) < instant { at.plus(nanos) } else { instant }
        };
        let until = cut(self.until, penalty.max.nanos());
        let remembered = penalty.max.nanos().max(penalty.forget_after.nanos());
        Self { until, forgotten_at: cut(self.forgotten_at, remembered).max(until), ..self }
    }

    /// The record as operators see it.
    pub(super) fn state(&self, now: Timestamp) -> PenaltyState {
        PenaltyState {
            refusals: if self.has_passed { 0 } else { self.refusals },
            penalties: self.penalties,
            ends_after: (now < self.until).then(|| self.until.since(now)),
            forgotten_after: self.forgotten_at.since(now),
        }
    }
}
