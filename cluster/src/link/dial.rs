//! Dials addresses and runs the connections that result.

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
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tollgate_counter::{resilience::Backoff, time::Stopwatch};
use tracing::debug;

use crate::{
    link::{
        addresses::DialResult,
        connection::{self, RunningLink},
        frame::frame_stream,
        hub::Hub,
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

/// Dials an address until a member answers or connections are refused, and runs the link; with `report`, dials once and
/// sends the result.
pub(super) async fn dial_address(
    hub: Arc<Hub>,
    address: String,
    mut report: Option<oneshot::Sender<DialResult>>,
) {
    let since = Stopwatch::start();
    let is_single_attempt = report.is_some();
    let mut tell = |result| report.take().map(|report| report.send(result));
    let mut retries = Retries::new(BACKOFF_MIN);
    while hub.is_open() {
        let result = match dial_all(&hub, &address, None).await {
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
                hub.shared.note_member_address(&address, peer);
                true
            }
            DialResult::OwnAddress => {
                hub.shared.addresses().note_own(&address);
                true
            }
            DialResult::Refused => true,
            DialResult::SessionEnded | DialResult::Duplicate if !is_over => {
                retries.wait_briefly().await;
                continue;
            }
            DialResult::SessionEnded
            | DialResult::Duplicate
            | DialResult::OtherMember
            | DialResult::Unreachable
            | DialResult::Slow => is_single_attempt || is_over,
        };
        if is_final {
            tell(result);
            break;
        }
        hub.while_open(retries.wait()).await;
    }
    hub.shared.addresses().end_dial(&address);
}

/// Redials a peer whose link broke, and runs the link, until the session has ended or another connection is the link.
pub(super) async fn redial(hub: Arc<Hub>, peer: Arc<Peer>) {
    let mut retries = Retries::new(REDIAL_BACKOFF_MIN);
    while hub.is_open() && peer.needs_dialling() {
        let address = peer.address();
        let result = match dial_all(&hub, &address, Some(&peer)).await {
            Ok(link) => {
                let since = Stopwatch::start();
                link.run().await;
                retries = Retries::new(REDIAL_BACKOFF_MIN);
                if since.elapsed() < SHORT_LINK {
                    retries.wait_briefly().await;
                }
                continue;
            }
            Err(result) => result,
        };
        match result {
            DialResult::Refused | DialResult::OwnAddress => {
                debug!(peer = %peer.id, %address, ?result, "no process has the peer's address");
                peer.end_unless_connected(&hub.shared.local);
            }
            DialResult::OtherMember => {
                debug!(peer = %peer.id, %address, "another process has the peer's address");
                peer.end_unless_connected(&hub.shared.local);
                hub.shared.dial(&address, None);
            }
            DialResult::SessionEnded => {
                // The session was lost or never established: dial the address for a new one.
                hub.shared.dial(&address, None);
                retries.wait_briefly().await;
            }
            DialResult::Duplicate | DialResult::Linked(_) => retries.wait_briefly().await,
            DialResult::Slow | DialResult::Unreachable => {
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
}

impl Retries {
    fn new(backoff_min: Duration) -> Self {
        Self {
            delays: Backoff::new(backoff_min, BACKOFF_MAX),
            brief_delays: Backoff::new(BACKOFF_MIN / 10, BACKOFF_MAX),
        }
    }

    async fn wait(&mut self) {
        sleep(self.delays.next_delay(rand::random())).await;
    }

    async fn wait_briefly(&mut self) {
        sleep(self.brief_delays.next_delay(rand::random())).await;
    }
}

/// Dials all addresses of a name until one answers. The error is `Refused` only if all refuse.
async fn dial_all<'h>(
    hub: &'h Hub,
    address: &str,
    expected: Option<&Arc<Peer>>,
) -> Result<DialledLink<'h>, DialResult> {
    let addresses = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => match timeout(CONNECT_TIMEOUT, lookup_host(address)).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => return Err(DialResult::Unreachable),
        },
    };
    let mut result = if addresses.is_empty() { DialResult::Unreachable } else { DialResult::Refused };
    for address in addresses {
        match dial_once(hub, address, expected).await {
            Ok(link) => return Ok(link),
            Err(error) => result = result.max(error),
        }
        if result.is_answer() {
            break;
        }
    }
    Err(result)
}

type DialledLink<'h> = RunningLink<'h, TlsStream<TcpStream>>;

/// Opens one connection and performs its handshakes.
async fn dial_once<'h>(
    hub: &'h Hub,
    address: SocketAddr,
    expected: Option<&Arc<Peer>>,
) -> Result<DialledLink<'h>, DialResult> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address));
    let socket = match hub.while_open(connecting).await {
        Some(Ok(Ok(socket))) => socket,
        Some(Ok(Err(error))) if error.kind() == ErrorKind::ConnectionRefused => {
            hub.shared.rejections.clear(address);
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
    match hub.while_open(timeout(TLS_TIMEOUT, tls_handshake(hub, socket, address))).await {
        Some(Ok(Ok(stream))) => {
            hub.shared.rejections.clear(address);
            let link = connection::link_dialled(hub, frame_stream(stream), expected).await?;
            hub.shared.note_member_address(&address.to_string(), link.peer.id);
            return Ok(link);
        }
        Some(Ok(Err(error))) => {
            if let Some(reason) = report_tls_failure(hub, address, &error)
                && reason.is_rejection()
            {
                hub.shared.rejections.note(address, reason, expected.map(|peer| &**peer));
            }
        }
        Some(Err(_)) => {
            let what = "the TLS handshake timed out";
            hub.shared.local.stats.count_failure(LinkFailure::Slow, &address, &what);
            return Err(DialResult::Slow);
        }
        None => {}
    }
    Err(DialResult::Unreachable)
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
