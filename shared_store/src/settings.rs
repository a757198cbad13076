//! The settings of the shared store, and its passwords: from settings, or from files that are watched.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use redis::IntoConnectionInfo;
use tokio::sync::watch;
use tollgate_counter::{files, printable};
use tollgate_rules::file_watch::{FileWatch, WatchedFiles, fingerprint, read_blocking};
use tollgate_store::OnFull;
use tracing::{error, info};

/// How to reach the store, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStoreSettings {
    /// The servers, or the sentinels, as `redis://HOST:PORT` or `rediss://HOST:PORT`.
    pub urls: Vec<String>,
    /// What the servers are.
    pub mode: StoreMode,
    /// The user of the server's access control list; `None` for the default user.
    pub username: Option<String>,
    /// The user of the sentinels' access control list; `None` for the default user.
    pub sentinel_username: Option<String>,
    /// Certificates, if the servers' certificates are not issued by an authority that the system trusts, or the servers
    /// require a certificate of their clients.
    pub tls: StoreTlsFiles,
    /// The passwords.
    pub passwords: PasswordSources,
    /// Whether the replica is not ready while the store cannot be used.
    pub unready_without_store: bool,
    /// The connections to each server.
    pub connections: usize,
    /// The longest time that a call waits for the store.
    pub timeout: Duration,
    /// The first part of every key.
    pub prefix: String,
    /// The memory for known values, and for what is admitted while the store cannot be used.
    pub memory_limit: u64,
    /// Whether keys without memory pass while the store cannot be used.
    pub on_full: OnFull,
}

/// What the servers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// One server.
    Standalone,
    /// Sentinels, which name the master of a service.
    Sentinel {
        /// The name of the service.
        service: String,
    },
    /// A cluster.
    Cluster,
}

/// The certificate files for connections to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTlsFiles {
    /// The authorities that issue the servers' certificates.
    pub ca: Option<PathBuf>,
    /// The certificate and the key to show to the servers.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why a store cannot be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server is named.
    #[error("no URL of a server is given")]
    NoUrl,
    /// A URL is invalid. It is named without its user and password.
    #[error(
        "{0:?} is not redis://HOST:PORT or rediss://HOST:PORT; user and password have settings of their own"
    )]
    Url(String),
    /// Some URLs use TLS, and others do not.
    #[error("either all URLs are rediss://, or none is")]
    MixedTls,
    /// The prefix of keys is invalid.
    #[error("{0:?} is not a prefix of keys: 1 to 64 visible ASCII characters, without {{ }} * ? [ ] and \\")]
    Prefix(String),
    /// The number of connections is 0.
    #[error("at least one connection is needed")]
    NoConnection,
    /// A password cannot be read.
    #[error(transparent)]
    Password(#[from] PasswordError),
}

impl SharedStoreSettings {
    /// The settings of a program that uses one server and no password, as the service has them by default.
    pub fn new<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            urls: urls.into_iter().map(U::into).collect(),
            mode: StoreMode::Standalone,
            username: None,
            sentinel_username: None,
            tls: StoreTlsFiles::default(),
            passwords: PasswordSources { server: None, sentinel: None, poll_interval: POLL_INTERVAL },
            unready_without_store: false,
            connections: 1,
            timeout: Duration::from_millis(500),
            prefix: "tollgate:".to_owned(),
            memory_limit: MEMORY_LIMIT,
            on_full: OnFull::Deny,
        }
    }

    /// Whether a store can be connected to with these settings.
    pub fn validate(&self) -> Result<(), ConnectError> {
        if self.urls.is_empty() {
            return Err(ConnectError::NoUrl);
        }
        if let Some(url) = self.urls.iter().find(|url| !is_url(url)) {
            return Err(ConnectError::Url(printable::without_login(url)));
        }
        if self.is_tls() && self.urls.iter().any(|url| url.starts_with("redis:")) {
            return Err(ConnectError::MixedTls);
        }
        if self.connections == 0 {
            return Err(ConnectError::NoConnection);
        }
        if !is_prefix(&self.prefix) {
            return Err(ConnectError::Prefix(self.prefix.clone()));
        }
        Ok(())
    }

    /// Whether connections use TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.urls.iter().any(|url| url.starts_with("rediss:"))
    }
}

/// The interval between comparisons of the password files with the passwords in use.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// The memory for known values and local shares, in bytes.
const MEMORY_LIMIT: u64 = 256 << 20;
/// The longest prefix of keys.
const PREFIX_BYTES_MAX: usize = 64;

/// Whether a text is the address of a server: `redis://HOST:PORT` or `rediss://HOST:PORT`, without a password.
pub fn is_url(text: &str) -> bool {
    let is_scheme = text.starts_with("redis://") || text.starts_with("rediss://");
    // User, password and everything else have settings of their own.
    is_scheme && !text.contains(['@', '?', '#']) && text.into_connection_info().is_ok()
}

/// Whether a text can be the first part of all keys. Braces would select hash slots.
pub fn is_prefix(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"{}*?[]\\".contains(&byte);
    (1..=PREFIX_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The most bytes of a file with a password.
const BYTES_MAX: u64 = 64 * 1024;

/// The passwords of the store.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Passwords {
    /// The password of the servers.
    pub server: Option<String>,
    /// The password of the sentinels.
    pub sentinel: Option<String>,
}

/// Where the passwords of the store come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordSources {
    /// The source of the servers' password.
    pub server: Option<PasswordSource>,
    /// The source of the sentinels' password.
    pub sentinel: Option<PasswordSource>,
    /// The interval between comparisons of the files with the passwords in use.
    pub poll_interval: Duration,
}

