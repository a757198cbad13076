//! Request bodies with a timeout, and trailers of gRPC responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
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
    body: BodySource,
    // The part that was already read.
    chunk: Option<Bytes>,
    // Created lazily: most bodies arrive with their head.
    deadline: Option<Pin<Box<Sleep>>>,
    kind: CallKind,
    // Notified when the body is complete.
    activity: Option<Arc<RequestActivity>>,
}

/// The underlying body.
#[derive(Debug)]
pub(super) enum BodySource {
    Incoming(Incoming),
    Stream(RecvStream),
}

/// A frame of a body.
type ReadFrame = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

/// Whether the body has a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A single message, which must arrive in time.
    Unary,
    /// A stream, which may stay open.
    Streaming,
}

impl RequestBody {
    /// A body of `body` after the part that was already read.
    pub(super) fn new(body: BodySource, read: Option<Bytes>, kind: CallKind) -> Self {
        Self { body, chunk: read, deadline: None, kind, activity: None }
    }

    /// Notifies `activity` when the body is complete.
    pub(super) fn with_activity(self, activity: Option<Arc<RequestActivity>>) -> Self {
        Self { activity, ..self }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        let this = self.get_mut();
        if let Some(chunk) = this.chunk.take() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match (this.body.poll(cx), this.kind) {
            (Poll::Ready(None), _) => {
                let may_run = this.activity.as_ref().is_none_or(|activity| activity.start());
                // The connection is being closed: the request must not run.
                if may_run { Poll::Ready(None) } else { Poll::Pending }
            }
            (Poll::Ready(frame), _) => Poll::Ready(frame),
            (Poll::Pending, CallKind::Streaming) => Poll::Pending,
            (Poll::Pending, CallKind::Unary) => {
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
                let timed_out = || Status::deadline_exceeded("timeout while reading the request");
                deadline.as_mut().poll(cx).map(|()| Some(Err(timed_out().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            BodySource::Incoming(body) => body.size_hint(),
            // gRPC services do not use the size hint.
            BodySource::Stream(_) => SizeHint::default(),
        }
    }
}

/// Releases the flow-control window of a received chunk.
fn release_window(stream: &mut RecvStream, chunk: &Bytes) {
    // Fails only if the stream is closed.
    let _ = stream.flow_control().release_capacity(chunk.len());
}

impl BodySource {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        match self {
            Self::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Stream(stream) => match ready!(stream.poll_data(cx)) {
                Some(chunk) => {
                    let chunk = chunk?;
                    release_window(stream, &chunk);
                    Poll::Ready(Some(Ok(Frame::data(chunk))))
                }
                None => {
                    let trailers = ready!(stream.poll_trailers(cx))?;
                    Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Incoming(body) => body.is_end_stream(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }
}

impl From<Incoming> for BodySource {
    fn from(body: Incoming) -> Self {
        Self::Incoming(body)
    }
}

impl From<RecvStream> for BodySource {
    fn from(stream: RecvStream) -> Self {
        Self::Stream(stream)
    }
}

/// The trailers of a successful gRPC response.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    trailers
}
