//! A gRPC client that reconnects when its connection ends.

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use h2::{Ping, Reason, client::SendRequest};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri, Version, header};
use prost::bytes::Bytes;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::OnceCell,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tonic::Code;

use crate::{
    bench::frame::{self, AnswerKind, BenchCall},
    target::Target,
};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The pause before a failed connection is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// The flow-control window: large enough that the server never waits.
const WINDOW_BYTES: u32 = 1 << 24;
/// The maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The address of the server with everything needed to connect.
pub(super) struct Route {
    to: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    head: Request<()>,
    request_timeout: Duration,
}

impl Route {
    /// The route to `target`; connecting may take `request_timeout`.
    pub(super) fn new(target: Target, request_timeout: Duration) -> Result<Self, String> {
        let unix = target.to.starts_with("unix:");
        let authority = if unix { "localhost" } else { target.to.as_str() };
        let scheme = if target.tls.is_some() { "https" } else { "http" };
        let no_address = || "not HOST:PORT".to_owned();
        if !unix && target.to.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(no_address());
        }
        let mut head = Request::post(format!("{scheme}://{authority}{METHOD}"))
            .version(Version::HTTP_2)
            .body(())
            .map_err(|_| no_address())?;
        let headers = head.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, header::HeaderValue::from_static("trailers"));
        let tls = match target.tls {
            None => None,
            Some(tls) => Some(tls.connector(head.uri().host().unwrap_or_default(), b"h2")?),
        };
        Ok(Self { to: target.to, tls, head, request_timeout })
    }

    /// The head of a request, without its body.
    fn head(&self, call: &BenchCall) -> Request<()> {
        let mut head = self.head.clone();
        if call.path.is_some() {
            let mut parts = head.uri().clone().into_parts();
            parts.path_and_query.clone_from(&call.path);
            *head.uri_mut() = Uri::from_parts(parts).expect("a URI with another path is a URI");
            if call.body.is_empty() {
                *head.method_mut() = Method::GET;
            }
        }
        head
    }

    async fn connect(&self) -> Result<BenchConnection, String> {
        let connecting = async {
            let io = self.socket().await.map_err(|error| error.to_string())?;
            let (sender, mut connection) = h2::client::Builder::new()
                .initial_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                .enable_push(false)
                .handshake(io)
                .await
                .map_err(|error| error.to_string())?;
            // Detects a server of another protocol now instead of with the first request.
            let mut ping = connection.ping_pong().expect("taken only once");
            tokio::select! {
                pong = ping.ping(Ping::opaque()) => pong.map_err(|error| error.to_string())?,
                ended = &mut connection => {
                    let why = ended.err().map_or("closed".to_owned(), |error| error.to_string());
                    return Err(format!("no HTTP/2: {why}"));
                }
            };
            let mut driver = JoinSet::new();
            driver.spawn(async {
                // An error is that of the calls too.
                let _ended = connection.await;
            });
            Ok(BenchConnection { sender, _driver: driver, next: OnceCell::new() })
        };
        let late = |_| Err(format!("no connection within {:?}", self.request_timeout));
        timeout(self.request_timeout, connecting).await.unwrap_or_else(late)
    }

    async fn socket(&self) -> io::Result<Box<dyn Io>> {
        if let Some(path) = self.to.strip_prefix("unix:") {
            return self.over(UnixStream::connect(path).await?).await;
        }
        let stream = TcpStream::connect(&self.to).await?;
        stream.set_nodelay(true)?;
        self.over(stream).await
    }

    async fn over(&self, stream: impl Io + 'static) -> io::Result<Box<dyn Io>> {
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((tls, name)) => Box::new(tls.connect(name.clone(), stream).await?),
        })
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// One connection of a run, and the connection that replaces it.
struct BenchConnection {
    sender: SendRequest<Bytes>,
    // Drives the connection until no client uses it.
    _driver: JoinSet<()>,
    // Opened by the first client that finds that this connection accepts no more calls.
    next: OnceCell<Arc<BenchConnection>>,
}

