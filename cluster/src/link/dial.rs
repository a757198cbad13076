//! Dials addresses and runs the connections that result.

use std::{
    future::ready,
    io::{Error, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::stream::StreamExt as _;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpStream, lookup_host},
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tollgate_counter::{resilience::Backoff, time::Stopwatch};
use tonic::{body::Body, codegen::Service, codegen::http};
use tracing::debug;

use crate::{
    link::{
        addresses::DialResult,
        connection::{self, ConnectionOutcome, DialTarget},
        drive::{SpawnedTasks, drive},
        frame::{FRAME_BYTES_MAX, LinksClient},
        hub::Hub,
        outbound::{OutboundFrames, OutboundQueue},
        peer::Peer,
        stats::LinkFailure,
    },
    protocol::VersionMismatch,
};

/// Timeout of the TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the TLS handshake.
pub(super) const TLS_TIMEOUT: Duration = Duration::from_secs(2);
/// First and largest backoff after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// First backoff after a link has broken. The sockets of a process that has ended close one after the other, so its
/// listener may accept a last connection and refuse the next one.
const REDIAL_BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Time for which an address that does not answer is dialled.
const DIAL_DURATION_MAX: Duration = Duration::from_secs(30);
/// A link that lasted less is redialled after a delay.
const SHORT_LINK: Duration = Duration::from_millis(100);
/// HTTP/2 flow-control window, and the bytes that are buffered for sending.
pub(super) const WINDOW_BYTES: u32 = 1024 * 1024;
pub(super) const SEND_BYTES_MAX: usize = 256 * 1024;

/// The result of one round over the addresses of a name.
#[derive(Debug)]
enum DialAttempt {
    Refused,
    Slow,
    Unreachable,
    Connected(ConnectionOutcome),
}

/// Dials an address until a member answers or connections are refused; with `report`, dials once and sends the result.
pub(super) async fn dial_address(
    hub: Arc<Hub>,
    address: String,
    mut report: Option<oneshot::Sender<DialResult>>,
) {
    let since = Stopwatch::start();
    let is_single_attempt = report.is_some();
    let mut retries = Retries::new(BACKOFF_MIN);
    while hub.is_open() {
        let target = DialTarget { expected: None, replaces_link: retries.replaces_link };
        let result = match dial_all(&hub, &address, target, &mut report).await {
            DialAttempt::Connected(ConnectionOutcome::LinkClosed) => DialResult::Linked,
            DialAttempt::Connected(ConnectionOutcome::AlreadyLinked(peer)) => {
                hub.shared.note_member_address(&address, peer);
                DialResult::Linked
            }
            DialAttempt::Connected(ConnectionOutcome::OwnAddress) => {
                hub.shared.addresses().note_own(&address);
                DialResult::OwnAddress
            }
            DialAttempt::Refused => DialResult::Refused,
            DialAttempt::Connected(
                outcome @ (ConnectionOutcome::SessionEnded | ConnectionOutcome::RefusedAsDuplicate),
            ) if since.elapsed() < DIAL_DURATION_MAX => {
                retries.replaces_link = matches!(outcome, ConnectionOutcome::RefusedAsDuplicate);
                retries.wait_briefly().await;
                continue;
            }
            DialAttempt::Connected(
                ConnectionOutcome::SessionEnded
                | ConnectionOutcome::RefusedAsDuplicate
                | ConnectionOutcome::OtherMember
                | ConnectionOutcome::Failed,
            )
            | DialAttempt::Unreachable => DialResult::Unreachable,
            DialAttempt::Connected(ConnectionOutcome::Slow) | DialAttempt::Slow => DialResult::Slow,
        };
        let is_final = !matches!(result, DialResult::Slow | DialResult::Unreachable);
        if is_final || is_single_attempt || since.elapsed() > DIAL_DURATION_MAX {
            if let Some(report) = report {
                let _ = report.send(result);
            }
            break;
        }
        hub.while_open(retries.wait()).await;
    }
    hub.shared.addresses().end_dial(&address);
}

/// Redials a peer whose connection broke, until a link is active again or the session has ended.
pub(super) async fn redial(hub: Arc<Hub>, peer: Arc<Peer>) {
    let mut retries = Retries::new(REDIAL_BACKOFF_MIN);
    while hub.is_open() && peer.needs_dialling() {
        let address = peer.address();
        let since = Stopwatch::start();
        let target = DialTarget { expected: Some(&peer), replaces_link: retries.replaces_link };
        match dial_all(&hub, &address, target, &mut None).await {
            DialAttempt::Refused => {
                debug!(peer = %peer.id, %address, "the peer's address refuses connections");
                peer.end_unless_connected();
            }
            DialAttempt::Connected(ConnectionOutcome::OwnAddress) => peer.end_unless_connected(),
            DialAttempt::Connected(ConnectionOutcome::OtherMember) => {
                debug!(peer = %peer.id, %address, "another process has the peer's address");
                peer.end_unless_connected();
                hub.shared.dial(&address, None);
            }
            DialAttempt::Connected(ConnectionOutcome::LinkClosed) => {
                retries = Retries::new(REDIAL_BACKOFF_MIN);
                if since.elapsed() < SHORT_LINK {
                    retries.wait_briefly().await;
                }
            }
            DialAttempt::Connected(ConnectionOutcome::SessionEnded) => {
                // The session was lost or never established: dial the address for a new one.
                hub.shared.dial(&address, None);
                retries.wait_briefly().await;
            }
            DialAttempt::Connected(ConnectionOutcome::RefusedAsDuplicate) => {
                retries.replaces_link = true;
                retries.wait_briefly().await;
            }
            DialAttempt::Connected(ConnectionOutcome::AlreadyLinked(_)) => retries.wait_briefly().await,
            DialAttempt::Connected(ConnectionOutcome::Failed | ConnectionOutcome::Slow)
            | DialAttempt::Slow
            | DialAttempt::Unreachable => {
                hub.while_open(retries.wait()).await;
            }
        }
    }
}

/// The delays between attempts at one address.
struct Retries {
    delays: Backoff,
    // Used while a process is known to answer.
    brief_delays: Backoff,
    replaces_link: bool,
}

impl Retries {
    fn new(backoff_min: Duration) -> Self {
        Self {
            delays: Backoff::new(backoff_min, BACKOFF_MAX),
            brief_delays: Backoff::new(BACKOFF_MIN / 10, BACKOFF_MAX),
            replaces_link: false,
        }
    }

    async fn wait(&mut self) {
        sleep(self.delays.next_delay(rand::random())).await;
    }

    async fn wait_briefly(&mut self) {
        sleep(self.brief_delays.next_delay(rand::random())).await;
    }
}

/// Dials all addresses of a name until one connects. The result is `Refused` only if all refuse.
async fn dial_all(
    hub: &Arc<Hub>,
    address: &str,
    target: DialTarget<'_>,
    report: &mut Option<oneshot::Sender<DialResult>>,
) -> DialAttempt {
    let addresses = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => match timeout(CONNECT_TIMEOUT, lookup_host(address)).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => return DialAttempt::Unreachable,
        },
    };
    let mut outcome = if addresses.is_empty() { DialAttempt::Unreachable } else { DialAttempt::Refused };
    for address in addresses {
        match (dial_once(hub, address, target, report).await, &outcome) {
            (DialAttempt::Refused, _) => {}
            (DialAttempt::Slow, _) => outcome = DialAttempt::Slow,
            (DialAttempt::Unreachable, DialAttempt::Slow) => {}
            (DialAttempt::Unreachable, _) => outcome = DialAttempt::Unreachable,
            (DialAttempt::Connected(ConnectionOutcome::OtherMember), DialAttempt::Refused) => {
                outcome = DialAttempt::Connected(ConnectionOutcome::OtherMember)
            }
            (DialAttempt::Connected(ConnectionOutcome::OtherMember), _) => {}
            (connected, _) => return connected,
        }
    }
    outcome
}

