//! Drives one connection of a listener, from its handshake until it closes.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::debug;

use crate::server::{
    Budgets, ListenerCertificates, Phase, Services,
    acceptor::{
        limits::{Limits, WhenFull},
        protocols::Protocols,
    },
    connection::{GrpcConnection, SHUTDOWN_ACK_TIMEOUT},
    corked_io::{CorkedIo, IoHandle, PREFACE_BYTES},
    idle::{Activity, TrackedConnection},
    lifecycle::wait_for_phase,
    listen::{self, DetachedSocket, Socket},
    stats::{ConnectionPermit, ListenerStats},
    wake_filter::WakeFiltered,
};

/// Relative jitter of ages, so that connections that open together do not close together.
const JITTER: f64 = 0.2;

/// What holds for all connections of a listener.
#[derive(Debug)]
pub(in crate::server) struct ListenerTerms {
    pub(in crate::server) name: &'static str,
    pub(in crate::server) certificates: Option<Arc<ListenerCertificates>>,
    pub(in crate::server) protocols: Protocols,
    pub(in crate::server) limits: Limits,
    pub(in crate::server) budgets: Budgets,
    pub(in crate::server) stats: Arc<ListenerStats>,
    pub(in crate::server) when_full: WhenFull,
}

/// What all connections of a listener share.
pub(super) struct ConnectionContext {
    pub(super) terms: ListenerTerms,
    pub(super) service: Services,
}

impl ConnectionContext {
    /// Closes the connection that has been idle longest and takes its permit. `None` if no connection is idle.
    pub(super) async fn replace_longest_idle(&self, open: &mut JoinSet<()>) -> Option<ConnectionPermit> {
        let WhenFull::CloseIdle(connections) = &self.terms.when_full else { return None };
        if !connections.close_longest_idle() {
            return None;
        }
        self.terms.stats.closed_idle.increase();
        loop {
            let _ended = open.join_next().await?;
            if let Some(permit) = self.terms.stats.try_permit(self.terms.limits.connections) {
                return Some(permit);
            }
        }
    }

    /// Drives one connection from its first byte to its last. The permit is held until then.
    pub(super) async fn handle(
        self: Arc<Self>,
        socket: DetachedSocket,
        permit: ConnectionPermit,
        connection: Option<TrackedConnection>,
        phases: watch::Receiver<Phase>,
    ) {
        let _permit = permit;
        let Some(connection) = connection else { return self.handshake(socket, None, phases).await };
        tokio::select! {
            biased;
            () = connection.close_requested() => {}
            () = close_idle_while_stopping(&connection, phases.clone()) => {}
            () = Box::pin(self.handshake(socket, Some(connection.activity()), phases)) => {}
        }
    }

    /// Each step is a separate boxed future, so that a connection uses memory for its current step only.
    async fn handshake(
        &self,
        socket: DetachedSocket,
        activity: Option<Arc<Activity>>,
        phases: watch::Receiver<Phase>,
    ) {
        let socket = match socket.attach() {
            Ok(socket) => socket,
            Err(error) => {
                return debug!(listener = self.terms.name, %error, "cannot register a connection with its worker");
            }
        };
        match &self.terms.certificates {
            None => {
                let service = self.service.for_connection(listen::peer(&socket), None, activity);
                Box::pin(self.serve_protocol(socket, service, Alpn::Other, phases)).await;
            }
            Some(certificates) => {
                Box::pin(self.handshake_tls(certificates, socket, activity, phases)).await;
            }
        }
    }

    async fn handshake_tls(
        &self,
        certificates: &ListenerCertificates,
        socket: Socket,
        activity: Option<Arc<Activity>>,
        phases: watch::Receiver<Phase>,
    ) {
        let peer = listen::peer(&socket);
        // A variable takes memory until its scope ends, so nothing but the next step leaves this one.
        let serving = {
            let accepted = Box::pin(self.accept_tls(certificates, socket, phases.clone())).await;
            let Some(stream) = accepted else { return };
            let session = stream.get_ref().1;
            let client =
                session.peer_certificates().and_then(|chain| Some(certificates.client(chain.first()?)));
            let service = self.service.for_connection(peer, client, activity);
            let is_http2 = session.alpn_protocol() == Some(b"h2");
            let alpn = if is_http2 { Alpn::Http2 } else { Alpn::Other };
            Box::pin(self.serve_protocol(stream, service, alpn, phases))
        };
        serving.await;
    }

