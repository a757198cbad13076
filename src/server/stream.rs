//! Serves `CheckStream`: reads questions, and writes answers as they come.
//!
//! Questions whose counters are local are answered in their order, at once. Up to [`CREDITS`] others wait together.
//! Nothing more is read while as many wait, or while the client does not take its answers.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::http::{HeaderMap, Request, Response, header};
use futures_util::{
    future::BoxFuture,
    stream::{FuturesUnordered, Stream as _, StreamExt as _},
};
use h2::{Reason, RecvStream, SendStream, server::SendResponse};
use hyper::body::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};
use tonic::Status;

use crate::{
    api::{
        timeout,
        v1::stream::{Answered, CREDITS, first_credits},
    },
    server::{
        body::{GRPC_CONTENT_TYPE, ok_trailers},
        message_queue::MessageQueue,
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::ConnectionBytes,
        services::Services,
    },
};

/// Unsent answers beyond which no question is read, in bytes.
const ANSWERS_BYTES_MAX: usize = 16 * 1024;

/// A stream of questions.
pub(super) struct CheckStream {
    service: Arc<Services>,
    questions: MessageQueue,
    waiting: FuturesUnordered<BoxFuture<'static, Result<Vec<u8>, Status>>>,
    // Encoded answers that flow control has not let out.
    answers: VecDeque<Bytes>,
    answers_bytes: usize,
    unsent: Unsent,
    deadline: Option<Deadline>,
    closing: BoxFuture<'static, ()>,
    /// Once set, no question is read.
    end: Option<Result<(), Status>>,
}

/// The end of the time that the client gives to the stream.
struct Deadline {
    at: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl CheckStream {
    /// A stream for this request. `closing` becomes true when the connection is to be closed.
    pub(super) fn new(
        service: Arc<Services>,
        request: Request<RecvStream>,
        bytes: ConnectionBytes,
        unsent: Unsent,
        mut closing: watch::Receiver<bool>,
    ) -> Self {
        // An instant that cannot be represented never comes.
        let at = timeout::of(request.headers()).and_then(|timeout| Instant::now().checked_add(timeout));
        Self {
            service,
            questions: MessageQueue::new(request.into_body(), bytes),
            waiting: FuturesUnordered::new(),
            answers: VecDeque::new(),
            answers_bytes: 0,
            unsent,
            deadline: at.map(|at| Deadline { at, sleep: Box::pin(sleep_until(at)) }),
            // An error means that the connection is gone, which ends the stream anyway.
            closing: Box::pin(async move { closing.wait_for(|closing| *closing).await.map_or((), drop) }),
            end: None,
        }
    }

    /// Serves the stream to its end.
    pub(super) async fn run(mut self, mut respond: SendResponse<ReplyPart>) -> Result<(), h2::Error> {
        let mut response = Response::new(());
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        let mut stream = respond.send_response(response, false)?;
        self.push(first_credits());
        let ended = poll_fn(|cx| self.poll(&mut stream, cx)).await;
        // Questions that were forwarded are decided to their end, because a refused one takes its charges back.
        while self.waiting.next().await.is_some() {}
        match ended? {
            Ok(()) => stream.send_trailers(ok_trailers()),
            Err(status) => {
                let mut trailers = HeaderMap::new();
                match status.add_header(&mut trailers) {
                    Ok(()) => stream.send_trailers(trailers),
                    Err(_) => {
                        stream.send_reset(Reason::INTERNAL_ERROR);
                        Ok(())
                    }
                }
            }
        }
    }

    /// Reads, answers and writes until the stream has ended and all its questions are answered.
    fn poll(
        &mut self,
        stream: &mut SendStream<ReplyPart>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<(), Status>, h2::Error>> {
        loop {
            let mut is_active = self.read(cx);
            // After the questions are read, because those that wait must be polled once.
            while let Poll::Ready(Some(answer)) = Pin::new(&mut self.waiting).poll_next(cx) {
                self.push_or_end(answer);
                is_active = true;
            }
            ready!(self.poll_write(stream, cx))?;
            match self.end.take() {
                Some(end) if self.waiting.is_empty() => return Poll::Ready(Ok(end)),
                end => self.end = end,
            }
            if !is_active {
                return Poll::Pending;
            }
        }
    }

    /// Reads and answers questions while there is room. Returns whether it stopped for lack of room for answers.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        while self.end.is_none() && self.waiting.len() < CREDITS {
            if self.answers_bytes >= ANSWERS_BYTES_MAX {
                return true;
            }
            if self.closing.as_mut().poll(cx).is_ready() {
                self.end = Some(Err(Status::unavailable("the connection is closing: ask on another one")));
                return true;
            }
            if self.deadline.as_mut().is_some_and(|deadline| deadline.sleep.as_mut().poll(cx).is_ready()) {
                self.end = Some(Err(Status::deadline_exceeded("the time of the stream is over")));
                return true;
            }
            match self.questions.poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(None) => self.end = Some(Ok(())),
                Poll::Ready(Some(Ok(question))) => self.answer(question),
                Poll::Ready(Some(Err(error))) => {
                    // Without a status the stream is closed already.
                    self.end = Some(error.status().map_or(Ok(()), Err));
                }
            }
            if self.end.is_some() {
                return true;
            }
        }
        false
    }

    fn answer(&mut self, question: Bytes) {
        let Some((api, _)) = self.service.api() else { return };
        let rest = self.deadline.as_ref().map(Deadline::rest);
        match api.answer_question(&question, rest) {
            Ok(Answered::Ready(answer)) => self.push(answer),
            Ok(Answered::Unfinished(unfinished)) => {
                let service = self.service.clone();
                self.waiting.push(Box::pin(async move {
                    let Some((api, connection)) = service.api() else { return Ok(Vec::new()) };
                    api.finish_question(&question, rest, unfinished, connection).await.map_err(Status::from)
                }));
            }
            Err(error) => self.end = Some(Err(error.into())),
        }
    }

    fn push_or_end(&mut self, answer: Result<Vec<u8>, Status>) {
        match answer {
            Ok(answer) => self.push(answer),
            Err(error) => self.end = Some(Err(error)),
        }
    }

    fn push(&mut self, answer: Vec<u8>) {
        self.answers_bytes += answer.len();
        self.answers.push_back(answer.into());
    }

    /// Writes answers as flow control allows. Ready when all are written.
    fn poll_write(
        &mut self,
        stream: &mut SendStream<ReplyPart>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), h2::Error>> {
        while let Some(answer) = self.answers.front_mut() {
            stream.reserve_capacity(self.answers_bytes);
            while stream.capacity() == 0 {
                // `None`: the stream is closed.
                ready!(stream.poll_capacity(cx)).unwrap_or(Err(Reason::CANCEL.into()))?;
            }
            let chunk = answer.split_to(stream.capacity().min(answer.len()));
            if answer.is_empty() {
                self.answers.pop_front();
            }
            self.answers_bytes -= chunk.len();
            stream.send_data(self.unsent.part(chunk), false)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Deadline {
    fn rest(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}
