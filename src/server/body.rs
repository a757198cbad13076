//! Bodies: of requests, which end when they come too slowly, and of answers.

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

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// The body of a request, which ends with an error when it is not there in time.
#[derive(Debug)]
pub(super) struct RequestBody {
    body: Source,
    // The part that was read before.
    piece: Option<Bytes>,
    // Most bodies are there with their head, and need no timer.
    deadline: Option<Pin<Box<Sleep>>>,
    kind: CallKind,
    // Told when all of the body is there.
    activity: Option<Arc<RequestActivity>>,
}

/// Where a body comes from.
#[derive(Debug)]
pub(super) enum Source {
    Incoming(Incoming),
    Stream(RecvStream),
}

/// What one look at a body gives.
type ReadFrame = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

/// Whether the length of a request in time is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// As of one question.
    Unary,
    /// As of a conversation.
    Streaming,
}

impl RequestBody {
    /// `body`, of which a first piece may have been read.
    pub(super) fn new(body: Source, read: Option<Bytes>, kind: CallKind) -> Self {
        Self { body, piece: read, deadline: None, kind, activity: None }
    }

    /// The same, telling `activity` when all of it is there.
    pub(super) fn with_activity(self, activity: Option<Arc<RequestActivity>>) -> Self {
        Self { activity, ..self }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        let this = self.get_mut();
        if let Some(piece) = this.piece.take() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match (this.body.poll(cx), this.kind) {
            (Poll::Ready(None), _) => {
                let may_run = this.activity.as_ref().is_none_or(|activity| activity.start());
                // The connection is dropped before the request does anything.
                if may_run { Poll::Ready(None) } else { Poll::Pending }
            }
            (Poll::Ready(frame), _) => Poll::Ready(frame),
            (Poll::Pending, CallKind::Streaming) => Poll::Pending,
            (Poll::Pending, CallKind::Unary) => {
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
                let timed_out = || Status::deadline_exceeded("the request has not arrived in time");
                deadline.as_mut().poll(cx).map(|()| Some(Err(timed_out().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_none() && self.body.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Source::Incoming(body) => body.size_hint(),
            // Over gRPC nobody asks for it.
            Source::Stream(_) => SizeHint::default(),
        }
    }
}

/// Gives back what a piece has taken of the client's window.
pub(super) fn release_window(stream: &mut RecvStream, piece: &Bytes) {
    // It fails only where nothing more may come.
    stream.flow_control().release_capacity(piece.len()).unwrap_or_default();
}

impl Source {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ReadFrame>> {
        match self {
            Self::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Stream(stream) => match ready!(stream.poll_data(cx)) {
                Some(piece) => {
                    let piece = piece?;
                    release_window(stream, &piece);
                    Poll::Ready(Some(Ok(Frame::data(piece))))
                }
                None => {
                    let trailers = ready!(stream.poll_trailers(cx))?;
                    Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
                }
            },
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Incoming(body) => body.is_end_stream(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }
}

impl From<Incoming> for Source {
    fn from(body: Incoming) -> Self {
        Self::Incoming(body)
    }
}

impl From<RecvStream> for Source {
    fn from(stream: RecvStream) -> Self {
        Self::Stream(stream)
    }
}

/// What follows the message of an answer.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    trailers
}
