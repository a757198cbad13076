//! HTTP/2 as those speak it who ask over gRPC: usual calls are answered as they are read, and the answers shut_down together.
//!
//! Spawned as tasks, the calls of a connection would each wake it when they are answered, and it would write each
//! answer by itself. So a call is answered in the task of its connection, which writes when there is nothing more to
//! read. Those that have to wait stay there too: where what they wait for comes to many of them at a time, as the
//! answers of another replica do, the connection is woken once, and their answers shut_down together as well.

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
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header},
};
use futures_util::stream::{FuturesUnordered, Stream as _};
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    server::{Builder, Connection as Http2Connection, Handshake, SendResponse},
};
use hyper::body::{Body as _, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep},
};
use tonic::Status;
use tracing::debug;

use crate::{
    api::{Batch, Call, Handled, Reply},
    server::{
        Budgets,
        body::ok_trailers,
        corked_io::{CorkedIo, IoHandle},
        message::{self, MessageError},
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::{ConnectionBytes, Share},
        services::Services,
        wake_filter::{WakeFilter, WakeFiltered},
    },
};

/// The method of the rate limit service.
const RATE_LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The most calls that are answered before what is answered is written.
const CALLS_PER_POLL_MAX: usize = 128;
/// About the most bytes that are read before other connections have their turn.
const READ_BUDGET_BYTES: usize = 32 * 1024;
/// The connection's window, which is also that of each stream: what HTTP/2 begins with.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// Time for an idle client to acknowledge that the connection ends.
pub(super) const SHUTDOWN_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection. It has ended when this has.
pub(super) struct Connection<W> {
    state: State<W>,
    filter: WakeFilter,
    io_handle: IoHandle,
    service: Arc<Services>,
    keepalive: Keepalive,
    pending: PendingCalls,
    // Calls that have come while the client does not take its replies.
    deferred: VecDeque<Deferred>,
    requests: ConnectionBytes,
    // The part of the window that unfinished calls withhold, as HTTP/2 knows it.
    withheld: usize,
    unsent: Unsent,
    shutdown: Shutdown,
}

/// A call that is not begun yet.
struct Deferred {
    request: Request<RecvStream>,
    respond: SendResponse<ReplyPart>,
    share: Share,
}

/// Whether the connection is to end.
enum Shutdown {
    NotRequested,
    /// The client has been told. It is waited for until then.
    Requested(Pin<Box<Sleep>>),
    /// The client has not acknowledged it in time: the connection ends with its last call.
    Overdue,
}

/// The calls of a connection that have to wait for something.
type PendingCalls = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

enum State<W> {
    Handshake(Handshake<CorkedIo<W>, ReplyPart>),
    Open(Http2Connection<CorkedIo<W>, ReplyPart>, WakeFiltered<KeepaliveTimer>),
}

/// What has become of a round of reading and response.
enum Progress {
    /// There may be more to write, or to read.
    Active,
    /// There is nothing to do.
    Idle,
    /// There is no more connection.
    Closed,
}

/// When a client is accepted whether it is still there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// After how long a silence; it may be twice as long.
    pub(super) interval: Duration,
    /// How long it may take to say so.
    pub(super) timeout: Duration,
}

/// Whether a client is still there.
struct KeepaliveTimer {
    keepalive: Keepalive,
    io_handle: IoHandle,
    // None where somebody else sends them, which nobody does.
    pings: Option<PingPong>,
    next: Pin<Box<Sleep>>,
    is_ping_sent: bool,
}

