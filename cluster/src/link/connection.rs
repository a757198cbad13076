//! The protocol of one connection, from the hello to the end.

use std::{
    pin::pin,
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tonic::{Status, Streaming};
use tracing::debug;

use crate::{
    MemberId,
    link::{
        frame::{Frame, Greeting, Hello, Kind, Reason, VERSION, refusal},
        hub::{Hub, LinksPhase},
        outbound::OutboundQueue,
        peer::{Flow, HelloOutcome, LinkRole, Peer},
        stats::LinkFailure,
    },
};

/// Time that a side may take to send its hello.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without a received frame after which the connection is closed.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// How often a frame is tried again for which there is no room.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time without an acknowledgement of outstanding pieces after which the connection is closed.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// The outcome of a dialled connection.
#[derive(Debug)]
pub(super) enum ConnectionOutcome {
    /// The connection was a link and has closed.
    LinkClosed,
    /// The process dialled itself.
    OwnAddress,
    /// A link to that process is active already.
    AlreadyLinked(MemberId),
    /// Another process than the expected one answered.
    OtherMember,
    /// The peer refused the connection because it has an active link.
    RefusedAsDuplicate,
    /// The session had ended; a new one can begin at once.
    SessionEnded,
    /// The handshake did not end in time.
    Slow,
    /// The handshake failed.
    Failed,
}

/// The peer to dial and the priority of the connection.
#[derive(Clone, Copy)]
pub(super) struct DialTarget<'p> {
    pub(super) expected: Option<&'p Arc<Peer>>,
    pub(super) replaces_link: bool,
}

/// Performs the handshake of a dialled connection whose received frames are `frames`, then runs the link until it
/// closes. Calls `on_linked` once the link is active.
pub(super) async fn run_dialled(
    hub: &Hub,
    outbound: &Arc<OutboundQueue>,
    frames: impl Future<Output = Result<Streaming<Frame>, Status>>,
    target: DialTarget<'_>,
    on_linked: impl FnOnce(MemberId),
) -> ConnectionOutcome {
    let greeted = OnceLock::new();
    let hello = async {
        let mut frames = frames.await.map_err(|status| failed(&status))?;
        let peer = receive_greeting(hub, &mut frames, target).await?;
        let _ = greeted.set(peer.clone());
        outbound.send(Kind::Hello(peer.hello(target.replaces_link)));
        let hello = match next_kind(&mut frames).await? {
            Kind::Hello(hello) if hello.member() == peer.id && hello.session != 0 => hello,
            Kind::Refusal(refusal) => {
                return Err(match refusal.reason() {
                    Reason::Linked => ConnectionOutcome::RefusedAsDuplicate,
                    Reason::Stale => ConnectionOutcome::SessionEnded,
                    Reason::Closed | Reason::Unspecified => ConnectionOutcome::Failed,
                });
            }
            Kind::Hello(_) | Kind::Greeting(_) | Kind::Piece(_) | Kind::Heartbeat(_) | Kind::Goodbye(_) => {
                return Err(ConnectionOutcome::Failed);
            }
        };
        match peer.handle_hello(&hello, LinkRole::Dialler, outbound) {
            HelloOutcome::Linked => Ok((peer, frames)),
            HelloOutcome::Refused(Reason::Linked) => Err(ConnectionOutcome::AlreadyLinked(peer.id)),
            HelloOutcome::Refused(_) | HelloOutcome::RemoteLost(_) | HelloOutcome::SessionEnded => {
                Err(ConnectionOutcome::SessionEnded)
            }
        }
    };
    let outcome = match hub.while_open(timeout(HELLO_TIMEOUT, hello)).await {
        Some(Ok(Ok((peer, frames)))) => {
            on_linked(peer.id);
            run_link(hub, &peer, outbound, frames).await;
            return ConnectionOutcome::LinkClosed;
        }
        Some(Ok(Err(outcome))) => outcome,
        Some(Err(_)) => ConnectionOutcome::Slow,
        None => ConnectionOutcome::Failed,
    };
    if let Some(peer) = greeted.get() {
        peer.end_unless_established();
    }
    outcome
}

