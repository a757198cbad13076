//! Certificates: whom we show ourselves to be, and whom we let in.

use std::{fmt, path::Path, sync::Arc, sync::atomic::Ordering::Relaxed, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::verify_server_name,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{
        NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{task, time::sleep};
use tracing::{error, info};

use crate::{
    certificates::{SystemTime, certificates, read_file, rfc3339, unix_time, valid_until},
    server::counters::{ListenerCounters, count},
    settings::{self, CertificateName},
    time::Clock,
};

/// How long files must stay as they are before they count as written.
const SETTLE: Duration = Duration::from_millis(50);

/// Why certificates cannot be used: which setting, and what is wrong with its file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{listener}.{setting}: {path}: {why}", path = path.display())]
pub struct Refusal {
    listener: &'static str,
    setting: &'static str,
    path: std::path::PathBuf,
    why: String,
}

/// The certificates of one listener, replaced when their files change.
#[derive(Debug)]
pub(super) struct Certificates {
    listener: &'static str,
    files: settings::Tls,
    protocols: &'static [&'static [u8]],
    clock: Clock,
    counters: Arc<ListenerCounters>,
    in_force: ArcSwap<ServerConfig>,
    at_start: Material,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Material {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// What material is made into.
struct Compiled {
    config: Arc<ServerConfig>,
    ends: UnixTime,
}

impl Certificates {
    /// What the files hold now; none of it may be bad. `protocols` are offered by ALPN, the best first.
    pub(super) fn load(
        listener: &'static str,
        files: settings::Tls,
        protocols: &'static [&'static [u8]],
        clock: Clock,
        counters: Arc<ListenerCounters>,
    ) -> Result<Self, Refusal> {
        let reader = Reader { listener, files: &files, protocols, clock: &clock };
        let at_start = reader.read()?;
        let Compiled { config, ends } = reader.compile(&at_start)?;
        count(&counters.certificates_loaded);
        counters.certificate_ends.store(ends.as_secs(), Relaxed);
        let in_force = ArcSwap::new(config);
        Ok(Self { listener, files, protocols, clock, counters, in_force, at_start })
    }

    /// What new connections are greeted with.
    pub(super) fn in_force(&self) -> Arc<ServerConfig> {
        self.in_force.load_full()
    }

    /// Compares the files with what is in force every so often, for as long as it is polled.
    pub(super) async fn follow(self: Arc<Self>, poll_interval: Duration) {
        let mut taken = Ok(self.at_start.clone());
        let mut refused = None;
        loop {
            sleep(poll_interval.max(SETTLE)).await;
            let Some(found) = self.clone().read().await else { continue };
            if found == taken {
                refused = None;
                continue;
            }
            if refused.as_ref() != Some(&found) {
                // A pair may be half replaced.
                sleep(SETTLE).await;
                if self.clone().read().await.as_ref() != Some(&found) {
                    continue;
                }
            }
            // What was refused is tried again without a word: a certificate may only have to wait for its day.
            let is_news = refused.as_ref() != Some(&found);
            let compiled =
                found.clone().and_then(|material| Ok((self.reader().compile(&material)?, material)));
            match compiled {
                Ok((Compiled { config, ends }, material)) => {
                    self.in_force.store(config);
                    self.counters.certificate_ends.store(ends.as_secs(), Relaxed);
                    count(&self.counters.certificates_loaded);
                    info!(listener = self.listener, ends = %rfc3339(ends), "new certificates are in force");
                    (taken, refused) = (Ok(material), None);
                }
                Err(refusal) if is_news => {
                    count(&self.counters.certificate_errors);
                    error!(%refusal, "the certificates cannot be used; the old ones stay");
                    refused = Some(found);
                }
                Err(_) => {}
            }
        }
    }

    async fn read(self: Arc<Self>) -> Option<Result<Material, Refusal>> {
        task::spawn_blocking(move || self.reader().read()).await.ok()
    }

    fn reader(&self) -> Reader<'_> {
        Reader { listener: self.listener, files: &self.files, protocols: self.protocols, clock: &self.clock }
    }
}

/// Reads files and makes what a handshake needs of them.
struct Reader<'c> {
    listener: &'static str,
    files: &'c settings::Tls,
    protocols: &'static [&'static [u8]],
    clock: &'c Clock,
}

