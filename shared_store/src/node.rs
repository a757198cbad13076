//! A connection to one server, with or without TLS, on which no more is read than was requested: the parser of the client
//! keeps a reply in memory whatever its length.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::select_ok};
use redis::{
    Arg, AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    Pipeline, RedisError, RedisFuture, RedisResult, TlsCertificates, Value,
    aio::{AsyncStream, ConnectionLike, MultiplexedConnection, PubSub},
    cluster_async::Connect,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;
use tollgate_counter::lock::lock;

use crate::failure::within;

/// What may arrive without a question, in bytes.
const UNASKED_BYTES_MAX: usize = 64 * 1024;
/// The longest reply to a command that is no script, in bytes: the slots of a large cluster.
const REPLY_BYTES_MAX: usize = 1024 * 1024;
/// The longest value of another program that is read, in bytes.
pub(super) const STORED_VALUE_BYTES_MAX: usize = 4 * 1024;
/// The most that a script returns for a key, in bytes. A counter with all its reservations has half of it.
const VALUE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The most that a script without keys returns, in bytes: the limits of their own of a thousand counters.
const LIST_BYTES_MAX: usize = 24 * 1024 * 1024;
/// The most that a script returns, in bytes.
const SCRIPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most that arrives on a channel until the receiver has read a message, in bytes.
const MESSAGES_BYTES_MAX: usize = 1024 * 1024;
/// The longest time until a connection to a server of a cluster is open. The client does not tell its own.
const CLUSTER_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection to one server. Clones share it.
#[derive(Clone)]
pub(super) struct ServerConnection {
    connection: MultiplexedConnection,
    budget: Arc<ReadBudget>,
    /// The task that reads and writes. It ends with the last clone.
    _driver: Arc<JoinSet<()>>,
}

impl ServerConnection {
    /// Connects and logs in. `tls` are the certificates, if the address demands TLS.
    pub(super) async fn open(
        info: &ConnectionInfo,
        tls: Option<&TlsConnector>,
        config: AsyncConnectionConfig,
    ) -> RedisResult<Self> {
        let budget = Arc::new(ReadBudget::new(UNASKED_BYTES_MAX));
        let mut tasks = JoinSet::new();
        let connection = match dial(info.addr(), tls).await? {
            Some(stream) => {
                let stream = BoundedStream { stream, budget: budget.clone() };
                let login = info.redis_settings();
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(login, stream, config).await?;
                tasks.spawn(driver);
                connection
            }
            None => {
                let client = Client::open(info.clone())?;
                client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        Ok(Self { connection, budget, _driver: Arc::new(tasks) })
    }
}

impl ConnectionLike for ServerConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        async move {
            let _expected = self.budget.expect(reply_bytes_max(cmd));
            self.connection.req_packed_command(cmd).await
        }
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            let _expected = self.budget.expect(REPLY_BYTES_MAX);
            self.connection.req_packed_commands(pipeline, offset, count).await
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for ServerConnection {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        async move {
            // The client does not tell the certificates of the cluster, so it opens connections with TLS itself.
            let info = info.into_connection_info()?;
            within(CLUSTER_CONNECT_TIMEOUT, Self::open(&info, None, config)).await
        }
        .boxed()
    }
}

/// A connection that receives announcements.
pub(super) struct Subscription {
    messages: PubSub,
    budget: Arc<ReadBudget>,
}

impl Subscription {
    /// Connects, logs in and subscribes.
    pub(super) async fn open(
        info: &ConnectionInfo,
        tls: Option<&TlsConnector>,
        channel: &[u8],
    ) -> RedisResult<Self> {
        let budget = Arc::new(ReadBudget::new(MESSAGES_BYTES_MAX));
        let mut messages = match dial(info.addr(), tls).await? {
            Some(stream) => {
                let stream = BoundedStream { stream, budget: budget.clone() };
                PubSub::new(info.redis_settings(), stream).await?
            }
            None => Client::open(info.clone())?.get_async_pubsub().await?,
        };
        messages.subscribe(channel).await?;
        Ok(Self { messages, budget })
    }

    /// The payload of the next message; `None` once the connection is closed.
    pub(super) async fn next(&mut self) -> Option<Vec<u8>> {
        let message = self.messages.on_message().next().await?;
        self.budget.renew();
        Some(message.get_payload_bytes().to_vec())
    }
}

/// The most bytes of the reply to a command.
fn reply_bytes_max(cmd: &Cmd) -> usize {
    let mut args = cmd.args_iter().map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        _ => &[],
    });
    match args.next() {
        Some(b"EVAL" | b"EVALSHA") => {
            let keys = args.nth(1).and_then(|keys| std::str::from_utf8(keys).ok()?.parse().ok());
            let values = match keys.unwrap_or(0) {
                0 => LIST_BYTES_MAX,
                keys => VALUE_BYTES_MAX.saturating_mul(keys),
            };
            values.saturating_add(UNASKED_BYTES_MAX).min(SCRIPT_BYTES_MAX)
        }
        // With the cost of lines, also of those in it.
        Some(b"GETRANGE") => (STORED_VALUE_BYTES_MAX + 1) * (1 + LINE_COST),
        _ => REPLY_BYTES_MAX,
    }
}

