//! The languages we speak. Each translates into the limiter's requests and back; none decides anything.

use std::sync::Arc;

use crate::{
    limiter::{Bounds, Limiter, Unanswered},
    telemetry::{logs, traces::Traces},
};

pub mod admin;
mod cross_site;
mod denial_log;
pub mod descriptor_text;
pub mod http;
pub mod json;
mod metrics;
pub mod reader;
pub mod rls;
pub mod top;

pub use metrics::Metrics;
pub use rls::{Batch, Call, Handled, Reply, ResetPrecision, headers};

use denial_log::DenialLog;
use rls::DecodeError;

/// The messages of `proto/`, generated.
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));

    /// All files of `proto/`, for reflection and JSON.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

/// How large requests may be, and how answers are worded.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether answers carry dynamic metadata.
    pub dynamic_metadata: bool,
    /// Whether times until reset are exact, not rounded up to whole seconds.
    pub exact_reset: bool,
    /// The most descriptors of a request.
    pub max_descriptors: usize,
    /// The most entries of a descriptor.
    pub max_entries: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { dynamic_metadata: false, exact_reset: false, max_descriptors: 256, max_entries: 128 }
    }
}

impl Settings {
    /// How many descriptors and entries a request may have.
    pub fn bounds(&self) -> Bounds {
        Bounds { descriptors: self.max_descriptors, entries: self.max_entries }
    }
}

/// Answers requests in Envoy's language, over whichever protocol they come.
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
    /// Asks `limiter` and words answers as `settings` say, without headers.
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

    /// The same, with headers.
    pub fn with_headers(self, headers: headers::Settings) -> Self {
        Self { headers: Arc::new(headers), ..self }
    }

    /// What is counted of requests.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The same, logging denials.
    pub fn with_denials(self, denials: logs::Denials) -> Self {
        Self { denials: DenialLog::new(denials).map(Arc::new), ..self }
    }

    /// The same, with a span for each gRPC call where there are traces.
    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Error {
    /// The limiter has no answer.
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    /// The bytes are no request within the bounds.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A descriptor brings a limit whose unit is none.
    #[error(
        "descriptors[{descriptor}].limit.unit: {number} is no unit; send SECOND, MINUTE, HOUR, DAY, MONTH or YEAR"
    )]
    Unit {
        /// Which descriptor.
        descriptor: usize,
        /// What was sent for the unit.
        number: i32,
    },
}

impl Error {
    /// Whether the request itself is at fault, so that sending it again is of no use.
    pub fn is_caller_error(self) -> bool {
        match self {
            Self::Unanswered(
                Unanswered::NoRules | Unanswered::Joining | Unanswered::Elsewhere | Unanswered::Overloaded,
            ) => false,
            Self::Unanswered(Unanswered::EmptyDomain | Unanswered::NoDescriptors)
            | Self::Decode(_)
            | Self::Unit { .. } => true,
        }
    }
}

// Never `UNKNOWN`: Envoy lets a request with that answer pass, whatever its failure mode.
impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Unanswered(Unanswered::EmptyDomain | Unanswered::NoDescriptors)
            | Error::Decode(_)
            | Error::Unit { .. } => Self::invalid_argument(error.to_string()),
            Error::Unanswered(Unanswered::Overloaded) => Self::resource_exhausted(error.to_string()),
            Error::Unanswered(Unanswered::NoRules | Unanswered::Joining | Unanswered::Elsewhere) => {
                Self::unavailable(error.to_string())
            }
        }
    }
}
