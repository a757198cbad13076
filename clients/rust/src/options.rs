//! Options of a client.

use std::{fmt::Debug, ops::RangeInclusive, sync::Arc, time::Duration};

use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::ClientTlsConfig,
};

use crate::Metrics;

/// The shortest time that an option or a term may have.
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
/// The longest time that an option or a term may have.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// The decision on a request if the server gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNoAnswer {
    /// The request is allowed, so that an outage of the limiter is no outage of the service: for protection against
    /// overload.
    Allow,
    /// The request is denied: for limits that protect money, logins or secrets.
    Deny,
}

/// Options of a client.
#[derive(Clone)]
pub struct Options {
    /// The time that a call waits for its answer: 1 ms to 60 s. Default: 100 ms.
    pub timeout: Duration,
    /// Decides if the server does not answer in time or at all. Default: allow.
    pub on_no_answer: OnNoAnswer,
    /// TLS of the connections. Default: plaintext.
    pub tls: Option<ClientTlsConfig>,
    /// Calls with checks under way, from which on further checks are collected: 1 to 100. Default: 2.
    pub calls_max: usize,
    /// Checks in one call: 1 to 256, at most `api.max_requests` of the server. Default: 256.
    pub batch_max: usize,
    /// Checks that may wait for a call: 1 to 1,000,000; `on_no_answer` decides further ones. Default: 10,000.
    pub queue_max: usize,
    /// Keys in the local deny cache, above which the oldest one is dropped: at most 1,000,000; 0 turns it off. Default:
    /// 10,000.
    pub deny_cache_keys: usize,
    /// The time after which a refused key is asked for again, if its retry-after is longer: 1 ms to 24 h. Default: 1 s.
    pub deny_cache_max: Duration,
    /// The admin token of the server, which is sent with the calls of limits of their own only. Default: none.
    pub admin_token: Option<String>,
    /// Receives what the client counts. Default: nothing is counted.
    pub metrics: Arc<dyn Metrics>,
}

/// A client or slices cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// An option is out of its range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The target is not `host:port`, or several of them with commas between.
    #[error("the target {0:?} is not host:port")]
    Target(String),
    /// The admin token is not visible ASCII: it has, for example, the line break of a file.
    #[error("the option admin_token is not visible ASCII")]
    AdminToken,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] tonic::transport::Error),
}

/// An option is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the option {option} is not in {range}")]
pub struct OutOfRange {
    /// The name of the option.
    pub option: &'static str,
    /// The lowest and the highest value of the option.
    pub range: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(100),
            on_no_answer: OnNoAnswer::Allow,
            tls: None,
            calls_max: 2,
            batch_max: 256,
            queue_max: 10_000,
            deny_cache_keys: 10_000,
            deny_cache_max: Duration::from_secs(1),
            admin_token: None,
            metrics: Arc::new(()),
        }
    }
}

impl Options {
    /// The metadata of calls with the token.
    pub(crate) fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, InvalidOptions> {
        let Some(token) = &self.admin_token else { return Ok(None) };
        let header = format!("Bearer {token}").try_into();
        match header {
            Ok(header) if token.bytes().all(|letter| letter.is_ascii_graphic()) => Ok(Some(header)),
            Ok(_) | Err(_) => Err(InvalidOptions::AdminToken),
        }
    }

    /// Fails with the first option that is out of its range.
    pub(crate) fn validate(&self) -> Result<(), OutOfRange> {
        in_range("timeout", self.timeout, MILLISECOND..=Duration::from_secs(60))?;
        in_range("calls_max", self.calls_max, 1..=100)?;
        in_range("batch_max", self.batch_max, 1..=256)?;
        in_range("queue_max", self.queue_max, 1..=1_000_000)?;
        in_range("deny_cache_keys", self.deny_cache_keys, 0..=1_000_000)?;
        in_range("deny_cache_max", self.deny_cache_max, MILLISECOND..=DAY)
    }
}

/// Fails with the name of the option and with `range`, unless `value` is in `range`.
pub(crate) fn in_range<T: PartialOrd + Debug>(
    option: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), OutOfRange> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(OutOfRange { option, range: format!("{range:?}") })
}
