//! What has become of links, counted.

use std::{
    array,
    fmt::Display,
    num::NonZeroU16,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustls::{AlertDescription, CertificateError, Error};
use tracing::warn;

use crate::{cluster::protocol::Mismatch, telemetry::sampler::Sampler, time::Stopwatch};

/// One line for each reason in so many seconds.
const LOGGED_EVERY_SECONDS: u64 = 10;

/// Why a connection between replicas has not become a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// What came was not TLS 1.3.
    NotTls,
    /// No certificate was shown.
    NoCertificate,
    /// The certificate, or the other side's, is of another authority.
    Untrusted,
    /// The certificate is too old, or too young.
    Expired,
    /// The other side refused ours.
    ByPeer,
    /// The other side speaks another version of the protocol.
    Version,
    /// Nothing came in time.
    Slow,
    /// There are too many peers.
    Full,
    /// What came over TLS was not what replicas speak.
    Other,
}

impl Refused {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::NotTls,
        Self::NoCertificate,
        Self::Untrusted,
        Self::Expired,
        Self::ByPeer,
        Self::Version,
        Self::Slow,
        Self::Full,
        Self::Other,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::NoCertificate => "no_certificate",
            Self::Untrusted => "untrusted",
            Self::Expired => "expired",
            Self::ByPeer => "by_peer",
            Self::Version => "version",
            Self::Slow => "slow",
            Self::Full => "full",
            Self::Other => "other",
        }
    }

    /// Whether one side does not take the other for a member: it is another thing than silence.
    pub(super) const fn is_rejection(self) -> bool {
        match self {
            Self::NoCertificate | Self::Untrusted | Self::Expired | Self::ByPeer | Self::Version => true,
            Self::NotTls | Self::Slow | Self::Full | Self::Other => false,
        }
    }

    /// The reason in an error of TLS.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            error if Mismatch::of(error).is_some() => Self::Version,
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

/// Counts, as links keep them.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) links_up: AtomicU64,
    pub(super) reconnects: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) batches_in: AtomicU64,
    pub(super) batches_out: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    refused: [AtomicU64; Refused::ALL.len()],
    logged: [Sampler; Refused::ALL.len()],
    since: Stopwatch,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            links_up: AtomicU64::default(),
            reconnects: AtomicU64::default(),
            resent: AtomicU64::default(),
            batches_in: AtomicU64::default(),
            batches_out: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            refused: array::from_fn(|_| AtomicU64::default()),
            logged: array::from_fn(|_| Sampler::new(NonZeroU16::MIN)),
            since: Stopwatch::start(),
        }
    }
}

impl Counts {
    /// Counts a connection that has come to nothing, and logs some of them.
    pub(super) fn refuse(&self, reason: Refused, peer: &dyn Display, error: &dyn Display) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
        let period = self.since.elapsed().as_secs() / LOGGED_EVERY_SECONDS;
        if let Some(left_out) = self.logged[reason as usize].take(period) {
            warn!(%peer, reason = reason.name(), %error, left_out, "no link between replicas");
        }
    }

    pub(super) fn read(&self) -> Figures {
        let read = |count: &AtomicU64| count.load(Relaxed);
        Figures {
            links_up: read(&self.links_up),
            reconnects: read(&self.reconnects),
            pieces_resent: read(&self.resent),
            batches_in: read(&self.batches_in),
            batches_out: read(&self.batches_out),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            refused: Refused::ALL.map(|reason| (reason, read(&self.refused[reason as usize]))),
        }
    }
}

/// What has become of links since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// How many links there are now.
    pub links_up: u64,
    /// How often a session has gone on over another connection.
    pub reconnects: u64,
    /// How many pieces of batches were written once more, to another connection.
    pub pieces_resent: u64,
    /// Batches that have come.
    pub batches_in: u64,
    /// Batches taken to be sent.
    pub batches_out: u64,
    /// Bytes of the batches that have come.
    pub bytes_in: u64,
    /// Bytes of the batches taken to be sent.
    pub bytes_out: u64,
    /// How many connections came to nothing, by reason.
    pub refused: [(Refused, u64); Refused::ALL.len()],
}

impl Figures {
    /// How many connections came to nothing for this reason.
    pub fn refused(&self, reason: Refused) -> u64 {
        self.refused[reason as usize].1
    }
}
