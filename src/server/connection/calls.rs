//! The calls of a connection: how each is read, decided and replied to.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{self, HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header},
};
use futures_util::stream::{FuturesUnordered, Stream as _, StreamExt as _};
use h2::{Reason, RecvStream, SendStream, server::SendResponse};
use hyper::body::{Body as _, Bytes};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tollgate_quota::QuotaStream;
use tonic::{Code, Status};
use tracing::debug;

use crate::{
    api::{
        ApiKind,
        call::{CHECK_STREAM_PATH, Call, CallReply, Handled, Method},
        error::Error,
        handle::{ReadBatch, WaitingCall},
    },
    server::{
        body::{self, GRPC_CONTENT_TYPE, ok_trailers},
        message::{self, MessageError},
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::{ConnectionBytes, Share},
        services::Services,
        stream::{MessageStream, QuestionReplier, QuotaReplier, Replier},
    },
};

const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
static GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
/// Maximum number of calls that are decided before their replies are written.
pub(super) const CALLS_PER_POLL_MAX: usize = 128;

/// State shared by the calls of a connection.
pub(super) struct ConnectionCalls<'a> {
    pub(super) service: &'a Arc<Services>,
    pub(super) pending: &'a PendingCalls,
    pub(super) requests: &'a ConnectionBytes,
    pub(super) unsent: &'a Unsent,
    pub(super) closing: &'a CancellationToken,
}

/// A call that HTTP/2 has accepted. A call that is decided at once stays in its place until its reply is sent, because it
/// is large to move.
pub(super) struct AcceptedCall {
    request: Request<RecvStream>,
    respond: SendResponse<ReplyPart>,
    // The reply of a decided call, counted as unsent.
    reply: Option<ReplyPart>,
}

/// What is left to do for a call that was not decided at once.
enum Rest {
    /// Read the rest of the message, after what was read.
    Read(Method, Option<Bytes>),
    /// Wait for the decision elsewhere, of a message with so many bytes.
    Wait(Method, usize, WaitingCall),
    /// Send the reply after the delay.
    Delay(CallReply),
    /// Serve the call as a stream of questions.
    Stream,
    /// Serve the call as a stream of reports of quotas.
    QuotaStream,
    /// Pass the call to another gRPC service.
    Route,
}

/// A call that has not begun.
pub(super) struct Deferred {
    call: AcceptedCall,
    share: Share,
}

impl AcceptedCall {
    pub(super) fn new((request, respond): (Request<RecvStream>, SendResponse<ReplyPart>)) -> Self {
        Self { request, respond, reply: None }
    }

    /// Decides the call if that needs no wait, or rejects it. Otherwise returns what is left to do.
    fn decide_at_once(
        &mut self,
        service: &Services,
        batch: &mut ReadBatch<'_>,
        unsent: &Unsent,
        cx: &mut Context<'_>,
    ) -> Option<Rest> {
        let Self { request, respond, reply } = self;
        if let Some((CallFailure { reason, status }, response)) = rejection(request) {
            service.failed(request.uri().path(), reason, &status);
            log_error(respond.send_response(response, true).map(drop));
            return None;
        }
        let Some(method) = Method::from_path(request.uri().path()) else {
            return Some(match request.uri().path() {
                CHECK_STREAM_PATH => Rest::Stream,
                tollgate_quota::STREAM_PATH => Rest::QuotaStream,
                _another => Rest::Route,
            });
        };
        let chunk = match request.body_mut().poll_data(cx) {
            Poll::Ready(Some(Ok(chunk))) => Some(chunk),
            // `poll_data` returns the error again.
            Poll::Ready(Some(Err(_)) | None) | Poll::Pending => None,
        };
        // The window is released when the stream is dropped.
        let Some(framed) = chunk.as_ref().filter(|_| request.body().is_end_stream()) else {
            return Some(Rest::Read(method, chunk));
        };
        let message = match message::unframe(framed) {
            Ok(message) => message,
            Err(error) => {
                log_error(send_error(
                    service,
                    method.path(),
                    respond,
                    CallFailure::from_message_error(&error),
                ));
                return None;
            }
        };
        let api = ApiKind::over_grpc(method);
        let call =
            Call { method, message, metadata: Some(request.headers()), precision: batch.precision(), api };
        match batch.handle(call) {
            Ok(Handled::Ready(ready)) if ready.delay.is_zero() => {
                *reply = Some(unsent.part(ready.frame.into()));
                None
            }
            Ok(Handled::Ready(ready)) => Some(Rest::Delay(ready)),
            Ok(Handled::Waiting(waiting)) => Some(Rest::Wait(method, framed.len(), waiting)),
            Err(error) => {
                log_error(send_error(service, method.path(), respond, Some(error.into())));
                None
            }
        }
    }

