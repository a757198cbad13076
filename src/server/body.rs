//! Requests whose bodies come too slowly end.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// How long the body of a request may take to arrive, once it has been waited for.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The body of a request, which ends with an error when it is not there in time.
#[derive(Debug)]
pub(super) struct Timely {
    body: Incoming,
    // Most bodies are there with their head, and need no timer.
    end: Option<Pin<Box<Sleep>>>,
    bound: Bound,
}

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
        Self { body, end: None, bound }
    }
}

impl Body for Timely {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
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
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