/// Opens one connection and runs it until it closes.
async fn dial_once(
    hub: &Arc<Hub>,
    address: SocketAddr,
    target: DialTarget<'_>,
    report: &mut Option<oneshot::Sender<DialResult>>,
) -> DialAttempt {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
    let socket = match hub.while_open(connecting).await {
        Some(Ok(Ok(socket))) => socket,
        Some(Ok(Err(error))) if error.kind() == ErrorKind::ConnectionRefused => {
            hub.shared.rejections.clear(address);
            return DialAttempt::Refused;
        }
        Some(Ok(Err(_)) | Err(_)) | None => return DialAttempt::Unreachable,
    };
    // TCP self-connect: without a listener, the ephemeral port of the socket can equal the dialled port.
    if socket.local_addr().is_ok_and(|local| local == address) {
        return DialAttempt::Refused;
    }
    // Fails only if the peer has closed the socket, which the next read reports.
    let _ = socket.set_nodelay(true);
    match hub.while_open(timeout(TLS_TIMEOUT, tls_handshake(hub, socket, address))).await {
        Some(Ok(Ok(stream))) => {
            hub.shared.rejections.clear(address);
            return run_connection(hub, stream, address, target, report).await;
        }
        Some(Ok(Err(error))) => {
            if let Some(reason) = report_tls_failure(hub, address, &error)
                && reason.is_rejection()
            {
                hub.shared.rejections.note(address, reason, target.expected.map(|peer| &**peer));
            }
        }
        Some(Err(_)) => {
            let what = "the TLS handshake timed out";
            hub.shared.local.stats.count_failure(LinkFailure::Slow, &address, &what);
            return DialAttempt::Slow;
        }
        None => {}
    }
    DialAttempt::Unreachable
}