/// A client of one connection of a run, with one open call at a time. Clones share the connection.
#[derive(Clone)]
pub(super) struct BenchClient {
    route: Arc<Route>,
    // Kept while a call is open on it, so that the call is answered though others use the next connection.
    connection: Arc<BenchConnection>,
    sender: SendRequest<Bytes>,
}

impl BenchClient {
    /// Opens a connection.
    pub(super) async fn connect(route: Arc<Route>) -> Result<Self, String> {
        let connection = Arc::new(route.connect().await?);
        Ok(Self { route, sender: connection.sender.clone(), connection })
    }

    /// Sends a request and waits for the whole answer. Waits for a connection if there is none.
    pub(super) async fn call(&mut self, call: BenchCall) -> AnswerKind {
        let head = self.route.head(&call);
        let BenchCall { path, body } = call;
        let (answer, mut stream) = loop {
            let is_ready = poll_fn(|context| self.sender.poll_ready(context)).await.is_ok();
            if is_ready && let Ok(sent) = self.sender.send_request(head.clone(), body.is_empty()) {
                break sent;
            }
            // Refused before anything was sent, so the call may use the next connection.
            self.reconnect().await;
        };
        let read = async {
            if !body.is_empty() {
                stream.send_data(body, true)?;
            }
            answer.await
        };
        let answered = match read.await {
            Ok(answer) => read_answer(answer).await,
            Err(error) => Err(code(&error)),
        };
        match answered {
            // A listed call may have any answer, also one of HTTP, which has no code.
            Ok((Some(Code::Ok) | None, _)) if path.is_some() => AnswerKind::Ok,
            Ok((Some(Code::Ok), answer)) => frame::outcome(&answer),
            Ok((code, _)) => AnswerKind::Failed(code.unwrap_or(Code::Unknown)),
            Err(code) => AnswerKind::Failed(code),
        }
    }

    /// Changes to the next connection, once there is one.
    async fn reconnect(&mut self) {
        let connect = async || loop {
            match self.route.connect().await {
                Ok(connection) => break Arc::new(connection),
                Err(_) => sleep(PAUSE).await,
            }
        };
        let next = self.connection.next.get_or_init(connect).await.clone();
        self.sender = next.sender.clone();
        self.connection = next;
    }
}

/// The code of gRPC in the trailers of an answer, and its body; or the code of the error that ended it.
async fn read_answer(answer: hyper::Response<h2::RecvStream>) -> Result<(Option<Code>, Bytes), Code> {
    if let Some(failed) = refusal(answer.status(), answer.headers()) {
        return Err(failed);
    }
    let mut stream = answer.into_body();
    let mut body = Bytes::new();
    while let Some(data) = stream.data().await {
        let data = data.map_err(|error| code(&error))?;
        if stream.flow_control().release_capacity(data.len()).is_err() {
            return Err(Code::Internal);
        }
        // Fast path: nearly all answers arrive in one piece.
        body = if body.is_empty() { data } else { [body, data].concat().into() };
        if body.len() > ANSWER_BYTES_MAX {
            return Err(Code::ResourceExhausted);
        }
    }
    let trailers = stream.trailers().await.map_err(|error| code(&error))?.unwrap_or_default();
    Ok((status(&trailers), body))
}

/// The error code of an answer that ends with its header.
fn refusal(answered: StatusCode, headers: &HeaderMap) -> Option<Code> {
    match (answered.as_u16(), status(headers)) {
        (200, Some(Code::Ok) | None) => None,
        (_, Some(code)) => Some(code),
        (404, None) => Some(Code::Unimplemented),
        (429 | 502 | 503 | 504, None) => Some(Code::Unavailable),
        (_, None) => Some(Code::Unknown),
    }
}

fn status(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}

fn code(error: &h2::Error) -> Code {
    match error.reason() {
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::PROTOCOL_ERROR | Reason::INTERNAL_ERROR | Reason::FLOW_CONTROL_ERROR) => Code::Internal,
        Some(_) | None => Code::Unavailable,
    }
}
