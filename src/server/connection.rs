//! gRPC over HTTP/2: a connection decides calls as it reads them and writes their replies together.
//!
//! If each call were a task, each would wake the connection and cause a write of its own. So calls run in the task of
//! their connection, which writes once there is nothing more to read. Calls that wait stay in this task too: if many of
//! them complete at once, as with replies of another replica, the connection wakes once and writes their replies
//! together.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use h2::{
    Ping, PingPong, Reason,
    server::{Builder, Connection as Http2Connection, Handshake},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{Sleep, sleep},
};

use crate::server::{
    Budgets,
    corked_io::{CorkedIo, IoHandle},
    replay_io::{Arrival, Opening, ReplayIo},
    reply_bytes::{ReplyPart, Unsent},
    request_bytes::ConnectionBytes,
    services::Services,
    wake_filter::{WakeFilter, WakeFiltered},
};

mod calls;
mod keepalive;

use calls::{AcceptedCall, CALLS_PER_POLL_MAX, Calls, Deferred, PendingCalls};
pub(super) use keepalive::Keepalive;
use keepalive::KeepaliveTimer;

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
pub(super) struct Connection<W> {
    state: ConnectionState<W>,
    // How HTTP/2 begins again. `None` once there was a call.
    beginning: Option<Box<Beginning<W>>>,
    wake_filter: WakeFilter,
    io_handle: IoHandle,
    service: Arc<Services>,
    keepalive: Keepalive,
    // `None` until the handshake is complete.
    keepalive_timer: Option<WakeFiltered<KeepaliveTimer>>,
    pending: PendingCalls,
    // Calls that arrived while the client does not read its replies.
    deferred: VecDeque<Deferred>,
    requests: ConnectionBytes,
    // Bytes of the window withheld by incomplete calls, as last reported to HTTP/2.
    withheld: usize,
    unsent: Unsent,
    shutdown: Shutdown,
    // Tells streams that the connection is to be closed.
    closing: watch::Sender<bool>,
    // Whether HTTP/2 has replies or other frames that the last pass did not write.
    has_unwritten: bool,
}

/// State of the graceful shutdown.
enum Shutdown {
    NotRequested,
    /// The client was sent GOAWAY. Wait for its acknowledgement until the timer fires.
    Requested(Pin<Box<Sleep>>),
    /// The client did not acknowledge in time: the connection closes after its last call.
    Overdue,
}

enum ConnectionState<W> {
    Handshake(Box<Handshake<ReplayIo<W>, ReplyPart>>),
    Open(Box<OpenConnection<W>>),
    /// HTTP/2 was dropped, because the client is silent and has not made a call yet.
    Silent,
}

/// HTTP/2 after its handshake.
struct OpenConnection<W> {
    http2: Http2Connection<ReplayIo<W>, ReplyPart>,
    // `None` only if `ping_pong` was already taken, which does not happen.
    pings: Option<PingPong>,
}

/// What HTTP/2 begins with.
struct Beginning<W> {
    http2: Builder,
    opening: Opening<W>,
}

/// Result of one pass of reading, deciding and writing.
enum Progress {
    /// There may be more to read or write.
    Active,
    /// Nothing to do.
    Idle,
    /// The connection is closed.
    Closed,
}

impl Progress {
    fn of(is_active: bool) -> Self {
        if is_active { Self::Active } else { Self::Idle }
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("keepalive timeout: no reply to the ping")]
    KeepaliveTimeout,
}

impl<W: AsyncRead + AsyncWrite + Unpin> Connection<W> {
    pub(super) fn new(
        http2: &Builder,
        io: W,
        io_handle: IoHandle,
        service: Arc<Services>,
        keepalive: Keepalive,
        budgets: &Budgets,
    ) -> Self {
        let (opening, io) = Opening::new(CorkedIo::new(io, io_handle.clone()));
        Self {
            state: ConnectionState::Handshake(Box::new(http2.handshake(io))),
            beginning: Some(Box::new(Beginning { http2: http2.clone(), opening })),
            wake_filter: WakeFilter::new(),
            io_handle,
            service,
            keepalive,
            keepalive_timer: None,
            pending: PendingCalls::default(),
            deferred: VecDeque::new(),
            requests: ConnectionBytes::new(budgets.requests.clone()),
            withheld: 0,
            unsent: Unsent::new(budgets.replies.clone()),
            shutdown: Shutdown::NotRequested,
            closing: watch::Sender::new(false),
            has_unwritten: false,
        }
    }

