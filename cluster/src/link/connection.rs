//! The protocol of one connection, from the hello to the end.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    ops::ControlFlow,
    pin::pin,
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep, timeout},
};
use tokio_util::bytes::BytesMut;
use tracing::debug;

use crate::link::{
    addresses::DialResult,
    frame::{FrameStream, LinkFrame, LinkHello, RefusalReason},
    links::Links,
    peer::{ActiveLink, Peer},
    session::{HelloOutcome, LinkRole},
    stats::LinkFailure,
    ticks,
};

/// Time that a side may take to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without a received frame after which the connection is closed.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Time without an acknowledgement of outstanding pieces after which the connection is closed.
const STALLED_MAX: Duration = Duration::from_secs(5);
/// The first capacity of the buffers of a connection, in bytes.
const BUFFER_BYTES: usize = 8 * 1024;

/// Performs the handshake of a dialled connection to the `expected` peer, if it is known.
pub(super) async fn link_dialled<'l, S: AsyncRead + AsyncWrite + Unpin>(
    links: &'l Links,
    mut frames: FrameStream<S>,
    expected: Option<&Arc<Peer>>,
) -> Result<RunningLink<'l, S>, DialResult> {
    let link = Arc::new(ActiveLink::new(LinkRole::Dialler));
    let greeted = OnceLock::new();
    let handshake = async {
        let greeting = receive(&mut frames).await;
        let peer = greeted_peer(links, greeting, expected)?;
        let _ = greeted.set(peer.clone());
        send(&mut frames, peer.hello(&links.local)).await;
        let hello = match receive(&mut frames).await {
            Some(LinkFrame::Hello(hello)) if hello.member == peer.id && hello.session != 0 => hello,
            Some(LinkFrame::Refusal(RefusalReason::Linked)) => {
                peer.refused_as_duplicate();
                return Err(DialResult::Duplicate);
            }
            Some(LinkFrame::Refusal(RefusalReason::Stale)) => return Err(DialResult::SessionEnded),
            Some(_) | None => return Err(DialResult::Unreachable),
        };
        match peer.handle_hello(&links.local, &hello, &link) {
            HelloOutcome::Begin | HelloOutcome::Resume => Ok(peer),
            HelloOutcome::Refused(RefusalReason::Linked) => Err(DialResult::Linked(peer.id)),
            HelloOutcome::Refused(RefusalReason::Stale | RefusalReason::Closed)
            | HelloOutcome::RemoteLost
            | HelloOutcome::LocalLost
            | HelloOutcome::Invalid(_) => Err(DialResult::SessionEnded),
        }
    };
    let result = match links.while_open(timeout(HELLO_TIMEOUT, handshake)).await {
        Some(Ok(Ok(peer))) => return Ok(RunningLink::new(links, peer, link, frames)),
        Some(Ok(Err(result))) => result,
        Some(Err(_)) => DialResult::Slow,
        None => DialResult::Unreachable,
    };
    if let Some(peer) = greeted.get() {
        peer.end_unless_established(&links.local);
    }
    Err(result)
}

/// The peer that has sent a greeting, if a link to it is wanted.
fn greeted_peer(
    links: &Links,
    greeting: Option<LinkFrame>,
    expected: Option<&Arc<Peer>>,
) -> Result<Arc<Peer>, DialResult> {
    let id = match greeting {
        Some(LinkFrame::Greeting(member)) if member.number() != 0 => member,
        Some(_) | None => return Err(DialResult::Unreachable),
    };
    if id == links.local.id {
        return Err(DialResult::OwnAddress);
    }
    if expected.is_some_and(|expected| expected.id != id) {
        return Err(DialResult::OtherMember);
    }
    let peer = match expected {
        Some(expected) => expected.clone(),
        None => links.get_or_add_peer(id).ok_or(DialResult::Unreachable)?,
    };
    if peer.is_connected() { Err(DialResult::Linked(peer.id)) } else { Ok(peer) }
}

