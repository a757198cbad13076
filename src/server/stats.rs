//! Statistics of listeners and their connections.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::time::Timestamp;

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
    pub(super) accepted: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) refused_full: AtomicU64,
    pub(super) closed_idle: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) handshakes_failed: AtomicU64,
    pub(super) handshakes_slow: AtomicU64,
    pub(super) aged: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) certificates_loaded: AtomicU64,
    pub(super) certificate_errors: AtomicU64,
    // Seconds since the epoch; 0 without a certificate.
    pub(super) certificate_expires: AtomicU64,
}

/// The values of [`ListenerStats`] at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerReading {
    /// Connections accepted, including those closed at once.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections closed at once because the listener was full.
    pub refused_full: u64,
    /// Idle connections closed to make room for new ones.
    pub closed_idle: u64,
    /// Failed accepts, for example for lack of file descriptors.
    pub accept_errors: u64,
    /// Failed TLS handshakes, including clients without a valid certificate.
    pub handshakes_failed: u64,
    /// Connections closed because the handshake or the first bytes took too long.
    pub handshakes_slow: u64,
    /// Connections shut down because of their age.
    pub aged: u64,
    /// Connections closed at the end of the grace period with open calls.
    pub cut: u64,
    /// Certificate loads, including the one at the start.
    pub certificates_loaded: u64,
    /// Versions of certificate files that were rejected; the previous ones stayed active.
    pub certificate_errors: u64,
    /// When the active certificate expires.
    pub certificate_expires: Option<Timestamp>,
}

impl ListenerStats {
    /// The current values.
    pub fn read(&self) -> ListenerReading {
        let expires = self.certificate_expires.load(Relaxed);
        ListenerReading {
            accepted: self.accepted.load(Relaxed),
            open: self.open.load(Relaxed),
            refused_full: self.refused_full.load(Relaxed),
            closed_idle: self.closed_idle.load(Relaxed),
            accept_errors: self.accept_errors.load(Relaxed),
            handshakes_failed: self.handshakes_failed.load(Relaxed),
            handshakes_slow: self.handshakes_slow.load(Relaxed),
            aged: self.aged.load(Relaxed),
            cut: self.cut.load(Relaxed),
            certificates_loaded: self.certificates_loaded.load(Relaxed),
            certificate_errors: self.certificate_errors.load(Relaxed),
            certificate_expires: (expires != 0)
                .then(|| Timestamp::EPOCH.plus(expires.saturating_mul(crate::time::SECOND))),
        }
    }

    /// Takes a permit for one more connection, unless `max` are open. Must only be called by the accept loop.
    pub(super) fn try_permit(self: &Arc<Self>, max: u64) -> Option<ConnectionPermit> {
        if self.open.load(Relaxed) >= max {
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
    number: u64,
}

impl ConnectionPermit {
    /// Number of open connections when this one was added, itself included.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Relaxed);
    }
}

/// Adds one.
pub(super) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
