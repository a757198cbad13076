//! Which headers replies have.

use std::time::Duration;

/// Which headers replies have. The default is none.
#[derive(Clone, Debug, Default)]
pub struct HeaderSettings {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub x_ratelimit: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, or headers with the configured names.
    pub ratelimit: bool,
    /// Name of the limit header.
    pub limit_name: String,
    /// Name of the remaining header.
    pub remaining_name: String,
    /// Name of the reset header.
    pub reset_name: String,
    /// The limits in `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers-11; `None` for
    /// neither.
    pub ietf: Option<Listed>,
    /// The longest time in these two; longer ones are left out.
    pub window_max: Duration,
    /// Whether these two have a hash of the key of the counter.
    pub partition_key: bool,
    /// `Retry-After`, on denials that end.
    pub retry_after: bool,
    /// The most that is added at random to the time to retry.
    pub retry_jitter: Duration,
    /// `retry-after-ms` and `x-should-retry` on denials, for clients of AI services.
    pub ai_retry: bool,
    /// The longest wait after which these clients are to retry.
    pub ai_retry_max: Duration,
}

/// The limits of a call in `RateLimit` and `RateLimit-Policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Only the tightest limit of the call.
    Tightest,
    /// All limits of the call.
    All,
}
