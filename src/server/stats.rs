//! What has become of connections, counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::time::Timestamp;

/// The stats of all listeners.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Of the gRPC service.
    pub grpc: Arc<ListenerStats>,
    /// Of probes and JSON.
    pub http: Arc<ListenerStats>,
    /// Of the operator's side.
    pub admin: Arc<ListenerStats>,
    /// Of the page of metrics.
    pub metrics: Arc<ListenerStats>,
}

/// What one listener has seen since the start.
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
    // Seconds since the epoch; 0 while there is no certificate.
    pub(super) certificate_expires: AtomicU64,
}

/// A reading of [`ListenerStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerReading {
    /// Connections accepted, those included that were then closed at once.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections closed at once because as many as allowed were open.
    pub refused_full: u64,
    /// Idle connections closed because as many as allowed were open and another one came.
    pub closed_idle: u64,
    /// Times that the system could not hand over a connection, for want of file descriptors for example.
    pub accept_errors: u64,
    /// TLS handshakes that failed, a client without a good certificate among them.
    pub handshakes_failed: u64,
    /// Connections closed because they did not begin in time.
    pub handshakes_slow: u64,
    /// Connections told to go away for their age.
    pub aged: u64,
    /// Connections closed at the end of the grace with calls still open.
    pub cut: u64,
    /// Times that certificates were taken, the one at the start included.
    pub certificates_loaded: u64,
    /// Contents of certificate files that were refused; the old ones stayed in force.
    pub certificate_errors: u64,
    /// When the certificate in force expires.
    pub certificate_expires: Option<Timestamp>,
}

impl ListenerStats {
    /// What they show now.
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

    /// A seat for one more connection, unless `max` are taken. Only the loop that accepts may ask for one.
    pub(super) fn try_permit(self: &Arc<Self>, max: u64) -> Option<ConnectionPermit> {
        if max <= self.open.load(Relaxed) {
            return None;
        }
        let taken = self.open.fetch_add(1, Relaxed);
        Some(ConnectionPermit { stats: self.clone(), number: taken + 1 })
    }
}

/// One connection among those open; it stops counting when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    stats: Arc<ListenerStats>,
    number: u64,
}

impl ConnectionPermit {
    /// How many were taken when this one was, itself included.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.stats.open.fetch_sub(1, Relaxed);
    }
}

/// Counts one more.
pub(super) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
