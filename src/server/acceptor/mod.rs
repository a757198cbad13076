//! Accepts connections, does the TLS handshake and drives each connection until it closes.
//!
//! A client can only harm its own connection: each handshake runs in a task of its connection, and everything is
//! bounded in number or time. When a bound is reached, the connection is closed and counted.

use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::http::Request;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tollgate_net::accept;
use tracing::{debug, warn};

use crate::{
    server::{
        budgets::Budgets,
        connection::{GrpcConnection, Keepalive, SHUTDOWN_ACK_TIMEOUT, WINDOW_BYTES},
        corked_io::{CorkedIo, IoHandle, PREFACE_BYTES},
        idle::{Activity, ConnectionTracker},
        lifecycle::Phase,
        lifecycle::wait_for_phase,
        listen::{self, BoundListener, DetachedSocket, Listener, Socket},
        services::Services,
        stats::{ConnectionPermit, ListenerStats},
        tls::ListenerCertificates,
        wake_filter::WakeFiltered,
        workers::WorkerHandles,
    },
    settings,
};

/// Relative jitter of ages, so that connections that open together do not close together.
const JITTER: f64 = 0.2;
/// Average maximum age of an HTTP connection. The current request is still answered.
const HTTP_MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// Maximum size of all headers of a request over HTTP, in bytes.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Maximum size of all headers of a gRPC call, in bytes: more than the 60 KiB that Envoy accepts of its clients, whose
/// `tracestate` it passes on. Envoy lets a request pass whose call is refused.
const CALL_HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Maximum size of the send buffer of a stream, in bytes.
const SEND_BUFFER_BYTES_MAX: usize = 400 * 1024;
/// HTTP/2 charges an unread small DATA frame with at most this many bytes. Each call may have two of them.
const SMALL_FRAME_BYTES: usize = 256;
/// Maximum number of streams that the server resets for client errors before it closes the connection.
const RESETS_FOR_ERRORS_MAX: usize = 1024;
/// Maximum number of concurrent requests on an HTTP/2 connection of the HTTP listeners, and time to wait for a ping
/// reply.
const HTTP_STREAMS_MAX: u32 = 16;
const HTTP_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control window of HTTP/2 connections of the HTTP listeners, in bytes.
const HTTP_WINDOW_BYTES: u32 = 64 * 1024;
/// Minimum time between two keepalive pings.
const KEEPALIVE_MIN: Duration = Duration::from_millis(10);

/// A listener and the terms of its connections.
#[derive(Debug)]
pub(super) struct ListenerAcceptor<L> {
    pub(super) listener: L,
    pub(super) terms: ListenerTerms,
}

impl ListenerAcceptor<BoundListener> {
    /// Takes connections from here on.
    pub(super) fn listen(self) -> io::Result<ListenerAcceptor<Listener>> {
        Ok(ListenerAcceptor { listener: self.listener.listen()?, terms: self.terms })
    }
}

impl ListenerAcceptor<Listener> {
    /// Serves connections with `service` until the process stops, then waits for open connections to finish.
    /// Connections run on `workers`.
    pub(super) async fn serve(
        self,
        service: Services,
        workers: WorkerHandles,
        phases: watch::Receiver<Phase>,
    ) {
        let Self { listener, terms } = self;
        let name = terms.name;
        let limits = terms.limits;
        let context = Arc::new(ConnectionContext { terms, service });
        let mut open = JoinSet::new();
        let mut acceptor = accept::Acceptor::new(name);
        let mut is_full = false;
        let accept = || async { listener.accept().await.and_then(listen::detach) };
        let mut stopping = pin!(wait_for_phase(phases.clone(), Phase::Stopping));
        loop {
            let socket = tokio::select! {
                () = &mut stopping => break,
                Some(_) = open.join_next() => continue,
                socket = acceptor.next(accept, || context.terms.stats.accept_errors.increase()) => socket,
            };
            context.terms.stats.accepted.increase();
            let available = context.terms.stats.try_permit(limits.connections);
            if let Some(permit) = &available {
                // A tenth of the permits must be free before the listener counts as not full, so that the log stays
                // short.
                is_full &= permit.number > limits.connections - limits.connections / 10;
            } else {
                if !is_full {
                    let max_connections = limits.connections;
                    let closing = if context.terms.idle.is_some() { "longest idle" } else { "new" };
                    warn!(listener = name, max_connections, closing, "listener is full, closing connections");
                }
                is_full = true;
            }
            let permit = match available {
                Some(permit) => Some(permit),
                None => context.replace_longest_idle(&mut open).await,
            };
            if let Some(permit) = permit {
                let connection = context.terms.idle.as_ref().map(|connections| connections.track());
                let task = context.clone().handle(socket, permit, connection, phases.clone());
                workers.spawn(&mut open, task);
            } else {
                context.terms.stats.refused_full.increase();
            }
        }
        // New connections are refused from here on.
        drop(listener);
        while open.join_next().await.is_some() {}
    }
}