    /// Sends the reply of a decided call.
    fn reply(&mut self) {
        if let Some(reply) = self.reply.take() {
            log_error(send_message(&mut self.respond, reply));
        }
    }
}

impl ConnectionCalls<'_> {
    /// Begins a group of accepted calls, and defers those for whose replies there is no room.
    pub(super) fn begin_or_defer(
        &self,
        accepted: &mut Vec<Option<AcceptedCall>>,
        deferred: &mut VecDeque<Deferred>,
        batch: &mut ReadBatch<'_>,
        cx: &mut Context<'_>,
    ) {
        for call in accepted.iter_mut() {
            if self.unsent.has_room() {
                self.begin(batch, call, cx);
            } else if let Some(call) = call.take() {
                deferred.push_back(self.defer(call));
            }
        }
        accepted.iter_mut().flatten().for_each(AcceptedCall::reply);
        accepted.clear();
    }

    /// Decides a call in its place, rejects it, or takes it to the pending calls.
    fn begin(&self, batch: &mut ReadBatch<'_>, place: &mut Option<AcceptedCall>, cx: &mut Context<'_>) {
        let rest = place.as_mut().and_then(|call| call.decide_at_once(self.service, batch, self.unsent, cx));
        if let Some(rest) = rest
            && let Some(call) = place.take()
        {
            self.proceed(call, rest);
        }
    }

    /// Adds a call to the pending calls.
    fn proceed(&self, AcceptedCall { request, respond, .. }: AcceptedCall, rest: Rest) {
        match rest {
            Rest::Read(method, first) => self.read_and_decide(method, request, first, respond),
            Rest::Wait(method, bytes, waiting) => {
                let service = self.service.clone();
                let unsent = self.unsent.clone();
                let held = self.requests.hold(bytes);
                // The head of the request is as large as the plan.
                drop(request);
                self.pending.push(async move {
                    let decided = waiting.reply(&service.api, &service.caller).await;
                    let decided = decided.map_err(|error| Some(error.into()));
                    // The reply may wait for much longer.
                    drop(held);
                    send_decided(&service, method, decided, respond, &unsent).await
                });
            }
            Rest::Delay(reply) => {
                let service = self.service.clone();
                let unsent = self.unsent.clone();
                self.pending.push(async move { send_delayed_reply(&service, reply, respond, &unsent).await });
            }
            Rest::Stream => {
                let answers = QuestionReplier::new(self.service.clone(), self.requests.clone());
                self.serve(answers, CHECK_STREAM_PATH, request, respond);
            }
            Rest::QuotaStream => self.serve_quotas(request, respond),
            Rest::Route => self.route(request, respond),
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
        let service = self.service.clone();
        let unsent = self.unsent.clone();
        let mut share = self.requests.share(head_bytes(&request));
        self.pending.push(async move {
            let read = message::read(request.body_mut(), first, &mut share).await;
            match read {
                Ok(framed) => {
                    // The window is released when the stream is dropped.
                    let (_, held) = share.complete();
                    let decided = Box::pin(decide(&service, method, request.headers(), &framed)).await;
                    // The reply may wait for much longer.
                    drop((framed, request, held));
                    send_decided(&service, method, decided, respond, &unsent).await
                }
                Err(error) => {
                    send_error(&service, method.path(), &mut respond, CallFailure::from_message_error(&error))
                }
            }
        });
    }

    /// Serves the stream of the method with this path.
    fn serve(
        &self,
        replier: impl Replier + 'static,
        path: &'static str,
        request: Request<RecvStream>,
        respond: SendResponse<ReplyPart>,
    ) {
        let bytes = self.requests.clone();
        let unsent = self.unsent.clone();
        let stream = MessageStream::new(replier, request, bytes, unsent, self.closing.clone());
        let service = self.service.clone();
        self.pending.push(stream.run(respond, move |status| stream_failed(&service, path, status)));
    }

    /// Serves a stream of reports of quotas, if that service is enabled.
    fn serve_quotas(&self, request: Request<RecvStream>, mut respond: SendResponse<ReplyPart>) {
        let Some(quotas) = &self.service.quotas else {
            let disabled =
                Status::unimplemented("the rate limit quota service is not enabled: see rlqs.enabled");
            let failure = Some(CallFailure::new("NOT_ENABLED", disabled));
            return log_error(send_error(self.service, tollgate_quota::STREAM_PATH, &mut respond, failure));
        };
        match QuotaStream::open(quotas.clone(), &self.service.origin, self.service.peer) {
            Ok(quotas) => {
                self.serve(QuotaReplier::new(quotas), tollgate_quota::STREAM_PATH, request, respond);
            }
            Err(error) => {
                let failure = Some(CallFailure::new("TOO_MANY_STREAMS", error));
                log_error(send_error(self.service, tollgate_quota::STREAM_PATH, &mut respond, failure));
            }
        }
    }

    /// Passes a call to another gRPC service.
    fn route(&self, mut request: Request<RecvStream>, mut respond: SendResponse<ReplyPart>) {
        let service = self.service.clone();
        let unsent = self.unsent.clone();
        if Services::is_streaming(&request) {
            let request = request.map(body::streamed);
            let response = async move { service.route(request).await };
            return self.pending.push(send_response_of(response, respond, unsent));
        }
        let mut share = self.requests.share(head_bytes(&request));
        self.pending.push(async move {
            let read = message::read(request.body_mut(), None, &mut share).await;
            drop(share);
            match read {
                Ok(framed) => {
                    let request = request.map(|_read| Body::from(framed));
                    // Boxed to keep the future of a call that is read small.
                    send_response_of(Box::pin(service.route(request)), respond, unsent).await
                }
                Err(error) => {
                    let failure = CallFailure::from_message_error(&error);
                    send_error(&service, request.uri().path(), &mut respond, failure)
                }
            }
        });
    }

    /// Keeps a call until there is room for its reply.
    fn defer(&self, call: AcceptedCall) -> Deferred {
        let share = self.requests.share(head_bytes(&call.request));
        Deferred { call, share }
    }

    /// Begins deferred calls in their order while there is room for replies. Returns whether any was begun or refused.
    pub(super) fn begin_deferred(
        &self,
        deferred: &mut VecDeque<Deferred>,
        batch: &mut ReadBatch<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let before = deferred.len();
        deferred.retain_mut(|Deferred { call, share }| {
            let is_rejected = share.poll_rejected(cx).is_ready();
            if is_rejected {
                let failure = CallFailure::from_message_error(&MessageError::OverBudget);
                log_error(send_error(self.service, call.request.uri().path(), &mut call.respond, failure));
            }
            !is_rejected
        });
        while self.unsent.has_room()
            && let Some(Deferred { call, share }) = deferred.pop_front()
        {
            drop(share);
            let mut place = Some(call);
            self.begin(batch, &mut place, cx);
            place.iter_mut().for_each(AcceptedCall::reply);
        }
        deferred.len() != before
    }
}

