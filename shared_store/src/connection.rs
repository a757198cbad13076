//! Connections to the store: to one server, to the master that sentinels name, or to a cluster.

use std::{path::PathBuf, time::Duration};

use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, TlsCertificates, Value,
    cluster::ClusterClientBuilder, cluster_async::ClusterConnection,
};
use tokio_rustls::TlsConnector;
use tollgate_counter::files;

use crate::{
    dial::tls_connector,
    failure::within,
    node::{ServerConnection, Subscription},
    passwords::Passwords,
    sentinel,
    settings::{SharedStoreSettings, StoreMode},
};

/// How often the client of a cluster follows a redirection, or tries a node again, for one command.
const CLUSTER_RETRIES: u32 = 3;
/// The largest file of certificates, in bytes. A bundle of every public authority has a third of it.
const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;

/// A connection to the store. Clones share it.
#[derive(Clone)]
pub(super) enum StoreConnection {
    /// To one server.
    Server(ServerConnection),
    /// To all masters of a cluster.
    Cluster(ClusterConnection<ServerConnection>),
}

impl StoreConnection {
    /// Connects and logs in.
    pub(super) async fn open(settings: &SharedStoreSettings, passwords: &Passwords) -> RedisResult<Self> {
        let SharedStoreSettings { timeout, .. } = settings;
        match &settings.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(*timeout))
                    .set_response_timeout(Some(*timeout));
                let tls = tls(settings)?;
                let server = server(settings, passwords, tls.as_ref()).await?;
                let opened = async {
                    let mut node = ServerConnection::open(&server, tls.as_ref(), config).await?;
                    if let StoreMode::Sentinel { .. } = settings.mode {
                        sentinel::require_master(&mut node).await?;
                    }
                    Ok(node)
                };
                Ok(Self::Server(within(*timeout, opened).await?))
            }
            StoreMode::Cluster => {
                // User, password and TLS of the nodes apply to the whole cluster.
                let mut builder = ClusterClientBuilder::new(infos(settings, passwords)?)
                    .retries(CLUSTER_RETRIES)
                    .min_retry_wait(millis(*timeout / 20))
                    .max_retry_wait(millis(*timeout / 4))
                    .connection_timeout(*timeout)
                    .response_timeout(*timeout)
                    .overall_response_timeout(Some(*timeout));
                if settings.is_tls()
                    && let Some(certificates) = certificates(settings)?
                {
                    builder = builder.certs(certificates);
                }
                Ok(Self::Cluster(builder.build()?.get_async_generic_connection().await?))
            }
        }
    }

    /// A connection that receives announcements.
    pub(super) async fn subscribe(
        settings: &SharedStoreSettings,
        passwords: &Passwords,
        channel: &[u8],
    ) -> RedisResult<Subscription> {
        let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "no server is configured"));
        let tls = tls(settings)?;
        let servers = match settings.mode {
            StoreMode::Standalone | StoreMode::Sentinel { .. } => {
                vec![server(settings, passwords, tls.as_ref()).await?]
            }
            // Every node of a cluster passes announcements on.
            StoreMode::Cluster => infos(settings, passwords)?,
        };
        for server in servers {
            let opened = Subscription::open(&server, tls.as_ref(), channel);
            match within(settings.timeout, opened).await {
                Ok(subscription) => return Ok(subscription),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Calls a script by its hash, or by its source if the server does not know it yet. `call` makes the command of its
    /// name and the script.
    pub(super) async fn call(
        &mut self,
        (hash, source): (&str, &str),
        call: impl Fn(&str, &str) -> Cmd,
    ) -> RedisResult<Value> {
        match self.send(&call("EVALSHA", hash)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(&call("EVAL", source)).await
            }
            other => other,
        }
    }

    async fn send(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(connection) => cmd.query_async(connection).await,
            Self::Cluster(connection) => cmd.query_async(connection).await,
        }
    }
}

/// The only server, or the master that the sentinels name.
async fn server(
    settings: &SharedStoreSettings,
    passwords: &Passwords,
    tls: Option<&TlsConnector>,
) -> RedisResult<ConnectionInfo> {
    let infos = infos(settings, passwords)?;
    let first = infos.first().cloned().ok_or((ErrorKind::InvalidClientConfig, "no server is configured"))?;
    let StoreMode::Sentinel { service } = &settings.mode else { return Ok(first) };
    let mut login = login();
    if let Some(username) = &settings.sentinel_username {
        login = login.set_username(username);
    }
    if let Some(password) = &passwords.sentinel {
        login = login.set_password(password);
    }
    let sentinels: Vec<_> = infos.into_iter().map(|info| info.set_redis_settings(login.clone())).collect();
    Ok(first.set_addr(sentinel::master(&sentinels, service, tls, settings.timeout).await?))
}

/// The addresses of the servers with user and password.
fn infos(settings: &SharedStoreSettings, passwords: &Passwords) -> RedisResult<Vec<ConnectionInfo>> {
    let mut login = login();
    if let Some(username) = &settings.username {
        login = login.set_username(username);
    }
    if let Some(password) = &passwords.server {
        login = login.set_password(password);
    }
    let info = |url: &String| {
        let info = url.as_str().into_connection_info()?;
        let login = login.clone().set_db(info.redis_settings().db());
        Ok(info.set_redis_settings(login))
    };
    settings.urls.iter().map(info).collect()
}

fn login() -> RedisConnectionInfo {
    RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2)
}

/// What connects to a server with TLS, if the settings demand it.
fn tls(settings: &SharedStoreSettings) -> RedisResult<Option<TlsConnector>> {
    settings.is_tls().then(|| tls_connector(certificates(settings)?.as_ref())).transpose()
}

/// The certificates in the files that the settings name. They are read at every connection, so new ones count.
fn certificates(settings: &SharedStoreSettings) -> RedisResult<Option<TlsCertificates>> {
    let read = |path: &PathBuf| {
        files::read(path, CERTIFICATES_BYTES_MAX).map_err(|error| {
            let detail = format!("{}: {error}", path.display());
            RedisError::from((ErrorKind::InvalidClientConfig, "cannot read a certificate file", detail))
        })
    };
    let root_cert = settings.tls.ca.as_ref().map(read).transpose()?;
    let client_tls = match &settings.tls.client {
        Some((cert, key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
        None => None,
    };
    let is_given = root_cert.is_some() || client_tls.is_some();
    Ok(is_given.then_some(TlsCertificates { client_tls, root_cert }))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