/// What holds for all connections of a listener.
#[derive(Debug)]
pub(super) struct ListenerTerms {
    pub(super) name: &'static str,
    pub(super) certificates: Option<Arc<ListenerCertificates>>,
    pub(super) protocols: Protocols,
    pub(super) limits: Limits,
    pub(super) budgets: Budgets,
    pub(super) stats: Arc<ListenerStats>,
    /// Tells the connection that has been idle longest, which is closed for a new one if the maximum number is open: a
    /// probe cannot use another replica. `None`: the new one is closed, whose client can.
    pub(super) idle: Option<Arc<ConnectionTracker>>,
}

/// What all connections of a listener share.
struct ConnectionContext {
    terms: ListenerTerms,
    service: Services,
}

impl ConnectionContext {
    /// Closes the connection that has been idle longest and takes its permit. `None` if no connection is idle.
    async fn replace_longest_idle(&self, open: &mut JoinSet<()>) -> Option<ConnectionPermit> {
        if !self.terms.idle.as_ref()?.close_longest_idle() {
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
    async fn handle(
        self: Arc<Self>,
        socket: DetachedSocket,
        permit: ConnectionPermit,
        connection: Option<Arc<Activity>>,
        phases: watch::Receiver<Phase>,
    ) {
        let _permit = permit;
        let Some(connection) = connection else { return self.handshake(socket, None, phases).await };
        tokio::select! {
            biased;
            () = connection.close_requested() => {}
            () = close_idle_while_stopping(&connection, phases.clone()) => {}
            () = Box::pin(self.handshake(socket, Some(connection.clone()), phases)) => {}
        }
    }

    /// Each step is a separate boxed future, so that a connection uses memory for its current step only.
    async fn handshake(
        &self,
        socket: DetachedSocket,
        activity: Option<Arc<Activity>>,
        phases: watch::Receiver<Phase>,
    ) {
        let socket = match listen::attach(socket) {
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

    async fn serve_protocol<W>(
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
            let protocols = &self.terms.protocols;
            let connection = GrpcConnection::new(
                &protocols.grpc_builder(),
                io,
                io_handle.clone(),
                service,
                protocols.keepalive,
                &self.terms.budgets,
            );
            let connection = Box::pin(connection);
            return self
                .drive(connection, |connection| connection.get_mut().shut_down(), &io_handle, phases)
                .await;
        };
        let handler = move |request: Request<Incoming>| {
            let response = service.handle(request);
            async { Ok::<_, Infallible>(response.await) }
        };
        let io = TokioIo::new(CorkedIo::new(io, io_handle.clone()));
        match alpn {
            Alpn::Other => {
                let connection = Box::pin(http1.serve_connection(io, service_fn(handler)));
                self.drive(connection, |c| c.graceful_shutdown(), &io_handle, phases).await;
            }
            Alpn::Http2 => {
                let connection =
                    Box::pin(self.terms.protocols.http2_builder().serve_connection(io, service_fn(handler)));
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
enum Alpn {
    Other,
    Http2,
}

/// Closes the connection once it is idle while the process stops. HTTP/2 would wait until the client acknowledges the
/// shutdown.
async fn close_idle_while_stopping(connection: &Activity, phases: watch::Receiver<Phase>) {
    wait_for_phase(phases, Phase::Stopping).await;
    loop {
        sleep(SHUTDOWN_ACK_TIMEOUT).await;
        if connection.close_if_idle() {
            return;
        }
    }
}

/// `age` plus or minus up to a fifth, as `random` in 0..=1 selects.
fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(1.0 - JITTER + 2.0 * JITTER * random)
}

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of open connections.
    connections: u64,
    /// Time for the TLS handshake, and then for the first bytes.
    handshake: Duration,
    /// Average maximum age of a connection.
    age: Duration,
    /// Time for open calls to finish after a graceful shutdown has begun.
    grace: Duration,
}

impl Limits {
    pub(super) fn grpc(settings: &settings::Grpc) -> Self {
        Self {
            connections: settings.max_connections as u64,
            handshake: settings.handshake_timeout,
            age: settings.max_connection_age,
            grace: settings.max_connection_age_grace,
        }
    }

    pub(super) fn http(max_connections: usize, header_timeout: Duration) -> Self {
        let connections = max_connections as u64;
        Self { connections, handshake: header_timeout, age: HTTP_MAX_AGE, grace: HTTP_MAX_AGE }
    }
}

/// The protocols of a listener.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    // Used unless ALPN selects HTTP/2. `None`: the listener speaks HTTP/2 only.
    http1: Option<http1::Builder>,
    // Those of HTTP/2.
    max_concurrent_streams: u32,
    keepalive: Keepalive,
}

impl Protocols {
    /// HTTP/2 only.
    pub(super) fn grpc(settings: &settings::Grpc) -> Self {
        Self {
            http1: None,
            max_concurrent_streams: settings.max_concurrent_streams,
            keepalive: keepalive(settings.keepalive_interval, settings.keepalive_timeout),
        }
    }

    /// HTTP/1.1, or HTTP/2 if ALPN selects it.
    pub(super) fn http(settings: &settings::Http) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_header_size(HEADER_BYTES_MAX as usize)
            // This also bounds how much of a body is read ahead.
            .max_buf_size(HEADER_BYTES_MAX as usize);
        Self {
            http1: Some(http1),
            max_concurrent_streams: HTTP_STREAMS_MAX,
            keepalive: keepalive(settings.header_timeout, HTTP_KEEPALIVE_TIMEOUT),
        }
    }

    /// ALPN protocol names, in order of preference.
    pub(super) fn names(&self) -> &'static [&'static [u8]] {
        match self.http1 {
            None => &[b"h2"],
            Some(_) => &[b"h2", b"http/1.1"],
        }
    }

    /// HTTP/2 for gRPC connections.
    fn grpc_builder(&self) -> h2::server::Builder {
        let mut http2 = h2::server::Builder::new();
        http2
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_header_list_size(CALL_HEADER_BYTES_MAX)
            .data_frame_budget(2 * SMALL_FRAME_BYTES * self.streams())
            // A client that resets all its calls at once causes no more work than one that waits for the replies.
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(Some(RESETS_FOR_ERRORS_MAX));
        http2
    }

    fn streams(&self) -> usize {
        usize::try_from(self.max_concurrent_streams).unwrap_or(usize::MAX)
    }

    /// HTTP/2 for connections of the HTTP listeners.
    fn http2_builder(&self) -> http2::Builder<TokioExecutor> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_concurrent_streams)
            .initial_stream_window_size(HTTP_WINDOW_BYTES)
            .initial_connection_window_size(HTTP_WINDOW_BYTES)
            .keep_alive_interval(self.keepalive.interval)
            .keep_alive_timeout(self.keepalive.timeout)
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX);
        http2
    }
}

fn keepalive(interval: Duration, timeout: Duration) -> Keepalive {
    Keepalive { interval: interval.max(KEEPALIVE_MIN), timeout }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