/// Performs the handshake of an accepted connection, then runs the link until it closes.
pub(super) async fn run_accepted<S: AsyncRead + AsyncWrite + Unpin>(
    links: &Links,
    mut frames: FrameStream<S>,
    from: SocketAddr,
) {
    let handshake = async {
        send(&mut frames, LinkFrame::Greeting(links.local.id)).await;
        receive(&mut frames).await
    };
    let hello = match links.while_open(timeout(HELLO_TIMEOUT, handshake)).await {
        Some(Ok(Some(LinkFrame::Hello(hello)))) if hello.member.number() != 0 && hello.session != 0 => hello,
        Some(Ok(Some(_)) | Err(_)) => {
            return links.local.stats.count_failure(LinkFailure::Other, &from, &"no hello in time");
        }
        // The dialler needs no link, for example because it has one.
        Some(Ok(None)) | None => return,
    };
    let link = Arc::new(ActiveLink::new(LinkRole::Acceptor));
    let (answer, peer) = answer_hello(links, &hello, &link);
    if let Some(peer) = peer {
        // It is written with the first pieces, which an error of the connection prevents as well.
        let _ = frames.feed(answer).await;
        return RunningLink::new(links, peer, link, frames).run().await;
    }
    // The answer must arrive: the peer closes after it has read it.
    let _ = timeout(HELLO_TIMEOUT, async {
        send(&mut frames, answer).await;
        while receive(&mut frames).await.is_some() {}
    })
    .await;
}

/// The answer to a hello, and the peer if `link` is now its link.
fn answer_hello(links: &Links, hello: &LinkHello, link: &Arc<ActiveLink>) -> (LinkFrame, Option<Arc<Peer>>) {
    if hello.member == links.local.id || !links.is_open() {
        return (LinkFrame::Refusal(RefusalReason::Closed), None);
    }
    // A peer that ends leaves the roster, so the second round adds a new one. That ends as well if the hello acknowledges
    // what was never sent.
    for _round in 0..2 {
        let Some(peer) = links.get_or_add_peer(hello.member) else {
            links.local.stats.count_failure(LinkFailure::Full, &hello.address, &"too many peers");
            return (LinkFrame::Refusal(RefusalReason::Closed), None);
        };
        let answer = match peer.handle_hello(&links.local, hello, link) {
            HelloOutcome::Begin | HelloOutcome::Resume => return (peer.hello(&links.local), Some(peer)),
            HelloOutcome::Refused(reason) => LinkFrame::Refusal(reason),
            HelloOutcome::RemoteLost => peer.hello(&links.local),
            HelloOutcome::LocalLost | HelloOutcome::Invalid(_) => continue,
        };
        peer.end_unless_established(&links.local);
        return (answer, None);
    }
    (LinkFrame::Refusal(RefusalReason::Stale), None)
}

/// Writes a frame of the handshake. An error shows when the answer is read.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(frames: &mut FrameStream<S>, frame: LinkFrame) {
    if let Err(error) = frames.send(frame).await {
        debug!(%error, "link handshake failed");
    }
}

/// Reads a frame of the handshake; `None` at the end of the connection.
async fn receive<S: AsyncRead + AsyncWrite + Unpin>(frames: &mut FrameStream<S>) -> Option<LinkFrame> {
    frames.next().await?.inspect_err(|error| debug!(%error, "link handshake failed")).ok()
}

/// An active link: reads and writes frames, and detects a silent or stalled connection.
pub(super) struct RunningLink<'l, S> {
    links: &'l Links,
    pub(super) peer: Arc<Peer>,
    link: Arc<ActiveLink>,
    frames: FrameStream<S>,
    /// The last frame, while there is no room for it.
    waiting: Option<LinkFrame>,
    /// The buffers had to hold a large piece since the last tick.
    has_large_buffers: bool,
    silent: Duration,
    stalled: Duration,
    acknowledged: Option<u64>,
}

impl<'l, S: AsyncRead + AsyncWrite + Unpin> RunningLink<'l, S> {
    fn new(links: &'l Links, peer: Arc<Peer>, link: Arc<ActiveLink>, frames: FrameStream<S>) -> Self {
        Self {
            links,
            peer,
            link,
            frames,
            waiting: None,
            has_large_buffers: false,
            silent: Duration::ZERO,
            stalled: Duration::ZERO,
            acknowledged: None,
        }
    }

