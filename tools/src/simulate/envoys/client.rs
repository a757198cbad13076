//! What Envoy makes of assignments for one bucket, with `DENY_ALL` before the first one and after the end of each.

use std::time::Duration;

use tollgate_counter::time::{SECOND, Timestamp};
use tollgate_store::divider::SubscriberUsage;
use tollgate_wire::proto::envoy::{
    service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::QuotaAssignmentAction,
    r#type::v3::{TokenBucket, rate_limit_strategy::Strategy},
};

/// The value of `blanket_rule` that lets everything pass.
const ALLOW_ALL: i32 = 0;

/// The bucket of an Envoy.
#[derive(Debug, Default)]
pub(super) struct EnvoyBucket {
    // Those of the last assignment.
    tokens: EnvoyTokens,
    expires_at: Timestamp,
    /// What was decided since the last report.
    pub(super) usage: SubscriberUsage,
}

/// A token bucket. That of an assignment without a bucket never has a token, as the default, or has infinitely many.
#[derive(Clone, Copy, Debug, Default)]
struct EnvoyTokens {
    left: f64,
    max: f64,
    fill: f64,
    fill_seconds: f64,
}

impl EnvoyTokens {
    const ALLOW_ALL: Self = Self { left: f64::INFINITY, max: f64::INFINITY, fill: 0.0, fill_seconds: 0.0 };

    fn from_bucket(bucket: &TokenBucket) -> Self {
        let max = f64::from(bucket.max_tokens);
        let seconds = bucket.fill_interval.map_or(0, |interval| interval.seconds);
        let fill = f64::from(bucket.tokens_per_fill.unwrap_or_default());
        Self { left: max, max, fill, fill_seconds: seconds as f64 }
    }
}

impl EnvoyBucket {
    /// Takes an assignment at `now`.
    pub(super) fn assign(&mut self, action: &QuotaAssignmentAction, now: Timestamp) {
        let strategy = action.rate_limit_strategy.as_ref().and_then(|strategy| strategy.strategy.as_ref());
        self.tokens = match strategy {
            Some(Strategy::BlanketRule(ALLOW_ALL)) | None => EnvoyTokens::ALLOW_ALL,
            Some(Strategy::TokenBucket(bucket)) => self.changed(EnvoyTokens::from_bucket(bucket)),
            Some(Strategy::BlanketRule(_) | Strategy::RequestsPerTimeUnit(_)) => EnvoyTokens::default(),
        };
        let seconds = action.assignment_time_to_live.map_or(0, |time| time.seconds);
        self.expires_at = now.after(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    }

    /// An equal bucket keeps its tokens, and a changed one the ratio to which it is full.
    fn changed(&self, new: EnvoyTokens) -> EnvoyTokens {
        let old = self.tokens;
        let has_ratio = old.max > 0.0 && old.max.is_finite();
        if has_ratio { EnvoyTokens { left: new.max * old.left / old.max, ..new } } else { new }
    }

    /// Lets `nanos` pass.
    pub(super) fn refill(&mut self, nanos: u64, now: Timestamp) {
        if self.expires_at <= now {
            self.tokens = EnvoyTokens::default();
        }
        let tokens = &mut self.tokens;
        let more = tokens.fill / tokens.fill_seconds.max(1.0) * nanos as f64 / SECOND as f64;
        tokens.left = (tokens.left + more).min(tokens.max);
    }

    /// Decides `requests`, and returns how many pass.
    pub(super) fn ask(&mut self, requests: u64) -> u64 {
        // A sum of parts may end just below a whole number.
        let passed = requests.min((self.tokens.left + 1e-9) as u64);
        self.tokens.left = (self.tokens.left - passed as f64).max(0.0);
        self.usage.allowed += passed;
        self.usage.denied += requests - passed;
        passed
    }

    /// Requests a second of the last assignment, or those of its slice; `None` if everything passes.
    pub(super) fn share(&self) -> Option<u64> {
        let EnvoyTokens { max, fill, fill_seconds, .. } = self.tokens;
        max.is_finite().then_some((if fill_seconds > 1.0 { max } else { fill }) as u64)
    }
}
