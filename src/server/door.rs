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
        Budgets, Certificates, Listener, Phase, Routed,
        counters::{ListenerCounters, Seat, count},
        crew::Hands,
        idle::{Activity, Connection, Connections},
        listen::{Parcel, Socket},
        phase::reached,
        rouse::Roused,
        talk::{Keepalive, SHUTDOWN_ACK_WITHIN, Talk, WINDOW_BYTES},
        wire::{Line, PREFACE_BYTES, Watched},
    },
    settings,
};

/// How long to wait before accepting again where the system could not.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of all headers of a request.
const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// How many bytes of one stream may be on their way from us.
const SENT_BYTES_MAX: usize = 400 * 1024;
/// What HTTP/2 counts at most for a small DATA frame that has not been read, so that each call may have two of them.
const SMALL_FRAME_BYTES: usize = 256;
/// How many streams we may have reset for a client's mistakes, before its connection is closed.
const RESETS_FOR_ERRORS_MAX: usize = 1024;
/// How long HTTP connections last, give or take a fifth, and then their last request.
const HTTP_AGE: Duration = Duration::from_secs(5 * 60);
/// The most requests at a time on one HTTP/2 connection, and how long one may take to answer a ping.
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
pub(super) struct Door {
    pub(super) name: &'static str,
    pub(super) listener: Listener,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) protocols: Protocols,
    pub(super) limits: Limits,
    pub(super) budgets: Budgets,
    pub(super) counters: Arc<ListenerCounters>,
    pub(super) when_full: WhenFull,
}

/// What makes room when as many connections as allowed are open and another one comes.
#[derive(Clone, Debug)]
pub(super) enum WhenFull {
    /// The new connection is closed, so that its client goes to another replica.
    CloseNew,
    /// The connection that has been idle for longest is closed: probes have nowhere else to go.
    CloseIdle(Arc<Connections>),
}

