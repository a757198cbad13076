//! What every API decides with. The methods that answer the calls of one API are in the files of that API, so that a reader
//! of one protocol reads one folder.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tollgate_limiter::limiter::{ActiveView, Answer, Limiter, Request, RequestBounds};
use tollgate_telemetry::traces::Traces;

use crate::api::{
    denial_body::DenialBodies, denial_log::DenialLog, error::Error, headers::HeaderSettings,
    metrics::ApiMetrics, recorder::Recorder, reset_access::ResetAccess,
};

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
    pub(crate) limiter: Limiter,
    pub(crate) settings: ApiSettings,
    /// The headers of replies.
    pub(crate) headers: Arc<HeaderSettings>,
    /// The bodies of refusals by rules that set none.
    pub(crate) denial_bodies: Arc<DenialBodies>,
    pub(crate) metrics: Arc<ApiMetrics>,
    pub(crate) denials: Option<Arc<DenialLog>>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The traces, in which each sampled gRPC call gets a span.
    pub(crate) traces: Option<Traces>,
    /// The access of operators with the admin token.
    pub(crate) reset_access: Option<ResetAccess>,
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

    /// Counts and logs a call of the method at `path` that is answered with an error. `peer` is the address of the caller;
    /// `None` over a Unix socket.
    pub fn failed(&self, path: &str, peer: Option<SocketAddr>, error: &Error) {
        self.metrics.failed_calls.add(path, peer, error, self.limiter.view().now());
    }

    /// Shows a request and its answer to those that watch requests.
    #[inline]
    pub(super) fn observe(&self, request: &Request<'_>, view: &ActiveView<'_>, answer: &Answer<'_>) {
        if let Some(denials) = &self.denials {
            denials.log(request, answer, view.now());
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(request, view);
        }
    }
}
