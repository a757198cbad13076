//! Serves the methods with streams: reads messages, and writes replies as they come.
//!
//! Questions of `CheckStream` whose counters are local are answered in their order, at once. Up to [`CREDITS`] others wait
//! together. Nothing more is read while as many wait, or while the client does not take its answers. Reports of quotas
//! are always read: for each of their buckets at most one action waits.

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
    stream::{FuturesUnordered, Stream as _},
};
use h2::{Reason, RecvStream, SendStream, server::SendResponse};
use hyper::body::Bytes;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tollgate_quota::QuotaStream;
use tonic::Status;

use crate::{
    api::{
        call::{Handled, timeout_from_headers},
        v1::stream::{CREDITS, first_credits},
    },
    server::{
        body::{GRPC_CONTENT_TYPE, ok_trailers},
        message_queue::{CompleteMessage, MessageQueue},
        reply_bytes::{ReplyPart, Unsent},
        request_bytes::ConnectionBytes,
        services::Services,
    },
};

/// Unsent replies beyond which no further one is made, in bytes.
const REPLIES_BYTES_MAX: usize = 16 * 1024;

/// What takes the messages of a stream and makes the replies.
pub(super) trait Replier: Send {
    /// The first reply, before any message.
    fn first(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Ready once another message can be taken.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Whether the replier has stopped so that other calls have their turn. The task is woken for the rest.
    fn has_paused(&self) -> bool {
        false
    }

    /// Whether messages are taken while the client does not take its replies.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Takes a message, and returns its reply if it has one at once. `rest` is the time that is left to the stream.
    fn receive(
        &mut self,
        message: CompleteMessage,
        rest: Option<Duration>,
    ) -> Result<Option<Vec<u8>>, Status>;

    /// The next reply that is made later. `None`: none is expected now.
    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>>;

    /// Whether the end of the stream waits for replies.
    fn is_waiting(&self) -> bool {
        false
    }
}

/// Answers questions.
pub(super) struct QuestionReplier {
    service: Arc<Services>,
    bytes: ConnectionBytes,
    waiting: FuturesUnordered<BoxFuture<'static, Result<Vec<u8>, Status>>>,
}

/// Takes reports of quotas, and replies with assignments.
pub(super) struct QuotaReplier {
    quotas: QuotaStream,
    // The message that is taken in parts, and the byte from which the rest of it is.
    rest: Option<(CompleteMessage, usize)>,
    has_paused: bool,
}

/// A stream of messages and replies.
pub(super) struct MessageStream<R> {
    replier: R,
    messages: MessageQueue,
    // Encoded replies that flow control has not let out.
    replies: VecDeque<Bytes>,
    replies_bytes: usize,
    unsent: Unsent,
    // The end of the time that the client gives to the stream.
    deadline: Option<Pin<Box<Sleep>>>,
    closing: BoxFuture<'static, ()>,
    /// How the stream ends. Once set, no message is read.
    end: Option<Result<(), Status>>,
}

impl QuestionReplier {
    /// Answers whose questions count in `bytes` while they wait.
    pub(super) fn new(service: Arc<Services>, bytes: ConnectionBytes) -> Self {
        Self { service, bytes, waiting: FuturesUnordered::new() }
    }
}

impl QuotaReplier {
    pub(super) fn new(quotas: QuotaStream) -> Self {
        Self { quotas, rest: None, has_paused: false }
    }
}

impl Replier for QuestionReplier {
    fn first(&mut self) -> Option<Vec<u8>> {
        Some(first_credits())
    }

    fn poll_room(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        // The task is woken for each answer.
        if self.waiting.len() < CREDITS { Poll::Ready(()) } else { Poll::Pending }
    }

    fn receive(
        &mut self,
        question: CompleteMessage,
        rest: Option<Duration>,
    ) -> Result<Option<Vec<u8>>, Status> {
        match self.service.api.answer_question(&question.bytes, rest, &self.service.caller)? {
            Handled::Ready(answer) => Ok(Some(answer)),
            Handled::Waiting(waiting) => {
                let service = self.service.clone();
                let held = question.into_held(&self.bytes);
                self.waiting.push(Box::pin(async move {
                    let _held = held;
                    Ok(waiting.reply(&service.api, &service.caller).await)
                }));
                Ok(None)
            }
        }
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        Pin::new(&mut self.waiting).poll_next(cx)
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Replier for QuotaReplier {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.has_paused = self.quotas.apply_rules();
        if !self.has_paused {
            let Some((message, from)) = self.rest.take() else { return Poll::Ready(()) };
            self.rest = self.quotas.take(&message.bytes, from).map(|next| (message, next));
            self.has_paused = self.rest.is_some();
        }
        if !self.has_paused {
            return Poll::Ready(());
        }
        // Other calls have their turn between two parts.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn has_paused(&self) -> bool {
        self.has_paused
    }

    fn reads_ahead(&self) -> bool {
        true
    }

    fn receive(
        &mut self,
        reports: CompleteMessage,
        _rest: Option<Duration>,
    ) -> Result<Option<Vec<u8>>, Status> {
        self.quotas.begin(&reports.bytes)?;
        self.rest = Some((reports, 0));
        Ok(None)
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        self.quotas.poll_frame(cx).map(|frame| Some(Ok(frame)))
    }
}

impl<R: Replier> MessageStream<R> {
    /// A stream for this request. `closing` is cancelled when the connection is to be closed.
    pub(super) fn new(
        replier: R,
        request: Request<RecvStream>,
        bytes: ConnectionBytes,
        unsent: Unsent,
        closing: CancellationToken,
    ) -> Self {
        // An instant that cannot be represented never comes.
        let at =
            timeout_from_headers(request.headers()).and_then(|timeout| Instant::now().checked_add(timeout));
        Self {
            replier,
            messages: MessageQueue::new(request.into_body(), bytes),
            replies: VecDeque::new(),
            replies_bytes: 0,
            unsent,
            deadline: at.map(|at| Box::pin(sleep_until(at))),
            // An error means that the connection is gone, which ends the stream anyway.
            closing: Box::pin(closing.cancelled_owned()),
            end: None,
        }
    }

