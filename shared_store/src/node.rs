//! A connection to one server, on which no more is read than was requested.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use redis::{
    Arg, AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisFuture,
    RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSub},
    cluster_async::Connect,
};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::{
    bounded_stream::{BoundedStream, ReadBudget},
    dial::dial,
    failure::within,
};

/// What may arrive without a question, in bytes.
const UNASKED_BYTES_MAX: usize = 64 * 1024;
/// The longest reply to a command that is no script, in bytes: the slots of a large cluster.
const REPLY_BYTES_MAX: usize = 1024 * 1024;
/// The most that a script returns for a key, in bytes. A counter with all its reservations has half of it.
const VALUE_BYTES_MAX: usize = 2 * 1024 * 1024;
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
            let values = VALUE_BYTES_MAX.saturating_mul(keys.unwrap_or(0));
            values.saturating_add(UNASKED_BYTES_MAX).min(SCRIPT_BYTES_MAX)
        }
        _ => REPLY_BYTES_MAX,
    }
}