    /// Starts a graceful shutdown: accepts no more calls and closes after the last one.
    pub(super) fn shut_down(&mut self) {
        self.shutdown = Shutdown::Requested(Box::pin(sleep(SHUTDOWN_ACK_TIMEOUT)));
        self.closing.send_replace(true);
        match &mut self.state {
            ConnectionState::Handshake(_) => {}
            ConnectionState::Open(open) => open.http2.graceful_shutdown(),
            ConnectionState::Silent => self.begin_again(),
        }
        self.wake_filter.waker().wake_by_ref();
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Future for Connection<W> {
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
        if this.poll_keepalive(cx).is_ready() {
            return Poll::Ready(Err(ConnectionError::KeepaliveTimeout));
        }
        Poll::Pending
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> Connection<W> {
    fn poll_io(&mut self, cx: &Context<'_>) -> Poll<Result<(), ConnectionError>> {
        // Replies wake the filter too, but the next statement writes them.
        self.wake_filter.begin_poll();
        match self.drive()? {
            Progress::Closed => return Poll::Ready(Ok(())),
            Progress::Idle if self.wake_filter.end_poll() => {}
            // Yield before writing, so that other connections read and decide first. Their writes then follow each
            // other, and a client woken by the first write is still awake for the next ones. This saves an eighth of
            // the CPU at low concurrency.
            Progress::Active | Progress::Idle => {
                self.wake_filter.waker().wake_by_ref();
                cx.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }

    /// Sends keepalive pings. Completes when the client does not reply to one.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timer) = &mut self.keepalive_timer else { return Poll::Pending };
        if Pin::new(&mut *timer).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if !timer.future_mut().take_ping_due() {
            return Poll::Pending;
        }
        match &mut self.state {
            ConnectionState::Handshake(_) => {}
            ConnectionState::Open(open) => {
                // HTTP/2 would not repeat the ping.
                self.beginning = None;
                open.ping();
            }
            ConnectionState::Silent => {
                let mut cx = Context::from_waker(self.wake_filter.waker());
                if self.beginning.as_ref().is_some_and(|beginning| !beginning.opening.ping(&mut cx)) {
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }

    /// Whether the time to acknowledge the graceful shutdown has passed.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if let Shutdown::Requested(end) = &mut self.shutdown
            && end.as_mut().poll(cx).is_ready()
        {
            self.shutdown = Shutdown::Overdue;
        }
        matches!(self.shutdown, Shutdown::Overdue)
    }

    /// Sends GOAWAY and closes the connection.
    fn close(&mut self, cx: &mut Context<'_>) {
        if let ConnectionState::Open(open) = &mut self.state {
            open.http2.abrupt_shutdown(Reason::NO_ERROR);
            // Bytes that the socket does not accept now are dropped.
            let _ = open.http2.poll_closed(cx);
        }
    }

    /// Continues the handshake.
    fn open(&mut self) -> Result<Progress, ConnectionError> {
        let ConnectionState::Handshake(handshake) = &mut self.state else { return Ok(Progress::Active) };
        let mut cx = Context::from_waker(self.wake_filter.waker());
        let Poll::Ready(http2) = Pin::new(&mut **handshake).poll(&mut cx) else {
            return Ok(Progress::of(self.io_handle.is_read_budget_spent()));
        };
        let mut http2 = http2?;
        let pings = http2.ping_pong();
        match self.shutdown {
            Shutdown::NotRequested => {}
            Shutdown::Requested(_) | Shutdown::Overdue => http2.graceful_shutdown(),
        }
        self.state = ConnectionState::Open(Box::new(OpenConnection { http2, pings }));
        if self.keepalive_timer.is_none() {
            let timer = KeepaliveTimer::new(self.keepalive, self.io_handle.clone());
            self.keepalive_timer = Some(WakeFiltered::new(timer));
        }
        Ok(Progress::Active)
    }

    /// Begins HTTP/2 again after [`Connection::fall_silent`].
    fn begin_again(&mut self) {
        if let Some(Beginning { http2, opening }) = self.beginning.as_deref()
            && let Some(io) = opening.replay()
        {
            self.state = ConnectionState::Handshake(Box::new(http2.handshake(io)));
        }
    }

    /// Waits for bytes of a client that has not made a call yet, and begins HTTP/2 again with them.
    fn wait_for_bytes(&mut self) -> Result<Progress, ConnectionError> {
        let Some(beginning) = &self.beginning else { return Ok(Progress::Closed) };
        match beginning.opening.poll_arrival(&mut Context::from_waker(self.wake_filter.waker())) {
            Poll::Pending => Ok(Progress::Idle),
            Poll::Ready(Ok(Arrival::Bytes)) => {
                self.begin_again();
                self.open()
            }
            Poll::Ready(Ok(Arrival::Closed)) => Ok(Progress::Closed),
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Drops HTTP/2 until the client sends more bytes, if it can begin again in the same state.
    fn fall_silent(&mut self) -> Result<Progress, ConnectionError> {
        let Some(beginning) = &self.beginning else { return Ok(Progress::Idle) };
        if beginning.opening.is_too_long() {
            self.beginning = None;
            return Ok(Progress::Idle);
        }
        let is_open = matches!(self.state, ConnectionState::Open(_));
        if !is_open || !matches!(self.shutdown, Shutdown::NotRequested) || !beginning.opening.is_at_rest() {
            return Ok(Progress::Idle);
        }
        self.state = ConnectionState::Silent;
        self.wait_for_bytes()
    }

    /// Writes replies, reads requests and decides them.
    fn drive(&mut self) -> Result<Progress, ConnectionError> {
        self.io_handle.set_read_budget(READ_BUDGET_BYTES);
        let connection = match &mut self.state {
            ConnectionState::Handshake(_) => return self.open(),
            ConnectionState::Silent => return self.wait_for_bytes(),
            ConnectionState::Open(open) => &mut open.http2,
        };
        let mut cx = Context::from_waker(self.wake_filter.waker());
        let (mut batch, mut has_progressed) = (self.service.batch(), false);
        let calls = Calls {
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
                Poll::Ready(None) => return Ok(Progress::Closed),
                Poll::Ready(Some(call)) => {
                    if accepted.is_empty() {
                        self.beginning = None;
                        accepted.reserve(CALLS_PER_GROUP);
                    }
                    accepted.push(Some(AcceptedCall::new(call?)));
                    has_progressed = true;
                    if accepted.len() < CALLS_PER_GROUP {
                        continue;
                    }
                }
            }
            calls.begin_or_defer(&mut accepted, &mut self.deferred, batch.as_mut(), &mut cx);
        }
        calls.begin_or_defer(&mut accepted, &mut self.deferred, batch.as_mut(), &mut cx);
        if !self.deferred.is_empty() {
            has_progressed |= calls.begin_deferred(&mut self.deferred, batch.as_mut(), &mut cx);
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
        if self.has_unwritten || self.io_handle.is_read_budget_spent() {
            return Ok(Progress::Active);
        }
        self.fall_silent()
    }
}

impl<W: AsyncRead + AsyncWrite + Unpin> OpenConnection<W> {
    fn ping(&mut self) {
        if let Some(pings) = &mut self.pings {
            // The previous pong must be taken before the next ping. Connection errors are reported by the connection
            // itself.
            let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
            let _ = pings.send_ping(Ping::opaque());
        }
    }
}

#[cfg(test)]
mod tests;
