//! Finds out who is at an address, and whether anybody is.

use std::{
    io::{Error, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

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
use tonic::{body::Body, codegen::Service, codegen::http};
use tracing::debug;

use crate::{
    cluster::{
        link::{
            drive::{Chores, drive},
            figures::Refused,
            hub::Hub,
            peer::Peer,
            pipe::{Asking, Outgoing, Pipe},
            talk::{self, Ending, Wish},
            wire::{FRAME_BYTES_MAX, LinksClient},
        },
        protocol::Mismatch,
    },
    time::Stopwatch,
};

/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long TLS may take.
pub(super) const TLS_WITHIN: Duration = Duration::from_secs(2);
/// How long the pause after a failure is, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long an address that does not answer is dialled.
const DIAL_FOR: Duration = Duration::from_secs(30);
/// A link that broke sooner is not dialled again without a pause.
const BRIEF: Duration = Duration::from_millis(100);
/// How much may come that has not been read, and how much may be written that has not been sent.
pub(super) const WINDOW_BYTES: u32 = 1024 * 1024;
pub(super) const SEND_BYTES_MAX: usize = 256 * 1024;

/// What came of dialling an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cluster) enum Tried {
    /// Another process of the cluster, with which there is a link.
    Met,
    /// This process.
    Ourselves,
    /// Nobody: connections are refused.
    Refused,
    /// Nothing that tells whether there is anybody.
    Silent,
}

/// What came of one connection.
#[derive(Debug)]
enum Attempt {
    Refused,
    Silent,
    Spoke(Ending),
}

/// Dials an address until somebody answers or it is plain that nobody is there; or once, with a report.
pub(super) async fn seek(hub: Arc<Hub>, address: String, mut report: Option<oneshot::Sender<Tried>>) {
    let (since, once) = (Stopwatch::start(), report.is_some());
    let mut pause = Pause::default();
    while hub.is_open() {
        let wish = Wish { expected: None, insists: pause.insists };
        let tried = match once_each(&hub, &address, wish, &mut report).await {
            Attempt::Spoke(Ending::WasLinked) => Tried::Met,
            Attempt::Spoke(Ending::Linked(peer)) => {
                hub.shared.is_of(&address, peer);
                Tried::Met
            }
            Attempt::Spoke(Ending::Ourselves) => {
                hub.shared.is_ours(&address);
                Tried::Ourselves
            }
            Attempt::Refused => Tried::Refused,
            Attempt::Spoke(ending @ (Ending::Anew | Ending::TurnedAway)) if since.elapsed() < DIAL_FOR => {
                pause.insists = matches!(ending, Ending::TurnedAway);
                pause.briefly().await;
                continue;
            }
            Attempt::Spoke(Ending::Anew | Ending::TurnedAway | Ending::Other | Ending::Nothing)
            | Attempt::Silent => Tried::Silent,
        };
        if tried != Tried::Silent || once || DIAL_FOR < since.elapsed() {
            if let Some(report) = report {
                report.send(tried).ok();
            }
            break;
        }
        hub.while_open(pause.take()).await;
    }
    hub.shared.dialled(&address);
}

/// Dials a peer whose link has broken, until there is another, or it is dead or forgotten.
pub(super) async fn seek_again(hub: Arc<Hub>, peer: Arc<Peer>) {
    let mut pause = Pause::default();
    while hub.is_open() && peer.wants_dialling() {
        let (address, since) = (peer.address(), Stopwatch::start());
        let wish = Wish { expected: Some(&peer), insists: pause.insists };
        match once_each(&hub, &address, wish, &mut None).await {
            Attempt::Refused => {
                debug!(peer = %peer.id, %address, "nobody is there any more");
                peer.end_unless_linked(&hub);
            }
            Attempt::Spoke(Ending::Ourselves) => peer.end_unless_linked(&hub),
            Attempt::Spoke(Ending::Other) => {
                debug!(peer = %peer.id, %address, "another process is there");
                peer.end_unless_linked(&hub);
                hub.shared.dial(&address, None);
            }
            Attempt::Spoke(Ending::WasLinked) => {
                pause = Pause::default();
                if since.elapsed() < BRIEF {
                    pause.briefly().await;
                }
            }
            Attempt::Spoke(Ending::Anew) => {
                // The session was lost, or was never begun: who is there is met anew.
                hub.shared.dial(&address, None);
                pause.briefly().await;
            }
            Attempt::Spoke(Ending::TurnedAway) => {
                pause.insists = true;
                pause.briefly().await;
            }
            Attempt::Spoke(Ending::Linked(_)) => pause.briefly().await,
            Attempt::Spoke(Ending::Nothing) | Attempt::Silent => {
                hub.while_open(pause.take()).await;
            }
        }
    }
}

/// Pauses that grow.
struct Pause {
    next: Duration,
    // Where it is plain that somebody is there.
    brief: Duration,
    insists: bool,
}

impl Default for Pause {
    fn default() -> Self {
        Self { next: PAUSE_MIN, brief: PAUSE_MIN / 10, insists: false }
    }
}

impl Pause {
    async fn take(&mut self) {
        sleep(self.next.mul_f64(rand::random_range(0.5..1.0))).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
    }

    async fn briefly(&mut self) {
        sleep(self.brief.mul_f64(rand::random_range(0.5..1.0))).await;
        self.brief = (self.brief * 2).min(PAUSE_MAX);
    }
}

/// Dials all addresses of one name, until one speaks. That it is refused says something only if all refuse.
async fn once_each(
    hub: &Arc<Hub>,
    address: &str,
    wish: Wish<'_>,
    report: &mut Option<oneshot::Sender<Tried>>,
) -> Attempt {
    let addresses = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => match timeout(CONNECT_WITHIN, lookup_host(address)).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => return Attempt::Silent,
        },
    };
    let mut outcome = if addresses.is_empty() { Attempt::Silent } else { Attempt::Refused };
    for address in addresses {
        match (once(hub, address, wish, report).await, &outcome) {
            (Attempt::Refused, _) => {}
            (Attempt::Silent, _) => outcome = Attempt::Silent,
            (Attempt::Spoke(Ending::Other), Attempt::Refused) => outcome = Attempt::Spoke(Ending::Other),
            (Attempt::Spoke(Ending::Other), _) => {}
            (spoke, _) => return spoke,
        }
    }
    outcome
}

