//! Certificate files, validity dates and the time source of TLS.

use std::{path::Path, sync::Arc, time::Duration};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::ParsedCertificate,
    sign::{CertifiedKey, SingleCertAndKey},
    time_provider::TimeProvider,
};
use tollgate_counter::{
    files,
    time::{Clock, SECOND, Timestamp},
};

/// The largest file of certificates, in bytes. A bundle of every public authority has a third of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The reason if a file has no certificate.
const NO_CERTIFICATE: &str = "the file has no certificate";
/// A time after the end of every certificate.
const END_OF_TIME: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
/// A time before the begin of every certificate that is in use.
const EPOCH: UnixTime = UnixTime::since_unix_epoch(Duration::ZERO);

/// Reads a file of at most the largest size.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, FILE_BYTES_MAX).map_err(|error| error.to_string())
}

/// The certificates of a file, in order.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// A certificate with its chain and its private key.
pub struct OwnCertificate {
    /// The certificate and the key.
    pub pair: CertifiedKey,
    /// The end of the certificate's validity.
    pub expires: UnixTime,
}

/// Which file of a certificate and its key cannot be used, and why.
pub enum BadFile {
    /// The file of the certificate.
    Cert(String),
    /// The file of the key.
    Key(String),
}

/// Reads a certificate, which must be valid at `now`, and its key. `cert_path` names the certificate in errors.
pub fn own_certificate(
    cert: &[u8],
    key: &[u8],
    cert_path: &Path,
    now: UnixTime,
) -> Result<OwnCertificate, BadFile> {
    let chain = certificates(cert).map_err(BadFile::Cert)?;
    let leaf = chain.first().ok_or_else(|| BadFile::Cert(NO_CERTIFICATE.to_owned()))?;
    let expires = valid_until(leaf, now).map_err(BadFile::Cert)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| BadFile::Key(format!("the file has no readable private key: {error}")))?;
    match CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()) {
        Ok(pair) => Ok(OwnCertificate { pair, expires }),
        Err(rustls::Error::InconsistentKeys(_)) => {
            let reason = format!("the key does not match the certificate in {}", cert_path.display());
            Err(BadFile::Key(reason))
        }
        Err(error) => Err(BadFile::Key(error.to_string())),
    }
}

/// The authorities of a file that are valid at `now`; an error if there is none.
pub fn authorities(pem: &[u8], now: UnixTime) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut last_reason = NO_CERTIFICATE.to_owned();
    for authority in certificates(pem)? {
        // An expired authority may be in the file with its successor.
        match valid_until(&authority, now) {
            Ok(_) => roots.add(authority).map_err(|error| error.to_string())?,
            Err(reason) => last_reason = reason,
        }
    }
    if roots.is_empty() { Err(last_reason) } else { Ok(roots) }
}

/// The configuration of a client that trusts the authorities in the file `ca`, or without it those of the system, and
/// that shows the certificate and the key in the files `identity`. An error names the file.
pub fn client_config(
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    clock: &Clock,
) -> Result<ClientConfig, String> {
    let now = unix_time(clock.wall());
    let in_file = |path: &Path, reason: String| format!("{}: {reason}", path.display());
    let read = |path: &Path| read_file(path).map_err(|reason| in_file(path, reason));
    let roots = match ca {
        Some(path) => authorities(&read(path)?, now).map_err(|reason| in_file(path, reason))?,
        None => system_authorities()?,
    };
    let time = Arc::new(SystemTime::new(clock.clone()));
    let config = ClientConfig::builder_with_details(Arc::new(aws_lc_rs::default_provider()), time)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((cert, key)) = identity else { return Ok(config.with_no_client_auth()) };
    let own = own_certificate(&read(cert)?, &read(key)?, cert, now).map_err(|bad| match bad {
        BadFile::Cert(reason) => in_file(cert, reason),
        BadFile::Key(reason) => in_file(key, reason),
    })?;
    Ok(config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own.pair))))
}

/// The authorities that the system trusts; an error if there is none.
fn system_authorities() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // The system may have authorities that the verifier cannot use.
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let reason = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
    Err(format!("the system has no certificates of authorities{reason}"))
}

/// Returns the end of a certificate's validity; an error if the certificate is not valid at `now`.
fn valid_until(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<UnixTime, String> {
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
    pub fn new(clock: Clock) -> Self {
        Self(clock)
    }
}

impl TimeProvider for SystemTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.0.wall()))
    }
}
