//! The settings of the shared store.

use std::{path::PathBuf, time::Duration};

use redis::IntoConnectionInfo;
use tollgate_counter::printable;
use tollgate_store::OnFull;

use crate::passwords::{PasswordError, PasswordSources};

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
    /// There would be no connection.
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

#[cfg(test)]
mod tests {
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
}