/// Approximate memory of the request head, in bytes.
fn head_bytes(request: &Request<RecvStream>) -> usize {
    /// An entry of the header map without its name and value.
    const ENTRY_BYTES: usize = 128;
    let headers = request.headers().iter();
    headers.map(|(name, value)| ENTRY_BYTES + name.as_str().len() + value.len()).sum()
}

/// Counts a stream that ends with an error, unless its time or its connection has ended.
fn stream_failed(service: &Services, path: &str, status: &Status) {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => {}
        Code::ResourceExhausted => service.failed(path, "TOO_LARGE", status),
        _the_callers => service.failed(path, "MALFORMED", status),
    }
}

/// Decides a call from its complete body, locally or elsewhere.
async fn decide(service: &Services, method: Method, headers: &HeaderMap, framed: &[u8]) -> Decided {
    let message = message::unframe(framed).map_err(|error| CallFailure::from_message_error(&error))?;
    let metadata = Some(headers);
    let precision = service.api.precision();
    let call = Call { method, message, metadata, precision, api: ApiKind::over_grpc(method) };
    service.api.handle(call, &service.caller).await.map_err(|error| Some(error.into()))
}

/// Calls of a connection that wait for something.
#[derive(Default)]
pub(super) struct PendingCalls(FuturesUnordered<Pin<Box<dyn Future<Output = Completed> + Send>>>);

impl PendingCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a call.
    // Not in another future, which would have twice the size. `inline(always)`: it is large to move.
    #[inline(always)]
    fn push(&self, call: impl Future<Output = Completed> + Send + 'static) {
        self.0.push(Box::pin(call));
    }

    /// Polls pending calls that were woken. Returns whether any completed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        for completed in 0..CALLS_PER_POLL_MAX {
            match Pin::new(&mut self.0).poll_next(cx) {
                Poll::Ready(Some(call)) => log_error(call),
                Poll::Ready(None) | Poll::Pending => return completed > 0,
            }
        }
        true
    }
}

