//! Who belongs to the cluster: whoever shows a certificate that its authority has signed.
//!
//! The authority is the operator's, or one that every process with the cluster's secret derives for itself.

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use tokio::{task, time::sleep};
use tracing::{error, info, warn};

use crate::{
    certificates::{SystemTime, certificates, read_file, unix_time, valid_until},
    cluster::protocol::{self, VersionMismatch},
    time::{Clock, Timestamp},
};

mod secret;

use secret::{Authorities, Secrets};

/// How long files must stay as they are before they count as written.
const SETTLE: Duration = Duration::from_millis(50);
/// How often the age of our own certificate is looked at, at most.
const RENEWAL_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The bit in a file's mode that lets every user of the machine read it. The group may: Kubernetes gives a volume to
/// the group of the pod (`fsGroup`).
const WORLD_READABLE: u32 = 0o004;

/// What the cluster's trust rests on. With certificates, the secret is not used for it.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The operator's certificates.
    pub files: Option<Files>,
    /// A file of secrets, one a line: the first signs, any is trusted.
    pub secret_file: Option<PathBuf>,
    /// How often the files are compared with what is in force; at most 20 times a second.
    pub poll_interval: Duration,
}

/// The operator's certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Our own, with what leads to the authority; for clients and for servers.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities whose certificates make a member.
    pub ca: PathBuf,
}