/// Where a password comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordSource {
    /// The first line of a file, which is read again when it changes.
    File(PathBuf),
    /// The password itself, which is never displayed.
    Text(String),
}

/// Why a password cannot be read. The setting is named by the caller.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}", path = path.display())]
pub struct PasswordError {
    path: PathBuf,
    reason: String,
}

impl PasswordSources {
    /// Reads the passwords.
    pub fn read(&self) -> Result<Passwords, PasswordError> {
        let read = |source: &Option<PasswordSource>| source.as_ref().map(PasswordSource::read).transpose();
        Ok(Passwords { server: read(&self.server)?, sentinel: read(&self.sentinel)? })
    }

    /// Sends changed passwords until the receivers are gone.
    pub async fn watch(self, passwords: watch::Sender<Passwords>) {
        let active = fingerprint(&Ok::<_, String>(passwords.borrow().clone()));
        let (poll_interval, files) =
            (self.poll_interval, SentPasswords { sources: self, passwords: passwords.clone() });
        tokio::select! {
            () = passwords.closed() => {}
            () = FileWatch::with_active(files, active).run(poll_interval) => {}
        }
    }
}

impl PasswordSource {
    fn read(&self) -> Result<String, PasswordError> {
        match self {
            Self::File(path) => read_password(path),
            Self::Text(password) => Ok(password.clone()),
        }
    }
}

/// Shows no password.
impl std::fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}

/// The sources of the passwords, and the passwords in use.
struct SentPasswords {
    sources: PasswordSources,
    passwords: watch::Sender<Passwords>,
}

impl WatchedFiles for SentPasswords {
    type Contents = Result<Passwords, String>;
    type Error = String;

    async fn read(&mut self) -> Option<(Self::Contents, u128)> {
        let sources = self.sources.clone();
        read_blocking(move || sources.read().map_err(|error| error.to_string())).await
    }

    async fn load(&mut self, contents: Self::Contents) -> Option<Result<(), String>> {
        Some(contents.map(|changed| {
            self.passwords.send_replace(changed);
            info!("read new passwords of the shared store");
        }))
    }

    fn refused(&mut self, error: String) {
        error!(error, "kept the previous passwords of the shared store");
    }
}

/// The content of a file without the end of its line.
fn read_password(path: &Path) -> Result<String, PasswordError> {
    let failed = |reason: String| PasswordError { path: path.to_owned(), reason };
    let bytes = files::read(path, BYTES_MAX).map_err(|error: io::Error| failed(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("not UTF-8".to_owned()))?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() { Err(failed("no password in it".to_owned())) } else { Ok(password.to_owned()) }
}

/// Shows no password.
impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passwords(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn url_has_host_and_port_and_no_password() {
        for url in ["redis://redis", "redis://redis:6380", "rediss://10.0.0.7:6379", "redis://[::1]:1"] {
            assert!(is_url(url), "{url}");
        }
        for url in ["", "redis", "http://redis", "redis://", "redis://:secret@redis", "redis://redis?db=1"] {
            assert!(!is_url(url), "{url}");
        }
    }

    #[test]
    fn prefix_selects_no_hash_slot_and_no_pattern() {
        assert!(is_prefix("tollgate:") && is_prefix("a"));
        for prefix in ["", "{a}", "a b", "a*", &"a".repeat(65)] {
            assert!(!is_prefix(prefix), "{prefix}");
        }
    }

    fn of_file(path: PathBuf) -> PasswordSources {
        let server = Some(PasswordSource::File(path));
        PasswordSources { server, sentinel: None, poll_interval: Duration::from_millis(60) }
    }

    #[test]
    fn given_password_is_read_and_never_shown() {
        let given = PasswordSources {
            server: Some(PasswordSource::Text("secret".to_owned())),
            sentinel: Some(PasswordSource::File("/run/password".into())),
            poll_interval: Duration::ZERO,
        };
        let shown = format!("{given:?}");
        assert!(shown.contains("Text(..)") && shown.contains("/run/password"), "{shown}");
        assert_eq!(given.server.unwrap().read().unwrap(), "secret");
    }

    #[test]
    fn password_is_the_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, " a b\r\n").unwrap();
        assert_eq!(of_file(path.clone()).read().unwrap().server.unwrap(), " a b");
        fs::write(&path, "\n").unwrap();
        let error = of_file(path.clone()).read().unwrap_err().to_string();
        assert!(error.ends_with("password: no password in it"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(of_file(path).read().is_err());
    }

    // While time is paused, it passes only when no read is under way.
    #[tokio::test(start_paused = true)]
    async fn changed_password_is_sent_and_unusable_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "one").unwrap();
        let sources = of_file(path.clone());
        let (sender, mut received) = watch::channel(sources.read().unwrap());
        let watching = tokio::spawn(sources.watch(sender));
        fs::write(&path, "").unwrap();
        // Several polls.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!received.has_changed().unwrap());
        fs::write(&path, "two").unwrap();
        received.changed().await.unwrap();
        assert_eq!(received.borrow_and_update().server.as_deref(), Some("two"));
        watching.abort();
    }
}