/// What is spoken behind a door.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    // Spoken unless the handshake has agreed on HTTP/2; without it everybody speaks HTTP/2.
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
        Self { connections, handshake: header_timeout, age: HTTP_AGE, grace: HTTP_AGE }
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
    /// As those speak it who ask over gRPC.
    fn talk(&self) -> h2::server::Builder {
        let mut http2 = h2::server::Builder::new();
        http2
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buffer_size(SENT_BYTES_MAX)
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
    fn plain(&self) -> http2::Builder<TokioExecutor> {
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

impl Door {
    /// Lets `service` answer all who come, until the process stops; then finishes what has come. `hands` look after
    /// the connections.
    pub(super) async fn serve(self, service: Routed, hands: Hands, phases: watch::Receiver<Phase>) {
        let Self { name, listener, certificates, protocols, limits, budgets, counters, when_full } = self;
        let host = Host { name, certificates, protocols, limits, budgets, counters, when_full, service };
        let host = Arc::new(host);
        let mut open = JoinSet::new();
        let (mut is_full, mut is_failing) = (false, false);
        let mut stopping = pin!(reached(phases.clone(), Phase::Stopping));
        loop {
            let accepted = tokio::select! {
                () = &mut stopping => break,
                Some(_) = open.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted.and_then(Socket::pack) {
                Ok(parcel) => {
                    is_failing = false;
                    count(&host.counters.accepted);
                    let free = host.counters.seat(limits.connections);
                    if let Some(seat) = &free {
                        // A tenth has to be free before it counts as not full, so that the log stays short.
                        is_full &= limits.connections - limits.connections / 10 < seat.number();
                    } else {
                        if !is_full {
                            let (most, closing) = (limits.connections, host.when_full.closing());
                            warn!(listener = name, most, closing, "full; closing connections");
                        }
                        is_full = true;
                    }
                    let seat = match free {
                        Some(seat) => Some(seat),
                        None => host.seat_of_idle(&mut open).await,
                    };
                    if let Some(seat) = seat {
                        let connection = host.when_full.open();
                        let care = host.clone().receive(parcel, seat, connection, phases.clone());
                        hands.hand_out(&mut open, care);
                    } else {
                        count(&host.counters.refused_full);
                    }
                }
                Err(error) if is_of_one_connection(&error) => debug!(listener = name, %error, "gone already"),
                Err(error) => {
                    count(&host.counters.accept_errors);
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
    fn closing(&self) -> &'static str {
        match self {
            Self::CloseNew => "new",
            Self::CloseIdle(_) => "longest idle",
        }
    }

    /// The place of a new connection among those that may be closed.
    fn open(&self) -> Option<Connection> {
        match self {
            Self::CloseNew => None,
            Self::CloseIdle(connections) => Some(connections.open()),
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What all connections of a door share.
struct Host {
    name: &'static str,
    certificates: Option<Arc<Certificates>>,
    protocols: Protocols,
    limits: Limits,
    budgets: Budgets,
    counters: Arc<ListenerCounters>,
    when_full: WhenFull,
    service: Routed,
}

/// Why a connection is to end.
enum Ending {
    /// Nothing has come in time.
    NeverBegan,
    /// It has lasted long enough.
    Aged,
    /// The process leaves.
    Stopping,
}

impl Host {
    /// Closes the connection that has been idle for longest, and takes its seat. `None` if there is none to close.
    async fn seat_of_idle(&self, open: &mut JoinSet<()>) -> Option<Seat> {
        let WhenFull::CloseIdle(connections) = &self.when_full else { return None };
        if !connections.close_longest_idle() {
            return None;
        }
        count(&self.counters.closed_idle);
        loop {
            let _ended = open.join_next().await?;
            if let Some(seat) = self.counters.seat(self.limits.connections) {
                return Some(seat);
            }
        }
    }

    /// One connection from its first byte to its last. It holds its seat until then.
    async fn receive(
        self: Arc<Self>,
        parcel: Parcel,
        seat: Seat,
        connection: Option<Connection>,
        phases: watch::Receiver<Phase>,
    ) {
        let _seat = seat;
        let Some(connection) = connection else { return self.greet(parcel, None, phases).await };
        tokio::select! {
            biased;
            () = connection.closed() => {}
            () = close_idle_while_stopping(&connection, phases.clone()) => {}
            () = Box::pin(self.greet(parcel, Some(connection.activity()), phases)) => {}
        }
    }

    /// Each step is a future of its own on the heap, so that a connection takes no memory for the steps that it is not
    /// in.
    async fn greet(&self, parcel: Parcel, activity: Option<Arc<Activity>>, phases: watch::Receiver<Phase>) {
        let socket = match parcel.open() {
            Ok(socket) => socket,
            Err(error) => return debug!(listener = self.name, %error, "cannot look after a connection"),
        };
        let service = self.service.of(socket.peer(), activity);
        let Some(certificates) = &self.certificates else {
            return Box::pin(self.speak(socket, service, Agreed::Nothing, phases)).await;
        };
        let accepting = Box::pin(TlsAcceptor::from(certificates.in_force()).accept(socket));
        let greeted = tokio::select! {
            greeted = timeout(self.limits.handshake, accepting) => greeted,
            // Whoever has not said anything yet is not cut off.
            () = reached(phases.clone(), Phase::Stopping) => return,
        };
        match greeted {
            Ok(Ok(stream)) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let agreed = if is_http2 { Agreed::Http2 } else { Agreed::Nothing };
                Box::pin(self.speak(stream, service, agreed, phases)).await;
            }
            Ok(Err(error)) => {
                count(&self.counters.handshakes_failed);
                debug!(listener = self.name, %error, "a handshake has failed");
            }
            Err(_) => count(&self.counters.handshakes_slow),
        }
    }

    async fn speak<W>(&self, wire: W, service: Arc<Routed>, agreed: Agreed, phases: watch::Receiver<Phase>)
    where
        W: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let line = Line::default();
        let Some(http1) = &self.protocols.http1 else {
            let http2 = self.protocols.http2;
            let talk =
                Talk::new(&http2.talk(), wire, line.clone(), service, http2.keepalive(), &self.budgets);
            let talk = Box::pin(talk);
            return self.see_out(talk, |talk| talk.get_mut().leave(), &line, phases).await;
        };
        let answer = move |request: Request<Incoming>| {
            let answering = service.answer(request, None);
            async { Ok::<_, Infallible>(answering.await) }
        };
        let wire = TokioIo::new(Watched::new(wire, line.clone()));
        match agreed {
            Agreed::Nothing => {
                let connection = Box::pin(http1.serve_connection(wire, service_fn(answer)));
                self.see_out(connection, |c| c.graceful_shutdown(), &line, phases).await;
            }
            Agreed::Http2 => {
                let connection =
                    Box::pin(self.protocols.http2.plain().serve_connection(wire, service_fn(answer)));
                self.see_out(connection, |c| c.graceful_shutdown(), &line, phases).await;
            }
        }
    }

    /// Drives a connection to its end, which comes with age at the latest. `leave` has it end with what is open.
    async fn see_out<C, E>(
        &self,
        mut connection: Pin<Box<C>>,
        leave: impl FnOnce(Pin<&mut C>),
        line: &Line,
        phases: watch::Receiver<Phase>,
    ) where
        C: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let ending = pin!(self.ending(line, phases));
        let ending = tokio::select! {
            biased;
            ended = connection.as_mut() => return self.note(ended),
            ending = Roused::new(ending) => ending,
        };
        match ending {
            Ending::NeverBegan => return count(&self.counters.handshakes_slow),
            Ending::Aged => count(&self.counters.aged),
            // There is nothing to finish.
            Ending::Stopping if line.bytes() == 0 => return,
            Ending::Stopping => {}
        }
        leave(connection.as_mut());
        match timeout(self.limits.grace, connection.as_mut()).await {
            Ok(ended) => self.note(ended),
            Err(_) => count(&self.counters.cut),
        }
    }

    /// Waits for the time when a connection has to end.
    async fn ending(&self, line: &Line, phases: watch::Receiver<Phase>) -> Ending {
        tokio::select! {
            ending = self.age(line) => ending,
            () = reached(phases, Phase::Stopping) => Ending::Stopping,
        }
    }

    async fn age(&self, line: &Line) -> Ending {
        let age = jittered(self.limits.age, rand::random());
        let beginning = self.limits.handshake.min(age);
        sleep(beginning).await;
        // Of HTTP/1 hyper waits for the head as long itself.
        let needed = if self.protocols.http1.is_none() { PREFACE_BYTES } else { 1 };
        if line.bytes() < needed {
            return Ending::NeverBegan;
        }
        sleep(age.saturating_sub(beginning)).await;
        Ending::Aged
    }

    fn note(&self, ended: Result<(), impl std::fmt::Display>) {
        if let Err(error) = ended {
            debug!(listener = self.name, %error, "a connection has ended in an error");
        }
    }
}

/// Closes the connection once it is idle while the process stops: HTTP/2 would wait for its client to acknowledge that.
async fn close_idle_while_stopping(connection: &Connection, phases: watch::Receiver<Phase>) {
    reached(phases, Phase::Stopping).await;
    loop {
        sleep(SHUTDOWN_ACK_WITHIN).await;
        if connection.close_if_idle() {
            return;
        }
    }
}

/// What a handshake has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Agreed {
    Nothing,
    Http2,
}

/// `age`, give or take a fifth: as much of that as `dice`, from 0 to 1, says.
fn jittered(age: Duration, dice: f64) -> Duration {
    age.mul_f64(1.0 - JITTER + 2.0 * JITTER * dice)
}

#[cfg(test)]
mod tests;
