//! The master of a service, which sentinels name.

use std::time::Duration;

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value, cmd,
};
use tokio_rustls::TlsConnector;

use crate::{failure::within, node::ServerConnection};

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