/// Why nobody can be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Neither certificates nor a secret.
    #[error("links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca")]
    NotConfigured,
    /// Reading ended with a panic.
    #[error("cluster: reading the secret or the certificates failed: {0}")]
    Panicked(String),
    /// A file is no good.
    #[error("cluster.{setting}: {path}: {reason}", path = path.display())]
    File {
        /// Which setting names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What handshakes need, replaced when files change or our certificate grows old.
pub(in crate::cluster) struct Credentials {
    trust: Trust,
    clock: Clock,
    active: ArcSwap<TlsConfigs>,
    initial: (Material, DerivedMaterial),
}

/// What handshakes need.
pub(in crate::cluster) struct TlsConfigs {
    pub(in crate::cluster) server: Arc<ServerConfig>,
    pub(in crate::cluster) client: Arc<ClientConfig>,
    /// For a client that speaks another version: tells ours, and leads to nothing.
    pub(in crate::cluster) other_version: Arc<ServerConfig>,
    created_at: Timestamp,
    renew_at: Timestamp,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
enum Material {
    Files { cert: Vec<u8>, key: Vec<u8>, ca: Vec<u8> },
    Secrets(Secrets),
}

/// Material, with what takes long already derived.
#[derive(Clone)]
enum DerivedMaterial {
    Files { cert: Vec<u8>, key: Vec<u8>, ca: Vec<u8> },
    Authorities(Authorities),
}

/// Who we are, and whom we trust.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
    renew_at: Timestamp,
}

impl Credentials {
    /// What the files hold now; none of it may be bad.
    pub(in crate::cluster) async fn load(trust: Trust, clock: Clock) -> Result<Self, TrustError> {
        let reading = trust.clone();
        let read = move || {
            let material = reading.read()?;
            let derived = reading.derive(&material)?;
            Ok((material, derived))
        };
        let initial = match task::spawn_blocking(read).await {
            Ok(read) => read?,
            Err(panic) => return Err(TrustError::Panicked(panic.to_string())),
        };
        let active = ArcSwap::from_pointee(trust.compile(&initial.1, &clock)?);
        trust.warn_if_exposed();
        Ok(Self { trust, clock, active, initial })
    }

    /// What the next handshake needs.
    pub(in crate::cluster) fn active(&self) -> Arc<TlsConfigs> {
        self.active.load_full()
    }

    /// Follows the files, and renews our own certificate, for as long as it is polled.
    pub(in crate::cluster) async fn follow(self: Arc<Self>) {
        let (mut loaded, mut derived) = self.initial.clone();
        let mut rejected = None;
        loop {
            sleep(self.trust.poll_interval.clamp(SETTLE, RENEWAL_CHECK_INTERVAL_MAX)).await;
            if self.needs_renewal() {
                self.renew(&derived);
            }
            let Some(found) = self.clone().read().await else { continue };
            if found.as_ref() == Ok(&loaded) {
                rejected = None;
                continue;
            }
            if rejected.as_ref() != Some(&found) {
                // It may be half written, or one file of several.
                sleep(SETTLE).await;
                if self.clone().read().await.as_ref() != Some(&found) {
                    continue;
                }
            }
            // What was rejected is tried again without a word: a certificate may only have to wait for its day.
            let is_news = rejected.as_ref() != Some(&found);
            let Some(made) = self.clone().make(found.clone()).await else { continue };
            match made {
                Ok((configs, material, new_derived)) => {
                    self.active.store(Arc::new(configs));
                    info!("what replicas trust has changed");
                    self.trust.warn_if_exposed();
                    (loaded, derived, rejected) = (material, new_derived, None);
                }
                Err(error) if is_news => {
                    error!(%error, "what replicas are to trust cannot be used; the old stays");
                    rejected = Some(found);
                }
                Err(_) => {}
            }
        }
    }

    /// Whether our certificate grows old, or is dated ahead: issued before a system clock that was ahead was put right.
    fn needs_renewal(&self) -> bool {
        let (now, active) = (self.clock.wall(), self.active.load());
        active.renew_at <= now || now < active.created_at
    }

    /// Makes another certificate of our own.
    fn renew(&self, derived: &DerivedMaterial) {
        match self.trust.compile(derived, &self.clock) {
            Ok(configs) => self.active.store(Arc::new(configs)),
            Err(error) => error!(%error, "no new certificate can be made; the old stays"),
        }
    }

    async fn read(self: Arc<Self>) -> Option<Result<Material, TrustError>> {
        task::spawn_blocking(move || self.trust.read()).await.ok()
    }

    /// What handshakes need by what was found, beside the threads that answer calls.
    async fn make(
        self: Arc<Self>,
        found: Result<Material, TrustError>,
    ) -> Option<Result<(TlsConfigs, Material, DerivedMaterial), TrustError>> {
        let make = move || {
            let material = found?;
            let derived = self.trust.derive(&material)?;
            Ok((self.trust.compile(&derived, &self.clock)?, material, derived))
        };
        task::spawn_blocking(make).await.ok()
    }
}

impl Trust {
    fn read(&self) -> Result<Material, TrustError> {
        if let Some(Files { cert, key, ca }) = &self.files {
            return Ok(Material::Files {
                cert: read("cert", cert)?,
                key: read("key", key)?,
                ca: read("ca", ca)?,
            });
        }
        let path = self.secret_file.as_deref().ok_or(TrustError::NotConfigured)?;
        let text = read("secret_file", path)?;
        Secrets::parse(&text).map(Material::Secrets).map_err(|reason| file_error("secret_file", path, reason))
    }

    fn warn_if_exposed(&self) {
        if let (None, Some(path)) = (&self.files, &self.secret_file) {
            warn_if_world_readable(path);
        }
    }

    /// Derives what takes long. Blocks: not for a thread that answers calls.
    fn derive(&self, material: &Material) -> Result<DerivedMaterial, TrustError> {
        match material {
            Material::Files { cert, key, ca } => {
                Ok(DerivedMaterial::Files { cert: cert.clone(), key: key.clone(), ca: ca.clone() })
            }
            Material::Secrets(secrets) => {
                let path = self.secret_file.as_deref().ok_or(TrustError::NotConfigured)?;
                secrets
                    .derive()
                    .map(DerivedMaterial::Authorities)
                    .map_err(|reason| file_error("secret_file", path, reason))
            }
        }
    }

    fn compile(&self, derived: &DerivedMaterial, clock: &Clock) -> Result<TlsConfigs, TrustError> {
        let now = clock.wall();
        match (derived, &self.files, &self.secret_file) {
            (DerivedMaterial::Files { cert, key, ca }, Some(files), _) => {
                let identity = files.identity(cert, key, ca, now)?;
                identity.configs(clock).map_err(|error| file_error("cert", &files.cert, error.to_string()))
            }
            (DerivedMaterial::Authorities(authorities), _, Some(path)) => {
                let identity =
                    authorities.identity(now).map_err(|reason| file_error("secret_file", path, reason))?;
                identity.configs(clock).map_err(|error| file_error("secret_file", path, error.to_string()))
            }
            (DerivedMaterial::Files { .. }, None, _) | (DerivedMaterial::Authorities(_), _, None) => {
                Err(TrustError::NotConfigured)
            }
        }
    }
}

impl Files {
    fn identity(&self, cert: &[u8], key: &[u8], ca: &[u8], now: Timestamp) -> Result<Identity, TrustError> {
        let bad_cert = |reason: String| file_error("cert", &self.cert, reason);
        let bad_key = |reason: String| file_error("key", &self.key, reason);
        let bad_ca = |reason: String| file_error("ca", &self.ca, reason);
        let chain = certificates(cert).map_err(bad_cert)?;
        let own = chain.first().ok_or_else(|| bad_cert("there is no certificate in it".to_owned()))?;
        valid_until(own, unix_time(now)).map_err(bad_cert)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| bad_key(format!("there is no key in it that can be read: {error}")))?;
        let mut roots = RootCertStore::empty();
        let mut invalid_reason = "there is no certificate in it".to_owned();
        for authority in certificates(ca).map_err(bad_ca)? {
            // One that has ended may stand beside its successor.
            match valid_until(&authority, unix_time(now)) {
                Ok(_) => roots.add(authority).map_err(|error| bad_ca(error.to_string()))?,
                Err(reason) => invalid_reason = reason,
            }
        }
        if roots.is_empty() {
            return Err(bad_ca(invalid_reason));
        }
        let provider = aws_lc_rs::default_provider();
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider) {
            Ok(_) => Ok(Identity { chain, key, roots, renew_at: Timestamp::MAX }),
            Err(Error::InconsistentKeys(_)) => {
                Err(bad_key(format!("it is not the key of the certificate in {}", self.cert.display())))
            }
            Err(error) => Err(bad_key(error.to_string())),
        }
    }
}

