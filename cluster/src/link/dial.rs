//! Dials addresses and accepts connections: the TLS handshakes, then the links that result.

use std::{
    io::{Error, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::ServerName;
use tokio::{
    io::AsyncBufReadExt,
    net::{TcpStream, lookup_host},
    sync::{OwnedSemaphorePermit, oneshot},
    time::{sleep, timeout},
};
use tokio_rustls::{
    LazyConfigAcceptor, TlsConnector, client::TlsStream, server::TlsStream as ServerTlsStream,
};
use tollgate_counter::{resilience::Backoff, time::Stopwatch};
use tracing::debug;

use crate::{
    link::{
        addresses::DialResult,
        connection::{self, RunningLink},
        frame::frame_stream,
        links::Links,
        peer::Peer,
        stats::LinkFailure,
    },
    protocol::VersionMismatch,
};

/// Timeout of the TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(2);
/// The most handshakes in progress.
pub(super) const HANDSHAKES_MAX: usize = 256;
/// First and largest backoff after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// First backoff after a link has broken. The sockets of a process that has ended close one after the other, so its
/// listener may accept a last connection and refuse the next one.
const REDIAL_BACKOFF_MIN: Duration = Duration::from_millis(1);
/// Time for which an address that does not answer is dialled.
const DIAL_DURATION_MAX: Duration = Duration::from_secs(30);
/// A link that lasted less is redialled after a delay.
const SHORT_LINK: Duration = Duration::from_millis(100);

/// Dials an address until a member answers or connections are refused, and runs the link; with `report`, dials once and
/// sends the result.
pub(super) async fn dial_address(
    links: Arc<Links>,
    address: String,
    mut report: Option<oneshot::Sender<DialResult>>,
) {
    let since = Stopwatch::start();
    let is_single_attempt = report.is_some();
    let mut tell = |result| report.take().map(|report| report.send(result));
    let mut delays = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    while links.is_open() {
        let result = match dial_all(&links, &address, None).await {
            Ok(link) => {
                let peer = link.peer.id;
                tell(DialResult::Linked(peer));
                link.run().await;
                DialResult::Linked(peer)
            }
            Err(result) => result,
        };
        let is_over = since.elapsed() > DIAL_DURATION_MAX;
        let is_final = match result {
            DialResult::Linked(peer) => {
                links.note_member_address(&address, peer);
                true
            }
            DialResult::OwnAddress => {
                links.addresses().note_own(&address);
                true
            }
            DialResult::Refused => true,
            // A member answers.
            DialResult::SessionEnded | DialResult::Duplicate => is_over,
            DialResult::OtherMember | DialResult::Unreachable | DialResult::Slow => {
                is_single_attempt || is_over
            }
        };
        if is_final {
            tell(result);
            break;
        }
        wait(&links, &mut delays).await;
    }
    links.addresses().dialling.remove(&address);
}

/// Redials a peer whose link broke, and runs the link, until the session has ended or another connection is the link.
pub(super) async fn redial(links: Arc<Links>, peer: Arc<Peer>) {
    let mut delays = Backoff::new(REDIAL_BACKOFF_MIN, BACKOFF_MAX);
    while links.is_open() && peer.needs_dialling() {
        let address = peer.address();
        let result = match dial_all(&links, &address, Some(&peer)).await {
            Ok(link) => {
                let since = Stopwatch::start();
                link.run().await;
                delays.reset();
                if since.elapsed() < SHORT_LINK {
                    sleep(BACKOFF_MIN).await;
                }
                continue;
            }
            Err(result) => result,
        };
        let is_gone = match result {
            DialResult::Refused | DialResult::OwnAddress | DialResult::OtherMember => true,
            DialResult::SessionEnded
            | DialResult::Duplicate
            | DialResult::Linked(_)
            | DialResult::Slow
            | DialResult::Unreachable => false,
        };
        if is_gone {
            debug!(peer = %peer.id, %address, ?result, "the peer is not at its address");
            peer.end_unless_connected(&links.local);
        }
        // Another process is there, or the session was lost or never established: dial for a new one.
        if result == DialResult::OtherMember || result == DialResult::SessionEnded {
            links.dial(&address);
        }
        wait(&links, &mut delays).await;
    }
}

/// Waits before the next attempt.
async fn wait(links: &Links, delays: &mut Backoff) {
    links.while_open(sleep(delays.next_delay(rand::random()))).await;
}

/// Dials all addresses of a name until one answers. The error is `Refused` only if all refuse.
async fn dial_all<'l>(
    links: &'l Links,
    address: &str,
    expected: Option<&Arc<Peer>>,
) -> Result<DialledLink<'l>, DialResult> {
    let addresses = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => match timeout(CONNECT_TIMEOUT, lookup_host(address)).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => return Err(DialResult::Unreachable),
        },
    };
    let mut result = if addresses.is_empty() { DialResult::Unreachable } else { DialResult::Refused };
    for address in addresses {
        match dial_once(links, address, expected).await {
            Ok(link) => return Ok(link),
            Err(error) => result = result.max(error),
        }
        if result.is_answer() {
            break;
        }
    }
    Err(result)
}

