//! Accepts connections from other replicas.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{net::TcpStream, sync::OwnedSemaphorePermit, time::timeout};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::{
    link::{
        connection,
        dial::{TLS_TIMEOUT, report_tls_failure},
        frame::frame_stream,
        hub::Hub,
        stats::LinkFailure,
    },
    protocol::VersionMismatch,
};

/// The most handshakes in progress.
pub(super) const HANDSHAKES_MAX: usize = 256;

/// Performs the handshakes of an accepted connection, then runs its link until it closes. Drops `permit` once the TLS
/// handshake has ended.
pub(super) async fn accept(hub: Arc<Hub>, socket: TcpStream, from: SocketAddr, permit: OwnedSemaphorePermit) {
    // Fails only if the peer has closed the socket, which the next read reports.
    let _ = socket.set_nodelay(true);
    let handshake = timeout(TLS_TIMEOUT, tls_handshake(&hub, socket, from));
    let Some(result) = hub.while_open(handshake).await else { return };
    drop(permit);
    match result {
        Ok(Ok(Some(stream))) => connection::run_accepted(&hub, frame_stream(stream), from).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            // Any process can connect, so a rejected client says nothing about this replica's own links.
            let _ = report_tls_failure(&hub, from, &error);
        }
        Err(_) => {
            hub.shared.local.stats.count_failure(LinkFailure::Slow, &from, &"the TLS handshake timed out")
        }
    }
}

/// Performs the TLS handshake; `None` if the client speaks another version, which is sent this one.
async fn tls_handshake(
    hub: &Hub,
    socket: TcpStream,
    from: SocketAddr,
) -> io::Result<Option<TlsStream<TcpStream>>> {
    let configs = hub.shared.credentials.active();
    let started = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket).await?;
    let mismatch = VersionMismatch::with_offer(started.client_hello().alpn().into_iter().flatten());
    match mismatch {
        None => started.into_stream(configs.server.clone()).await.map(Some),
        Some(mismatch) => {
            hub.shared.local.stats.count_failure(LinkFailure::Version, &from, &mismatch);
            // The client aborts this handshake as intended.
            let _ = started.into_stream(configs.other_version.clone()).await;
            Ok(None)
        }
    }
}