    /// Serves the stream to its end. `failed` is called with an error that ends it.
    pub(super) async fn run(
        mut self,
        mut respond: SendResponse<ReplyPart>,
        failed: impl FnOnce(&Status),
    ) -> Result<(), h2::Error> {
        let mut response = Response::new(());
        response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        let mut stream = respond.send_response(response, false)?;
        if let Some(first) = self.replier.first() {
            self.push(first);
        }
        let ended = poll_fn(|cx| self.poll(&mut stream, cx)).await;
        // Questions that were forwarded are decided to their end, because a refused one takes its charges back.
        while self.replier.is_waiting() {
            poll_fn(|cx| self.replier.poll_reply(cx)).await;
        }
        match ended? {
            Ok(()) => stream.send_trailers(ok_trailers()),
            Err(status) => {
                failed(&status);
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

    /// Reads, replies and writes until the stream has ended and all its replies are made.
    fn poll(
        &mut self,
        stream: &mut SendStream<ReplyPart>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<(), Status>, h2::Error>> {
        loop {
            let mut is_active = self.read(cx);
            // After the messages are read, because what waits must be polled once.
            while self.replies_bytes < REPLIES_BYTES_MAX
                && let Poll::Ready(Some(reply)) = self.replier.poll_reply(cx)
            {
                self.push_or_end(reply);
                is_active = true;
            }
            ready!(self.poll_write(stream, cx))?;
            match self.end.take() {
                Some(end) if !self.replier.is_waiting() => return Poll::Ready(Ok(end)),
                end => self.end = end,
            }
            if !is_active || self.replier.has_paused() {
                return Poll::Pending;
            }
        }
    }

    /// Reads messages while there is room. Returns whether it stopped for lack of room for replies.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        while self.end.is_none() && self.replier.poll_room(cx).is_ready() {
            if self.replies_bytes >= REPLIES_BYTES_MAX && !self.replier.reads_ahead() {
                return true;
            }
            if self.closing.as_mut().poll(cx).is_ready() {
                self.end = Some(Err(Status::unavailable("the connection is closing: ask on another one")));
                return true;
            }
            if self.deadline.as_mut().is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready()) {
                self.end = Some(Err(Status::deadline_exceeded("the time of the stream is over")));
                return true;
            }
            match self.messages.poll_next(cx) {
                Poll::Pending => return false,
                Poll::Ready(None) => self.end = Some(Ok(())),
                Poll::Ready(Some(Ok(message))) => self.receive(message),
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

    fn receive(&mut self, message: CompleteMessage) {
        let rest = |deadline: &Pin<Box<Sleep>>| deadline.deadline().saturating_duration_since(Instant::now());
        let rest = self.deadline.as_ref().map(rest);
        if let Some(reply) = self.replier.receive(message, rest).transpose() {
            self.push_or_end(reply);
        }
    }

    fn push_or_end(&mut self, reply: Result<Vec<u8>, Status>) {
        match reply {
            Ok(reply) => self.push(reply),
            Err(error) => self.end = Some(Err(error)),
        }
    }

    fn push(&mut self, reply: Vec<u8>) {
        self.replies_bytes += reply.len();
        self.replies.push_back(reply.into());
    }

    /// Writes replies as flow control allows. Ready when all are written.
    fn poll_write(
        &mut self,
        stream: &mut SendStream<ReplyPart>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), h2::Error>> {
        while let Some(reply) = self.replies.front_mut() {
            stream.reserve_capacity(self.replies_bytes);
            while stream.capacity() == 0 {
                // `None`: the stream is closed.
                ready!(stream.poll_capacity(cx)).unwrap_or(Err(Reason::CANCEL.into()))?;
            }
            let chunk = reply.split_to(stream.capacity().min(reply.len()));
            if reply.is_empty() {
                self.replies.pop_front();
            }
            self.replies_bytes -= chunk.len();
            stream.send_data(self.unsent.part(chunk), false)?;
        }
        Poll::Ready(Ok(()))
    }
}
