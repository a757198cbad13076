//! Protocol adapters. Each translates requests for the limiter and its answers, and decides nothing.

use std::{sync::Arc, time::Duration};

use tollgate_limiter::limiter::{ActiveView, Answer, Limiter, Request, RequestBounds};
use tollgate_telemetry::{logs, traces::Traces};

pub mod admin;
pub mod call;
mod cross_site;
pub mod denial_body;
mod denial_log;
mod descriptors;
mod error;
mod failed_calls;
pub mod forward_auth;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handle;
pub mod http;
pub mod json;
mod metrics;
pub mod reader;
pub mod recorder;
pub mod rls;
mod span;
pub mod v1;

pub use call::{ApiKind, Call, CallReply, Handled, Method, ResetPrecision};
pub use cross_site::Hosts;
pub use error::Error;
pub use failed_calls::FailedCall;
pub use handle::{ReadBatch, WaitingCall};
pub use metrics::ApiMetrics;
pub(crate) use metrics::METRICS;
pub use rls::headers;

use admin::Token;
use denial_body::DenialBodies;
use denial_log::DenialLog;
use recorder::Recorder;
use v1::ResetAccess;

/// Bounds of requests and format of replies.
#[derive(Clone, Copy, Debug)]
pub struct ApiSettings {
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
    /// How long a charge with a request id is retained at least.
    pub request_id_window: Duration,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            dynamic_metadata: false,
            exact_reset: false,
            max_descriptors: 256,
            max_entries: 128,
            max_requests: 256,
            request_id_window: Duration::from_secs(60),
        }
    }
}

impl ApiSettings {
    /// The bounds of a request.
    pub fn bounds(&self) -> RequestBounds {
        RequestBounds {
            requests: self.max_requests,
            descriptors: self.max_descriptors,
            entries: self.max_entries,
        }
    }
}

/// The services that decide requests, independent of the transport.
#[derive(Clone, Debug)]
pub struct Api {
    limiter: Limiter,
    settings: ApiSettings,
    headers: Arc<headers::HeaderSettings>,
    denial_bodies: Arc<DenialBodies>,
    metrics: Arc<ApiMetrics>,
    denials: Option<Arc<DenialLog>>,
    recorder: Option<Arc<Recorder>>,
    traces: Option<Traces>,
    reset_access: Option<ResetAccess>,
}

impl Api {
    /// A service that decides with `limiter`, without headers, and without bodies but those of rules.
    pub fn new(limiter: Limiter, settings: ApiSettings) -> Self {
        Self {
            limiter,
            settings,
            headers: Arc::default(),
            denial_bodies: Arc::default(),
            metrics: Arc::default(),
            denials: None,
            recorder: None,
            traces: None,
            reset_access: None,
        }
    }

    /// Sets the response headers.
    pub fn with_headers(self, headers: headers::HeaderSettings) -> Self {
        Self { headers: Arc::new(headers), ..self }
    }

    /// Sets the bodies of refusals by rules that set none.
    pub fn with_denial_bodies(self, denial_bodies: Arc<DenialBodies>) -> Self {
        Self { denial_bodies, ..self }
    }

    /// Metrics of requests.
    pub fn metrics(&self) -> &Arc<ApiMetrics> {
        &self.metrics
    }

    /// Counts and logs a call that is answered with an error.
    pub fn failed(&self, call: &FailedCall<'_>) {
        self.metrics.failed_calls.add(call, self.limiter.view().now());
    }

    /// Sets the logging of denials.
    pub fn with_denials(self, denials: logs::Denials) -> Self {
        Self { denials: DenialLog::new(denials).map(Arc::new), ..self }
    }

    /// Sets the recorder of requests.
    pub fn with_recorder(self, recorder: Option<Arc<Recorder>>) -> Self {
        Self { recorder, ..self }
    }

    /// Sets the traces; each sampled gRPC call gets a span.
    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Sets the token that resets need.
    pub fn with_admin_token(self, token: Option<Token>) -> Self {
        Self { reset_access: token.map(ResetAccess::new), ..self }
    }

    /// Shows a request and its answer to those that watch requests.
    #[inline]
    fn observe(&self, request: &Request<'_>, view: &ActiveView<'_>, answer: &Answer<'_>) {
        if let Some(denials) = &self.denials {
            denials.log(request, answer, view.now());
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(request, view);
        }
    }
}
