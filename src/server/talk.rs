//! HTTP/2 as those speak it who ask over gRPC: usual calls are answered as they are read, and the answers leave together.
//!
//! Spawned as tasks, the calls of a connection would each wake it when they are answered, and it would write each
//! answer by itself. So a call is answered in the task of its connection, which writes when there is nothing more to
//! read. Those that have to wait stay there too: where what they wait for comes to many of them at a time, as the
//! answers of another replica do, the connection is woken once, and their answers leave together as well.

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
    server::{Builder, Connection, Handshake, SendResponse},
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
        body::all_is_well,
        message::{self, Unread},
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::{ConnectionBytes, Share},
        rouse::{Bell, Roused},
        routed::Routed,
        wire::{Line, Watched},
    },
};

/// The method of the rate limit service.
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The most calls that are answered before what is answered is written.
const CALLS_MAX: usize = 128;
/// About the most bytes that are read before other connections have their turn.
const TURN_BYTES_MAX: usize = 32 * 1024;
/// The connection's window, which is also that of each stream: what HTTP/2 begins with.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// Time for an idle client to acknowledge that the connection ends.
pub(super) const SHUTDOWN_ACK_WITHIN: Duration = Duration::from_secs(1);

/// A connection. It has ended when this has.
pub(super) struct Talk<W> {
    state: State<W>,
    bell: Bell,
    line: Line,
    service: Arc<Routed>,
    keepalive: Keepalive,
    waiting: Waiting,
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
    NotAsked,
    /// The client has been told. It is waited for until then.
    Asked(Pin<Box<Sleep>>),
    /// The client has not acknowledged it in time: the connection ends with its last call.
    Overdue,
}

/// The calls of a connection that have to wait for something.
type Waiting = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

enum State<W> {
    Greeting(Handshake<Watched<W>, ReplyPart>),
    Talking(Connection<Watched<W>, ReplyPart>, Roused<Pulse>),
}

/// What has become of a round of reading and answering.
enum Round {
    /// There may be more to write, or to read.
    Done,
    /// There is nothing to do.
    Waits,
    /// There is no more connection.
    Ended,
}

/// When a client is asked whether it is still there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// After how long a silence; it may be twice as long.
    pub(super) interval: Duration,
    /// How long it may take to say so.
    pub(super) timeout: Duration,
}

/// Whether a client is still there.
struct Pulse {
    keepalive: Keepalive,
    line: Line,
    // None where somebody else sends them, which nobody does.
    pings: Option<PingPong>,
    next: Pin<Box<Sleep>>,
    is_asked: bool,
}

/// Why a connection has ended before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error("the client does not answer pings")]
    Silent,
}

impl<W: AsyncRead + AsyncWrite + Unpin> Talk<W> {
    pub(super) fn new(
        http2: &Builder,
        wire: W,
        line: Line,
        service: Arc<Routed>,
        keepalive: Keepalive,
        budgets: &Budgets,
    ) -> Self {
        Self {
            state: State::Greeting(http2.handshake(Watched::new(wire, line.clone()))),
            bell: Bell::rung(),
            line,
            service,
            keepalive,
            waiting: Waiting::new(),
            deferred: VecDeque::new(),
            requests: ConnectionBytes::new(budgets.requests.clone()),
            withheld: 0,
            unsent: Unsent::new(budgets.replies.clone()),
            shutdown: Shutdown::NotAsked,
        }
    }

