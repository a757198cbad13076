//! Authentication of members: a member presents a certificate that is signed by the cluster's authority.
//!
//! The authority is the operator's, or one that each process derives from the cluster's secret.

use std::{
    fmt::{self, Display},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{task, time::sleep};
use tollgate_counter::time::{Clock, Timestamp};
use tollgate_net::certificates::{BadFile, authorities, own_certificate, read_file, unix_time};
use tollgate_rules::file_watch::{
    FileComparison, FileWatch, SETTLE, WatchedFiles, fingerprint, read_blocking,
};
use tracing::{error, info, warn};

use crate::error::ClusterError;

mod identity;
mod secret;

use identity::TlsConfigs;

use secret::Secrets;

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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Files {
    /// The certificate of this replica with its chain to the authority, for client and server use.
    pub cert: PathBuf,
    /// The private key of `cert`.
    pub key: PathBuf,
    /// The authorities whose certificates authenticate members.
    pub ca: PathBuf,
}

/// What is wrong if neither certificates nor a secret are configured.
pub const TRUST_MISSING: &str =
    "links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca";

/// The TLS configurations of handshakes, replaced when files change or the own certificate is due for renewal.
pub(crate) struct Credentials {
    trust: Trust,
    clock: Clock,
    active: ArcSwap<TlsConfigs>,
    // The fingerprint of the files at the start, and what makes configurations from them.
    initial: (u128, Issue),
}

/// Makes TLS configurations: from certificates, or with a certificate that authorities of the secrets sign.
type Issue = Arc<dyn Fn(&Clock) -> Result<TlsConfigs, ClusterError> + Send + Sync>;

/// The files and their content.
#[derive(Hash)]
enum Material {
    Certificates(Files, CertificateContents),
    Secrets(PathBuf, Secrets),
}

/// The content of [`Files`].
#[derive(Hash)]
struct CertificateContents {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Credentials {
    /// Loads the credentials from the files; any invalid file is an error.
    pub(crate) async fn load(trust: Trust, clock: Clock) -> Result<Self, ClusterError> {
        let reading = trust.clone();
        let read = move || {
            let read = Material::read(&reading);
            Ok((fingerprint(&read), read?.issuer()?))
        };
        let initial = match task::spawn_blocking(read).await {
            Ok(read) => read?,
            Err(panic) => {
                let reason = format!("cluster: reading the secret or the certificates failed: {panic}");
                return Err(ClusterError(reason));
            }
        };
        let active = ArcSwap::from_pointee(initial.1(&clock)?);
        trust.warn_if_exposed();
        Ok(Self { trust, clock, active, initial })
    }

    /// The configurations for the next handshake.
    pub(crate) fn active(&self) -> Arc<TlsConfigs> {
        self.active.load_full()
    }

    /// Watches the files and renews the own certificate until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>) {
        let (fingerprint, issue) = self.initial.clone();
        let poll_interval = self.trust.poll_interval;
        let files = CredentialFiles { credentials: self, issue };
        FileWatch::with_active(files, fingerprint).run(poll_interval).await;
    }

    /// Whether the own certificate is old, or was issued before a system clock that was ahead was set back.
    fn needs_renewal(&self) -> bool {
        let now = self.clock.wall();
        let active = self.active.load();
        active.renew_at <= now || now < active.created_at
    }

    /// Issues a new certificate for this process.
    fn renew(&self, issue: &Issue) {
        match issue(&self.clock) {
            Ok(configs) => self.active.store(Arc::new(configs)),
            Err(error) => error!(%error, "kept the previous certificate: issuing a new one failed"),
        }
    }
}

/// The files of the credentials, and what makes configurations from those that are active.
struct CredentialFiles {
    credentials: Arc<Credentials>,
    issue: Issue,
}

impl WatchedFiles for CredentialFiles {
    type Contents = Result<Material, ClusterError>;
    type Error = ClusterError;
    // A certificate may not be valid yet.
    const DEPENDS_ON_TIME: bool = true;

    async fn wait(&mut self, _last: FileComparison, poll_interval: Duration) {
        sleep(poll_interval.clamp(SETTLE, RENEWAL_CHECK_INTERVAL_MAX)).await;
        if self.credentials.needs_renewal() {
            self.credentials.renew(&self.issue);
        }
    }

    async fn read(&mut self) -> Option<(Self::Contents, u128)> {
        let credentials = self.credentials.clone();
        read_blocking(move || Material::read(&credentials.trust)).await
    }

    async fn load(&mut self, contents: Self::Contents) -> Option<Result<(), ClusterError>> {
        let clock = self.credentials.clock.clone();
        let build = move || {
            let issue = contents?.issuer()?;
            Ok((issue(&clock)?, issue))
        };
        // On a blocking thread, not on one that answers requests.
        let built = task::spawn_blocking(build).await.ok()?;
        Some(built.map(|(configs, issue)| {
            self.credentials.active.store(Arc::new(configs));
            info!("replaced the credentials of links");
            self.credentials.trust.warn_if_exposed();
            self.issue = issue;
        }))
    }

    fn refused(&mut self, error: ClusterError) {
        error!(%error, "kept the previous credentials of links: the new ones cannot be used");
    }
}

impl Trust {
    /// Warns if every user of the machine can read the secret.
    fn warn_if_exposed(&self) {
        let (None, Some(path)) = (&self.files, &self.secret_file) else { return };
        // A file that has vanished is reported when it is read again.
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & WORLD_READABLE != 0 {
            let mode = format!("{:04o}", mode & 0o7777);
            warn!(path = %path.display(), mode, "cluster secret is readable for every user of this machine; set its mode to 0400 or 0440");
        }
    }
}

impl Material {
    fn read(trust: &Trust) -> Result<Self, ClusterError> {
        if let Some(files) = &trust.files {
            let cert = read("cert", &files.cert)?;
            let key = read("key", &files.key)?;
            let ca = read("ca", &files.ca)?;
            return Ok(Self::Certificates(files.clone(), CertificateContents { cert, key, ca }));
        }
        let path = trust.secret_file.as_deref().ok_or_else(|| ClusterError(TRUST_MISSING.to_owned()))?;
        let secrets = Secrets::parse(&read("secret_file", path)?);
        let secrets = secrets.map_err(|reason| file_error("secret_file", path, reason))?;
        Ok(Self::Secrets(path.to_owned(), secrets))
    }

    /// What makes TLS configurations from the material. Derives authorities from secrets, which blocks for long: do not
    /// call it on a thread that answers requests.
    fn issuer(self) -> Result<Issue, ClusterError> {
        match self {
            Self::Certificates(files, contents) => Ok(Arc::new(move |clock| files.configs(&contents, clock))),
            Self::Secrets(path, secrets) => {
                let bad = move |error: &dyn Display| file_error("secret_file", &path, error);
                let authorities = secrets.derive().map_err(|error| bad(&error))?;
                Ok(Arc::new(move |clock| authorities.configs(clock).map_err(|error| bad(&error))))
            }
        }
    }
}

impl Files {
    fn configs(&self, certificates: &CertificateContents, clock: &Clock) -> Result<TlsConfigs, ClusterError> {
        let CertificateContents { cert, key, ca } = certificates;
        let now = unix_time(clock.wall());
        let own = own_certificate(cert, key, &self.cert, now).map_err(|bad| match bad {
            BadFile::Cert(reason) => file_error("cert", &self.cert, reason),
            BadFile::Key(reason) => file_error("key", &self.key, reason),
        })?;
        let roots = authorities(ca, now).map_err(|reason| file_error("ca", &self.ca, reason))?;
        TlsConfigs::new(own.pair, roots, Timestamp::MAX, clock)
            .map_err(|error| file_error("cert", &self.cert, error))
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, ClusterError> {
    read_file(path).map_err(|reason| file_error(setting, path, reason))
}

fn file_error(setting: &'static str, path: &Path, reason: impl Display) -> ClusterError {
    ClusterError(format!("cluster.{setting}: {}: {reason}", path.display()))
}

// Keys must not appear in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("trust", &self.trust).finish_non_exhaustive()
    }
}
