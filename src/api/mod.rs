//! Protocol adapters. Each translates requests for the limiter and its answers, and decides nothing.

use std::sync::Arc;

use crate::{
    limiter::{Bounds, Limiter, LimiterError, RequestError},
    telemetry::{logs, traces::Traces},
};

pub mod admin;
mod cross_site;
mod denial_log;
pub mod descriptor_text;
mod descriptors;
pub mod forward_auth;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod http;
pub mod json;
mod metrics;
mod protobuf;
pub mod reader;
pub mod rls;
pub mod top;

pub use metrics::Metrics;
pub use rls::{Batch, Call, CallSpan, Handled, Reply, ResetPrecision, headers};

use denial_log::DenialLog;
use rls::DecodeError;

/// Code generated from `proto/`.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));

    /// Descriptors of all files of `proto/`, for reflection and JSON.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

/// Bounds of requests and format of replies.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether replies have dynamic metadata.
    pub dynamic_metadata: bool,
    /// Whether durations until reset are exact instead of rounded up to whole seconds.
    pub exact_reset: bool,
    /// Maximum number of descriptors per request.
    pub max_descriptors: usize,
    /// Maximum number of entries per descriptor.
    pub max_entries: usize,
    /// Maximum number of requests per call.
    pub max_requests: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dynamic_metadata: false,
            exact_reset: false,
            max_descriptors: 256,
            max_entries: 128,
            max_requests: 256,
        }
    }
}

impl Settings {
    /// The bounds of a request.
    pub fn bounds(&self) -> Bounds {
        Bounds { requests: self.max_requests, descriptors: self.max_descriptors, entries: self.max_entries }
    }
}

/// The rate limit service of Envoy, independent of the transport.
#[derive(Clone, Debug)]
pub struct Api {
    limiter: Limiter,
    settings: Settings,
    headers: Arc<headers::Settings>,
    metrics: Arc<Metrics>,
    denials: Option<Arc<DenialLog>>,
    traces: Option<Traces>,
}

impl Api {
    /// A service that decides with `limiter`, without headers.
    pub fn new(limiter: Limiter, settings: Settings) -> Self {
        Self {
            limiter,
            settings,
            headers: Arc::default(),
            metrics: Arc::default(),
            denials: None,
            traces: None,
        }
    }

    /// Sets the response headers.
    pub fn with_headers(self, headers: headers::Settings) -> Self {
        Self { headers: Arc::new(headers), ..self }
    }

    /// Metrics of requests.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Sets the logging of denials.
    pub fn with_denials(self, denials: logs::Denials) -> Self {
        Self { denials: DenialLog::new(denials).map(Arc::new), ..self }
    }

    /// Sets the traces; each sampled gRPC call gets a span.
    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }
}

/// Why a request is not decided.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Error {
    /// The limiter cannot decide.
    #[error(transparent)]
    LimiterError(#[from] LimiterError),
    /// The message is invalid or beyond the bounds.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The content of the request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Error {
    /// Whether the request itself is invalid, so that a retry is useless.
    pub fn is_caller_error(self) -> bool {
        match self {
            Self::LimiterError(
                LimiterError::NoRules
                | LimiterError::Joining
                | LimiterError::Remote
                | LimiterError::NoStore
                | LimiterError::Overloaded,
            ) => false,
            Self::Decode(_) | Self::Request(_) => true,
        }
    }
}

// Never `UNKNOWN`: Envoy lets a request with this status pass, whatever its failure mode.
impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Decode(_) | Error::Request(_) => Self::invalid_argument(error.to_string()),
            Error::LimiterError(LimiterError::Overloaded) => Self::resource_exhausted(error.to_string()),
            Error::LimiterError(
                LimiterError::NoRules | LimiterError::Joining | LimiterError::Remote | LimiterError::NoStore,
            ) => Self::unavailable(error.to_string()),
        }
    }
}