    /// `None` if the handshake fails or takes too long, and if the process stops before its end.
    async fn accept_tls(
        &self,
        certificates: &ListenerCertificates,
        socket: Socket,
        phases: watch::Receiver<Phase>,
    ) -> Option<TlsStream<Socket>> {
        let accepting = TlsAcceptor::from(certificates.active()).accept(socket);
        let result = tokio::select! {
            result = timeout(self.terms.limits.handshake, accepting) => result,
            // No call has begun, so nothing has to finish.
            () = wait_for_phase(phases, Phase::Stopping) => return None,
        };
        match result {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                self.terms.stats.handshakes_failed.increase();
                debug!(listener = self.terms.name, %error, "TLS handshake failed");
            }
            Err(_) => self.terms.stats.handshakes_slow.increase(),
        }
        None
    }

    pub(super) async fn serve_protocol<W>(
        &self,
        io: W,
        service: Arc<Services>,
        alpn: Alpn,
        phases: watch::Receiver<Phase>,
    ) where
        W: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io_handle = IoHandle::default();
        let Some(http1) = &self.terms.protocols.http1 else {
            let http2 = self.terms.protocols.http2;
            let connection = GrpcConnection::new(
                &http2.grpc_builder(),
                io,
                io_handle.clone(),
                service,
                http2.keepalive(),
                &self.terms.budgets,
            );
            let connection = Box::pin(connection);
            return self
                .drive(connection, |connection| connection.get_mut().shut_down(), &io_handle, phases)
                .await;
        };
        let handler = move |request: Request<Incoming>| {
            let response = service.handle(request, None);
            async { Ok::<_, Infallible>(response.await) }
        };
        let io = TokioIo::new(CorkedIo::new(io, io_handle.clone()));
        match alpn {
            Alpn::Other => {
                let connection = Box::pin(http1.serve_connection(io, service_fn(handler)));
                self.drive(connection, |c| c.graceful_shutdown(), &io_handle, phases).await;
            }
            Alpn::Http2 => {
                let connection = Box::pin(
                    self.terms.protocols.http2.http_builder().serve_connection(io, service_fn(handler)),
                );
                self.drive(connection, |c| c.graceful_shutdown(), &io_handle, phases).await;
            }
        }
    }

    /// Drives a connection until it closes, at its maximum age at the latest. `shut_down` begins a graceful shutdown.
    async fn drive<C, E>(
        &self,
        mut connection: Pin<Box<C>>,
        shut_down: impl FnOnce(Pin<&mut C>),
        io_handle: &IoHandle,
        phases: watch::Receiver<Phase>,
    ) where
        C: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let reason = pin!(self.close_reason(io_handle, phases));
        let reason = tokio::select! {
            biased;
            result = connection.as_mut() => return self.log_error(result),
            reason = WakeFiltered::new(reason) => reason,
        };
        match reason {
            CloseReason::NotStarted => return self.terms.stats.handshakes_slow.increase(),
            CloseReason::MaxAge => self.terms.stats.aged.increase(),
            // Nothing was received, so nothing has to finish.
            CloseReason::Stopping if io_handle.bytes_received() == 0 => return,
            CloseReason::Stopping => {}
        }
        shut_down(connection.as_mut());
        match timeout(self.terms.limits.grace, connection.as_mut()).await {
            Ok(result) => self.log_error(result),
            Err(_) => self.terms.stats.cut.increase(),
        }
    }

    /// Waits until the connection must close.
    async fn close_reason(&self, io_handle: &IoHandle, phases: watch::Receiver<Phase>) -> CloseReason {
        tokio::select! {
            reason = self.wait_for_age(io_handle) => reason,
            () = wait_for_phase(phases, Phase::Stopping) => CloseReason::Stopping,
        }
    }

    async fn wait_for_age(&self, io_handle: &IoHandle) -> CloseReason {
        let age = jittered(self.terms.limits.age, rand::random());
        let handshake_timeout = self.terms.limits.handshake.min(age);
        sleep(handshake_timeout).await;
        // For HTTP/1 hyper itself applies the timeout to the request head.
        let bytes_min = if self.terms.protocols.http1.is_none() { PREFACE_BYTES } else { 1 };
        if io_handle.bytes_received() < bytes_min {
            return CloseReason::NotStarted;
        }
        sleep(age.saturating_sub(handshake_timeout)).await;
        CloseReason::MaxAge
    }

    fn log_error(&self, result: Result<(), impl std::fmt::Display>) {
        if let Err(error) = result {
            debug!(listener = self.terms.name, %error, "connection closed with an error");
        }
    }
}

/// Why a connection must close.
enum CloseReason {
    /// The client sent no preface or request in time.
    NotStarted,
    /// The connection reached its maximum age.
    MaxAge,
    /// The process stops.
    Stopping,
}

/// Result of ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alpn {
    Other,
    Http2,
}

/// Closes the connection once it is idle while the process stops. HTTP/2 would wait until the client acknowledges the
/// shutdown.
async fn close_idle_while_stopping(connection: &TrackedConnection, phases: watch::Receiver<Phase>) {
    wait_for_phase(phases, Phase::Stopping).await;
    loop {
        sleep(SHUTDOWN_ACK_TIMEOUT).await;
        if connection.close_if_idle() {
            return;
        }
    }
}

/// `age` plus or minus up to a fifth, as `random` in 0..=1 selects.
pub(super) fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(1.0 - JITTER + 2.0 * JITTER * random)
}
