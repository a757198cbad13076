//! Who belongs to the cluster: whoever shows a certificate that its authority has signed.
//!
//! The authority is the operator's, or one that every process with the cluster's secret derives for itself.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use tokio::{task, time::sleep};
use tracing::{error, info};

use crate::{
    certificates::{OurTime, certificates, contents, unix_time, valid_until},
    time::{Clock, Timestamp},
};

mod secret;

use secret::Secrets;

/// How long files must stay as they are before they count as written.
const SETTLE: Duration = Duration::from_millis(50);
/// How often the age of our own certificate is looked at, at most.
const LEAF_CHECK: Duration = Duration::from_secs(60);

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
    Nothing,
    /// A file is no good.
    #[error("cluster.{setting}: {path}: {why}", path = path.display())]
    File {
        /// Which setting names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// What handshakes need, replaced when files change or our certificate grows old.
pub(in crate::cluster) struct Credentials {
    trust: Trust,
    clock: Clock,
    in_force: ArcSwap<Configs>,
    at_start: Material,
}

/// What handshakes need.
pub(in crate::cluster) struct Configs {
    pub(in crate::cluster) server: Arc<ServerConfig>,
    pub(in crate::cluster) client: Arc<ClientConfig>,
    renewed_from: Timestamp,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
enum Material {
    Files { cert: Vec<u8>, key: Vec<u8>, ca: Vec<u8> },
    Secrets(Secrets),
}

/// Who we are, and whom we trust.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
    renewed_from: Timestamp,
}

impl Credentials {
    /// What the files hold now; none of it may be bad.
    pub(in crate::cluster) fn load(trust: Trust, clock: Clock) -> Result<Self, TrustError> {
        let at_start = trust.read()?;
        let in_force = ArcSwap::from_pointee(trust.compile(&at_start, &clock)?);
        Ok(Self { trust, clock, in_force, at_start })
    }

    /// What the next handshake needs.
    pub(in crate::cluster) fn in_force(&self) -> Arc<Configs> {
        self.in_force.load_full()
    }

    /// Follows the files, and renews our own certificate, for as long as it is polled.
    pub(in crate::cluster) async fn follow(self: Arc<Self>) {
        let mut taken = self.at_start.clone();
        let mut refused = None;
        loop {
            sleep(self.trust.poll_interval.clamp(SETTLE, LEAF_CHECK)).await;
            if self.in_force.load().renewed_from <= self.clock.now() {
                self.renew(&taken);
            }
            let Some(found) = self.clone().read().await else { continue };
            if found.as_ref() == Ok(&taken) {
                refused = None;
                continue;
            }
            if refused.as_ref() != Some(&found) {
                // It may be half written, or one file of several.
                sleep(SETTLE).await;
                if self.clone().read().await.as_ref() != Some(&found) {
                    continue;
                }
            }
            // What was refused is tried again without a word: a certificate may only have to wait for its day.
            let is_news = refused.as_ref() != Some(&found);
            let compiled = found
                .clone()
                .and_then(|material| Ok((self.trust.compile(&material, &self.clock)?, material)));
            match compiled {
                Ok((configs, material)) => {
                    self.in_force.store(Arc::new(configs));
                    info!("what replicas trust has changed");
                    (taken, refused) = (material, None);
                }
                Err(refusal) if is_news => {
                    error!(%refusal, "what replicas are to trust cannot be used; the old stays");
                    refused = Some(found);
                }
                Err(_) => {}
            }
        }
    }

    /// Makes another certificate of our own.
    fn renew(&self, taken: &Material) {
        match self.trust.compile(taken, &self.clock) {
            Ok(configs) => self.in_force.store(Arc::new(configs)),
            Err(refusal) => error!(%refusal, "no new certificate can be made; the old stays"),
        }
    }

    async fn read(self: Arc<Self>) -> Option<Result<Material, TrustError>> {
        task::spawn_blocking(move || self.trust.read()).await.ok()
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
        let path = self.secret_file.as_deref().ok_or(TrustError::Nothing)?;
        let text = read("secret_file", path)?;
        Secrets::parse(&text).map(Material::Secrets).map_err(|why| bad("secret_file", path, why))
    }

    fn compile(&self, material: &Material, clock: &Clock) -> Result<Configs, TrustError> {
        let now = clock.now();
        match (material, &self.files, &self.secret_file) {
            (Material::Files { cert, key, ca }, Some(files), _) => {
                let identity = files.identity(cert, key, ca, now)?;
                identity.configs(clock).map_err(|error| bad("cert", &files.cert, error.to_string()))
            }
            (Material::Secrets(secrets), _, Some(path)) => {
                let identity = secrets.identity(now).map_err(|why| bad("secret_file", path, why))?;
                identity.configs(clock).map_err(|error| bad("secret_file", path, error.to_string()))
            }
            (Material::Files { .. }, None, _) | (Material::Secrets(_), _, None) => Err(TrustError::Nothing),
        }
    }
}

impl Files {
    fn identity(&self, cert: &[u8], key: &[u8], ca: &[u8], now: Timestamp) -> Result<Identity, TrustError> {
        let bad_cert = |why: String| bad("cert", &self.cert, why);
        let bad_key = |why: String| bad("key", &self.key, why);
        let bad_ca = |why: String| bad("ca", &self.ca, why);
        let chain = certificates(cert).map_err(bad_cert)?;
        let own = chain.first().ok_or_else(|| bad_cert("there is no certificate in it".to_owned()))?;
        valid_until(own, unix_time(now)).map_err(bad_cert)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| bad_key(format!("there is no key in it that can be read: {error}")))?;
        let mut roots = RootCertStore::empty();
        let mut why_not = "there is no certificate in it".to_owned();
        for authority in certificates(ca).map_err(bad_ca)? {
            // One that has ended may stand beside its successor.
            match valid_until(&authority, unix_time(now)) {
                Ok(_) => roots.add(authority).map_err(|error| bad_ca(error.to_string()))?,
                Err(why) => why_not = why,
            }
        }
        if roots.is_empty() {
            return Err(bad_ca(why_not));
        }
        let provider = aws_lc_rs::default_provider();
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider) {
            Ok(_) => Ok(Identity { chain, key, roots, renewed_from: Timestamp::MAX }),
            Err(Error::InconsistentKeys(_)) => {
                Err(bad_key(format!("it is not the key of the certificate in {}", self.cert.display())))
            }
            Err(error) => Err(bad_key(error.to_string())),
        }
    }
}

impl Identity {
    fn configs(self, clock: &Clock) -> Result<Configs, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let time = Arc::new(OurTime::of(clock.clone()));
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
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A resumed session would not show its certificate again, and connections are few and long.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let members = Arc::new(Members { roots, provider: provider.clone() });
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(members)
            .with_client_cert_resolver(pair);
        client.alpn_protocols = vec![b"h2".to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Configs { server: Arc::new(server), client: Arc::new(client), renewed_from: self.renewed_from })
    }
}

/// Takes whoever answers for a member if the authority has signed it: members are dialled by address, so their
/// names say nothing.
#[derive(Debug)]
struct Members {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Members {
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
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
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
    contents(path).map_err(|why| bad(setting, path, why))
}

fn bad(setting: &'static str, path: &Path, why: String) -> TrustError {
    TrustError::File { setting, path: path.to_owned(), why }
}

// What is secret stays out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("trust", &self.trust).finish_non_exhaustive()
    }
}
