//! Statistics of links.

use std::{
    array,
    fmt::Display,
    num::NonZeroU16,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustls::{AlertDescription, CertificateError, Error};
use tracing::warn;

use crate::{cluster::protocol::VersionMismatch, named::named, telemetry::sampler::Sampler, time::Stopwatch};

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
    pub(super) fn of(error: &Error) -> Self {
        match error {
            error if VersionMismatch::of(error).is_some() => Self::Version,
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

/// The counters that links update.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) links_up: AtomicU64,
    pub(super) reconnects: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) batches_in: AtomicU64,
    pub(super) batches_out: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    failures: [AtomicU64; LinkFailure::ALL.len()],
    logged: [Sampler; LinkFailure::ALL.len()],
    since: Stopwatch,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            links_up: AtomicU64::default(),
            reconnects: AtomicU64::default(),
            resent: AtomicU64::default(),
            batches_in: AtomicU64::default(),
            batches_out: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            failures: array::from_fn(|_| AtomicU64::default()),
            logged: array::from_fn(|_| Sampler::new(NonZeroU16::MIN)),
            since: Stopwatch::start(),
        }
    }
}

impl Counters {
    /// Counts a connection that did not become a link, and logs a sample of them.
    pub(super) fn count_failure(&self, reason: LinkFailure, peer: &dyn Display, error: &dyn Display) {
        self.failures[reason as usize].fetch_add(1, Relaxed);
        let period = self.since.elapsed().as_secs() / LOGGED_EVERY_SECONDS;
        if let Some(left_out) = self.logged[reason as usize].take(period) {
            warn!(%peer, reason = reason.name(), %error, left_out, "link to another replica failed");
        }
    }

    pub(super) fn read(&self) -> Stats {
        let read = |count: &AtomicU64| count.load(Relaxed);
        Stats {
            links_up: read(&self.links_up),
            reconnects: read(&self.reconnects),
            pieces_resent: read(&self.resent),
            batches_in: read(&self.batches_in),
            batches_out: read(&self.batches_out),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            failures: LinkFailure::ALL.map(|reason| (reason, read(&self.failures[reason as usize]))),
        }
    }
}

/// Statistics of links since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Links that are up now.
    pub links_up: u64,
    /// Sessions resumed over another connection.
    pub reconnects: u64,
    /// Pieces of batches sent again over another connection.
    pub pieces_resent: u64,
    /// Batches received.
    pub batches_in: u64,
    /// Batches queued for sending.
    pub batches_out: u64,
    /// Bytes of received batches.
    pub bytes_in: u64,
    /// Bytes of batches queued for sending.
    pub bytes_out: u64,
    /// Connections that did not become a link, by reason.
    pub failures: [(LinkFailure, u64); LinkFailure::ALL.len()],
}

impl Stats {
    /// Connections that did not become a link for `reason`.
    pub fn failures(&self, reason: LinkFailure) -> u64 {
        self.failures[reason as usize].1
    }
}
