//! Bodies: of requests, which end when they come too slowly, and of answers.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use h2::RecvStream;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::server::{idle::RequestActivity, message::BODY_WITHIN};

static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// The body of a request, which ends with an error when it is not there in time.
#[derive(Debug)]
pub(super) struct Timely {
    body: Source,
    // What was read and put back, in this order.
    piece: Option<Bytes>,
    next: Option<Box<Read>>,
    // Most bodies are there with their head, and need no timer.
    end: Option<Pin<Box<Sleep>>>,
    bound: Bound,
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
type Read = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

/// Whether the length of a request in time is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// As of one question.
    Bounded,
    /// As of a conversation.
    Unbounded,
}

impl Timely {
    /// `body`, of which a first piece may have been read.
    pub(super) fn new(body: Source, read: Option<Bytes>, bound: Bound) -> Self {
        Self { body, piece: read, next: None, end: None, bound, activity: None }
    }

    /// The same, telling `activity` when all of it is there.
    pub(super) fn of(self, activity: Option<Arc<RequestActivity>>) -> Self {
        Self { activity, ..self }
    }

    /// All of it, where that is one piece that `may_be_all`; nothing is waited for after another. If not, it is as if
    /// nobody had looked.
    pub(super) async fn in_one_piece(&mut self, may_be_all: impl FnOnce(&[u8]) -> bool) -> Option<Bytes> {
        let piece = match self.read().await?.map(Frame::into_data) {
            Ok(Ok(piece)) => piece,
            Ok(Err(trailers)) => {
                self.next = Some(Box::new(Ok(trailers)));
                return None;
            }
            Err(error) => {
                self.next = Some(Box::new(Err(error)));
                return None;
            }
        };
        if !may_be_all(&piece) {
            self.put_back(piece);
            return None;
        }
        if !self.body.has_ended() {
            self.next = self.read().await.map(Box::new);
        }
        if self.next.is_some() {
            self.put_back(piece);
            return None;
        }
        Some(piece)
    }

    /// Has its first piece, read before, read again.
    pub(super) fn put_back(&mut self, piece: Bytes) {
        self.piece = Some(piece);
    }

    async fn read(&mut self) -> Option<Read> {
        poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await
    }
}

impl Body for Timely {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Read>> {
        let this = self.get_mut();
        if let Some(piece) = this.piece.take() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(*next));
        }
        match (this.body.poll(cx), this.bound) {
            (Poll::Ready(None), _) => {
                let may_run = this.activity.as_ref().is_none_or(|activity| activity.run());
                // The connection is dropped before the request does anything.
                if may_run { Poll::Ready(None) } else { Poll::Pending }
            }
            (Poll::Ready(frame), _) => Poll::Ready(frame),
            (Poll::Pending, Bound::Unbounded) => Poll::Pending,
            (Poll::Pending, Bound::Bounded) => {
                let end = this.end.get_or_insert_with(|| Box::pin(sleep(BODY_WITHIN)));
                let late = || Status::deadline_exceeded("the request has not arrived in time");
                end.as_mut().poll(cx).map(|()| Some(Err(late().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_none() && self.next.is_none() && self.body.has_ended()
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
pub(super) fn give_back(stream: &mut RecvStream, piece: &Bytes) {
    // It fails only where nothing more may come.
    stream.flow_control().release_capacity(piece.len()).unwrap_or_default();
}

impl Source {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Read>> {
        match self {
            Self::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Self::Stream(stream) => match ready!(stream.poll_data(cx)) {
                Some(piece) => {
                    let piece = piece?;
                    give_back(stream, &piece);
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
pub(super) fn all_is_well() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, OK);
    trailers
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Of a router.
    Routed(axum::body::Body),
    /// A framed message, and then that all is well.
    Framed(Bytes),
    /// That all is well.
    Fine,
    /// Nothing more.
    Over,
}

impl Answer {
    /// What is to come, once; no answer of a router.
    fn next(&mut self) -> Option<Frame<Bytes>> {
        match mem::replace(self, Self::Over) {
            Self::Framed(frame) => {
                *self = Self::Fine;
                Some(Frame::data(frame))
            }
            Self::Fine => Some(Frame::trailers(all_is_well())),
            Self::Over | Self::Routed(_) => None,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Routed(body) => Pin::new(body).poll_frame(cx),
            ours @ (Self::Framed(_) | Self::Fine | Self::Over) => Poll::Ready(ours.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Routed(body) => body.is_end_stream(),
            Self::Framed(_) | Self::Fine => false,
            Self::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Routed(body) => body.size_hint(),
            // gRPC tells no length.
            Self::Framed(_) | Self::Fine | Self::Over => SizeHint::default(),
        }
    }
}
