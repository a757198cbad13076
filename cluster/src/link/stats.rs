//! Statistics of links.

use std::{
    array,
    fmt::Display,
    num::NonZeroU16,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustls::{AlertDescription, CertificateError, Error};
use tollgate_counter::{metrics::MetricCounter, named, time::Stopwatch};
use tollgate_telemetry::sampler::Sampler;
use tracing::warn;

use crate::protocol::VersionMismatch;

/// Each reason is logged once per this interval.
const LOGGED_EVERY_SECONDS: u64 = 10;

named! {
    /// Why a connection between replicas did not become a link, with the value of the metric's label.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LinkFailure {
        /// The peer does not speak TLS 1.3.
        NotTls = "not_tls",
        /// The peer presented no certificate.
        NoCertificate = "no_certificate",
        /// The peer's certificate is not signed by a trusted authority.
        Untrusted = "untrusted",
        /// The peer's certificate has expired or is not valid yet.
        Expired = "expired",
        /// The peer rejected the certificate of this replica.
        ByPeer = "by_peer",
        /// The peer speaks another version of the protocol.
        Version = "version",
        /// The handshake timed out.
        Slow = "slow",
        /// The number of peers is at its maximum.
        Full = "full",
        /// The peer did not follow the protocol after TLS was established.
        Other = "other",
    }
}

impl LinkFailure {
    /// Whether one side rejected the other as a member, which silence does not show.
    pub(super) const fn is_rejection(self) -> bool {
        match self {
            Self::NoCertificate | Self::Untrusted | Self::Expired | Self::ByPeer | Self::Version => true,
            Self::NotTls | Self::Slow | Self::Full | Self::Other => false,
        }
    }

    /// The reason behind a TLS error.
    pub(super) fn from_tls_error(error: &Error) -> Self {
        match error {
            error if VersionMismatch::from_tls_error(error).is_some() => Self::Version,
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                _ => Self::Untrusted,
            },
            Error::AlertReceived(AlertDescription::CertificateExpired) => Self::Expired,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) | Error::NoApplicationProtocol => {
                Self::Version
            }
            Error::AlertReceived(_) => Self::ByPeer,
            Error::InvalidMessage(_) | Error::PeerIncompatible(_) => Self::NotTls,
            _ => Self::Other,
        }
    }
}

/// Statistics of links since the start.
#[derive(Debug)]
pub struct LinkStats {
    pub(super) links_up: AtomicU64,
    /// Sessions resumed over another connection.
    pub reconnects: MetricCounter,
    /// Pieces of batches sent again over another connection.
    pub pieces_resent: MetricCounter,
    /// Pieces of batches that waited for memory.
    pub pieces_delayed: MetricCounter,
    /// Dials, redials and ends of sessions that were refused because too many were under way.
    pub commands_refused: MetricCounter,
    /// Batches received.
    pub batches_in: MetricCounter,
    /// Batches queued for sending.
    pub batches_out: MetricCounter,
    /// Bytes of received batches.
    pub bytes_in: MetricCounter,
    /// Bytes of batches queued for sending.
    pub bytes_out: MetricCounter,
    failures: [MetricCounter; LinkFailure::ALL.len()],
    logged: [Sampler; LinkFailure::ALL.len()],
    since: Stopwatch,
}

impl Default for LinkStats {
    fn default() -> Self {
        Self {
            links_up: AtomicU64::default(),
            reconnects: MetricCounter::default(),
            pieces_resent: MetricCounter::default(),
            pieces_delayed: MetricCounter::default(),
            commands_refused: MetricCounter::default(),
            batches_in: MetricCounter::default(),
            batches_out: MetricCounter::default(),
            bytes_in: MetricCounter::default(),
            bytes_out: MetricCounter::default(),
            failures: Default::default(),
            logged: array::from_fn(|_| Sampler::new(NonZeroU16::MIN)),
            since: Stopwatch::start(),
        }
    }
}

impl LinkStats {
    /// Links that are up now.
    pub fn links_up(&self) -> u64 {
        self.links_up.load(Relaxed)
    }

    /// Connections that did not become a link for `reason`.
    pub fn failures(&self, reason: LinkFailure) -> u64 {
        self.failures[reason as usize].get()
    }

    /// Counts a connection that did not become a link, and logs a sample of them.
    pub(super) fn count_failure(&self, reason: LinkFailure, peer: &dyn Display, error: &dyn Display) {
        self.failures[reason as usize].increase();
        let period = self.since.elapsed().as_secs() / LOGGED_EVERY_SECONDS;
        if let Some(left_out) = self.logged[reason as usize].take(period) {
            warn!(%peer, reason = reason.name(), %error, left_out, "link to another replica failed");
        }
    }
}
