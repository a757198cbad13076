//! gRPC over HTTP/2: a connection decides calls as it reads them and writes their replies together.
//!
//! If each call were a task, each would wake the connection and cause a write of its own. So calls run in the task of
//! their connection, which writes once there is nothing more to read. Calls that wait stay in this task too: if many of
//! them complete at once, as with replies of another replica, the connection wakes once and writes their replies
//! together.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::{self, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header},
};
use futures_util::stream::{FuturesUnordered, Stream as _, StreamExt as _};
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    server::{Builder, Connection as Http2Connection, Handshake, SendResponse},
};
use hyper::body::{Body as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::watch,
    time::{Instant, Sleep, sleep},
};
use tonic::Status;
use tracing::debug;

use crate::{
    api::{ApiKind, Batch, Call, Handled, Method, Reply, Unfinished, call::CHECK_STREAM_PATH},
    server::{
        Budgets,
        body::{GRPC_CONTENT_TYPE, ok_trailers},
        corked_io::{CorkedIo, IoHandle},
        message::{self, MessageError},
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::{ConnectionBytes, Share},
        services::Services,
        stream::CheckStream,
        wake_filter::{WakeFilter, WakeFiltered},
    },
};

const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// Maximum number of calls that are decided before their replies are written.
const CALLS_PER_POLL_MAX: usize = 128;
/// Approximate maximum of bytes that are read before other connections are polled.
const READ_BUDGET_BYTES: usize = 32 * 1024;
/// The flow-control window of the connection and of each stream: the HTTP/2 default.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// Time for an idle client to acknowledge a graceful shutdown.
pub(super) const SHUTDOWN_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A gRPC connection. The future completes when the connection is closed.
pub(super) struct Connection<W> {
    state: State<W>,
    wake_filter: WakeFilter,
    io_handle: IoHandle,
    service: Arc<Services>,
    keepalive: Keepalive,
    pending: PendingCalls,
    // Calls that arrived while the client does not read its replies.
    deferred: VecDeque<Deferred>,
    requests: ConnectionBytes,
    // Bytes of the window withheld by incomplete calls, as last reported to HTTP/2.
    withheld: usize,
    unsent: Unsent,
    shutdown: Shutdown,
    // Tells streams that the connection is to be closed.
    closing: watch::Sender<bool>,
}

/// A call that has not begun.
struct Deferred {
    request: Request<RecvStream>,
    respond: SendResponse<ReplyPart>,
    share: Share,
}

/// State of the graceful shutdown.
enum Shutdown {
    NotRequested,
    /// The client was sent GOAWAY. Wait for its acknowledgement until the timer fires.
    Requested(Pin<Box<Sleep>>),
    /// The client did not acknowledge in time: the connection closes after its last call.
    Overdue,
}

/// Calls of a connection that wait for something.
#[derive(Default)]
struct PendingCalls(FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>);

/// A call that was forwarded is decided to its end, also if its connection closes: if it is refused, what it has charged
/// at other replicas is taken back. Calls that wait for their client end at once, because their streams have failed.
impl Drop for PendingCalls {
    fn drop(&mut self) {
        let mut calls = std::mem::take(&mut self.0);
        // Without a runtime the process has stopped.
        if !calls.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { while calls.next().await.is_some() {} });
        }
    }
}

enum State<W> {
    Handshake(Handshake<CorkedIo<W>, ReplyPart>),
    Open(Http2Connection<CorkedIo<W>, ReplyPart>, WakeFiltered<KeepaliveTimer>),
}

/// Result of one pass of reading, deciding and writing.
enum Progress {
    /// There may be more to read or write.
    Active,
    /// Nothing to do.
    Idle,
    /// The connection is closed.
    Closed,
}

impl Progress {
    fn of(is_active: bool) -> Self {
        if is_active { Self::Active } else { Self::Idle }
    }
}

/// Keepalive settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// Time without received bytes before a ping is sent; up to twice as long in practice.
    pub(super) interval: Duration,
    /// Time to wait for the ping reply before the connection is closed.
    pub(super) timeout: Duration,
}

/// Sends keepalive pings. Completes when the client does not reply.
struct KeepaliveTimer {
    keepalive: Keepalive,
    io_handle: IoHandle,
    // `None` only if `ping_pong` was already taken, which does not happen.
    pings: Option<PingPong>,
    next: Pin<Box<Sleep>>,
    is_ping_sent: bool,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error("keepalive timeout: no reply to the ping")]
    KeepaliveTimeout,
}

