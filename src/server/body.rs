//! Request bodies with a timeout, those of streaming calls, and trailers of gRPC responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    body,
    http::{HeaderMap, HeaderName, HeaderValue},
};
use futures_util::stream;
use h2::RecvStream;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::server::{idle::RequestActivity, message::BODY_TIMEOUT};

/// The content type of gRPC.
pub(super) const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// A request body that fails if it does not arrive in time.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Incoming,
    // Created lazily: most bodies arrive with their head.
    deadline: Option<Pin<Box<Sleep>>>,
    // Notified when the body is complete.
    activity: Option<Arc<RequestActivity>>,
}

impl RequestBody {
    /// Notifies `activity` when the body is complete.
    pub(super) fn new(body: Incoming, activity: Option<Arc<RequestActivity>>) -> Self {
        Self { body, deadline: None, activity }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(cx).map_err(Into::into) {
            Poll::Ready(None) => {
                let may_run = this.activity.as_ref().is_none_or(|activity| activity.start());
                // The connection is being closed: the request must not run.
                if may_run { Poll::Ready(None) } else { Poll::Pending }
            }
            frame @ Poll::Ready(Some(_)) => frame,
            Poll::Pending => {
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
                let timed_out = || Status::deadline_exceeded("timeout while reading the request");
                deadline.as_mut().poll(cx).map(|()| Some(Err(timed_out().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a streaming call, which may stay open.
pub(super) fn streamed(mut stream: RecvStream) -> body::Body {
    body::Body::from_stream(stream::poll_fn(move |cx| {
        let chunk = ready!(stream.poll_data(cx));
        if let Some(Ok(chunk)) = &chunk {
            // Fails only if the stream is closed.
            let _ = stream.flow_control().release_capacity(chunk.len());
        }
        Poll::Ready(chunk)
    }))
}

/// The trailers of a successful gRPC response.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    trailers
}
