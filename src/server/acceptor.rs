//! Accepts connections, greets them, and sees each of them out.
//!
//! Whatever a client does costs its own connection and nobody else's: greeting happens in a task of each
//! connection, everything is bounded in number or time, and at a bound the connection is closed and counted.

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
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::{
    server::{
        Budgets, Certificates, Listener, Phase, Services,
        connection::{Connection, Keepalive, SHUTDOWN_ACK_TIMEOUT, WINDOW_BYTES},
        corked_io::{CorkedIo, IoHandle, PREFACE_BYTES},
        idle::{Activity, ConnectionTracker, TrackedConnection},
        lifecycle::wait_for_phase,
        listen::{DetachedSocket, Socket},
        stats::{ConnectionPermit, ListenerStats, increment},
        wake_filter::WakeFiltered,
        workers::WorkerHandles,
    },
    settings,
};

/// How long to wait before accepting again where the system could not.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The max bytes of all headers of a request.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// How many bytes of one stream may be on their way from us.
const SEND_BUFFER_BYTES_MAX: usize = 400 * 1024;
/// What HTTP/2 counts at max for a small DATA frame that has not been read, so that each call may have two of them.
const SMALL_FRAME_BYTES: usize = 256;
/// How many streams we may have reset for a client's mistakes, before its connection is closed.
const RESETS_FOR_ERRORS_MAX: usize = 1024;
/// How long HTTP connections last, give or take a fifth, and then their last request.
const HTTP_MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// The max requests at a time on one HTTP/2 connection, and how long one may take to answer a ping.
const HTTP_STREAMS_MAX: u32 = 16;
const HTTP_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many bytes of bodies may be on their way to us on one HTTP/2 connection that is not gRPC's.
const HTTP_WINDOW_BYTES: u32 = 64 * 1024;
/// The least time between two keepalive pings.
const KEEPALIVE_MIN: Duration = Duration::from_millis(10);
/// By which part ages differ, so that connections made together do not end together.
const JITTER: f64 = 0.2;

/// A listener and how those who come are met.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) name: &'static str,
    pub(super) listener: Listener,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) protocols: Protocols,
    pub(super) limits: Limits,
    pub(super) budgets: Budgets,
    pub(super) stats: Arc<ListenerStats>,
    pub(super) when_full: WhenFull,
}

/// What makes room when as many connections as allowed are open and another one comes.
#[derive(Clone, Debug)]
pub(super) enum WhenFull {
    /// The new connection is closed, so that its client goes to another replica.
    CloseNew,
    /// The connection that has been idle for longest is closed: probes have nowhere else to go.
    CloseIdle(Arc<ConnectionTracker>),
}

/// What is spoken behind a door.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    // Spoken unless the handshake has alpn on HTTP/2; without it everybody speaks HTTP/2.
    http1: Option<http1::Builder>,
    http2: Http2,
}

/// How HTTP/2 is spoken.
#[derive(Clone, Copy, Debug)]
struct Http2 {
    max_concurrent_streams: u32,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
}

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many at a time.
    connections: u64,
    /// How long TLS may take, and then the first bytes.
    handshake: Duration,
    /// How long a connection may last, on average.
    age: Duration,
    /// How long what is then open may still take.
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

impl Protocols {
    /// HTTP/2 only.
    pub(super) fn grpc(settings: &settings::Grpc) -> Self {
        let http2 = Http2 {
            max_concurrent_streams: settings.max_concurrent_streams,
            keepalive_interval: settings.keepalive_interval,
            keepalive_timeout: settings.keepalive_timeout,
        };
        Self { http1: None, http2 }
    }

    /// HTTP/1.1, or HTTP/2 where a TLS handshake agrees on it.
    pub(super) fn http(settings: &settings::Http) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(settings.header_timeout)
            .max_header_size(HEADER_BYTES_MAX as usize)
            // What is read ahead of a body, too.
            .max_buf_size(HEADER_BYTES_MAX as usize);
        let http2 = Http2 {
            max_concurrent_streams: HTTP_STREAMS_MAX,
            keepalive_interval: settings.header_timeout,
            keepalive_timeout: HTTP_KEEPALIVE_TIMEOUT,
        };
        Self { http1: Some(http1), http2 }
    }

    /// Their names in a TLS handshake, the best first.
    pub(super) fn names(&self) -> &'static [&'static [u8]] {
        match self.http1 {
            None => &[b"h2"],
            Some(_) => &[b"h2", b"http/1.1"],
        }
    }
}

impl Http2 {
    /// As those serve_protocol it who ask over gRPC.
    fn grpc_builder(&self) -> h2::server::Builder {
        let mut http2 = h2::server::Builder::new();
        http2
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buffer_size(SEND_BUFFER_BYTES_MAX)
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_header_list_size(HEADER_BYTES_MAX)
            .data_frame_budget(2 * SMALL_FRAME_BYTES * self.streams())
            // A client that takes back all its calls at once does no more than one that lets them be answered.
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(Some(RESETS_FOR_ERRORS_MAX));
        http2
    }