impl<W: AsyncRead + AsyncWrite + Unpin> Connection<W> {
    pub(super) fn new(
        http2: &Builder,
        io: W,
        io_handle: IoHandle,
        service: Arc<Services>,
        keepalive: Keepalive,
        budgets: &Budgets,
    ) -> Self {
        Self {
            state: State::Handshake(http2.handshake(CorkedIo::new(io, io_handle.clone()))),
            wake_filter: WakeFilter::new(),
            io_handle,
            service,
            keepalive,
            pending: PendingCalls::default(),
            deferred: VecDeque::new(),
            requests: ConnectionBytes::new(budgets.requests.clone()),
            withheld: 0,
            unsent: Unsent::new(budgets.replies.clone()),
            shutdown: Shutdown::NotRequested,
            closing: watch::Sender::new(false),
        }
    }

    /// Starts a graceful shutdown: accepts no more calls and closes after the last one.
    pub(super) fn shut_down(&mut self) {
        self.shutdown = Shutdown::Requested(Box::pin(sleep(SHUTDOWN_ACK_TIMEOUT)));
        self.closing.send_replace(true);
        match &mut self.state {
            State::Handshake(_) => {}
            State::Open(connection, _) => connection.graceful_shutdown(),
        }
        self.wake_filter.waker().wake_by_ref();
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Future for Connection<W> {
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.wake_filter.is_woken(cx)
            && let Poll::Ready(result) = this.poll_io(cx)
        {
            return Poll::Ready(result);
        }
        if this.is_overdue(cx)
            && this.pending.0.is_empty()
            && this.deferred.is_empty()
            && this.unsent.is_empty()
        {
            this.close(cx);
            return Poll::Ready(Ok(()));
        }
        match &mut this.state {
            State::Handshake(_) => Poll::Pending,
            State::Open(_, keepalive_timer) => {
                Pin::new(keepalive_timer).poll(cx).map(|()| Err(ConnectionError::KeepaliveTimeout))
            }
        }
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Connection<W> {
    fn poll_io(&mut self, cx: &Context<'_>) -> Poll<Result<(), ConnectionError>> {
        // Replies wake the filter too, but the next statement writes them.
        self.wake_filter.begin_poll();
        match self.drive()? {
            Progress::Closed => return Poll::Ready(Ok(())),
            Progress::Idle if self.wake_filter.end_poll() => {}
            // Yield before writing, so that other connections read and decide first. Their writes then follow each
            // other, and a client woken by the first write is still awake for the next ones. This saves an eighth of
            // the CPU at low concurrency.
            Progress::Active | Progress::Idle => {
                self.wake_filter.waker().wake_by_ref();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Whether the time to acknowledge the graceful shutdown has passed.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if let Shutdown::Requested(end) = &mut self.shutdown
            && end.as_mut().poll(cx).is_ready()
        {
            self.shutdown = Shutdown::Overdue;
        }
        matches!(self.shutdown, Shutdown::Overdue)
    }

    /// Sends GOAWAY and closes the connection.
    fn close(&mut self, cx: &mut Context<'_>) {
        if let State::Open(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::NO_ERROR);
            // Bytes that the socket does not accept now are dropped.
            let _ = connection.poll_closed(cx);
        }
    }

    /// Writes replies, reads requests and decides them.
    fn drive(&mut self) -> Result<Progress, ConnectionError> {
        self.io_handle.set_read_budget(READ_BUDGET_BYTES);
        let mut cx = Context::from_waker(self.wake_filter.waker());
        let connection = match &mut self.state {
            State::Handshake(handshake) => {
                let Poll::Ready(connection) = Pin::new(handshake).poll(&mut cx) else {
                    return Ok(Progress::of(self.io_handle.is_read_budget_spent()));
                };
                let mut connection = connection?;
                let keepalive_timer =
                    KeepaliveTimer::new(self.keepalive, self.io_handle.clone(), connection.ping_pong());
                match self.shutdown {
                    Shutdown::NotRequested => {}
                    Shutdown::Requested(_) | Shutdown::Overdue => connection.graceful_shutdown(),
                }
                self.state = State::Open(connection, WakeFiltered::new(keepalive_timer));
                return Ok(Progress::Active);
            }
            State::Open(connection, _) => connection,
        };
        let (mut batch, mut has_progressed) = (self.service.batch(), false);
        let calls = Calls {
            service: &self.service,
            pending: &self.pending,
            requests: &self.requests,
            unsent: &self.unsent,
            closing: &self.closing,
        };
        for call in 0..CALLS_PER_POLL_MAX {
            if call == 1 {
                self.io_handle.cork();
            }
            match connection.poll_accept(&mut cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return Ok(Progress::Closed),
                Poll::Ready(Some(accepted)) => {
                    let (request, respond) = accepted?;
                    if self.unsent.has_room() {
                        calls.begin(batch.as_mut(), request, respond, &mut cx);
                    } else {
                        self.deferred.push_back(calls.defer(request, respond));
                    }
                    has_progressed = true;
                }
            }
        }
        if !self.deferred.is_empty() {
            has_progressed |= calls.begin_deferred(&mut self.deferred, batch.as_mut(), &mut cx);
        }
        drop(batch);
        self.io_handle.uncork();
        has_progressed |= poll_pending(&mut self.pending, &mut cx);
        let withheld = self.requests.withheld();
        if withheld != self.withheld {
            self.withheld = withheld;
            // Window withheld by one call must not reduce the window of the others.
            connection.set_target_window_size(
                WINDOW_BYTES.saturating_add(u32::try_from(withheld).unwrap_or(u32::MAX)),
            );
        }
        Ok(Progress::of(has_progressed || self.io_handle.is_read_budget_spent()))
    }
}

/// Polls pending calls that were woken. Returns whether any completed.
fn poll_pending(pending: &mut PendingCalls, cx: &mut Context<'_>) -> bool {
    for completed in 0..CALLS_PER_POLL_MAX {
        match Pin::new(&mut pending.0).poll_next(cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) | Poll::Pending => return completed > 0,
        }
    }
    true
}

/// State shared by the calls of a connection.
struct Calls<'a> {
    service: &'a Arc<Services>,
    pending: &'a PendingCalls,
    requests: &'a ConnectionBytes,
    unsent: &'a Unsent,
    closing: &'a watch::Sender<bool>,
}

impl Calls<'_> {
    /// Replies to a call, or adds it to the pending calls.
    fn begin(
        &self,
        batch: Option<&mut Batch<'_>>,
        mut request: Request<RecvStream>,
        mut respond: SendResponse<ReplyPart>,
        cx: &mut Context<'_>,
    ) {
        if let Some(response) = rejection(&request) {
            return log_error(respond.send_response(response, true).map(drop));
        }
        let Some(batch) = batch else { return self.route(request, respond) };
        let Some(method) = Method::of_path(request.uri().path()) else {
            return match request.uri().path() {
                CHECK_STREAM_PATH => self.serve_stream(request, respond),
                _another => self.route(request, respond),
            };
        };
        let chunk = match request.body_mut().poll_data(cx) {
            Poll::Ready(Some(Ok(chunk))) => Some(chunk),
            // `poll_data` returns the error again.
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
        };
        // The window is released when the stream is dropped.
        let Some(framed) = chunk.as_ref().filter(|_| request.body().is_end_stream()) else {
            return self.read_and_decide(method, request, chunk, respond);
        };
        let message = match message::unframe(framed) {
            Ok(message) => message,
            Err(error) => return log_error(send_error(&mut respond, error.status())),
        };
        let api = ApiKind::over_grpc(method);
        let call =
            Call { method, message, metadata: Some(request.headers()), precision: batch.precision(), api };
        match batch.handle(call) {
            Ok(Handled::Ready(reply)) if reply.delay.is_zero() => {
                log_error(send_reply(&mut respond, reply, self.unsent))
            }
            Ok(Handled::Ready(reply)) => {
                let (service, unsent) = (self.service.clone(), self.unsent.clone());
                self.push_pending(async move { send_delayed_reply(&service, reply, respond, &unsent).await });
            }
            Ok(Handled::Unfinished(unfinished)) => {
                let (service, unsent, framed) = (self.service.clone(), self.unsent.clone(), framed.clone());
                self.push_pending(async move {
                    decide(&service, method, &request, &framed, Some(unfinished), respond, &unsent).await
                });
            }
            Err(error) => log_error(send_error(&mut respond, Some(error.into()))),
        }
    }

    /// Reads the rest of a call and decides it.
    fn read_and_decide(
        &self,
        method: Method,
        mut request: Request<RecvStream>,
        first: Option<Bytes>,
        mut respond: SendResponse<ReplyPart>,
    ) {
        let (service, unsent) = (self.service.clone(), self.unsent.clone());
        let mut share = self.requests.share(head_bytes(&request));
        self.push_pending(async move {
            let read = message::read(request.body_mut(), first, &mut share).await;
            drop(share);
            match read {
                Ok(framed) => {
                    Box::pin(decide(&service, method, &request, &framed, None, respond, &unsent)).await
                }
                Err(error) => send_error(&mut respond, error.status()),
            }
        });
    }

    /// Serves a stream of questions.
    fn serve_stream(&self, request: Request<RecvStream>, respond: SendResponse<ReplyPart>) {
        let (service, bytes, unsent) = (self.service.clone(), self.requests.clone(), self.unsent.clone());
        let stream = CheckStream::new(service, request, bytes, unsent, self.closing.subscribe());
        self.push_pending(stream.run(respond));
    }

    /// Passes a call to another gRPC service.
    fn route(&self, mut request: Request<RecvStream>, mut respond: SendResponse<ReplyPart>) {
        let (service, unsent) = (self.service.clone(), self.unsent.clone());
        if Services::is_streaming(&request) {
            return self.push_pending(send_response_of(service.handle(request, None), respond, unsent));
        }
        let mut share = self.requests.share(head_bytes(&request));
        self.push_pending(async move {
            let read = message::read(request.body_mut(), None, &mut share).await;
            drop(share);
            match read {
                Ok(framed) => send_response_of(service.handle(request, Some(framed)), respond, unsent).await,
                Err(error) => send_error(&mut respond, error.status()),
            }
        });
    }

    fn push_pending(&self, call: impl Future<Output = Result<(), h2::Error>> + Send + 'static) {
        self.pending.0.push(Box::pin(async move { log_error(call.await) }));
    }

    /// Keeps a call until there is room for its reply.
    fn defer(&self, request: Request<RecvStream>, respond: SendResponse<ReplyPart>) -> Deferred {
        let share = self.requests.share(head_bytes(&request));
        Deferred { request, respond, share }
    }

    /// Begins deferred calls in their order while there is room for replies. Returns whether any was begun or refused.
    fn begin_deferred(
        &self,
        deferred: &mut VecDeque<Deferred>,
        mut batch: Option<&mut Batch<'_>>,
        cx: &mut Context<'_>,
    ) -> bool {
        let before = deferred.len();
        deferred.retain_mut(|call| {
            let is_rejected = call.share.poll_rejected(cx).is_ready();
            if is_rejected {
                log_error(send_error(&mut call.respond, MessageError::OverBudget.status()));
            }
            !is_rejected
        });
        while self.unsent.has_room()
            && let Some(Deferred { request, respond, share }) = deferred.pop_front()
        {
            drop(share);
            self.begin(batch.as_deref_mut(), request, respond, cx);
        }
        deferred.len() != before
    }
}

/// The response to a request that is not valid gRPC, or is compressed.
fn rejection(request: &Request<RecvStream>) -> Option<Response<()>> {
    let mut response = Response::new(());
    if request.method() != http::Method::POST {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    } else if !is_grpc(request.headers()) {
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    } else if request.headers().get(&GRPC_ENCODING).is_some_and(|encoding| *encoding != UNCOMPRESSED) {
        response = Status::unimplemented("compressed messages are not supported").into_http();
        response.headers_mut().insert(&GRPC_ACCEPT_ENCODING, UNCOMPRESSED);
    } else {
        return None;
    }
    Some(response)
}

/// Whether the content type is gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return false };
    let rest = given.as_bytes().strip_prefix(GRPC_CONTENT_TYPE.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// Approximate memory of the request head, in bytes.
fn head_bytes(request: &Request<RecvStream>) -> usize {
    /// An entry of the header map without its name and value.
    const ENTRY_BYTES: usize = 128;
    let headers = request.headers().iter();
    headers.map(|(name, value)| ENTRY_BYTES + name.as_str().len() + value.len()).sum()
}

/// Replies with an error. `None`: the stream is already closed.
fn send_error(respond: &mut SendResponse<ReplyPart>, error: Option<Status>) -> Result<(), h2::Error> {
    error.map_or(Ok(()), |error| respond.send_response(error.into_http(), true).map(drop))
}

fn log_error(completed: Result<(), h2::Error>) {
    if let Err(error) = completed {
        debug!(%error, "call failed");
    }
}

/// Sends the reply and its OK trailers. Flow control may delay the bytes.
fn send_reply(respond: &mut SendResponse<ReplyPart>, reply: Reply, unsent: &Unsent) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Allocates room for one header only.
    *response.headers_mut() = HeaderMap::with_capacity(1);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(unsent.part(reply.frame.into()), false)?;
    stream.send_trailers(ok_trailers())
}

async fn wait_for(service: &Services, delay: Duration) {
    if let Some((api, _)) = service.api() {
        api.wait(delay).await;
    }
}

/// Sends the reply after its delay, unless the client resets the call.
async fn send_delayed_reply(
    service: &Services,
    reply: Reply,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    tokio::select! {
        biased;
        () = wait_for(service, reply.delay) => send_reply(&mut respond, reply, unsent),
        reset = poll_fn(|cx| respond.poll_reset(cx)) => reset.map(drop),
    }
}

/// Decides a call from its complete body, locally or elsewhere. `unfinished` is what is known of a call that was found
/// to need another replica.
async fn decide(
    service: &Services,
    method: Method,
    request: &Request<RecvStream>,
    framed: &[u8],
    unfinished: Option<Unfinished>,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    let Some((api, connection)) = service.api() else { return Ok(()) };
    let decided = match message::unframe(framed) {
        Ok(message) => {
            let (metadata, precision) = (Some(request.headers()), api.precision());
            let call = Call { method, message, metadata, precision, api: ApiKind::over_grpc(method) };
            let decided = match unfinished {
                Some(unfinished) => api.finish(call, connection, unfinished).await,
                None => api.handle(call, connection).await,
            };
            decided.map_err(|error| Some(error.into()))
        }
        Err(error) => Err(error.status()),
    };
    match decided {
        Ok(reply) if reply.delay.is_zero() => send_reply(&mut respond, reply, unsent),
        // Boxed to keep the future of a call without delay small.
        Ok(reply) => Box::pin(send_delayed_reply(service, reply, respond, unsent)).await,
        Err(error) => send_error(&mut respond, error),
    }
}

/// Sends the response that `response` resolves to, unless the client resets the call.
async fn send_response_of(
    response: impl Future<Output = Response<Body>>,
    mut respond: SendResponse<ReplyPart>,
    unsent: Unsent,
) -> Result<(), h2::Error> {
    let response = tokio::select! {
        biased;
        response = response => response,
        reset = poll_fn(|cx| respond.poll_reset(cx)) => return reset.map(drop),
    };
    let (head, mut body) = response.into_parts();
    let is_end_stream = body.is_end_stream();
    let mut stream = respond.send_response(Response::from_parts(head, ()), is_end_stream)?;
    if is_end_stream {
        return Ok(());
    }
    loop {
        let next = tokio::select! {
            biased;
            next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => next,
            reset = poll_fn(|cx| stream.poll_reset(cx)) => return reset.map(drop),
        };
        match next {
            None => return stream.send_data(unsent.part(Bytes::new()), true),
            Some(Err(error)) => {
                debug!(%error, "response body failed");
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send(&mut stream, data, &unsent).await?,
                // Other frame types are not sent.
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return stream.send_trailers(trailers);
                    }
                }
            },
        }
    }
}