async fn tls_handshake(
    hub: &Hub,
    socket: TcpStream,
    address: SocketAddr,
) -> Result<TlsStream<TcpStream>, Error> {
    let config = hub.shared.credentials.active().client.clone();
    let connector = TlsConnector::from(config);
    let mut stream = connector.connect(ServerName::IpAddress(address.ip().into()), socket).await?;
    // The server verifies the client certificate after the client's handshake is done, then writes first.
    if stream.fill_buf().await?.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// Counts a failed TLS handshake by reason; `None` if the cause is the transport and not TLS.
pub(super) fn report_tls_failure(hub: &Hub, address: SocketAddr, error: &Error) -> Option<LinkFailure> {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        // A peer that exits closes its connections.
        debug!(%address, %error, "the peer closed the connection during the handshake");
        return None;
    };
    let reason = LinkFailure::from_tls_error(tls);
    match VersionMismatch::from_tls_error(tls) {
        Some(mismatch) => hub.shared.local.stats.count_failure(reason, &address, mismatch),
        None => hub.shared.local.stats.count_failure(reason, &address, tls),
    }
    Some(reason)
}

async fn run_connection(
    hub: &Arc<Hub>,
    stream: TlsStream<TcpStream>,
    address: SocketAddr,
    target: DialTarget<'_>,
    report: &mut Option<oneshot::Sender<DialResult>>,
) -> DialAttempt {
    let spawned = SpawnedTasks::default();
    let handshake = http2::Builder::new(spawned.clone())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .handshake(TokioIo::new(stream));
    let Ok((requests, connection)) = handshake.await else { return DialAttempt::Unreachable };
    let outbound = Arc::new(OutboundQueue::default());
    let mut client = LinksClient::with_origin(RequestSender(requests), origin(address))
        .max_decoding_message_size(FRAME_BYTES_MAX);
    let outgoing = OutboundFrames(outbound.clone()).filter_map(|frame| ready(frame.ok()));
    let frames = async move { client.link(outgoing).await.map(tonic::Response::into_inner) };
    let on_linked = |peer| {
        hub.shared.note_member_address(&address.to_string(), peer);
        if let Some(report) = report.take() {
            let _ = report.send(DialResult::Linked);
        }
    };
    match drive(spawned, connection, connection::run_dialled(hub, &outbound, frames, target, on_linked)).await
    {
        Some(ConnectionOutcome::Slow) => DialAttempt::Slow,
        Some(ConnectionOutcome::Failed) | None => DialAttempt::Unreachable,
        Some(outcome) => DialAttempt::Connected(outcome),
    }
}

fn origin(address: SocketAddr) -> http::Uri {
    let parts = http::Uri::builder().scheme("https").authority(address.to_string()).path_and_query("/");
    parts.build().expect("a scheme, a socket address and a path are a URI")
}

/// Adapts hyper's sender to the service that the generated client expects.
struct RequestSender(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for RequestSender {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
