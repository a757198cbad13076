//! Takes connections from other replicas.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::server::Acceptor;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, oneshot},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use tonic::{Request, Response, Status, Streaming, codegen::Service};

use crate::cluster::{
    link::{
        dial::{SEND_BYTES_MAX, TLS_WITHIN, WINDOW_BYTES, refuse},
        drive::{Chores, drive},
        figures::Refused,
        hub::Hub,
        pipe::{Outgoing, Pipe},
        talk::{self, HELLO_WITHIN},
        wire::{FRAME_BYTES_MAX, Frame, LinksServer, LinksService},
    },
    protocol::Mismatch,
};

/// How many connections may be on their way to becoming links.
pub(super) const GREETED_MAX: usize = 256;

/// A connection that has come.
pub(super) struct Arrival {
    pub(super) socket: TcpStream,
    pub(super) from: SocketAddr,
    /// Held until TLS has told who it is.
    pub(super) permit: OwnedSemaphorePermit,
}

/// Greets who has come, and carries what becomes of it to its end.
pub(super) async fn accept(hub: Arc<Hub>, arrival: Arrival) {
    let Arrival { socket, from, permit } = arrival;
    // It fails only where the other side is gone already, which reading will tell.
    socket.set_nodelay(true).ok();
    let greeting = timeout(TLS_WITHIN, greet(&hub, socket, from));
    let Some(greeted) = hub.while_open(greeting).await else { return };
    drop(permit);
    match greeted {
        Ok(Ok(Some(stream))) => speak(hub, stream, from).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            // A client may be any stranger, so what it is refused for says nothing of this replica's own links.
            let _ = refuse(&hub, from, &error);
        }
        Err(_) => hub.shared.counts.refuse(Refused::Slow, &from, &"TLS has taken too long"),
    }
}

/// Agrees on TLS; `None` with a client that speaks another version, which is told ours.
async fn greet(hub: &Hub, socket: TcpStream, from: SocketAddr) -> io::Result<Option<TlsStream<TcpStream>>> {
    let configs = hub.shared.credentials.in_force();
    let started = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
    let mismatch = Mismatch::with_offer(started.client_hello().alpn().into_iter().flatten());
    match mismatch {
        None => started.into_stream(configs.server.clone()).await.map(Some),
        Some(mismatch) => {
            hub.shared.counts.refuse(Refused::Version, &from, &mismatch);
            // Such a client breaks off, as it should.
            let _ = started.into_stream(configs.other_version.clone()).await;
            Ok(None)
        }
    }
}

async fn speak(hub: Arc<Hub>, stream: TlsStream<TcpStream>, from: SocketAddr) {
    let (hand_over, taken) = oneshot::channel();
    let pipe = Arc::new(Pipe::default());
    let hand_over = Arc::new(Mutex::new(Some(hand_over)));
    let caller = Caller { hub: hub.clone(), pipe: pipe.clone(), hand_over };
    let service = LinksServer::new(caller).max_decoding_message_size(FRAME_BYTES_MAX);
    let chores = Chores::default();
    let connection = http2::Builder::new(chores.clone())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_concurrent_streams(1)
        .serve_connection(TokioIo::new(stream), service_fn(move |request| service.clone().call(request)));
    let talk = async {
        match timeout(HELLO_WITHIN, taken).await {
            Ok(Ok(frames)) => talk::accepted(&hub, &pipe, frames).await,
            Ok(Err(_)) | Err(_) => {
                hub.shared.counts.refuse(Refused::Other, &from, &"no link was asked for");
            }
        }
    };
    drive(chores, connection, talk).await;
}

/// Who asks for a link over a connection, once.
struct Caller {
    hub: Arc<Hub>,
    pipe: Arc<Pipe>,
    hand_over: Arc<Mutex<Option<oneshot::Sender<Streaming<Frame>>>>>,
}

#[tonic::async_trait]
impl LinksService for Caller {
    type LinkStream = Outgoing;

    async fn link(&self, request: Request<Streaming<Frame>>) -> Result<Response<Outgoing>, Status> {
        let hand_over = self.hand_over.lock().unwrap_or_else(PoisonError::into_inner).take();
        let hand_over = hand_over.ok_or_else(|| Status::already_exists("a connection carries one link"))?;
        // Nobody takes it when the connection is about to end.
        hand_over.send(request.into_inner()).ok();
        Ok(Response::new(Outgoing { pipe: self.pipe.clone(), hub: self.hub.clone() }))
    }
}
