//! Connections to the store: to one server, to the master that sentinels name, or to a cluster.
//!
//! A link keeps one of them: it opens the connection, replaces it when it breaks, and tells callers at once if it cannot.

use std::{path::PathBuf, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    TlsCertificates, Value,
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
    cmd,
};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsConnector;
use tollgate_counter::{files, resilience::Backoff};
use tracing::{info, warn};

use crate::{
    failure::within,
    node::{ServerConnection, Subscription, tls_connector},
    settings::{Passwords, SharedStoreSettings, StoreMode},
};

/// How often the client of a cluster follows a redirection, or tries a node again, for one command.
const CLUSTER_RETRIES: u32 = 3;
/// The largest file of certificates, in bytes. A bundle of every public authority has a third of it.
const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;

/// The server of a cluster that receives a command; `None` for that of its keys.
pub(super) type CommandReceiver = Option<SingleNodeRoutingInfo>;

/// A connection to the store. Clones share it.
#[derive(Clone)]
pub(super) enum StoreConnection {
    /// A connection to one server.
    Server(ServerConnection),
    /// Connections to all masters of a cluster.
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
                        require_master(&mut node).await?;
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
        to: &CommandReceiver,
        (hash, source): (&str, &str),
        call: impl Fn(&str, &str) -> Cmd,
    ) -> RedisResult<Value> {
        match self.send(to, call("EVALSHA", hash)).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(to, call("EVAL", source)).await
            }
            other => other,
        }
    }

    /// Sends a command.
    pub(super) async fn send(&mut self, to: &CommandReceiver, cmd: Cmd) -> RedisResult<Value> {
        match (self, to) {
            (Self::Server(connection), _) => cmd.query_async(connection).await,
            (Self::Cluster(connection), None) => cmd.query_async(connection).await,
            (Self::Cluster(connection), Some(node)) => {
                let to = RoutingInfo::SingleNode(node.clone());
                connection.route_command(cmd, to).await?.extract_error()
            }
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
    let login = login(settings.sentinel_username.as_ref(), passwords.sentinel.as_ref());
    let sentinels: Vec<_> = infos.into_iter().map(|info| info.set_redis_settings(login.clone())).collect();
    Ok(first.set_addr(master(&sentinels, service, tls, settings.timeout).await?))
}

/// The addresses of the servers with user and password.
fn infos(settings: &SharedStoreSettings, passwords: &Passwords) -> RedisResult<Vec<ConnectionInfo>> {
    let login = login(settings.username.as_ref(), passwords.server.as_ref());
    let info = |url: &String| {
        let info = url.as_str().into_connection_info()?;
        let login = login.clone().set_db(info.redis_settings().db());
        Ok(info.set_redis_settings(login))
    };
    settings.urls.iter().map(info).collect()
}

fn login(username: Option<&String>, password: Option<&String>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
    if let Some(username) = username {
        login = login.set_username(username);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
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

/// The address of the master, of the first sentinel that names one. Each has so much time.
pub(super) async fn master(
    sentinels: &[ConnectionInfo],
    service: &str,
    tls: Option<&TlsConnector>,
    timeout: Duration,
) -> RedisResult<ConnectionAddr> {
    let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "no sentinel is configured"));
    for sentinel in sentinels {
        match within(timeout, named_by(sentinel, service, tls)).await {
            Ok((host, port)) if tls.is_some() => {
                return Ok(ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None });
            }
            Ok((host, port)) => return Ok(ConnectionAddr::Tcp(host, port)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn named_by(
    sentinel: &ConnectionInfo,
    service: &str,
    tls: Option<&TlsConnector>,
) -> RedisResult<(String, u16)> {
    let mut node = ServerConnection::open(sentinel, tls, AsyncConnectionConfig::new()).await?;
    let mut question = cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let named: Option<(String, u16)> = question.query_async(&mut node).await?;
    named.ok_or_else(|| {
        let detail = format!("{service:?}");
        RedisError::from((ErrorKind::InvalidClientConfig, "a sentinel knows no such service", detail))
    })
}

/// An error if the server is no master: sentinels may name one that has just been replaced.
pub(super) async fn require_master(node: &mut ServerConnection) -> RedisResult<()> {
    let role: RedisResult<Vec<Value>> = cmd("ROLE").query_async(node).await;
    match role {
        Ok(role) if matches!(role.first(), Some(Value::BulkString(role)) if role == b"master") => Ok(()),
        Ok(_) => Err(RedisError::from((ErrorKind::Io, "the server that the sentinels name is no master"))),
        // The user may have no right to ask. A replica refuses what is written to it.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The delays between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// One connection and its state.
#[derive(Clone)]
pub(super) struct Link {
    state: watch::Sender<LinkState>,
    broken: Arc<Notify>,
}

/// The state of a link.
#[derive(Clone)]
enum LinkState {
    /// The connection is being opened; callers may wait for it.
    Opening,
    /// The connection, and its number.
    Open(StoreConnection, u64),
    /// The last attempt to connect failed; callers do not wait.
    Closed(Arc<str>),
}

impl Link {
    pub(super) fn new() -> Self {
        Self { state: watch::Sender::new(LinkState::Opening), broken: Arc::default() }
    }

    /// The connection, after at most `wait` if it is being opened.
    pub(super) async fn connection(&self, wait: Duration) -> Option<(StoreConnection, u64)> {
        let mut state = self.state.subscribe();
        let settled = async {
            let settled = state.wait_for(|state| !matches!(state, LinkState::Opening)).await;
            match settled.as_deref() {
                Ok(LinkState::Open(connection, number)) => Some((connection.clone(), *number)),
                Ok(LinkState::Opening | LinkState::Closed(_)) | Err(_) => None,
            }
        };
        tokio::time::timeout(wait, settled).await.ok().flatten()
    }

    /// Whether the last attempt to connect failed.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), LinkState::Closed(_))
    }

    /// Why there is no connection; `None` if there is one.
    pub(super) fn problem(&self) -> Option<Arc<str>> {
        match &*self.state.borrow() {
            LinkState::Open(..) => None,
            LinkState::Opening => Some("connecting".into()),
            LinkState::Closed(reason) => Some(reason.clone()),
        }
    }

    /// Reports that the connection with this number is of no more use.
    pub(super) fn report_broken(&self, number: u64) {
        let replaced = self.state.send_if_modified(|state| match state {
            LinkState::Open(_, open) if *open == number => {
                *state = LinkState::Opening;
                true
            }
            LinkState::Open(..) | LinkState::Opening | LinkState::Closed(_) => false,
        });
        if replaced {
            self.broken.notify_one();
        }
    }

    /// Keeps the link open. `greet` tries a new connection before others use it.
    pub(super) async fn run<G, F>(
        self,
        settings: &SharedStoreSettings,
        mut passwords: watch::Receiver<Passwords>,
        greet: G,
    ) where
        G: Fn(StoreConnection) -> F,
        F: Future<Output = RedisResult<()>>,
    {
        let mut backoff = BACKOFF;
        let mut number = 0;
        loop {
            let login = passwords.borrow_and_update().clone();
            let opened = async {
                let connection = StoreConnection::open(settings, &login).await?;
                greet(connection.clone()).await?;
                Ok(connection)
            };
            // Opening takes several round trips.
            match within(settings.timeout * 4, opened).await {
                Ok(connection) => {
                    number += 1;
                    backoff.reset();
                    let before = self.state.send_replace(LinkState::Open(connection, number));
                    if matches!(before, LinkState::Closed(_)) {
                        info!("connected to the shared store");
                    }
                    tokio::select! {
                        () = self.broken.notified() => {}
                        changed = passwords.changed() => {
                            if changed.is_err() {
                                self.broken.notified().await;
                            }
                        }
                    }
                }
                Err(error) => {
                    self.close(&error.to_string());
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next_delay(rand::random())) => {}
                        Ok(()) = passwords.changed() => {}
                    }
                }
            }
        }
    }

    /// Keeps the connection that works if new passwords do not.
    fn close(&self, reason: &str) {
        self.state.send_if_modified(|state| match state {
            LinkState::Open(..) => {
                warn!(
                    reason,
                    "cannot connect to the shared store with the new password; kept the old connection"
                );
                false
            }
            LinkState::Closed(known) if **known == *reason => false,
            LinkState::Opening | LinkState::Closed(_) => {
                warn!(reason, "cannot connect to the shared store");
                *state = LinkState::Closed(reason.into());
                true
            }
        });
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link(..)")
    }
}