/// Why a connection has ended before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error("the client does not answer pings")]
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
            filter: WakeFilter::new(),
            io_handle,
            service,
            keepalive,
            pending: PendingCalls::new(),
            deferred: VecDeque::new(),
            requests: ConnectionBytes::new(budgets.requests.clone()),
            withheld: 0,
            unsent: Unsent::new(budgets.replies.clone()),
            shutdown: Shutdown::NotRequested,
        }
    }

    /// Begins no more calls, and ends with the last.
    pub(super) fn shut_down(&mut self) {
        self.shutdown = Shutdown::Requested(Box::pin(sleep(SHUTDOWN_ACK_TIMEOUT)));
        match &mut self.state {
            State::Handshake(_) => {}
            State::Open(connection, _) => connection.graceful_shutdown(),
        }
        self.filter.waker().wake_by_ref();
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Future for Connection<W> {
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.filter.is_woken(cx)
            && let Poll::Ready(ended) = this.poll_io(cx)
        {
            return Poll::Ready(ended);
        }
        if this.is_overdue(cx)
            && this.pending.is_empty()
            && this.deferred.is_empty()
            && this.unsent.is_empty()
        {
            this.end(cx);
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
        // Answers ring it too, but what comes next writes them.
        self.filter.begin_poll();
        match self.drive()? {
            Progress::Closed => return Poll::Ready(Ok(())),
            Progress::Idle if self.filter.end_poll() => {}
            // Other connections read and answer before this one writes. So writes follow each other, and whoever is woken
            // by the first is awake for the others: an eighth of the CPU where few calls come at a time.
            Progress::Active | Progress::Idle => {
                self.filter.waker().wake_by_ref();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Whether the client has had its time to acknowledge the end of the connection.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if let Shutdown::Requested(end) = &mut self.shutdown
            && end.as_mut().poll(cx).is_ready()
        {
            self.shutdown = Shutdown::Overdue;
        }
        matches!(self.shutdown, Shutdown::Overdue)
    }

    /// Tells the client that the connection has ended.
    fn end(&mut self, cx: &mut Context<'_>) {
        if let State::Open(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::NO_ERROR);
            // What the socket does not take now is not waited for.
            let _ = connection.poll_closed(cx);
        }
    }

    /// Writes what has been answered, reads what has come, and answers it.
    fn drive(&mut self) -> Result<Progress, ConnectionError> {
        self.io_handle.set_read_budget(READ_BUDGET_BYTES);
        let mut cx = Context::from_waker(self.filter.waker());
        let connection = match &mut self.state {
            State::Handshake(handshake) => {
                let Poll::Ready(connection) = Pin::new(handshake).poll(&mut cx) else {
                    return Ok(if self.io_handle.is_read_budget_spent() {
                        Progress::Active
                    } else {
                        Progress::Idle
                    });
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
            // What one call withholds is not taken from the others.
            connection.set_target_window_size(
                WINDOW_BYTES.saturating_add(u32::try_from(withheld).unwrap_or(u32::MAX)),
            );
        }
        Ok(if has_progressed || self.io_handle.is_read_budget_spent() {
            Progress::Active
        } else {
            Progress::Idle
        })
    }
}

/// Goes on with the calls for which something has come. Says whether any was answered.
fn poll_pending(pending: &mut PendingCalls, cx: &mut Context<'_>) -> bool {
    for answered in 0..CALLS_PER_POLL_MAX {
        match Pin::new(&mut *pending).poll_next(cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) | Poll::Pending => return 0 < answered,
        }
    }
    true
}

/// What calls of one connection share.
struct Calls<'a> {
    service: &'a Arc<Services>,
    pending: &'a PendingCalls,
    requests: &'a ConnectionBytes,
    unsent: &'a Unsent,
}

impl Calls<'_> {
    /// Answers a call, or adds it to those that have to wait.
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
        let Some(batch) = batch.filter(|_| request.uri().path() == RATE_LIMIT_PATH) else {
            return self.route(request, respond);
        };
        let piece = match request.body_mut().poll_data(cx) {
            Poll::Ready(Some(Ok(piece))) => Some(piece),
            // An error is reported again.
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
        };
        // The window that the piece has taken is given back with the stream.
        let Some(framed) = piece.as_ref().filter(|_| request.body().is_end_stream()) else {
            return self.read_and_decide(request, piece, respond);
        };
        let message = match message::unframe(framed) {
            Ok(message) => message,
            Err(error) => return log_error(send_error(&mut respond, error.status())),
        };
        let call = Call { message, metadata: Some(request.headers()), precision: batch.precision() };
        match batch.handle(call) {
            Ok(Handled::Ready(reply)) if reply.delay.is_zero() => {
                log_error(send_reply(&mut respond, reply, self.unsent))
            }
            Ok(Handled::Ready(reply)) => {
                let (service, unsent) = (self.service.clone(), self.unsent.clone());
                self.push_pending(async move { send_delayed_reply(&service, reply, respond, &unsent).await });
            }
            Ok(Handled::Remote) => {
                let (service, unsent, framed) = (self.service.clone(), self.unsent.clone(), framed.clone());
                self.push_pending(async move { decide(&service, &request, &framed, respond, &unsent).await });
            }
            Err(error) => log_error(send_error(&mut respond, Some(error.into()))),
        }
    }

    /// Reads the rest of a call of the rate limit service, and decides it.
    fn read_and_decide(
        &self,
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
                Ok(framed) => Box::pin(decide(&service, &request, &framed, respond, &unsent)).await,
                Err(error) => send_error(&mut respond, error.status()),
            }
        });
    }

    /// Answers a call of another service.
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
        self.pending.push(Box::pin(async move { log_error(call.await) }));
    }

    /// Keeps a call until there is room for its reply.
    fn defer(&self, request: Request<RecvStream>, respond: SendResponse<ReplyPart>) -> Deferred {
        let share = self.requests.share(head_bytes(&request));
        Deferred { request, respond, share }
    }

    /// Begins calls for whose replies there is room now, in their order. Says whether there were any.
    fn begin_deferred(
        &self,
        deferred: &mut VecDeque<Deferred>,
        mut batch: Option<&mut Batch<'_>>,
        cx: &mut Context<'_>,
    ) -> bool {
        let before = deferred.len();
        deferred.retain_mut(|call| {
            let is_refused = call.share.poll_refused(cx).is_ready();
            if is_refused {
                log_error(send_error(&mut call.respond, MessageError::OverBudget.status()));
            }
            !is_refused
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

/// The answer to a request that is not of gRPC, by gRPC's rules, or that is compressed.
fn rejection(request: &Request<RecvStream>) -> Option<Response<()>> {
    let mut response = Response::new(());
    if request.method() != Method::POST {
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

/// Whether a request says that it is of gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return false };
    let rest = given.as_bytes().strip_prefix(GRPC_CONTENT_TYPE.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// About what the head of a request takes.
fn head_bytes(request: &Request<RecvStream>) -> usize {
    /// An entry of the table of headers, with its name and value.
    const ENTRY_BYTES: usize = 128;
    let headers = request.headers().iter();
    headers.map(|(name, value)| ENTRY_BYTES + name.as_str().len() + value.len()).sum()
}

/// Answers with an error; without one the client cannot be answered any more.
fn send_error(respond: &mut SendResponse<ReplyPart>, error: Option<Status>) -> Result<(), h2::Error> {
    error.map_or(Ok(()), |error| respond.send_response(error.into_http(), true).map(drop))
}

fn log_error(answered: Result<(), h2::Error>) {
    if let Err(error) = answered {
        debug!(%error, "a call has ended in an error");
    }
}

/// Answers, and says that all is well. The client's windows may make it wait on its way.
fn send_reply(respond: &mut SendResponse<ReplyPart>, reply: Reply, unsent: &Unsent) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Room for one, and no more, is what has to be allocated.
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

/// Answers when it is time, unless the client takes its call back.
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

/// Decides a call of the rate limit service, of which this is the framed body, wherever its counters are.
async fn decide(
    service: &Services,
    request: &Request<RecvStream>,
    framed: &[u8],
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    let Some((api, connection)) = service.api() else { return Ok(()) };
    let decided = match message::unframe(framed) {
        Ok(message) => {
            let call = Call { message, metadata: Some(request.headers()), precision: api.precision() };
            api.handle(call, connection).await.map_err(|error| Some(error.into()))
        }
        Err(error) => Err(error.status()),
    };
    match decided {
        Ok(reply) if reply.delay.is_zero() => send_reply(&mut respond, reply, unsent),
        // On the heap, so that the usual call has no room for it.
        Ok(reply) => Box::pin(send_delayed_reply(service, reply, respond, unsent)).await,
        Err(error) => send_error(&mut respond, error),
    }
}

/// Sends what `response` gives, unless the client takes its call back.
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
    let has_ended = body.is_end_stream();
    let mut stream = respond.send_response(Response::from_parts(head, ()), has_ended)?;
    if has_ended {
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
                debug!(%error, "an answer has broken off");
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send(&mut stream, data, &unsent).await?,
                // What is neither is not sent.
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return stream.send_trailers(trailers);
                    }
                }
            },
        }
    }
}

/// Sends `data` as the client's windows let it.
async fn send(stream: &mut SendStream<ReplyPart>, mut data: Bytes, unsent: &Unsent) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        while stream.capacity() == 0 {
            // There is none where the stream has ended.
            poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap_or(Err(Reason::CANCEL.into()))?;
        }
        let piece = data.split_to(stream.capacity().min(data.len()));
        stream.send_data(unsent.part(piece), false)?;
    }
    Ok(())
}

impl KeepaliveTimer {
    fn new(keepalive: Keepalive, io_handle: IoHandle, pings: Option<PingPong>) -> Self {
        Self { keepalive, io_handle, pings, next: Box::pin(sleep(keepalive.interval)), is_ping_sent: false }
    }

    fn send_ping(&mut self, cx: &mut Context<'_>) {
        if let Some(pings) = &mut self.pings {
            // The answer to the last one is taken, or there could be no other. Where the connection has ended, that is
            // told elsewhere.
            let _answered = pings.poll_pong(cx);
            pings.send_ping(Ping::opaque()).unwrap_or_default();
        }
    }
}

/// Ready once the client has been silent for too long.
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
