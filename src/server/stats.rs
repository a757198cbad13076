//! Statistics of listeners and their connections.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use tollgate_counter::{
    metrics::MetricCounter,
    time::{SECOND, Timestamp},
};

use crate::api::admin::state::Certificates;

/// Statistics of all listeners.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// The gRPC listener.
    pub grpc: Arc<ListenerStats>,
    /// The HTTP listener: probes and JSON.
    pub http: Arc<ListenerStats>,
    /// The admin listener.
    pub admin: Arc<ListenerStats>,
    /// The metrics listener.
    pub metrics: Arc<ListenerStats>,
}

/// Counters of one listener since the start.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Connections accepted, including those closed at once.
    pub accepted: MetricCounter,
    open: AtomicU64,
    /// Connections closed at once because the listener was full.
    pub refused_full: MetricCounter,
    /// Idle connections closed to make room for new ones.
    pub closed_idle: MetricCounter,
    /// Failed accepts, for example for lack of file descriptors.
    pub accept_errors: MetricCounter,
    /// Failed TLS handshakes, including clients without a valid certificate.
    pub handshakes_failed: MetricCounter,
    /// Connections closed because the handshake or the first bytes took too long.
    pub handshakes_slow: MetricCounter,
    /// Connections shut down because of their age.
    pub aged: MetricCounter,
    /// Connections closed at the end of the grace period with open calls.
    pub cut: MetricCounter,
    /// Certificate loads, including the one at the start.
    pub certificates_loaded: MetricCounter,
    /// Versions of certificate files that were rejected; the previous ones stayed active.
    pub certificate_errors: MetricCounter,
    // Seconds since the epoch; 0 without a certificate.
    pub(super) certificate_expires: AtomicU64,
    /// Whether the certificate files cannot be used now.
    pub(super) is_certificate_refused: AtomicBool,
}

impl ServerStats {
    /// The listeners that may have a certificate, by name.
    fn with_certificates(&self) -> [(&'static str, &ListenerStats); 2] {
        let Self { grpc, http, admin: _, metrics: _ } = self;
        [("grpc", grpc), ("http", http)]
    }
}

impl Certificates for ServerStats {
    fn expiries(&self) -> Vec<(&'static str, Timestamp)> {
        self.with_certificates()
            .into_iter()
            .filter_map(|(name, stats)| Some((name, stats.certificate_expires()?)))
            .collect()
    }

    fn refused(&self) -> Vec<&'static str> {
        let refused = |stats: &ListenerStats| stats.is_certificate_refused.load(Relaxed);
        self.with_certificates()
            .into_iter()
            .filter(|(_, stats)| refused(stats))
            .map(|(name, _)| name)
            .collect()
    }
}

impl ListenerStats {
    /// Connections open now.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// When the active certificate expires.
    pub fn certificate_expires(&self) -> Option<Timestamp> {
        let seconds = self.certificate_expires.load(Relaxed);
        (seconds != 0).then(|| Timestamp::EPOCH.plus(seconds.saturating_mul(SECOND)))
    }

    /// Takes a permit for one more connection, unless `max` are open. Must only be called by the accept loop.
    pub(super) fn try_permit(self: &Arc<Self>, max: u64) -> Option<ConnectionPermit> {
        if self.open() >= max {
            return None;
        }
        let taken = self.open.fetch_add(1, Relaxed);
        Some(ConnectionPermit { stats: self.clone(), number: taken + 1 })
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    stats: Arc<ListenerStats>,
    /// Number of open connections when this one was added, itself included.
    pub(super) number: u64,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Relaxed);
    }
}
