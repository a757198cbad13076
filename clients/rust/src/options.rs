//! Options of a client.

use std::{sync::Arc, time::Duration};

use tonic::transport::ClientTlsConfig;

use crate::Metrics;

/// The decision on a request if the server gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNoAnswer {
    /// For protection against overload: an outage of the limiter must not be an outage of the service.
    Allow,
    /// For limits that protect money, logins or secrets.
    Deny,
}

/// Options of a client.
#[derive(Clone)]
pub struct Options {
    /// Bounds the time of a call. Default: 100 ms.
    pub timeout: Duration,
    /// Decides if the server does not answer in time or at all. Default: allow.
    pub on_no_answer: OnNoAnswer,
    /// TLS of the connections. Default: plaintext.
    pub tls: Option<ClientTlsConfig>,
    /// Calls under way from which on further checks are collected. Default: 2.
    pub calls_max: usize,
    /// Checks in one call, at most `api.max_requests` of the server. Default: 256.
    pub batch_max: usize,
    /// Checks that may wait for a call; `on_no_answer` decides further ones. Default: 10,000.
    pub queue_max: usize,
    /// Keys in the local deny cache, above which the oldest one is dropped; 0 turns it off. Default: 10,000.
    pub deny_cache_keys: usize,
    /// The time after which a refused key is asked for again, if its retry-after is longer. Default: 1 s.
    pub deny_cache_max: Duration,
    /// Receives what the client counts. Default: nothing is counted.
    pub metrics: Arc<dyn Metrics>,
}

/// A client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// The option must be more than 0.
    #[error("the option {0} must be more than 0")]
    Zero(&'static str),
    /// The target is not `host:port`, or several of them with commas between.
    #[error("the target {0:?} is not host:port")]
    Target(String),
    /// Slices cannot be held for this time.
    #[error("the ttl of slices must be 1 ms to 24 h, and is {0:?}")]
    Ttl(Duration),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] tonic::transport::Error),
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
            metrics: Arc::new(()),
        }
    }
}

impl Options {
    pub(crate) fn validate(&self) -> Result<(), InvalidOptions> {
        let zero = [
            ("timeout", self.timeout.is_zero()),
            ("calls_max", self.calls_max == 0),
            ("batch_max", self.batch_max == 0),
            ("queue_max", self.queue_max == 0),
        ];
        match zero.into_iter().find(|(_, zero)| *zero) {
            Some((name, _)) => Err(InvalidOptions::Zero(name)),
            None => Ok(()),
        }
    }
}