/// Sends `data` as flow control allows.
async fn send(stream: &mut SendStream<ReplyPart>, mut data: Bytes, unsent: &Unsent) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        while stream.capacity() == 0 {
            // `None`: the stream is closed.
            poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap_or(Err(Reason::CANCEL.into()))?;
        }
        let chunk = data.split_to(stream.capacity().min(data.len()));
        stream.send_data(unsent.part(chunk), false)?;
    }
    Ok(())
}

impl KeepaliveTimer {
    fn new(keepalive: Keepalive, io_handle: IoHandle, pings: Option<PingPong>) -> Self {
        Self { keepalive, io_handle, pings, next: Box::pin(sleep(keepalive.interval)), is_ping_sent: false }
    }

    fn send_ping(&mut self, cx: &mut Context<'_>) {
        if let Some(pings) = &mut self.pings {
            // The previous pong must be taken before the next ping. Connection errors are reported by the connection
            // itself.
            let _ = pings.poll_pong(cx);
            let _ = pings.send_ping(Ping::opaque());
        }
    }
}

/// Completes when the client has not replied to a ping in time.
impl Future for KeepaliveTimer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Keepalive { interval, timeout } = this.keepalive;
        loop {
            ready!(this.next.as_mut().poll(cx));
            let is_silent = !this.io_handle.take_received();
            if is_silent && this.is_ping_sent {
                return Poll::Ready(());
            }
            this.is_ping_sent = is_silent;
            if is_silent {
                this.send_ping(cx);
            }
            this.next.as_mut().reset(Instant::now() + if is_silent { timeout } else { interval });
        }
    }
}

#[cfg(test)]
mod tests;
