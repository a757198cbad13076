//! Accepts connections from other replicas.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tollgate_net::accept::Acceptor;
use tonic::{Request, Response, Status, Streaming, codegen::Service};

use crate::{
    link::{
        connection::{self, HELLO_TIMEOUT},
        dial::{SEND_BYTES_MAX, TLS_TIMEOUT, WINDOW_BYTES, report_tls_failure},
        drive::{SpawnedTasks, drive},
        frame::{FRAME_BYTES_MAX, Frame, LinksServer, LinksService},
        hub::Hub,
        outbound::{OutboundFrames, OutboundQueue},
        stats::LinkFailure,
    },
    protocol::VersionMismatch,
};

/// The most handshakes in progress.
pub(super) const HANDSHAKES_MAX: usize = 256;

/// An accepted TCP connection.
pub(super) struct IncomingConnection {
    pub(super) socket: TcpStream,
    pub(super) from: SocketAddr,
    /// Held until the TLS handshake has ended.
    pub(super) permit: OwnedSemaphorePermit,
}

/// The next connection, once fewer than [`HANDSHAKES_MAX`] handshakes are in progress. Cancel safe.
pub(super) async fn next(
    listener: &TcpListener,
    acceptor: &mut Acceptor,
    handshakes: Arc<Semaphore>,
) -> IncomingConnection {
    let permit = handshakes.acquire_owned().await.expect("the semaphore is never closed");
    let (socket, from) = acceptor.next(|| listener.accept(), || {}).await;
    IncomingConnection { socket, from, permit }
}

/// Performs the handshakes of an accepted connection, then runs its link until it closes.
pub(super) async fn accept(hub: Arc<Hub>, incoming: IncomingConnection) {
    let IncomingConnection { socket, from, permit } = incoming;
    // Fails only if the peer has closed the socket, which the next read reports.
    let _ = socket.set_nodelay(true);
    let handshake = timeout(TLS_TIMEOUT, tls_handshake(&hub, socket, from));
    let Some(result) = hub.while_open(handshake).await else { return };
    drop(permit);
    match result {
        Ok(Ok(Some(stream))) => serve(hub, stream, from).await,
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

async fn serve(hub: Arc<Hub>, stream: TlsStream<TcpStream>, from: SocketAddr) {
    let (service, outbound, frames_receiver) = link_service();
    let spawned = SpawnedTasks::default();
    let connection = http2::Builder::new(spawned.clone())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_concurrent_streams(1)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| service.clone().call(request)));
    let exchange = async {
        match timeout(HELLO_TIMEOUT, frames_receiver).await {
            Ok(Ok(frames)) => connection::run_accepted(&hub, &outbound, frames).await,
            Ok(Err(_)) | Err(_) => {
                hub.shared.local.stats.count_failure(
                    LinkFailure::Other,
                    &from,
                    &"no link was requested in time",
                );
            }
        }
    };
    drive(spawned, connection, exchange).await;
}

/// The gRPC service of one connection, the queue of what it sends, and the frames of the client once it has called.
pub(super) fn link_service()
-> (LinksServer<InboundLink>, Arc<OutboundQueue>, oneshot::Receiver<Streaming<Frame>>) {
    let (frames_sender, frames_receiver) = oneshot::channel();
    let outbound = Arc::new(OutboundQueue::default());
    let frames_sender = Arc::new(Mutex::new(Some(frames_sender)));
    let inbound = InboundLink { outbound: outbound.clone(), frames_sender };
    let service = LinksServer::new(inbound).max_decoding_message_size(FRAME_BYTES_MAX);
    (service, outbound, frames_receiver)
}

/// The gRPC service of one connection, which serves one call.
pub(super) struct InboundLink {
    outbound: Arc<OutboundQueue>,
    frames_sender: Arc<Mutex<Option<oneshot::Sender<Streaming<Frame>>>>>,
}

#[tonic::async_trait]
impl LinksService for InboundLink {
    type LinkStream = OutboundFrames;

    async fn link(&self, request: Request<Streaming<Frame>>) -> Result<Response<OutboundFrames>, Status> {
        let frames_sender = self.frames_sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let frames_sender =
            frames_sender.ok_or_else(|| Status::already_exists("a connection carries one link"))?;
        // The receiver is dropped if the connection is about to close.
        let _ = frames_sender.send(request.into_inner());
        Ok(Response::new(OutboundFrames(self.outbound.clone())))
    }
}