    /// Begins no more calls, and ends with the last.
    pub(super) fn leave(&mut self) {
        self.shutdown = Shutdown::Asked(Box::pin(sleep(SHUTDOWN_ACK_WITHIN)));
        match &mut self.state {
            State::Greeting(_) => {}
            State::Talking(connection, _) => connection.graceful_shutdown(),
        }
        self.bell.waker().wake_by_ref();
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Future for Talk<W> {
    type Output = Result<(), Broken>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.bell.has_rung(cx)
            && let Poll::Ready(ended) = this.look_after(cx)
        {
            return Poll::Ready(ended);
        }
        if this.is_overdue(cx)
            && this.waiting.is_empty()
            && this.deferred.is_empty()
            && this.unsent.is_empty()
        {
            this.end(cx);
            return Poll::Ready(Ok(()));
        }
        match &mut this.state {
            State::Greeting(_) => Poll::Pending,
            State::Talking(_, pulse) => Pin::new(pulse).poll(cx).map(|()| Err(Broken::Silent)),
        }
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Talk<W> {
    fn look_after(&mut self, cx: &Context<'_>) -> Poll<Result<(), Broken>> {
        // Answers ring it too, but what comes next writes them.
        self.bell.hear();
        match self.round()? {
            Round::Ended => return Poll::Ready(Ok(())),
            Round::Waits if self.bell.rest() => {}
            // Other connections read and answer before this one writes. So writes follow each other, and whoever is woken
            // by the first is awake for the others: an eighth of the CPU where few calls come at a time.
            Round::Done | Round::Waits => {
                self.bell.waker().wake_by_ref();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Whether the client has had its time to acknowledge the end of the connection.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if let Shutdown::Asked(end) = &mut self.shutdown
            && end.as_mut().poll(cx).is_ready()
        {
            self.shutdown = Shutdown::Overdue;
        }
        matches!(self.shutdown, Shutdown::Overdue)
    }

    /// Tells the client that the connection has ended.
    fn end(&mut self, cx: &mut Context<'_>) {
        if let State::Talking(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::NO_ERROR);
            // What the socket does not take now is not waited for.
            let _ = connection.poll_closed(cx);
        }
    }

    /// Writes what has been answered, reads what has come, and answers it.
    fn round(&mut self) -> Result<Round, Broken> {
        self.line.begin_turn(TURN_BYTES_MAX);
        let mut cx = Context::from_waker(self.bell.waker());
        let connection = match &mut self.state {
            State::Greeting(greeting) => {
                let Poll::Ready(connection) = Pin::new(greeting).poll(&mut cx) else {
                    return Ok(if self.line.has_stopped() { Round::Done } else { Round::Waits });
                };
                let mut connection = connection?;
                let pulse = Pulse::new(self.keepalive, self.line.clone(), connection.ping_pong());
                match self.shutdown {
                    Shutdown::NotAsked => {}
                    Shutdown::Asked(_) | Shutdown::Overdue => connection.graceful_shutdown(),
                }
                self.state = State::Talking(connection, Roused::new(pulse));
                return Ok(Round::Done);
            }
            State::Talking(connection, _) => connection,
        };
        let (mut batch, mut has_done) = (self.service.batch(), false);
        let calls = Calls {
            service: &self.service,
            waiting: &self.waiting,
            requests: &self.requests,
            unsent: &self.unsent,
        };
        for call in 0..CALLS_MAX {
            if call == 1 {
                self.line.hold();
            }
            match connection.poll_accept(&mut cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return Ok(Round::Ended),
                Poll::Ready(Some(asked)) => {
                    let (request, respond) = asked?;
                    if self.unsent.has_room() {
                        calls.begin(batch.as_mut(), request, respond, &mut cx);
                    } else {
                        self.deferred.push_back(calls.defer(request, respond));
                    }
                    has_done = true;
                }
            }
        }
        if !self.deferred.is_empty() {
            has_done |= calls.begin_deferred(&mut self.deferred, batch.as_mut(), &mut cx);
        }
        drop(batch);
        self.line.let_go();
        has_done |= go_on(&mut self.waiting, &mut cx);
        let withheld = self.requests.withheld();
        if withheld != self.withheld {
            self.withheld = withheld;
            // What one call withholds is not taken from the others.
            connection.set_target_window_size(
                WINDOW_BYTES.saturating_add(u32::try_from(withheld).unwrap_or(u32::MAX)),
            );
        }
        Ok(if has_done || self.line.has_stopped() { Round::Done } else { Round::Waits })
    }
}

/// Goes on with the calls for which something has come. Says whether any was answered.
fn go_on(waiting: &mut Waiting, cx: &mut Context<'_>) -> bool {
    for answered in 0..CALLS_MAX {
        match Pin::new(&mut *waiting).poll_next(cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) | Poll::Pending => return 0 < answered,
        }
    }
    true
}

/// What calls of one connection share.
struct Calls<'a> {
    service: &'a Arc<Routed>,
    waiting: &'a Waiting,
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
        if let Some(response) = not_served(&request) {
            return note(respond.send_response(response, true).map(drop));
        }
        let Some(batch) = batch.filter(|_| request.uri().path() == RATE_LIMIT) else {
            return self.route(request, respond);
        };
        let piece = match request.body_mut().poll_data(cx) {
            Poll::Ready(Some(Ok(piece))) => Some(piece),
            // An error is reported again.
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
        };
        // The window that the piece has taken is given back with the stream.
        let Some(whole) = piece.as_ref().filter(|_| request.body().is_end_stream()) else {
            return self.read_and_decide(request, piece, respond);
        };
        let message = match message::complete(whole) {
            Ok(message) => message,
            Err(why) => return note(refuse(&mut respond, why.status())),
        };
        let call = Call { message, metadata: Some(request.headers()), precision: batch.precision() };
        match batch.handle(call) {
            Ok(Handled::Ready(reply)) if reply.delay.is_zero() => {
                note(answer(&mut respond, reply, self.unsent))
            }
            Ok(Handled::Ready(reply)) => {
                let (service, unsent) = (self.service.clone(), self.unsent.clone());
                self.wait(async move { answer_late(&service, reply, respond, &unsent).await });
            }
            Ok(Handled::Remote) => {
                let (service, unsent, whole) = (self.service.clone(), self.unsent.clone(), whole.clone());
                self.wait(async move { decide(&service, &request, &whole, respond, &unsent).await });
            }
            Err(error) => note(refuse(&mut respond, Some(error.into()))),
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
        self.wait(async move {
            let read = message::read(request.body_mut(), first, &mut share).await;
            drop(share);
            match read {
                Ok(whole) => Box::pin(decide(&service, &request, &whole, respond, &unsent)).await,
                Err(why) => refuse(&mut respond, why.status()),
            }
        });
    }

    /// Answers a call of another service.
    fn route(&self, mut request: Request<RecvStream>, mut respond: SendResponse<ReplyPart>) {
        let (service, unsent) = (self.service.clone(), self.unsent.clone());
        if Routed::is_conversation(&request) {
            return self.wait(see_through(service.answer(request, None), respond, unsent));
        }
        let mut share = self.requests.share(head_bytes(&request));
        self.wait(async move {
            let read = message::read(request.body_mut(), None, &mut share).await;
            drop(share);
            match read {
                Ok(whole) => see_through(service.answer(request, Some(whole)), respond, unsent).await,
                Err(why) => refuse(&mut respond, why.status()),
            }
        });
    }

    fn wait(&self, call: impl Future<Output = Result<(), h2::Error>> + Send + 'static) {
        self.waiting.push(Box::pin(async move { note(call.await) }));
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
                note(refuse(&mut call.respond, Unread::Full.status()));
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
fn not_served(request: &Request<RecvStream>) -> Option<Response<()>> {
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
    let rest = given.as_bytes().strip_prefix(GRPC.as_bytes());
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
fn refuse(respond: &mut SendResponse<ReplyPart>, error: Option<Status>) -> Result<(), h2::Error> {
    error.map_or(Ok(()), |error| respond.send_response(error.into_http(), true).map(drop))
}

fn note(answered: Result<(), h2::Error>) {
    if let Err(error) = answered {
        debug!(%error, "a call has ended in an error");
    }
}

/// Answers, and says that all is well. The client's windows may make it wait on its way.
fn answer(respond: &mut SendResponse<ReplyPart>, reply: Reply, unsent: &Unsent) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Room for one, and no more, is what has to be allocated.
    *response.headers_mut() = HeaderMap::with_capacity(1);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(unsent.part(reply.frame.into()), false)?;
    stream.send_trailers(all_is_well())
}

async fn wait(service: &Routed, delay: Duration) {
    if let Some((api, _)) = service.api() {
        api.wait(delay).await;
    }
}

/// Answers when it is time, unless the client takes its call back.
async fn answer_late(
    service: &Routed,
    reply: Reply,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    tokio::select! {
        biased;
        () = wait(service, reply.delay) => answer(&mut respond, reply, unsent),
        reset = poll_fn(|cx| respond.poll_reset(cx)) => reset.map(drop),
    }
}

/// Decides a call of the rate limit service, of which this is the whole body, wherever its counters are.
async fn decide(
    service: &Routed,
    request: &Request<RecvStream>,
    whole: &[u8],
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    let Some((api, connection)) = service.api() else { return Ok(()) };
    let decided = match message::complete(whole) {
        Ok(message) => {
            let call = Call { message, metadata: Some(request.headers()), precision: api.precision() };
            api.handle(call, connection).await.map_err(|error| Some(error.into()))
        }
        Err(why) => Err(why.status()),
    };
    match decided {
        Ok(reply) if reply.delay.is_zero() => answer(&mut respond, reply, unsent),
        // On the heap, so that the usual call has no room for it.
        Ok(reply) => Box::pin(answer_late(service, reply, respond, unsent)).await,
        Err(error) => refuse(&mut respond, error),
    }
}

/// Sends what `answering` gives, unless the client takes its call back.
async fn see_through(
    answering: impl Future<Output = Response<Body>>,
    mut respond: SendResponse<ReplyPart>,
    unsent: Unsent,
) -> Result<(), h2::Error> {
    let response = tokio::select! {
        biased;
        response = answering => response,
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

impl Pulse {
    fn new(keepalive: Keepalive, line: Line, pings: Option<PingPong>) -> Self {
        Self { keepalive, line, pings, next: Box::pin(sleep(keepalive.interval)), is_asked: false }
    }

    fn ask(&mut self, cx: &mut Context<'_>) {
        if let Some(pings) = &mut self.pings {
            // The answer to the last one is taken, or there could be no other. Where the connection has ended, that is
            // told elsewhere.
            let _answered = pings.poll_pong(cx);
            pings.send_ping(Ping::opaque()).unwrap_or_default();
        }
    }
}

/// Ready once the client has been silent for too long.
impl Future for Pulse {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Keepalive { interval, timeout } = this.keepalive;
        loop {
            ready!(this.next.as_mut().poll(cx));
            let is_silent = !this.line.was_heard();
            if is_silent && this.is_asked {
                return Poll::Ready(());
            }
            this.is_asked = is_silent;
            if is_silent {
                this.ask(cx);
            }
            this.next.as_mut().reset(Instant::now() + if is_silent { timeout } else { interval });
        }
    }
}

#[cfg(test)]
mod tests;