/// What a line of a reply costs in addition to its bytes: about the memory of the value that it may be.
const LINE_COST: usize = 64;

/// A stream that fails as soon as more is read than the budget allows.
pub(super) struct BoundedStream<S> {
    pub(super) stream: S,
    pub(super) budget: Arc<ReadBudget>,
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.budget.spend(&buf.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What may still be read.
#[derive(Debug)]
pub(super) struct ReadBudget {
    /// What may be read while no command waits for its reply.
    unasked: usize,
    state: Mutex<ReadBudgetState>,
}

#[derive(Debug)]
struct ReadBudgetState {
    left: usize,
    /// The commands that wait for their replies.
    waiting: usize,
}

/// A command that waits for its reply.
pub(super) struct Expected<'b>(&'b ReadBudget);

impl ReadBudget {
    pub(super) fn new(unasked: usize) -> Self {
        Self { unasked, state: Mutex::new(ReadBudgetState { left: unasked, waiting: 0 }) }
    }

    /// Allows a reply.
    pub(super) fn expect(&self, bytes: usize) -> Expected<'_> {
        let mut state = lock(&self.state);
        state.left = state.left.saturating_add(bytes);
        state.waiting += 1;
        Expected(self)
    }

    /// Allows as much as at first.
    pub(super) fn renew(&self) {
        lock(&self.state).left = self.unasked;
    }

    /// Spends what was read. An error if it is more than is left.
    fn spend(&self, read: &[u8]) -> io::Result<()> {
        let lines = read.iter().filter(|byte| **byte == b'\n').count();
        let mut state = lock(&self.state);
        match state.left.checked_sub(read.len() + lines * LINE_COST) {
            Some(left) => {
                state.left = left;
                Ok(())
            }
            None => {
                state.left = 0;
                // The client replaces an aborted connection, and fails the commands that wait.
                Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the server sent more than was asked for",
                ))
            }
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.waiting -= 1;
        if state.waiting == 0 {
            state.left = self.0.unasked;
        }
    }
}

/// Connects to a server. `None` if the address demands TLS and there is no `tls`.
pub(super) async fn dial(
    addr: &ConnectionAddr,
    tls: Option<&TlsConnector>,
) -> RedisResult<Option<Pin<Box<dyn AsyncStream + Send + Sync>>>> {
    match (addr, tls) {
        (ConnectionAddr::Tcp(host, port), _) => Ok(Some(Box::pin(connect(host, *port).await?))),
        (ConnectionAddr::TcpTls { host, port, .. }, Some(tls)) => {
            let name =
                ServerName::try_from(host.clone()).map_err(|error| invalid("not a host name", &error))?;
            let stream = connect(host, *port).await?;
            Ok(Some(Box::pin(tls.connect(name, stream).await?)))
        }
        _ => Ok(None),
    }
}

/// Connects to the first address of a host that accepts.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name of the server has no address"));
    }
    let attempts = addresses.into_iter().map(|address| TcpStream::connect(address).boxed());
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects with these certificates, or with those that the system trusts.
pub(super) fn tls_connector(certificates: Option<&TlsCertificates>) -> RedisResult<TlsConnector> {
    let authorities = certificates.and_then(|certificates| certificates.root_cert.as_ref());
    let authorities = match authorities {
        Some(pem) => read_certificates(pem)?,
        None => {
            let mut found = rustls_native_certs::load_native_certs();
            if let Some(error) = found.errors.pop() {
                return Err(invalid("cannot read the certificates of the system", &error));
            }
            found.certs
        }
    };
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|error| invalid("a certificate of an authority is invalid", &error))?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match certificates.and_then(|certificates| certificates.client_tls.as_ref()) {
        Some(client) => {
            let chain = read_certificates(&client.client_cert)?;
            let key = PrivateKeyDer::from_pem_slice(&client.client_key);
            let key = key.map_err(|error| invalid("the key of the client is invalid", &error))?;
            let config = config.with_client_auth_cert(chain, key);
            config.map_err(|error| invalid("the certificate of the client is invalid", &error))?
        }
        None => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn read_certificates(pem: &[u8]) -> RedisResult<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|error| invalid("a certificate file is invalid", &error))
}

fn invalid(what: &'static str, error: &impl ToString) -> RedisError {
    RedisError::from((ErrorKind::InvalidClientConfig, what, error.to_string()))
}
