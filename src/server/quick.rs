//! The usual call, answered without a router: its message comes in one piece, and so does its answer.

use std::task::{Context, Poll};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header::CONTENT_TYPE};
use h2::RecvStream;
use hyper::body::Bytes;

use crate::{
    api::{Api, Framed, Reply, Turn, is_one_frame},
    cluster::OpenForwards,
    server::body::{Answer, Timely},
};

/// The method that nearly all calls are of.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The type of a message over gRPC.
pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// What becomes of a call that may be usual, without waiting for anything.
#[derive(Debug)]
pub(super) enum AtOnce {
    /// It is answered.
    Answered(Reply),
    /// This is its body, and other replicas hold its counters. Nothing else has happened.
    Afar(Bytes),
    /// It is for [`answer`], but this piece of its body has been read, and its window is not given back.
    Read(Bytes),
    /// It is for [`answer`]. Nothing has happened.
    Nothing,
}

/// Answers a call if it is usual, its message has come, and its counters are here.
pub(super) fn at_once(
    turn: &mut Turn<'_>,
    request: &mut Request<RecvStream>,
    cx: &mut Context<'_>,
) -> AtOnce {
    if !may_be_usual(request) {
        return AtOnce::Nothing;
    }
    // An error is told again.
    let Poll::Ready(Some(Ok(piece))) = request.body_mut().poll_data(cx) else { return AtOnce::Nothing };
    if request.body().is_end_stream() {
        // What the piece has taken of the client's window is given back with the stream.
        match turn.answer_framed(&piece, request.headers()) {
            Framed::Answered(reply) => return AtOnce::Answered(reply),
            Framed::Afar => return AtOnce::Afar(piece),
            Framed::Unusual => {}
        }
    }
    AtOnce::Read(piece)
}

/// Answers a call if it is usual. If not, it is as if nobody had looked.
pub(super) async fn answer(
    api: &Api,
    request: &mut Request<Timely>,
    connection: &OpenForwards,
) -> Option<Response<Answer>> {
    if !may_be_usual(request) {
        return None;
    }
    let piece = request.body_mut().in_one_piece(is_one_frame).await?;
    let framed = api.turn().answer_framed(&piece, request.headers());
    let reply = match framed {
        Framed::Answered(reply) => Some(reply),
        // Kept apart, for it is large, and every call would have room for it.
        Framed::Afar => Box::pin(api.answer_framed_afar(&piece, request.headers(), connection)).await,
        Framed::Unusual => None,
    };
    let Some(Reply { frame, delay }) = reply else {
        request.body_mut().put_back(piece);
        return None;
    };
    if !delay.is_zero() {
        api.wait(delay).await;
    }
    let mut response = Response::new(Answer::Framed(frame.into()));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    Some(response)
}

/// Whether a call may be answered here, as far as its head tells.
fn may_be_usual<B>(request: &Request<B>) -> bool {
    request.uri().path() == PATH
        && request.method() == Method::POST
        && is_grpc(request.headers())
        && !request.headers().contains_key(&GRPC_ENCODING)
}

/// Whether a request says that it is of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(given) = headers.get(CONTENT_TYPE) else { return false };
    let rest = given.as_bytes().strip_prefix(GRPC.as_bytes());
    matches!(rest, Some([] | [b'+' | b';', ..]))
}
