//! What all who show or check certificates need: files, dates, the time.

use std::{path::Path, time::Duration};

use rustls::{
    CertificateError, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::ParsedCertificate,
    time_provider::TimeProvider,
};

use crate::{
    files,
    time::{Clock, SECOND, Timestamp},
};

/// The largest file of certificates, in bytes; a bundle of every public authority is a third of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// A time after the end of every certificate.
const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
/// A time before the begin of every certificate that is in use.
const EPOCH: UnixTime = UnixTime::since_unix_epoch(Duration::ZERO);

/// What a file holds, unless it is too large for one of certificates.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())
}

/// The certificates of a file, in order.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// When a certificate ends; `Err` says why it is no good `now`.
pub fn valid_until(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<UnixTime, String> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    let no_roots = RootCertStore::empty();
    // Nobody is trusted, so this never succeeds; but the dates are looked at first and rfc3339.
    let at = |time| {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &no_roots, &[], time, algorithms).err()
    };
    if let Some(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
        not_before, ..
    })) = at(now)
    {
        return Err(format!("the certificate is not valid before {}", rfc3339(not_before)));
    }
    match at(END_OF_TIME) {
        Some(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            if now <= not_after {
                Ok(not_after)
            } else {
                Err(format!("the certificate has expired at {}", rfc3339(not_after)))
            }
        }
        Some(error) => Err(error.to_string()),
        None => Ok(EPOCH),
    }
}

/// An instant as in RFC 3339.
pub fn rfc3339(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The same instant, as TLS tells it.
pub fn unix_time(instant: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(instant.as_nanos() / SECOND))
}

/// The system's clock, by which all certificates are judged: what the service's own clock still leads by is not of
/// the day that certificates are issued for.
#[derive(Debug)]
pub struct SystemTime(Clock);

impl SystemTime {
    /// What `clock` reads of the system's clock.
    pub fn of(clock: Clock) -> Self {
        Self(clock)
    }
}

impl TimeProvider for SystemTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.wall()))
    }
}
