//! Certificate files, validity dates and the time source of TLS.

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

/// The largest file of certificates, in bytes. A bundle of every public authority has a third of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// A time after the end of every certificate.
const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
/// A time before the begin of every certificate that is in use.
const EPOCH: UnixTime = UnixTime::since_unix_epoch(Duration::ZERO);

/// Reads a file of at most the largest size.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())
}

/// The certificates of a file, in order.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Returns the end of a certificate's validity; an error if the certificate is not valid at `now`.
pub fn valid_until(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<UnixTime, String> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|error| error.to_string())?;
    let no_roots = RootCertStore::empty();
    // Without roots verification always fails, but the verifier checks the dates first and reports them.
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
                Err(format!("the certificate expired at {}", rfc3339(not_after)))
            }
        }
        Some(error) => Err(error.to_string()),
        None => Ok(EPOCH),
    }
}

/// Formats an instant as in RFC 3339.
pub fn rfc3339(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// Converts an instant for rustls.
pub fn unix_time(instant: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(instant.as_nanos() / SECOND))
}

/// The system clock, which judges all certificates. A lead of the service's own clock does not count: certificates are
/// issued for calendar dates.
#[derive(Debug)]
pub struct SystemTime(Clock);

impl SystemTime {
    /// Reads the system clock through `clock`.
    pub fn of(clock: Clock) -> Self {
        Self(clock)
    }
}

impl TimeProvider for SystemTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.wall()))
    }
}
