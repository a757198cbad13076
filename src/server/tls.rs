//! TLS certificates of listeners, and verification of client certificates.

use std::{path::Path, sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::verify_server_name,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::SingleCertAndKey,
};
use tollgate_counter::{resilience::CallerAccess, time::Clock};
use tollgate_net::certificates::{
    BadFile, OwnCertificate, SystemTime, authorities, own_certificate, read_file, rfc3339, unix_time,
};
use tollgate_rules::file_watch::{FileWatch, WatchedFiles, fingerprint, read_blocking};
use tracing::{error, info};

use crate::{
    server::stats::ListenerStats,
    settings::{self, listeners::CertificateName},
};

/// The certificates of one listener, reloaded when their files change.
#[derive(Debug)]
pub(super) struct ListenerCertificates {
    reader: Arc<TlsFilesReader>,
    stats: Arc<ListenerStats>,
    active: ArcSwap<ServerConfig>,
    // The fingerprint of the files at the start.
    initial: u128,
}

/// What the certificate of a client says, which was verified.
#[derive(Debug)]
pub(super) struct CertifiedClient {
    /// The first DNS name or URI of the certificate, otherwise its subject.
    pub(super) name: Option<Box<[u8]>>,
    /// Whether the certificate has one of the names that may change limits.
    pub(super) access: CallerAccess,
}

/// Contents of the files. Not `Debug`, which keeps the private key out of logs.
#[derive(Hash)]
pub(super) struct CertificateFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The TLS configuration made from the files, and when its certificate expires.
struct Compiled {
    config: Arc<ServerConfig>,
    expires: UnixTime,
}

impl ListenerCertificates {
    /// Loads the files, which must all be valid. `protocols` are ALPN names in order of preference.
    pub(super) fn load(
        listener: &'static str,
        files: settings::ListenerTlsFiles,
        protocols: &'static [&'static [u8]],
        clock: Clock,
        stats: Arc<ListenerStats>,
    ) -> Result<Self, String> {
        let reader = Arc::new(TlsFilesReader { listener, files, protocols, clock });
        let read = reader.read();
        let initial = fingerprint(&read);
        let Compiled { config, expires } = reader.compile(&read?)?;
        stats.certificates_loaded.increase();
        stats.certificate_expires.store(expires.as_secs(), Relaxed);
        let active = ArcSwap::new(config);
        Ok(Self { reader, stats, active, initial })
    }

    /// The configuration for new connections.
    pub(super) fn active(&self) -> Arc<ServerConfig> {
        self.active.load_full()
    }

    /// The client with this certificate, which was verified.
    pub(super) fn client(&self, certificate: &CertificateDer<'_>) -> CertifiedClient {
        // A certificate that cannot be read again has no names.
        let may_set = has_listed_san(certificate, &self.reader.files.limits_san).unwrap_or(false);
        let access = if may_set { CallerAccess::Limits } else { CallerAccess::Callers };
        CertifiedClient { name: client_name(certificate), access }
    }

    /// Reloads the files when they change, for as long as it is polled.
    pub(super) async fn reload_on_change(self: Arc<Self>, poll_interval: Duration) {
        let initial = self.initial;
        FileWatch::with_active(&*self, initial).run(poll_interval).await;
    }
}

impl WatchedFiles for &ListenerCertificates {
    type Contents = Result<CertificateFiles, String>;
    type Error = String;
    // A certificate may not be valid yet.
    const DEPENDS_ON_TIME: bool = true;

    async fn read(&mut self) -> Option<(Self::Contents, u128)> {
        let reader = self.reader.clone();
        read_blocking(move || reader.read()).await
    }

    async fn load(&mut self, contents: Self::Contents) -> Option<Result<(), String>> {
        let compiled = contents.and_then(|files_read| self.reader.compile(&files_read));
        Some(compiled.map(|Compiled { config, expires }| {
            self.active.store(config);
            self.stats.certificate_expires.store(expires.as_secs(), Relaxed);
            self.stats.certificates_loaded.increase();
            self.stats.is_certificate_refused.store(false, Relaxed);
            info!(listener = self.reader.listener, ends = %rfc3339(expires), "loaded new certificates");
        }))
    }

    fn refused(&mut self, error: String) {
        self.stats.certificate_errors.increase();
        self.stats.is_certificate_refused.store(true, Relaxed);
        error!(%error, "cannot load new certificates, keeping the previous ones");
    }

