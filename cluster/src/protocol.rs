//! The version of the protocol between replicas, and how a TLS handshake names it.
//!
//! The ALPN name contains the version. The version covers the messages and the derivation of the authority from the
//! secret, so replicas of different versions do not trust each other's certificates. If a client offers no known ALPN
//! name, the server answers with a self-signed certificate whose only content is a name with the server's version.
//! Both ends then log both versions; neither trusts the certificate for anything else.

use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError, pki_types::CertificateDer};

/// The version of the messages between replicas, and of what else is encoded as in these.
pub const VERSION: u32 = 7;
/// The ALPN name up to the version.
const ALPN_PREFIX: &str = "tollgate-cluster/";
/// The certificate name around the version; no host has such a name (RFC 6761, `.invalid`).
const NAME_PREFIX: &str = "protocol-";
const NAME_SUFFIX: &str = ".tollgate.invalid";
/// The most ALPN names of a client that are logged, and the most bytes of each.
const LOGGED_NAMES_MAX: usize = 4;
const LOGGED_BYTES_MAX: usize = 32;

/// The ALPN name of [`VERSION`].
pub(super) fn alpn() -> Vec<u8> {
    format!("{ALPN_PREFIX}{VERSION}").into_bytes()
}

/// The certificate name that carries [`VERSION`].
pub(super) fn certificate_name() -> String {
    format!("{NAME_PREFIX}{VERSION}{NAME_SUFFIX}")
}

/// The version in the name of a certificate; `None` for any other certificate.
pub(super) fn version_in_certificate(certificate: &CertificateDer<'_>) -> Option<u32> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let number = |name: &str| name.strip_prefix(NAME_PREFIX)?.strip_suffix(NAME_SUFFIX)?.parse().ok();
    parsed.valid_dns_names().find_map(number)
}

/// The two sides speak different versions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer speaks {remote}, this replica speaks {ALPN_PREFIX}{VERSION}")]
pub(super) struct VersionMismatch {
    remote: String,
}

impl VersionMismatch {
    /// A mismatch with a server that speaks `version`.
    pub(super) fn with(version: u32) -> Self {
        Self { remote: format!("{ALPN_PREFIX}{version}") }
    }

    /// The mismatch that made a handshake fail, if that is the cause.
    pub(super) fn from_tls_error(error: &Error) -> Option<&Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => error.downcast_ref(),
            _ => None,
        }
    }

    /// A mismatch with a client that offers these names; `None` if [`VERSION`] is among them.
    pub(super) fn with_offer<'n>(names: impl Iterator<Item = &'n [u8]>) -> Option<Self> {
        let local = alpn();
        let mut remote = Vec::new();
        for name in names {
            if name == local {
                return None;
            }
            if remote.len() < LOGGED_NAMES_MAX {
                remote.push(name[..name.len().min(LOGGED_BYTES_MAX)].escape_ascii().to_string());
            }
        }
        let remote = if remote.is_empty() { "no protocol".to_owned() } else { remote.join(", ") };
        Some(Self { remote })
    }
}

impl From<VersionMismatch> for Error {
    fn from(mismatch: VersionMismatch) -> Self {
        CertificateError::Other(OtherError(Arc::new(mismatch))).into()
    }
}