    /// Runs until the connection closes.
    pub(super) async fn run(mut self) {
        let mut ticks = pin!(sleep(self.links.next_tick(self.peer.id)));
        loop {
            tokio::select! {
                biased;
                () = poll_fn(|cx| self.poll(cx)) => break,
                () = &mut ticks => {
                    ticks.as_mut().reset(Instant::now() + self.links.next_tick(self.peer.id));
                    self.tick();
                    if self.silent > SILENT_MAX || self.stalled > STALLED_MAX {
                        debug!(peer = %self.peer.id, "link timed out: no frames or no acknowledgements");
                        break;
                    }
                }
            }
        }
        if self.peer.detach(&self.links.local, &self.link) {
            self.links.redial(self.peer);
        }
    }

    /// Reads and handles all frames that have arrived, then writes all that are due. Ready once the connection closes.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Not woken by what it queues itself while it reads: that is written below.
        self.link.waker.take();
        let is_open = self.poll_read(cx).is_pending();
        self.link.waker.register(cx.waker());
        if !is_open || self.link.is_closed.load(Relaxed) {
            return Poll::Ready(());
        }
        if !self.links.is_open() {
            self.link.goodbye_due.store(true, Relaxed);
        }
        match self.poll_write(cx) {
            Poll::Ready(Err(error)) => {
                debug!(peer = %self.peer.id, %error, "link connection failed");
                Poll::Ready(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let was_waiting = self.waiting.is_some();
            let frame = match self.waiting.take() {
                Some(frame) => frame,
                None => match ready!(self.frames.poll_next_unpin(cx)) {
                    Some(Ok(frame)) => frame,
                    Some(Err(error)) => {
                        debug!(peer = %self.peer.id, %error, "link connection failed");
                        return Poll::Ready(());
                    }
                    None => return Poll::Ready(()),
                },
            };
            self.silent = Duration::ZERO;
            self.has_large_buffers |= frame.is_large();
            match self.peer.receive(&self.links.local, &self.link, frame) {
                ControlFlow::Continue(None) => {}
                ControlFlow::Continue(Some(frame)) => {
                    if !was_waiting {
                        self.links.local.stats.pieces_delayed.increase();
                    }
                    self.waiting = Some(frame);
                    // The next wake-up tries again, at the next tick at the latest.
                    return Poll::Pending;
                }
                ControlFlow::Break(()) => return Poll::Ready(()),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.frames.poll_ready_unpin(cx))?;
            let Some(frame) = self.peer.next_frame(&self.links.local, &self.link) else {
                return self.frames.poll_flush_unpin(cx);
            };
            self.has_large_buffers |= frame.is_large();
            self.frames.start_send_unpin(frame)?;
        }
    }

    /// Counts the time without frames and without acknowledgements, makes a heartbeat due, and frees large buffers.
    fn tick(&mut self) {
        // Not the time that has passed: a suspended process must not count the suspension as silence of the peer.
        let interval = ticks::interval(self.links.local.peers());
        // A connection that is not read cannot be silent.
        self.silent = if self.waiting.is_some() { Duration::ZERO } else { self.silent + interval };
        let pending = self.peer.pending_acknowledgement();
        let is_stalled = pending.is_some() && pending == self.acknowledged;
        self.acknowledged = pending;
        self.stalled = if is_stalled { self.stalled + interval } else { Duration::ZERO };
        self.link.heartbeat_due.store(true, Relaxed);
        if self.has_large_buffers {
            let is_read = free(self.frames.read_buffer_mut());
            self.has_large_buffers = !(free(self.frames.write_buffer_mut()) && is_read);
        }
    }
}

/// Frees a buffer that holds nothing.
fn free(buffer: &mut BytesMut) -> bool {
    if buffer.is_empty() {
        *buffer = BytesMut::with_capacity(BUFFER_BYTES);
    }
    buffer.is_empty()
}