    fn recovered(&mut self) {
        self.stats.is_certificate_refused.store(false, Relaxed);
    }
}

/// Reads the files of one listener and builds the TLS configuration.
#[derive(Debug)]
struct TlsFilesReader {
    listener: &'static str,
    files: settings::ListenerTlsFiles,
    protocols: &'static [&'static [u8]],
    clock: Clock,
}

impl TlsFilesReader {
    fn read(&self) -> Result<CertificateFiles, String> {
        let read = |setting, path: &Path| read_file(path).map_err(|reason| self.error(setting, path, reason));
        let client_ca = self.files.client_ca.as_deref();
        Ok(CertificateFiles {
            cert: read("tls_cert", &self.files.cert)?,
            key: read("tls_key", &self.files.key)?,
            client_ca: client_ca.map(|path| read("tls_client_ca", path)).transpose()?,
        })
    }

    fn compile(&self, files_read: &CertificateFiles) -> Result<Compiled, String> {
        let cert = &self.files.cert;
        let now = unix_time(self.clock.wall());
        let OwnCertificate { pair, expires } = own_certificate(&files_read.cert, &files_read.key, cert, now)
            .map_err(|bad| match bad {
                BadFile::Cert(reason) => self.error("tls_cert", cert, reason),
                BadFile::Key(reason) => self.error("tls_key", &self.files.key, reason),
            })?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_details(
            provider.clone(),
            Arc::new(SystemTime::new(self.clock.clone())),
        )
        .with_safe_default_protocol_versions()
        .map_err(|error| self.error("tls_cert", cert, error.to_string()))?;
        let builder = match self.client_verifier(files_read, provider)? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        // A resumed session would skip the client certificate. Connections are few and long, so resumption gains
        // little.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Compiled { config: Arc::new(config), expires })
    }

    fn client_verifier(
        &self,
        files_read: &CertificateFiles,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
        let (Some(path), Some(pem)) = (&self.files.client_ca, &files_read.client_ca) else { return Ok(None) };
        let bad = |reason: String| self.error("tls_client_ca", path, reason);
        let roots = authorities(pem, unix_time(self.clock.wall())).map_err(bad)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let names = self.files.client_san.clone();
        Ok(Some(if names.is_empty() { verifier } else { Arc::new(SanVerifier { verifier, names }) }))
    }

    /// The error of the file of a setting.
    fn error(&self, setting: &str, path: &Path, reason: String) -> String {
        format!("{}.{setting}: {}: {reason}", self.listener, path.display())
    }
}

/// The name of a client by its certificate, which was verified: its first DNS name or URI, otherwise its subject.
fn client_name(certificate: &CertificateDer<'_>) -> Option<Box<[u8]>> {
    let leaf = webpki::EndEntityCert::try_from(certificate).ok()?;
    let name = leaf.valid_dns_names().next().map(str::to_ascii_lowercase);
    let name = name.or_else(|| leaf.valid_uri_names().next().map(str::to_owned));
    let name = name.map_or_else(|| leaf.subject().to_vec(), String::into_bytes);
    (!name.is_empty()).then(|| name.into())
}

/// Accepts client certificates that the inner verifier accepts and that have a listed subject alternative name.
#[derive(Debug)]
struct SanVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<CertificateName>,
}

/// Whether a certificate has one of these subject alternative names.
fn has_listed_san(
    certificate: &CertificateDer<'_>,
    names: &[CertificateName],
) -> Result<bool, rustls::Error> {
    let has_ip = |address| {
        let name = ServerName::IpAddress(address);
        Ok::<_, rustls::Error>(verify_server_name(&ParsedCertificate::try_from(certificate)?, &name).is_ok())
    };
    let leaf = webpki::EndEntityCert::try_from(certificate)
        .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
    for name in names {
        let is_listed = match name {
            CertificateName::Dns(host) => leaf.valid_dns_names().any(|name| name.eq_ignore_ascii_case(host)),
            CertificateName::Uri(uri) => leaf.valid_uri_names().any(|name| name == uri),
            CertificateName::Ip(address) => has_ip((*address).into())?,
        };
        if is_listed {
            return Ok(true);
        }
    }
    Ok(false)
}

impl ClientCertVerifier for SanVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        if has_listed_san(end_entity, &self.names)? {
            Ok(verified)
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
