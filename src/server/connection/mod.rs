//! gRPC over HTTP/2: a connection decides calls as it reads them and writes their replies together.
//!
//! If each call were a task, each would wake the connection and cause a write of its own. So calls run in the task of
//! their connection, which writes once there is nothing more to read. Calls that wait stay in this task too: if many of
//! them complete at once, as with replies of another replica, the connection wakes once and writes their replies
//! together.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use h2::{
    Ping, PingPong, Reason,
    server::{Builder, Connection as Http2Connection, Handshake},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::server::{
    budgets::Budgets,
    corked_io::{CorkedIo, IoHandle},
    reply_bytes::{ReplyPart, Unsent},
    request_bytes::ConnectionBytes,
    services::Services,
    wake_filter::{WakeFilter, WakeFiltered},
};

mod calls;

use calls::{AcceptedCall, CALLS_PER_POLL_MAX, ConnectionCalls, Deferred, PendingCalls};

/// Number of calls that are accepted, then decided, then replied to. The code of these steps is larger than the
/// first-level cache of instructions: with one call at a time it is fetched again for each, which is 5 % of the CPU with
/// 50 or 100 calls at a time.
const CALLS_PER_GROUP: usize = 16;
/// Approximate maximum of bytes that are read before other connections are polled.
const READ_BUDGET_BYTES: usize = 32 * 1024;
/// The flow-control window of the connection and of each stream: the HTTP/2 default.
pub(super) const WINDOW_BYTES: u32 = 65_535;
/// Time for an idle client to acknowledge a graceful shutdown.
pub(super) const SHUTDOWN_ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A gRPC connection. The future completes when the connection is closed.
pub(super) struct GrpcConnection<W> {
    state: ConnectionState<W>,
    wake_filter: WakeFilter,
    io_handle: IoHandle,
    service: Arc<Services>,
    keepalive: Keepalive,
    pending: PendingCalls,
    // Calls that arrived while the client does not read its replies.
    deferred: VecDeque<Deferred>,
    requests: ConnectionBytes,
    // Bytes of the window withheld by incomplete calls, as last reported to HTTP/2.
    withheld: usize,
    unsent: Unsent,
    // Set once the client was sent GOAWAY: the end of its time to acknowledge that. From then on the connection closes
    // after its last call.
    shutdown: Option<Pin<Box<Sleep>>>,
    // Cancelled when the connection is to be closed, for its streams.
    closing: CancellationToken,
    // Whether HTTP/2 has replies or other frames that the last pass did not write.
    has_unwritten: bool,
}

enum ConnectionState<W> {
    Handshake(Handshake<CorkedIo<W>, ReplyPart>),
    Open(Http2Connection<CorkedIo<W>, ReplyPart>, WakeFiltered<BoxFuture<'static, ()>>),
}

/// Result of one pass of reading, deciding and writing.
enum ConnectionProgress {
    /// There may be more to read or write.
    Active,
    /// Nothing to do.
    Idle,
    /// The connection is closed.
    Closed,
}

impl ConnectionProgress {
    fn new(is_active: bool) -> Self {
        if is_active { Self::Active } else { Self::Idle }
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error("keepalive timeout: no reply to the ping")]
    KeepaliveTimeout,
}

impl<W: AsyncRead + AsyncWrite + Unpin> GrpcConnection<W> {
    pub(super) fn new(
        http2: &Builder,
        io: W,
        io_handle: IoHandle,
        service: Arc<Services>,
        keepalive: Keepalive,
        budgets: &Budgets,
    ) -> Self {
        Self {
            state: ConnectionState::Handshake(http2.handshake(CorkedIo::new(io, io_handle.clone()))),
            wake_filter: WakeFilter::new(),
            io_handle,
            service,
            keepalive,
            pending: PendingCalls::default(),
            deferred: VecDeque::new(),
            requests: ConnectionBytes::new(budgets.requests.clone()),
            withheld: 0,
            unsent: Unsent::new(budgets.replies.clone()),
            shutdown: None,
            closing: CancellationToken::new(),
            has_unwritten: false,
        }
    }

