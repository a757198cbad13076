//! The rate limit quota service of Envoy: clients decide by themselves, from what they are assigned.
//!
//! A stream belongs to one client and one domain. Each of its buckets is a descriptor, whose rule is looked up as for a
//! call; the divider of the limiter gives it a part of the limit.

mod bucket;
mod decode;
mod encode;
mod ending;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod memory;
mod outbox;
mod service;
mod settings;
mod stats;
mod stream;
#[cfg(test)]
mod tests;

pub use service::QuotaService;
pub use settings::QuotaSettings;
pub use stats::METRICS;
pub use stream::QuotaStream;

/// The path of the method.
pub const STREAM_PATH: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