/// A call that was forwarded is decided to its end, also if its connection closes: if it is refused, what it has charged
/// at other replicas is taken back. Calls that wait for their client end at once, because their streams have failed.
impl Drop for PendingCalls {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.0);
        // Without a runtime the process has stopped.
        if !calls.is_empty()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(calls.for_each(|call| {
                log_error(call);
                ready(())
            }));
        }
    }
}

/// Why a request is not valid gRPC, or cannot be read, as a client of gRPC sees it; and the response that says so.
fn rejection(request: &Request<RecvStream>) -> Option<(CallFailure, Response<()>)> {
    if request.method() != http::Method::POST {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        let status = Status::unknown("the method of HTTP is not POST");
        Some((CallFailure::new("NOT_GRPC", status), response))
    } else if !is_grpc(request.headers()) {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let status = Status::unknown("the content type is not that of gRPC");
        Some((CallFailure::new("NOT_GRPC", status), response))
    } else if request.headers().get(&GRPC_ENCODING).is_some_and(|encoding| *encoding != UNCOMPRESSED) {
        let status = Status::unimplemented("compressed messages are not supported");
        let mut response = status.clone().into_http();
        response.headers_mut().insert(&GRPC_ACCEPT_ENCODING, UNCOMPRESSED);
        Some((CallFailure::new("COMPRESSED", status), response))
    } else {
        None
    }
}

/// Whether the content type is gRPC.
fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return false };
    let rest = given.as_bytes().strip_prefix(GRPC_CONTENT_TYPE.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// How a call has ended.
type Completed = Result<(), h2::Error>;

/// The reply to a call, or its error; `None` if its stream is closed.
type Decided = Result<CallReply, Option<CallFailure>>;

/// Why a call is answered with an error.
#[derive(Debug)]
struct CallFailure {
    status: Status,
    /// The reason by which it is counted.
    reason: &'static str,
}

impl CallFailure {
    fn new(reason: &'static str, status: Status) -> Self {
        Self { status, reason }
    }

    /// The rejection of a body without a valid message; `None` if the stream is already closed.
    fn from_message_error(error: &MessageError) -> Option<Self> {
        Some(Self { status: error.status()?, reason: error.reason() })
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self { reason: error.reason, status: error.into() }
    }
}

/// Replies with an error, and counts it. `None`: the stream is already closed.
fn send_error(
    service: &Services,
    path: &str,
    respond: &mut SendResponse<ReplyPart>,
    failure: Option<CallFailure>,
) -> Result<(), h2::Error> {
    let Some(CallFailure { status, reason }) = failure else { return Ok(()) };
    service.failed(path, reason, &status);
    respond.send_response(status.into_http(), true).map(drop)
}

/// Sends the reply and its OK trailers. Flow control may delay the bytes.
fn send_reply(
    respond: &mut SendResponse<ReplyPart>,
    reply: CallReply,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    send_message(respond, unsent.part(reply.frame.into()))
}

/// Sends a reply whose unsent bytes are already counted, and its OK trailers.
fn send_message(respond: &mut SendResponse<ReplyPart>, message: ReplyPart) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Allocates room for one header only.
    *response.headers_mut() = HeaderMap::with_capacity(1);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(ok_trailers())
}

/// Sends the reply after its delay, unless the client resets the call.
async fn send_delayed_reply(
    service: &Services,
    reply: CallReply,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    tokio::select! {
        biased;
        () = service.api.wait(reply.delay) => send_reply(&mut respond, reply, unsent),
        reset = poll_fn(|cx| respond.poll_reset(cx)) => reset.map(drop),
    }
}

/// Sends the reply or the error of a call, unless its stream is closed.
async fn send_decided(
    service: &Services,
    method: Method,
    decided: Decided,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Completed {
    match decided {
        Ok(reply) if reply.delay.is_zero() => send_reply(&mut respond, reply, unsent),
        // Boxed to keep the future of a call without delay small.
        Ok(reply) => Box::pin(send_delayed_reply(service, reply, respond, unsent)).await,
        Err(failure) => send_error(service, method.path(), &mut respond, failure),
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

fn log_error(completed: Completed) {
    if let Err(error) = completed {
        debug!(%error, "call failed");
    }
}