    fn streams(&self) -> usize {
        usize::try_from(self.max_concurrent_streams).unwrap_or(usize::MAX)
    }

    fn keepalive(&self) -> Keepalive {
        Keepalive { interval: self.keepalive_interval.max(KEEPALIVE_MIN), timeout: self.keepalive_timeout }
    }

    /// As everybody else speaks it.
    fn http_builder(&self) -> http2::Builder<TokioExecutor> {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_concurrent_streams)
            .initial_stream_window_size(HTTP_WINDOW_BYTES)
            .initial_connection_window_size(HTTP_WINDOW_BYTES)
            .keep_alive_interval(self.keepalive_interval.max(KEEPALIVE_MIN))
            .keep_alive_timeout(self.keepalive_timeout)
            .max_header_list_size(HEADER_BYTES_MAX)
            .max_pending_accept_reset_streams(self.streams())
            .max_local_error_reset_streams(RESETS_FOR_ERRORS_MAX);
        http2
    }
}

impl Acceptor {
    /// Lets `service` answer all who come, until the process stops; then finishes what has come. `workers` look after
    /// the connections.
    pub(super) async fn serve(
        self,
        service: Services,
        workers: WorkerHandles,
        phases: watch::Receiver<Phase>,
    ) {
        let Self { name, listener, certificates, protocols, limits, budgets, stats, when_full } = self;
        let context =
            ConnectionContext { name, certificates, protocols, limits, budgets, stats, when_full, service };
        let context = Arc::new(context);
        let mut open = JoinSet::new();
        let (mut is_full, mut is_failing) = (false, false);
        let mut stopping = pin!(wait_for_phase(phases.clone(), Phase::Stopping));
        loop {
            let accepted = tokio::select! {
                () = &mut stopping => break,
                Some(_) = open.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted.and_then(Socket::detach) {
                Ok(socket) => {
                    is_failing = false;
                    increment(&context.stats.accepted);
                    let free = context.stats.try_permit(limits.connections);
                    if let Some(permit) = &free {
                        // A tenth has to be free before it counts as not full, so that the log stays short.
                        is_full &= limits.connections - limits.connections / 10 < permit.number();
                    } else {
                        if !is_full {
                            let (max, closes) = (limits.connections, context.when_full.closes());
                            warn!(listener = name, most = max, closing = closes, "full; closes connections");
                        }
                        is_full = true;
                    }
                    let permit = match free {
                        Some(permit) => Some(permit),
                        None => context.replace_longest_idle(&mut open).await,
                    };
                    if let Some(permit) = permit {
                        let connection = context.when_full.open();
                        let task = context.clone().handle(socket, permit, connection, phases.clone());
                        workers.spawn(&mut open, task);
                    } else {
                        increment(&context.stats.refused_full);
                    }
                }
                Err(error) if is_connection_error(&error) => debug!(listener = name, %error, "gone already"),
                Err(error) => {
                    increment(&context.stats.accept_errors);
                    if !is_failing {
                        warn!(listener = name, %error, "cannot accept connections");
                    }
                    is_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // From here on nobody can connect.
        drop(listener);
        while open.join_next().await.is_some() {}
    }
}

impl WhenFull {
    /// Which connections are closed.
    fn closes(&self) -> &'static str {
        match self {
            Self::CloseNew => "new",
            Self::CloseIdle(_) => "longest idle",
        }
    }

    /// The place of a new connection among those that may be closed.
    fn open(&self) -> Option<TrackedConnection> {
        match self {
            Self::CloseNew => None,
            Self::CloseIdle(connections) => Some(connections.track()),
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What all connections of a door share.
struct ConnectionContext {
    name: &'static str,
    certificates: Option<Arc<Certificates>>,
    protocols: Protocols,
    limits: Limits,
    budgets: Budgets,
    stats: Arc<ListenerStats>,
    when_full: WhenFull,
    service: Services,
}

/// Why a connection is to end.
enum CloseReason {
    /// Nothing has come in time.
    NotStarted,
    /// It has lasted long enough.
    MaxAge,
    /// The process leaves.
    Stopping,
}

impl ConnectionContext {
    /// Closes the connection that has been idle for longest, and takes its permit. `None` if there is none to close.
    async fn replace_longest_idle(&self, open: &mut JoinSet<()>) -> Option<ConnectionPermit> {
        let WhenFull::CloseIdle(connections) = &self.when_full else { return None };
        if !connections.close_longest_idle() {
            return None;
        }
        increment(&self.stats.closed_idle);
        loop {
            let _ended = open.join_next().await?;
            if let Some(permit) = self.stats.try_permit(self.limits.connections) {
                return Some(permit);
            }
        }
    }

    /// One connection from its first byte to its last. It holds its permit until then.
    async fn handle(
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

    /// Each step is a future of its own on the heap, so that a connection takes no memory for the steps that it is not
    /// in.
    async fn handshake(
        &self,
        socket: DetachedSocket,
        activity: Option<Arc<Activity>>,
        phases: watch::Receiver<Phase>,
    ) {
        let socket = match socket.attach() {
            Ok(socket) => socket,
            Err(error) => return debug!(listener = self.name, %error, "cannot look after a connection"),
        };
        let service = self.service.for_connection(socket.peer(), activity);
        let Some(certificates) = &self.certificates else {
            return Box::pin(self.serve_protocol(socket, service, Alpn::Other, phases)).await;
        };
        let accepting = Box::pin(TlsAcceptor::from(certificates.active()).accept(socket));
        let handshaken = tokio::select! {
            handshaken = timeout(self.limits.handshake, accepting) => handshaken,
            // Whoever has not said anything yet is not cut off.
            () = wait_for_phase(phases.clone(), Phase::Stopping) => return,
        };
        match handshaken {
            Ok(Ok(stream)) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let alpn = if is_http2 { Alpn::Http2 } else { Alpn::Other };
                Box::pin(self.serve_protocol(stream, service, alpn, phases)).await;
            }
            Ok(Err(error)) => {
                increment(&self.stats.handshakes_failed);
                debug!(listener = self.name, %error, "a handshake has failed");
            }
            Err(_) => increment(&self.stats.handshakes_slow),
        }
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
        let Some(http1) = &self.protocols.http1 else {
            let http2 = self.protocols.http2;
            let connection = Connection::new(
                &http2.grpc_builder(),
                io,
                io_handle.clone(),
                service,
                http2.keepalive(),
                &self.budgets,
            );
            let connection = Box::pin(connection);
            return self
                .drive(connection, |connection| connection.get_mut().shut_down(), &io_handle, phases)
                .await;
        };
        let answer = move |request: Request<Incoming>| {
            let answering = service.handle(request, None);
            async { Ok::<_, Infallible>(answering.await) }
        };
        let io = TokioIo::new(CorkedIo::new(io, io_handle.clone()));
        match alpn {
            Alpn::Other => {
                let connection = Box::pin(http1.serve_connection(io, service_fn(answer)));
                self.drive(connection, |c| c.graceful_shutdown(), &io_handle, phases).await;
            }
            Alpn::Http2 => {
                let connection =
                    Box::pin(self.protocols.http2.http_builder().serve_connection(io, service_fn(answer)));
                self.drive(connection, |c| c.graceful_shutdown(), &io_handle, phases).await;
            }
        }
    }

    /// Drives a connection to its end, which comes with age at the latest. `shut_down` has it end with what is open.
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
            ended = connection.as_mut() => return self.log_error(ended),
            reason = WakeFiltered::new(reason) => reason,
        };
        match reason {
            CloseReason::NotStarted => return increment(&self.stats.handshakes_slow),
            CloseReason::MaxAge => increment(&self.stats.aged),
            // There is nothing to finish.
            CloseReason::Stopping if io_handle.bytes_received() == 0 => return,
            CloseReason::Stopping => {}
        }
        shut_down(connection.as_mut());
        match timeout(self.limits.grace, connection.as_mut()).await {
            Ok(ended) => self.log_error(ended),
            Err(_) => increment(&self.stats.cut),
        }
    }

    /// Waits for the time when a connection has to end.
    async fn close_reason(&self, io_handle: &IoHandle, phases: watch::Receiver<Phase>) -> CloseReason {
        tokio::select! {
            reason = self.wait_for_age(io_handle) => reason,
            () = wait_for_phase(phases, Phase::Stopping) => CloseReason::Stopping,
        }
    }

    async fn wait_for_age(&self, io_handle: &IoHandle) -> CloseReason {
        let age = jittered(self.limits.age, rand::random());
        let handshake_timeout = self.limits.handshake.min(age);
        sleep(handshake_timeout).await;
        // Of HTTP/1 hyper waits for the head as long itself.
        let bytes_min = if self.protocols.http1.is_none() { PREFACE_BYTES } else { 1 };
        if io_handle.bytes_received() < bytes_min {
            return CloseReason::NotStarted;
        }
        sleep(age.saturating_sub(handshake_timeout)).await;
        CloseReason::MaxAge
    }

    fn log_error(&self, ended: Result<(), impl std::fmt::Display>) {
        if let Err(error) = ended {
            debug!(listener = self.name, %error, "a connection has ended in an error");
        }
    }
}

/// Closes the connection once it is idle while the process stops: HTTP/2 would wait for its client to acknowledge that.
async fn close_idle_while_stopping(connection: &TrackedConnection, phases: watch::Receiver<Phase>) {
    wait_for_phase(phases, Phase::Stopping).await;
    loop {
        sleep(SHUTDOWN_ACK_TIMEOUT).await;
        if connection.close_if_idle() {
            return;
        }
    }
}

/// What a handshake has alpn on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alpn {
    Other,
    Http2,
}

/// `age`, give or take a fifth: as much of that as `random`, from 0 to 1, says.
fn jittered(age: Duration, random: f64) -> Duration {
    age.mul_f64(1.0 - JITTER + 2.0 * JITTER * random)
}

#[cfg(test)]
mod tests;
