//! Authentication of members: a member presents a certificate that is signed by the cluster's authority.
//!
//! The authority is the operator's, or one that each process derives from the cluster's secret.

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

/// Time for which files must stay unchanged before they are read as complete.
const SETTLE: Duration = Duration::from_millis(50);
/// The longest interval between checks of the age of this process's certificate.
const RENEWAL_CHECK_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// The mode bit that makes a file readable for every user of the machine. Group access is allowed: Kubernetes gives a
/// volume to the group of the pod (`fsGroup`).
const WORLD_READABLE: u32 = 0o004;

/// How members are authenticated. If certificates are set, the secret is not used for it.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The operator's certificates.
    pub files: Option<Files>,
    /// A file of secrets, one per line: the first one signs, each one is trusted.
    pub secret_file: Option<PathBuf>,
    /// The interval at which the files are compared with the active ones; at least 50 ms.
    pub poll_interval: Duration,
}

/// The operator's certificates, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate of this replica with its chain to the authority, for client and server use.
    pub cert: PathBuf,
    /// The private key of `cert`.
    pub key: PathBuf,
    /// The authorities whose certificates authenticate members.
    pub ca: PathBuf,
}

/// Why credentials cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Neither certificates nor a secret are configured.
    #[error("links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca")]
    NotConfigured,
    /// Reading ended with a panic.
    #[error("cluster: reading the secret or the certificates failed: {0}")]
    Panicked(String),
    /// A file cannot be used.
    #[error("cluster.{setting}: {path}: {reason}", path = path.display())]
    File {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The TLS configurations of handshakes, replaced when files change or the own certificate is due for renewal.
pub(in crate::cluster) struct Credentials {
    trust: Trust,
    clock: Clock,
    active: ArcSwap<TlsConfigs>,
    initial: (Material, DerivedMaterial),
}

/// The TLS configurations of handshakes.
pub(in crate::cluster) struct TlsConfigs {
    pub(in crate::cluster) server: Arc<ServerConfig>,
    pub(in crate::cluster) client: Arc<ClientConfig>,
    /// For clients of another protocol version: carries this version and authenticates nothing.
    pub(in crate::cluster) other_version: Arc<ServerConfig>,
    created_at: Timestamp,
    renew_at: Timestamp,
}

/// The content of the files.
#[derive(Clone, PartialEq, Eq)]
enum Material {
    Files { cert: Vec<u8>, key: Vec<u8>, ca: Vec<u8> },
    Secrets(Secrets),
}

/// Material with the slow key derivation already done.
#[derive(Clone)]
enum DerivedMaterial {
    Files { cert: Vec<u8>, key: Vec<u8>, ca: Vec<u8> },
    Authorities(Authorities),
}

/// The certificate of this process and the authorities that it trusts.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
    renew_at: Timestamp,
}

impl Credentials {
    /// Loads the credentials from the files; any invalid file is an error.
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

    /// The configurations for the next handshake.
    pub(in crate::cluster) fn active(&self) -> Arc<TlsConfigs> {
        self.active.load_full()
    }

    /// Watches the files and renews the own certificate until it is dropped.
    pub(in crate::cluster) async fn watch(self: Arc<Self>) {
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
                // The write may be incomplete, or other files may follow.
                sleep(SETTLE).await;
                if self.clone().read().await.as_ref() != Some(&found) {
                    continue;
                }
            }
            // Rejected material is retried without logging: a certificate may only become valid later.
            let is_new = rejected.as_ref() != Some(&found);
            let Some(built) = self.clone().build(found.clone()).await else { continue };
            match built {
                Ok((configs, material, new_derived)) => {
                    self.active.store(Arc::new(configs));
                    info!("replaced the credentials of links");
                    self.trust.warn_if_exposed();
                    (loaded, derived, rejected) = (material, new_derived, None);
                }
                Err(error) if is_new => {
                    error!(%error, "kept the previous credentials of links: the new ones cannot be used");
                    rejected = Some(found);
                }
                Err(_) => {}
            }
        }
    }

    /// Whether the own certificate is old, or was issued before a system clock that was ahead was set back.
    fn needs_renewal(&self) -> bool {
        let (now, active) = (self.clock.wall(), self.active.load());
        active.renew_at <= now || now < active.created_at
    }

    /// Issues a new certificate for this process.
    fn renew(&self, derived: &DerivedMaterial) {
        match self.trust.compile(derived, &self.clock) {
            Ok(configs) => self.active.store(Arc::new(configs)),
            Err(error) => error!(%error, "kept the previous certificate: issuing a new one failed"),
        }
    }

    async fn read(self: Arc<Self>) -> Option<Result<Material, TrustError>> {
        task::spawn_blocking(move || self.trust.read()).await.ok()
    }

    /// Builds the configurations on a blocking thread, not on one that answers requests.
    async fn build(
        self: Arc<Self>,
        found: Result<Material, TrustError>,
    ) -> Option<Result<(TlsConfigs, Material, DerivedMaterial), TrustError>> {
        let build = move || {
            let material = found?;
            let derived = self.trust.derive(&material)?;
            Ok((self.trust.compile(&derived, &self.clock)?, material, derived))
        };
        task::spawn_blocking(build).await.ok()
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

    /// Derives the authorities. Blocks for long: do not call it on a thread that answers requests.
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
        let own = chain.first().ok_or_else(|| bad_cert("the file contains no certificate".to_owned()))?;
        valid_until(own, unix_time(now)).map_err(bad_cert)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| bad_key(format!("the file contains no readable key: {error}")))?;
        let mut roots = RootCertStore::empty();
        let mut invalid_reason = "the file contains no certificate".to_owned();
        for authority in certificates(ca).map_err(bad_ca)? {
            // An expired authority may be listed beside its successor.
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
                Err(bad_key(format!("the key does not match the certificate in {}", self.cert.display())))
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
        // A resumed TLS session would not present its certificate again, and connections are few and long.
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

/// The configuration for clients of another version: a self-signed certificate whose name carries this version.
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

/// Accepts a server whose certificate the authority has signed, whatever its names: members are dialled by address.
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
        // The configuration allows TLS 1.3 only.
        Err(Error::General("links between replicas do not support TLS 1.2".to_owned()))
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

/// Warns if every user of the machine can read the secret.
fn warn_if_world_readable(path: &Path) {
    // A file that has vanished is reported when it is read again.
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & WORLD_READABLE != 0 {
        let mode = format!("{:04o}", mode & 0o7777);
        warn!(path = %path.display(), mode, "cluster secret is readable for every user of this machine; set its mode to 0400 or 0440");
    }
}

fn file_error(setting: &'static str, path: &Path, reason: String) -> TrustError {
    TrustError::File { setting, path: path.to_owned(), reason }
}

// Keys must not appear in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("trust", &self.trust).finish_non_exhaustive()
    }
}
