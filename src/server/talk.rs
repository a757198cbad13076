//! HTTP/2 as those speak it who ask over gRPC: usual calls are answered as they are read, and the answers leave together.
//!
//! Spawned as tasks, the calls of a connection would each wake it when they are answered, and it would write each
//! answer by itself. So a call is answered in the task of its connection, which writes when there is nothing more to
//! read. Those that have to wait stay there too: where what they wait for comes to many of them at a time, as the
//! answers of another replica do, the connection is woken once, and their answers leave together as well.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::{HeaderMap, Request, Response, header::CONTENT_TYPE};
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
use tracing::debug;

use crate::{
    api::{Reply, Turn},
    server::{
        body::{Answer, all_is_well},
        quick::{self, AtOnce, GRPC},
        rouse::{Bell, Roused},
        routed::Routed,
        wire::{Line, Watched},
    },
};

/// The most calls that are answered before what is answered is written.
const CALLS_MAX: usize = 128;

/// A connection. It has ended when this has.
pub(super) struct Talk<W> {
    state: State<W>,
    bell: Bell,
    line: Line,
    service: Arc<Routed>,
    keepalive: Keepalive,
    waiting: Waiting,
    is_leaving: bool,
}

/// The calls of a connection that have to wait for something.
type Waiting = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

enum State<W> {
    Greeting(Handshake<Watched<W>, Bytes>),
    Talking(Connection<Watched<W>, Bytes>, Roused<Pulse>),
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
    ) -> Self {
        let state = State::Greeting(http2.handshake(Watched::new(wire, line.clone())));
        let (bell, waiting) = (Bell::rung(), Waiting::new());
        Self { state, bell, line, service, keepalive, waiting, is_leaving: false }
    }

    /// Begins no more calls, and ends with the last.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
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

    /// Writes what has been answered, reads what has come, and answers it.
    fn round(&mut self) -> Result<Round, Broken> {
        let mut cx = Context::from_waker(self.bell.waker());
        let connection = match &mut self.state {
            State::Greeting(greeting) => {
                let Poll::Ready(connection) = Pin::new(greeting).poll(&mut cx) else {
                    return Ok(Round::Waits);
                };
                let mut connection = connection?;
                let pulse = Pulse::new(self.keepalive, self.line.clone(), connection.ping_pong());
                if self.is_leaving {
                    connection.graceful_shutdown();
                }
                self.state = State::Talking(connection, Roused::new(pulse));
                return Ok(Round::Done);
            }
            State::Talking(connection, _) => connection,
        };
        let (mut turn, mut has_done) = (self.service.turn(), false);
        for call in 0..CALLS_MAX {
            if call == 1 {
                self.line.hold();
            }
            match connection.poll_accept(&mut cx) {
                Poll::Pending => break,
                Poll::Ready(None) => return Ok(Round::Ended),
                Poll::Ready(Some(asked)) => {
                    let (request, respond) = asked?;
                    begin(&self.service, turn.as_mut(), &self.waiting, request, respond, &mut cx);
                    has_done = true;
                }
            }
        }
        drop(turn);
        self.line.let_go();
        has_done |= go_on(&mut self.waiting, &mut cx);
        Ok(if has_done { Round::Done } else { Round::Waits })
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

/// Answers a call, or adds it to those that have to wait.
fn begin(
    service: &Arc<Routed>,
    turn: Option<&mut Turn<'_>>,
    waiting: &Waiting,
    mut request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    cx: &mut Context<'_>,
) {
    let at_once = turn.map_or(AtOnce::Nothing, |turn| quick::at_once(turn, &mut request, cx));
    match at_once {
        AtOnce::Answered(reply) if reply.delay.is_zero() => note(answer(&mut respond, reply)),
        AtOnce::Answered(reply) => {
            let service = service.clone();
            waiting.push(Box::pin(async move { note(answer_late(&service, reply, respond).await) }));
        }
        AtOnce::Afar(body) => {
            let service = service.clone();
            waiting.push(Box::pin(async move { note(answer_afar(service, request, body, respond).await) }));
        }
        AtOnce::Read(piece) => waiting.push(Box::pin(answer_fully(service, request, Some(piece), respond))),
        AtOnce::Nothing => waiting.push(Box::pin(answer_fully(service, request, None, respond))),
    }
}

fn note(answered: Result<(), h2::Error>) {
    if let Err(error) = answered {
        debug!(%error, "a call has ended in an error");
    }
}

/// Answers, and says that all is well. The client's windows may make it wait on its way.
fn answer(respond: &mut SendResponse<Bytes>, reply: Reply) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Room for one, and no more, is what has to be allocated.
    *response.headers_mut() = HeaderMap::with_capacity(1);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(reply.frame.into(), false)?;
    stream.send_trailers(all_is_well())
}

/// Answers when it is time, unless the client takes its call back.
async fn answer_late(
    service: &Routed,
    reply: Reply,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    tokio::select! {
        biased;
        () = service.wait(reply.delay) => answer(&mut respond, reply),
        reset = poll_fn(|cx| respond.poll_reset(cx)) => reset.map(drop),
    }
}

/// Answers by what other replicas say.
async fn answer_afar(
    service: Arc<Routed>,
    request: Request<RecvStream>,
    body: Bytes,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    match service.afar(&body, request.headers()).await {
        Some(reply) if reply.delay.is_zero() => answer(&mut respond, reply),
        // On the heap, so that the usual call has no room for them.
        Some(reply) => Box::pin(answer_late(&service, reply, respond)).await,
        None => Box::pin(see_through(service.answer(request, Some(body)), respond)).await,
    }
}

/// Answers whatever it takes.
fn answer_fully(
    service: &Arc<Routed>,
    request: Request<RecvStream>,
    read: Option<Bytes>,
    respond: SendResponse<Bytes>,
) -> impl Future<Output = ()> + Send + use<> {
    let answering = service.answer(request, read);
    async move { note(see_through(answering, respond).await) }
}

/// Sends what `answering` gives, unless the client takes its call back.
async fn see_through(
    answering: impl Future<Output = Response<Answer>>,
    mut respond: SendResponse<Bytes>,
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
            None => return stream.send_data(Bytes::new(), true),
            Some(Err(error)) => {
                debug!(%error, "an answer has broken off");
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send(&mut stream, data).await?,
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
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        while stream.capacity() == 0 {
            // There is none where the stream has ended.
            poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap_or(Err(Reason::CANCEL.into()))?;
        }
        stream.send_data(data.split_to(stream.capacity().min(data.len())), false)?;
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