/// Receives the greeting and returns its peer, if a link to the peer is wanted.
async fn receive_greeting(
    hub: &Hub,
    frames: &mut Streaming<Frame>,
    target: DialTarget<'_>,
) -> Result<Arc<Peer>, ConnectionOutcome> {
    let id = match next_kind(frames).await? {
        Kind::Greeting(Greeting { version: 1.., member: member @ 1.. }) => MemberId::from_number(member),
        Kind::Greeting(_)
        | Kind::Hello(_)
        | Kind::Piece(_)
        | Kind::Heartbeat(_)
        | Kind::Goodbye(_)
        | Kind::Refusal(_) => return Err(ConnectionOutcome::Failed),
    };
    if id == hub.shared.local.id {
        return Err(ConnectionOutcome::OwnAddress);
    }
    if target.expected.is_some_and(|expected| expected.id != id) {
        return Err(ConnectionOutcome::OtherMember);
    }
    let peer = match target.expected {
        Some(expected) => expected.clone(),
        None => hub.get_or_add_peer(id).ok_or(ConnectionOutcome::Failed)?,
    };
    if peer.is_connected() { Err(ConnectionOutcome::AlreadyLinked(peer.id)) } else { Ok(peer) }
}

/// Performs the handshake of an accepted connection, then runs the link until it closes.
pub(super) async fn run_accepted(hub: &Hub, outbound: &Arc<OutboundQueue>, mut frames: Streaming<Frame>) {
    outbound.send(Kind::Greeting(Greeting { version: VERSION, member: hub.shared.local.id.number() }));
    let hello = match hub.while_open(timeout(HELLO_TIMEOUT, next_kind(&mut frames))).await {
        Some(Ok(Ok(Kind::Hello(hello)))) if hello.version != 0 && hello.member != 0 && hello.session != 0 => {
            hello
        }
        Some(Ok(Ok(_) | Err(_)) | Err(_)) | None => return,
    };
    if let Some(peer) = answer_hello(hub, outbound, &hello) {
        return run_link(hub, &peer, outbound, frames).await;
    }
    // The last frame must arrive: the peer closes after it has read it.
    outbound.finish();
    let _ = timeout(HELLO_TIMEOUT, async { while next_kind(&mut frames).await.is_ok() {} }).await;
}

/// Answers a hello; returns the peer if the connection is now its link.
fn answer_hello(hub: &Hub, outbound: &Arc<OutboundQueue>, hello: &Hello) -> Option<Arc<Peer>> {
    if hello.member() == hub.shared.local.id || !hub.is_open() {
        outbound.send(refusal(Reason::Closed));
        return None;
    }
    // A peer that ends leaves the roster, so the second round adds a new one. That ends as well if the hello acknowledges
    // what was never sent.
    for _round in 0..2 {
        let Some(peer) = hub.get_or_add_peer(hello.member()) else {
            hub.shared.local.stats.count_failure(LinkFailure::Full, &hello.address, &"too many peers");
            outbound.send(refusal(Reason::Closed));
            return None;
        };
        match peer.handle_hello(hello, LinkRole::Acceptor, outbound) {
            HelloOutcome::Linked => return Some(peer),
            HelloOutcome::Refused(reason) => outbound.send(refusal(reason)),
            HelloOutcome::RemoteLost(answer) => outbound.send(Kind::Hello(answer)),
            HelloOutcome::SessionEnded => continue,
        }
        peer.end_unless_established();
        return None;
    }
    outbound.send(refusal(Reason::Stale));
    None
}