    /// Starts a graceful shutdown: accepts no more calls and closes after the last one.
    pub(super) fn shut_down(&mut self) {
        self.shutdown = Some(Box::pin(sleep(SHUTDOWN_ACK_TIMEOUT)));
        self.closing.cancel();
        match &mut self.state {
            ConnectionState::Handshake(_) => {}
            ConnectionState::Open(connection, _) => connection.graceful_shutdown(),
        }
        self.wake_filter.waker().wake_by_ref();
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Future for GrpcConnection<W> {
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.wake_filter.is_woken(cx)
            && let Poll::Ready(result) = this.poll_io(cx)
        {
            return Poll::Ready(result);
        }
        if this.is_overdue(cx)
            && this.pending.is_empty()
            && this.deferred.is_empty()
            && this.unsent.is_empty()
        {
            this.close(cx);
            return Poll::Ready(Ok(()));
        }
        match &mut this.state {
            ConnectionState::Handshake(_) => Poll::Pending,
            ConnectionState::Open(_, keepalive) => {
                Pin::new(keepalive).poll(cx).map(|()| Err(ConnectionError::KeepaliveTimeout))
            }
        }
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> GrpcConnection<W> {
    fn poll_io(&mut self, cx: &Context<'_>) -> Poll<Result<(), ConnectionError>> {
        // Replies wake the filter too, but the next statement writes them.
        self.wake_filter.begin_poll();
        match self.drive()? {
            ConnectionProgress::Closed => return Poll::Ready(Ok(())),
            ConnectionProgress::Idle if self.wake_filter.end_poll() => {}
            // Yield before writing, so that other connections read and decide first. Their writes then follow each
            // other, and a client woken by the first write is still awake for the next ones. This saves an eighth of
            // the CPU at low concurrency.
            ConnectionProgress::Active | ConnectionProgress::Idle => {
                self.wake_filter.waker().wake_by_ref();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Whether the time to acknowledge the graceful shutdown has passed.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        self.shutdown.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready())
    }

    /// Sends GOAWAY and closes the connection.
    fn close(&mut self, cx: &mut Context<'_>) {
        if let ConnectionState::Open(connection, _) = &mut self.state {
            connection.abrupt_shutdown(Reason::NO_ERROR);
            // Bytes that the socket does not accept now are dropped.
            let _ = connection.poll_closed(cx);
        }
    }

    /// Continues the handshake.
    fn open(&mut self) -> Result<ConnectionProgress, ConnectionError> {
        let ConnectionState::Handshake(handshake) = &mut self.state else {
            return Ok(ConnectionProgress::Active);
        };
        let mut cx = Context::from_waker(self.wake_filter.waker());
        let Poll::Ready(connection) = Pin::new(handshake).poll(&mut cx) else {
            return Ok(ConnectionProgress::new(self.io_handle.is_read_budget_spent()));
        };
        let mut connection = connection?;
        let keepalive = keep_alive(self.keepalive, self.io_handle.clone(), connection.ping_pong());
        if self.shutdown.is_some() {
            connection.graceful_shutdown();
        }
        self.state = ConnectionState::Open(connection, WakeFiltered::new(Box::pin(keepalive)));
        Ok(ConnectionProgress::Active)
    }

    /// Writes replies, reads requests and decides them.
    fn drive(&mut self) -> Result<ConnectionProgress, ConnectionError> {
        self.io_handle.set_read_budget(READ_BUDGET_BYTES);
        let ConnectionState::Open(connection, _) = &mut self.state else { return self.open() };
        let mut cx = Context::from_waker(self.wake_filter.waker());
        let mut batch = self.service.batch();
        let mut has_progressed = false;
        let calls = ConnectionCalls {
            service: &self.service,
            pending: &self.pending,
            requests: &self.requests,
            unsent: &self.unsent,
            closing: &self.closing,
        };
        // What the last pass left is written by the first poll.
        let corked_from = usize::from(self.has_unwritten);
        let mut accepted = Vec::new();
        for call in 0..CALLS_PER_POLL_MAX {
            if call == corked_from {
                self.io_handle.cork();
            }
            match connection.poll_accept(&mut cx) {
                Poll::Pending if accepted.is_empty() => break,
                // The next poll lets HTTP/2 encode the replies while they are in the cache.
                Poll::Pending => {}
                // Calls of the group end with their connection, as do those that are not accepted yet.
                Poll::Ready(None) => return Ok(ConnectionProgress::Closed),
                Poll::Ready(Some(call)) => {
                    if accepted.is_empty() {
                        accepted.reserve(CALLS_PER_GROUP);
                    }
                    accepted.push(Some(AcceptedCall::new(call?)));
                    has_progressed = true;
                    if accepted.len() < CALLS_PER_GROUP {
                        continue;
                    }
                }
            }
            calls.begin_or_defer(&mut accepted, &mut self.deferred, &mut batch, &mut cx);
        }
        calls.begin_or_defer(&mut accepted, &mut self.deferred, &mut batch, &mut cx);
        if !self.deferred.is_empty() {
            has_progressed |= calls.begin_deferred(&mut self.deferred, &mut batch, &mut cx);
        }
        drop(batch);
        self.io_handle.uncork();
        has_progressed |= self.pending.poll(&mut cx);
        let withheld = self.requests.withheld();
        if withheld != self.withheld {
            self.withheld = withheld;
            // Window withheld by one call must not reduce the window of the others.
            connection.set_target_window_size(
                WINDOW_BYTES.saturating_add(u32::try_from(withheld).unwrap_or(u32::MAX)),
            );
        }
        self.has_unwritten = has_progressed | self.io_handle.take_delayed_write();
        Ok(ConnectionProgress::new(self.has_unwritten || self.io_handle.is_read_budget_spent()))
    }
}

/// Keepalive settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    /// Time without received bytes before a ping is sent; up to twice as long in practice.
    pub(super) interval: Duration,
    /// Time to wait for the ping reply before the connection is closed.
    pub(super) timeout: Duration,
}

/// Sends keepalive pings. Completes when the client has not replied to one in time. `pings` is `None` only if it was
/// already taken, which does not happen.
async fn keep_alive(
    Keepalive { interval, timeout }: Keepalive,
    io_handle: IoHandle,
    mut pings: Option<PingPong>,
) {
    loop {
        sleep(interval).await;
        if io_handle.take_received() {
            continue;
        }
        if let Some(pings) = &mut pings {
            // The previous pong must be taken before the next ping. Connection errors are reported by the connection
            // itself.
            let _ = poll_fn(|cx| Poll::Ready(pings.poll_pong(cx))).await;
            let _ = pings.send_ping(Ping::opaque());
        }
        sleep(timeout).await;
        if !io_handle.take_received() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