type DialledLink<'l> = RunningLink<'l, TlsStream<TcpStream>>;

/// Opens one connection and performs its handshakes.
async fn dial_once<'l>(
    links: &'l Links,
    address: SocketAddr,
    expected: Option<&Arc<Peer>>,
) -> Result<DialledLink<'l>, DialResult> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
    let socket = match links.while_open(connecting).await {
        Some(Ok(Ok(socket))) => socket,
        Some(Ok(Err(error))) if error.kind() == ErrorKind::ConnectionRefused => {
            links.addresses().clear_rejection(address);
            return Err(DialResult::Refused);
        }
        Some(Ok(Err(_)) | Err(_)) | None => return Err(DialResult::Unreachable),
    };
    // TCP self-connect: without a listener, the ephemeral port of the socket can equal the dialled port.
    if socket.local_addr().is_ok_and(|local| local == address) {
        return Err(DialResult::Refused);
    }
    // Fails only if the peer has closed the socket, which the next read reports.
    let _ = socket.set_nodelay(true);
    match links.while_open(timeout(TLS_TIMEOUT, connect_tls(links, socket, address))).await {
        Some(Ok(Ok(stream))) => {
            links.addresses().clear_rejection(address);
            let link = connection::link_dialled(links, frame_stream(stream), expected).await?;
            links.note_member_address(&address.to_string(), link.peer.id);
            return Ok(link);
        }
        Some(Ok(Err(error))) => {
            if let Some(reason) = report_tls_failure(links, address, &error)
                && reason.is_rejection()
            {
                links.addresses().note_rejection(address, reason, expected.map(|peer| &**peer));
            }
        }
        Some(Err(_)) => {
            let what = "the TLS handshake timed out";
            links.local.stats.count_failure(LinkFailure::Slow, &address, &what);
            return Err(DialResult::Slow);
        }
        None => {}
    }
    Err(DialResult::Unreachable)
}

async fn connect_tls(
    links: &Links,
    socket: TcpStream,
    address: SocketAddr,
) -> Result<TlsStream<TcpStream>, Error> {
    let config = links.credentials.active().client.clone();
    let connector = TlsConnector::from(config);
    let mut stream = connector.connect(ServerName::IpAddress(address.ip().into()), socket).await?;
    // The server verifies the client certificate after the client's handshake is done, then writes first.
    if stream.fill_buf().await?.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// Performs the handshakes of an accepted connection, then runs its link until it closes. Drops `permit` once the TLS
/// handshake has ended.
pub(super) async fn accept(
    links: Arc<Links>,
    socket: TcpStream,
    from: SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    // Fails only if the peer has closed the socket, which the next read reports.
    let _ = socket.set_nodelay(true);
    let handshake = timeout(TLS_TIMEOUT, accept_tls(&links, socket, from));
    let Some(result) = links.while_open(handshake).await else { return };
    drop(permit);
    match result {
        Ok(Ok(Some(stream))) => connection::run_accepted(&links, frame_stream(stream), from).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            // Any process can connect, so a rejected client says nothing about this replica's own links.
            let _ = report_tls_failure(&links, from, &error);
        }
        Err(_) => links.local.stats.count_failure(LinkFailure::Slow, &from, &"the TLS handshake timed out"),
    }
}

/// Performs the TLS handshake of an accepted connection; `None` if the client speaks another version, which is sent this one.
async fn accept_tls(
    links: &Links,
    socket: TcpStream,
    from: SocketAddr,
) -> Result<Option<ServerTlsStream<TcpStream>>, Error> {
    let configs = links.credentials.active();
    let started = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket).await?;
    let mismatch = VersionMismatch::with_offer(started.client_hello().alpn().into_iter().flatten());
    match mismatch {
        None => started.into_stream(configs.server.clone()).await.map(Some),
        Some(mismatch) => {
            links.local.stats.count_failure(LinkFailure::Version, &from, &mismatch);
            // The client aborts this handshake as intended.
            let _ = started.into_stream(configs.other_version.clone()).await;
            Ok(None)
        }
    }
}

/// Counts a failed TLS handshake by reason; `None` if the cause is the transport and not TLS.
fn report_tls_failure(links: &Links, address: SocketAddr, error: &Error) -> Option<LinkFailure> {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        // A peer that exits closes its connections.
        debug!(%address, %error, "the peer closed the connection during the handshake");
        return None;
    };
    let reason = LinkFailure::from_tls_error(tls);
    match VersionMismatch::from_tls_error(tls) {
        Some(mismatch) => links.local.stats.count_failure(reason, &address, mismatch),
        None => links.local.stats.count_failure(reason, &address, tls),
    }
    Some(reason)
}