impl Identity {
    fn configs(self, clock: &Clock) -> Result<TlsConfigs, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let time = Arc::new(SystemTime::of(clock.clone()));
        let roots = Arc::new(self.roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let pair = CertifiedKey::from_der(self.chain, self.key, &provider)?;
        let pair = Arc::new(SingleCertAndKey::from(pair));

        let mut server = ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(pair.clone());
        server.alpn_protocols = vec![protocol::alpn()];
        // A resumed session would not show its certificate again, and connections are few and long.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let other_version = other_version(&provider, &time)?;
        let verifier = Arc::new(MemberVerifier { roots, provider: provider.clone() });
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(pair);
        client.alpn_protocols = vec![protocol::alpn()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(TlsConfigs {
            server: Arc::new(server),
            client: Arc::new(client),
            other_version: Arc::new(other_version),
            created_at: clock.wall(),
            renew_at: self.renew_at,
        })
    }
}

/// What a client that speaks another version is answered with: a certificate of no authority, whose name tells ours.
fn other_version(provider: &Arc<CryptoProvider>, time: &Arc<SystemTime>) -> Result<ServerConfig, Error> {
    let failed = |error: rcgen::Error| Error::General(error.to_string());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let params = CertificateParams::new(vec![protocol::certificate_name()]).map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_details(provider.clone(), time.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
}

/// Takes whoever answers for a member if the authority has signed it: members are dialled by address, so their
/// names say nothing.
#[derive(Debug)]
struct MemberVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
        {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => Err(match protocol::version_in_certificate(end_entity) {
                Some(version) => VersionMismatch::with(version).into(),
                None => error,
            }),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Only TLS 1.3 is spoken.
        Err(Error::General("TLS 1.2 is not spoken between replicas".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, TrustError> {
    read_file(path).map_err(|reason| file_error(setting, path, reason))
}

/// Warns of a secret that every user of the machine can read.
fn warn_if_world_readable(path: &Path) {
    // A file that is gone by now is told of when it is read again.
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & WORLD_READABLE != 0 {
        let mode = format!("{:04o}", mode & 0o7777);
        warn!(path = %path.display(), mode, "every user of this machine can read the cluster's secret; make it 0400 or 0440");
    }
}

fn file_error(setting: &'static str, path: &Path, reason: String) -> TrustError {
    TrustError::File { setting, path: path.to_owned(), reason }
}

// What is secret stays out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("trust", &self.trust).finish_non_exhaustive()
    }
}
