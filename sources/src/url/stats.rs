//! Statistics of the rules from a URL.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tollgate_counter::{metrics::MetricCounter, time::Timestamp};

/// What is counted of the rules from a URL.
#[derive(Debug, Default)]
pub struct UrlStats {
    /// Answers with other contents than the one before.
    pub changed: MetricCounter,
    /// Answers that the contents have not changed.
    pub unchanged: MetricCounter,
    /// Requests without a whole answer.
    pub failed: MetricCounter,
    /// Copies that could not be read or written.
    pub copy_errors: MetricCounter,
    // Nanoseconds; 0 before the first rules.
    confirmed_at: AtomicU64,
    is_from_copy: AtomicBool,
}

impl UrlStats {
    /// When the server last had the active rules; the epoch before the first.
    pub fn confirmed_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed_at.load(Relaxed))
    }

    /// Whether the active rules are those of the copy, and the server has not confirmed them since the start.
    pub fn is_from_copy(&self) -> bool {
        self.is_from_copy.load(Relaxed)
    }

    /// The server has the active rules.
    pub(super) fn confirmed(&self, now: Timestamp) {
        self.confirmed_at.store(now.as_nanos(), Relaxed);
        self.is_from_copy.store(false, Relaxed);
    }

    /// The active rules are those of the copy that was written at `kept_at`.
    pub(super) fn loaded_copy(&self, kept_at: Timestamp) {
        self.confirmed_at.store(kept_at.as_nanos(), Relaxed);
        self.is_from_copy.store(true, Relaxed);
    }
}