/// Makes one connection, and carries what becomes of it to its end.
async fn once(
    hub: &Arc<Hub>,
    address: SocketAddr,
    wish: Wish<'_>,
    report: &mut Option<oneshot::Sender<Tried>>,
) -> Attempt {
    let connecting = timeout(CONNECT_WITHIN, TcpStream::connect(address));
    let socket = match hub.while_open(connecting).await {
        Some(Ok(Ok(socket))) => socket,
        Some(Ok(Err(error))) if error.kind() == ErrorKind::ConnectionRefused => {
            hub.shared.rejections.clear(address);
            return Attempt::Refused;
        }
        Some(Ok(Err(_)) | Err(_)) | None => return Attempt::Silent,
    };
    // Where nobody listens, a port that the system picks for us may happen to be the one that is dialled.
    if socket.local_addr().is_ok_and(|local| local == address) {
        return Attempt::Refused;
    }
    // It fails only where the other side is gone already, which reading will tell.
    socket.set_nodelay(true).ok();
    match hub.while_open(timeout(TLS_WITHIN, greet(hub, socket, address))).await {
        Some(Ok(Ok(stream))) => {
            hub.shared.rejections.clear(address);
            return speak(hub, stream, address, wish, report).await;
        }
        Some(Ok(Err(error))) => {
            if let Some(reason) = refuse(hub, address, &error)
                && reason.is_rejection()
            {
                hub.shared.rejections.note(address, reason);
            }
        }
        Some(Err(_)) => hub.shared.counts.refuse(Refused::Slow, &address, &"TLS has taken too long"),
        None => {}
    }
    Attempt::Silent
}

async fn greet(hub: &Hub, socket: TcpStream, address: SocketAddr) -> Result<TlsStream<TcpStream>, Error> {
    let config = hub.shared.credentials.in_force().client.clone();
    let connector = TlsConnector::from(config);
    let mut stream = connector.connect(ServerName::IpAddress(address.ip().into()), socket).await?;
    // Only now does the other side look at our certificate; it speaks first if it likes it.
    if stream.fill_buf().await?.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}

/// Notes why TLS has failed, where that tells something of the other side; then the reason.
pub(super) fn refuse(hub: &Hub, address: SocketAddr, error: &Error) -> Option<Refused> {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        // It has broken off, as whoever ends does.
        debug!(%address, %error, "a handshake has broken off");
        return None;
    };
    let reason = Refused::of(tls);
    match Mismatch::of(tls) {
        Some(mismatch) => hub.shared.counts.refuse(reason, &address, mismatch),
        None => hub.shared.counts.refuse(reason, &address, tls),
    }
    Some(reason)
}

async fn speak(
    hub: &Arc<Hub>,
    stream: TlsStream<TcpStream>,
    address: SocketAddr,
    wish: Wish<'_>,
    report: &mut Option<oneshot::Sender<Tried>>,
) -> Attempt {
    let chores = Chores::default();
    let made = http2::Builder::new(chores.clone())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .handshake(TokioIo::new(stream));
    let Ok((requests, connection)) = made.await else { return Attempt::Silent };
    let pipe = Arc::new(Pipe::default());
    let mut client = LinksClient::with_origin(Requests(requests), origin(address))
        .max_decoding_message_size(FRAME_BYTES_MAX);
    let outgoing = Asking(Outgoing { pipe: pipe.clone(), hub: hub.clone() });
    let frames = async move { client.link(outgoing).await.map(tonic::Response::into_inner) };
    let met = |peer| {
        hub.shared.is_of(&address.to_string(), peer);
        if let Some(report) = report.take() {
            report.send(Tried::Met).ok();
        }
    };
    match drive(chores, connection, talk::dialled(hub, &pipe, frames, wish, met)).await {
        Some(Ending::Nothing) | None => Attempt::Silent,
        Some(ending) => Attempt::Spoke(ending),
    }
}

fn origin(address: SocketAddr) -> http::Uri {
    let parts = http::Uri::builder().scheme("https").authority(address.to_string()).path_and_query("/");
    parts.build().expect("a scheme, a socket address and a path are a URI")
}

/// A connection as what asks over it.
struct Requests(http2::SendRequest<Body>);

impl Service<http::Request<Body>> for Requests {
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
