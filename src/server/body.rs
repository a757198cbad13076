//! Bodies: of requests, which end when they come too slowly, and of answers.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::HeaderMap;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// How long the body of a request may take to arrive, once it has been waited for.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The body of a request, which ends with an error when it is not there in time.
#[derive(Debug)]
pub(super) struct Timely {
    body: Incoming,
    // What was read and put back, in this order.
    piece: Option<Bytes>,
    next: Option<Read>,
    // Most bodies are there with their head, and need no timer.
    end: Option<Pin<Box<Sleep>>>,
    bound: Bound,
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
    pub(super) fn new(body: Incoming, bound: Bound) -> Self {
        Self { body, piece: None, next: None, end: None, bound }
    }

    /// All of it, where that is one piece that `may_be_all`; nothing is waited for after another. If not, it is as if
    /// nobody had looked.
    pub(super) async fn in_one_piece(&mut self, may_be_all: impl FnOnce(&[u8]) -> bool) -> Option<Bytes> {
        let piece = match self.read().await?.map(Frame::into_data) {
            Ok(Ok(piece)) => piece,
            Ok(Err(trailers)) => {
                self.next = Some(Ok(trailers));
                return None;
            }
            Err(error) => {
                self.next = Some(Err(error));
                return None;
            }
        };
        if !may_be_all(&piece) {
            self.put_back(piece);
            return None;
        }
        if !self.body.is_end_stream() {
            self.next = self.read().await;
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
        if let Some(again) =
            this.piece.take().map(|piece| Ok(Frame::data(piece))).or_else(|| this.next.take())
        {
            return Poll::Ready(Some(again));
        }
        match (Pin::new(&mut this.body).poll_frame(cx), this.bound) {
            (Poll::Ready(frame), _) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            (Poll::Pending, Bound::Unbounded) => Poll::Pending,
            (Poll::Pending, Bound::Bounded) => {
                let end = this.end.get_or_insert_with(|| Box::pin(sleep(BODY_WITHIN)));
                let late = || Status::deadline_exceeded("the request has not arrived in time");
                end.as_mut().poll(cx).map(|()| Some(Err(late().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_none() && self.next.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Bodies over gRPC, which alone are put back, tell no length.
        self.body.size_hint()
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Of a router.
    Routed(axum::body::Body),
    /// A framed message, and then the trailers.
    Framed { frame: Option<Bytes>, trailers: Option<HeaderMap> },
}

impl Answer {
    /// A framed message, and then `trailers`.
    pub(super) fn framed(frame: Bytes, trailers: HeaderMap) -> Self {
        Self::Framed { frame: Some(frame), trailers: Some(trailers) }
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
            Self::Framed { frame, trailers } => {
                let frame = frame.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Routed(body) => body.is_end_stream(),
            Self::Framed { frame, trailers } => frame.is_none() && trailers.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Routed(body) => body.size_hint(),
            Self::Framed { .. } => SizeHint::default(),
        }
    }
}
