//! The usual call, answered without a router: its message comes in one piece, and so does its answer.

use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, header::CONTENT_TYPE};
use hyper::body::Bytes;

use crate::{
    api::{Api, Reply, is_one_frame},
    server::body::{Answer, Timely},
};

/// The method that nearly all calls are of.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");

/// Whether a call may be answered here.
pub(super) fn may_be_usual<B>(request: &Request<B>) -> bool {
    request.uri().path() == PATH
        && request.method() == Method::POST
        && !request.headers().contains_key("grpc-encoding")
}

/// Answers a call if it is usual. If not, it comes back as if nobody had looked.
pub(super) async fn answer(
    api: &Api,
    mut request: Request<Timely>,
) -> Result<Response<Answer>, Request<Timely>> {
    let Some(piece) = request.body_mut().in_one_piece(is_one_frame).await else { return Err(request) };
    let Some(Reply { frame, delay }) = api.answer_framed(&piece, request.headers()) else {
        request.body_mut().put_back(piece);
        return Err(request);
    };
    if !delay.is_zero() {
        drop(request);
        api.wait(delay).await;
    }
    Ok(response(frame.into()))
}

fn response(frame: Bytes) -> Response<Answer> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", OK);
    let mut response = Response::new(Answer::framed(frame, trailers));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}