/// Runs an active link until it closes: reads frames and schedules heartbeats.
async fn run_link(hub: &Hub, peer: &Arc<Peer>, outbound: &Arc<OutboundQueue>, mut frames: Streaming<Frame>) {
    let mut monitor = LinkMonitor::default();
    let mut next = hub.shared.next_tick(peer.id);
    let mut ticks = pin!(sleep(next.after));
    let mut closed = pin!(outbound.closed.notified());
    let mut closing = pin!(closing(hub.shared.phase.subscribe()));
    // The last frame, while there is no room for it.
    let mut waiting: Option<Frame> = None;
    loop {
        tokio::select! {
            frame = frames.message(), if waiting.is_none() => match frame {
                Ok(Some(frame)) => {
                    if !peer.has_room_for(outbound, &frame) {
                        hub.shared.local.stats.pieces_delayed.increase();
                        waiting = Some(frame);
                    } else if peer.handle_frame(outbound, frame) == Flow::Close {
                        break;
                    }
                    monitor.silent = Duration::ZERO;
                }
                Ok(None) => break,
                Err(status) => {
                    debug!(peer = %peer.id, %status, "link connection failed");
                    break;
                }
            },
            () = &mut ticks => {
                let interval = next.interval;
                // A suspended process must not count the suspension as silence of the peer.
                next = hub.shared.next_tick(peer.id);
                ticks.as_mut().reset(Instant::now() + next.after);
                if waiting.is_some() {
                    monitor.silent = Duration::ZERO;
                }
                if monitor.tick(interval, peer, outbound) == Flow::Close {
                    debug!(peer = %peer.id, "link timed out: no frames or no acknowledgements");
                    break;
                }
            }
            // In a future of its own, so that there is no timer without a frame that waits.
            () = async { sleep(ROOM_CHECK_INTERVAL).await }, if waiting.is_some() => {
                if let Some(frame) = waiting.take_if(|frame| peer.has_room_for(outbound, frame))
                    && peer.handle_frame(outbound, frame) == Flow::Close
                {
                    break;
                }
            }
            () = &mut closed => break,
            () = &mut closing, if !outbound.goodbye_due.load(Relaxed) => {
                outbound.goodbye_due.store(true, Relaxed);
                outbound.wake();
            }
        }
    }
    if peer.detach(outbound) {
        hub.redial(peer.clone());
    }
}

/// Waits until the process leaves.
async fn closing(mut phases: watch::Receiver<LinksPhase>) {
    // An error means that the sender is gone, which ends the links as well.
    let _ = phases.wait_for(|phase| *phase != LinksPhase::Open).await;
}

/// Detects a silent or stalled link.
#[derive(Default)]
struct LinkMonitor {
    silent: Duration,
    stalled: Duration,
    acknowledged: Option<u64>,
}

impl LinkMonitor {
    fn tick(&mut self, interval: Duration, peer: &Peer, outbound: &OutboundQueue) -> Flow {
        self.silent += interval;
        let pending_acknowledgement = peer.pending_acknowledgement();
        let is_stalled = pending_acknowledgement.is_some() && pending_acknowledgement == self.acknowledged;
        self.acknowledged = pending_acknowledgement;
        self.stalled = if is_stalled { self.stalled + interval } else { Duration::ZERO };
        outbound.heartbeat_due.store(true, Relaxed);
        outbound.wake();
        let lives = self.silent <= SILENT_MAX && self.stalled <= STALLED_MAX;
        if lives { Flow::Continue } else { Flow::Close }
    }
}

/// The next frame of a known kind.
async fn next_kind(frames: &mut Streaming<Frame>) -> Result<Kind, ConnectionOutcome> {
    loop {
        match frames.message().await {
            Ok(Some(Frame { kind: Some(kind) })) => return Ok(kind),
            Ok(Some(Frame { kind: None })) => {}
            Ok(None) => return Err(ConnectionOutcome::Failed),
            Err(status) => return Err(failed(&status)),
        }
    }
}

fn failed(status: &Status) -> ConnectionOutcome {
    debug!(%status, "link handshake failed");
    ConnectionOutcome::Failed
}