impl Reader<'_> {
    fn read(&self) -> Result<Material, Refusal> {
        let read = |setting, path: &Path| read_file(path).map_err(|why| self.refusal(setting, path, why));
        let client_ca = self.files.client_ca.as_deref();
        Ok(Material {
            cert: read("tls_cert", &self.files.cert)?,
            key: read("tls_key", &self.files.key)?,
            client_ca: client_ca.map(|path| read("tls_client_ca", path)).transpose()?,
        })
    }

    fn compile(&self, material: &Material) -> Result<Compiled, Refusal> {
        let (cert, key) = (&self.files.cert, &self.files.key);
        let bad_cert = |why: String| self.refusal("tls_cert", cert, why);
        let bad_key = |why: String| self.refusal("tls_key", key, why);
        let provider = Arc::new(aws_lc_rs::default_provider());

        let chain = certificates(&material.cert).map_err(bad_cert)?;
        let own = chain.first().ok_or_else(|| bad_cert("there is no certificate in it".to_owned()))?;
        let ends = valid_until(own, unix_time(self.clock.wall())).map_err(bad_cert)?;
        let der = PrivateKeyDer::from_pem_slice(&material.key)
            .map_err(|error| bad_key(format!("there is no key in it that can be read: {error}")))?;
        let pair = CertifiedKey::from_der(chain, der, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                bad_key(format!("it is not the key of the certificate in {}", cert.display()))
            }
            error => bad_key(error.to_string()),
        })?;

        let builder = ServerConfig::builder_with_details(
            provider.clone(),
            Arc::new(SystemTime::of(self.clock.clone())),
        )
        .with_safe_default_protocol_versions()
        .map_err(|error| bad_cert(error.to_string()))?;
        let builder = match self.client_verifier(material, provider)? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        // A resumed session would not show its certificate again, and connections are few and long.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Compiled { config: Arc::new(config), ends })
    }

    fn client_verifier(
        &self,
        material: &Material,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, Refusal> {
        let (Some(path), Some(pem)) = (&self.files.client_ca, &material.client_ca) else { return Ok(None) };
        let bad = |why: String| self.refusal("tls_client_ca", path, why);
        let mut roots = RootCertStore::empty();
        let mut why_not = "there is no certificate in it".to_owned();
        for authority in certificates(pem).map_err(bad)? {
            // One that has ended may stand beside its successor.
            match valid_until(&authority, unix_time(self.clock.wall())) {
                Ok(_) => roots.add(authority).map_err(|error| bad(error.to_string()))?,
                Err(why) => why_not = why,
            }
        }
        if roots.is_empty() {
            return Err(bad(why_not));
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let names = self.files.client_san.clone();
        Ok(Some(if names.is_empty() { verifier } else { Arc::new(NamedClients { verifier, names }) }))
    }

    fn refusal(&self, setting: &'static str, path: &Path, why: String) -> Refusal {
        Refusal { listener: self.listener, setting, path: path.to_owned(), why }
    }
}

/// Lets in whom the authority knows, if one of the names is right.
#[derive(Debug)]
struct NamedClients {
    verifier: Arc<dyn ClientCertVerifier>,
    names: Vec<CertificateName>,
}

impl NamedClients {
    fn knows(&self, certificate: &CertificateDer<'_>) -> Result<bool, rustls::Error> {
        let has_ip = |address| {
            let name = ServerName::IpAddress(address);
            Ok::<_, rustls::Error>(
                verify_server_name(&ParsedCertificate::try_from(certificate)?, &name).is_ok(),
            )
        };
        let shown = webpki::EndEntityCert::try_from(certificate)
            .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        for name in &self.names {
            let is_shown = match name {
                CertificateName::Dns(host) => {
                    shown.valid_dns_names().any(|name| name.eq_ignore_ascii_case(host))
                }
                CertificateName::Uri(uri) => shown.valid_uri_names().any(|name| name == uri),
                CertificateName::Ip(address) => has_ip((*address).into())?,
            };
            if is_shown {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl ClientCertVerifier for NamedClients {
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
        if self.knows(end_entity)? {
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

// The key stays out of logs.
impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}
