//! Sends what a call is answered: a reply, an error, or the response of another service.

use std::{
    future::{Future, poll_fn},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, Response, header},
};
use h2::{Reason, SendStream, server::SendResponse};
use hyper::body::{Body as _, Bytes};
use tonic::Status;
use tracing::debug;

use crate::{
    api::{CallReply, Error, Method},
    server::{
        body::{GRPC_CONTENT_TYPE, ok_trailers},
        message::MessageError,
        reply_bytes::{ReplyPart, Unsent},
        services::Services,
    },
};

/// How a call has ended.
pub(super) type Completed = Result<(), h2::Error>;

/// The reply to a call, or its error; `None` if its stream is closed.
pub(super) type Decided = Result<CallReply, Option<CallFailure>>;

/// Why a call is answered with an error.
#[derive(Debug)]
pub(super) struct CallFailure {
    pub(super) status: Status,
    /// The reason by which it is counted.
    pub(super) reason: &'static str,
}

impl CallFailure {
    pub(super) fn new(reason: &'static str, status: Status) -> Self {
        Self { status, reason }
    }

    /// The rejection of a body without a valid message; `None` if the stream is already closed.
    pub(super) fn from_message_error(error: &MessageError) -> Option<Self> {
        Some(Self { status: error.status()?, reason: error.reason() })
    }
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self { reason: error.reason_name(), status: error.into() }
    }
}

/// Replies with an error, and counts it. `None`: the stream is already closed.
pub(super) fn send_error(
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
pub(super) fn send_message(
    respond: &mut SendResponse<ReplyPart>,
    message: ReplyPart,
) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    // Allocates room for one header only.
    *response.headers_mut() = HeaderMap::with_capacity(1);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(ok_trailers())
}

async fn wait_for(service: &Services, delay: Duration) {
    if let Some((api, _)) = service.api() {
        api.wait(delay).await;
    }
}

/// Sends the reply after its delay, unless the client resets the call.
pub(super) async fn send_delayed_reply(
    service: &Services,
    reply: CallReply,
    mut respond: SendResponse<ReplyPart>,
    unsent: &Unsent,
) -> Result<(), h2::Error> {
    tokio::select! {
        biased;
        () = wait_for(service, reply.delay) => send_reply(&mut respond, reply, unsent),
        reset = poll_fn(|cx| respond.poll_reset(cx)) => reset.map(drop),
    }
}

/// Sends the reply or the error of a call, unless its stream is closed.
pub(super) async fn send_decided(
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
pub(super) async fn send_response_of(
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
            next = poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)) => next,
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

pub(super) fn log_error(completed: Completed) {
    if let Err(error) = completed {
        debug!(%error, "call failed");
    }
}
