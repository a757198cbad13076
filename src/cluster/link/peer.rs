//! Another process, and where we stand with it.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tracing::{error, info};

use crate::cluster::{
    MemberId,
    link::{
        DisconnectReason,
        frame::{Frame, Goodbye, Heartbeat, Hello, Kind, Reason, VERSION},
        handshake::{Resolution, SessionIds, supersedes},
        hub::Hub,
        outbound::OutboundQueue,
        session::{PIECE_BYTES_MAX, Session, SessionError},
    },
};

/// Another process.
pub(super) struct Peer {
    pub(super) id: MemberId,
    // Held while `LinkHandler` is called, so that what it is told has an order. What `LinkHandler` calls in turn never
    // takes it.
    state: Mutex<PeerState>,
    // These are read without that lock.
    active: ArcSwapOption<OutboundQueue>,
    address: ArcSwap<String>,
    forgotten: AtomicBool,
}

struct PeerState {
    session_ids: SessionIds,
    session: Session,
    active: Option<ActiveConnection>,
    is_dialling: bool,
    is_ended: bool,
}

/// The connection in use.
struct ActiveConnection {
    outbound: Arc<OutboundQueue>,
    dialler: MemberId,
}

/// What is written next.
pub(super) enum NextFrame {
    Frame(Frame),
    /// Whoever has something wakes the outbound.
    Pending,
    End,
}

/// What becomes of a connection when the other side has said hello.
#[derive(Debug)]
pub(super) enum HelloOutcome {
    /// It is the link.
    Linked,
    /// It is none, and the other side is told so.
    Refused(Reason),
    /// The other side holds a session that is is_ended, as our own hello tells.
    RemoteLost(Hello),
    /// The session was is_ended; the next connection begins another.
    SessionEnded,
}

/// Whether to go on reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// How the two sides of a connection met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dialler,
    Acceptor,
}

impl Peer {
    pub(super) fn new(id: MemberId, session: u64) -> Self {
        let state = PeerState {
            session_ids: SessionIds::new(session),
            session: Session::default(),
            active: None,
            is_dialling: false,
            is_ended: false,
        };
        Self {
            id,
            state: Mutex::new(state),
            active: ArcSwapOption::empty(),
            address: ArcSwap::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Something waits for it.
    pub(super) fn wake(&self) {
        if let Some(outbound) = &*self.active.load() {
            outbound.wake();
        }
    }

    /// Notes that it is to be forgotten; true for who is the first.
    pub(super) fn mark_forgotten(&self) -> bool {
        !self.forgotten.swap(true, Relaxed)
    }

    /// Whether there is a link to it.
    pub(super) fn is_connected(&self) -> bool {
        self.active.load().is_some()
    }

    /// Where it is dialled; empty before it has said so.
    pub(super) fn address(&self) -> Arc<String> {
        self.address.load_full()
    }

    /// What we say to it.
    pub(super) fn hello(&self, hub: &Hub, replaces_link: bool) -> Hello {
        self.state().hello(hub, replaces_link)
    }

    /// Judges a hello that has come is_ended `outbound`, and makes that the link where it can be.
    pub(super) fn handle_hello(
        self: &Arc<Self>,
        hub: &Hub,
        hello: &Hello,
        role: Role,
        outbound: &Arc<OutboundQueue>,
    ) -> HelloOutcome {
        let mut state = self.state();
        if self.forgotten.load(Relaxed) {
            state.end(hub, self, DisconnectReason::Forgotten);
        }
        if state.is_ended {
            return HelloOutcome::SessionEnded;
        }
        let dialler = match role {
            Role::Dialler => hub.shared.me,
            Role::Acceptor => self.id,
        };
        match state.session_ids.resolve(hello.offer()) {
            Resolution::Outdated => return HelloOutcome::Refused(Reason::Stale),
            Resolution::RemoteLost => return HelloOutcome::RemoteLost(state.hello(hub, false)),
            Resolution::LocalLost => {
                state.end(hub, self, DisconnectReason::Forgotten);
                return HelloOutcome::SessionEnded;
            }
            Resolution::Begin => {
                self.address.store(Arc::new(hello.address.clone()));
                info!(peer = %self.id, address = hello.address, "a replica is met");
                hub.handler.connected(self.id, &hello.address);
            }
            Resolution::Resume => {
                let smaller = hub.shared.me.min(self.id);
                let stays = |active: &ActiveConnection| {
                    !supersedes(active.dialler, dialler, smaller, hello.replaces_link)
                };
                if state.active.as_ref().is_some_and(stays) {
                    return HelloOutcome::Refused(Reason::Linked);
                }
                self.address.store(Arc::new(hello.address.clone()));
                hub.shared.counters.reconnects.fetch_add(1, Relaxed);
            }
        }
        hub.handler.heard(self.id);
        if let Err(error) = state.session.resume(hello.received) {
            state.abort(hub, self, error);
            return HelloOutcome::SessionEnded;
        }
        if role == Role::Acceptor {
            outbound.send(Kind::Hello(state.hello(hub, false)));
        }
        match state.active.replace(ActiveConnection { outbound: outbound.clone(), dialler }) {
            Some(former) => former.outbound.closed.notify_one(),
            None => {
                hub.shared.counters.links_up.fetch_add(1, Relaxed);
            }
        }
        self.active.store(Some(outbound.clone()));
        outbound.attach(self);
        HelloOutcome::Linked
    }

    /// What goes is_ended `outbound` next.
    pub(super) fn next_frame(&self, outbound: &Arc<OutboundQueue>, hub: &Hub) -> NextFrame {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return NextFrame::End;
        }
        if let Some(frame) = state.piece(hub) {
            return NextFrame::Frame(frame);
        }
        let capacity = state.session.capacity().min(PIECE_BYTES_MAX);
        let batch = if capacity == 0 { None } else { hub.handler.next_batch(self.id, capacity) };
        if let Some(batch) = batch {
            hub.shared.counters.batches_out.fetch_add(1, Relaxed);
            hub.shared.counters.bytes_out.fetch_add(batch.len() as u64, Relaxed);
            if let Err(error) = state.session.push(batch) {
                state.abort(hub, self, error);
                return NextFrame::End;
            }
            if let Some(frame) = state.piece(hub) {
                return NextFrame::Frame(frame);
            }
        }
        if outbound.goodbye_due.load(Relaxed) && capacity != 0 {
            outbound.finish();
            return NextFrame::Frame(Kind::Goodbye(Goodbye {}).into());
        }
        if outbound.heartbeat_due.swap(false, Relaxed) || state.session.must_acknowledge() {
            let received = state.session.report_received();
            return NextFrame::Frame(Kind::Heartbeat(Heartbeat { received }).into());
        }
        NextFrame::Pending
    }

    /// Takes a frame that has come is_ended `outbound`.
    pub(super) fn handle_frame(&self, outbound: &Arc<OutboundQueue>, hub: &Hub, frame: Frame) -> Flow {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return Flow::Close;
        }
        hub.handler.heard(self.id);
        let was_full = state.session.capacity() == 0;
        let result = match frame.kind {
            Some(Kind::Piece(piece)) => state.session.receive(piece.into()),
            Some(Kind::Heartbeat(heartbeat)) => state.session.acknowledge(heartbeat.received).map(|()| None),
            Some(Kind::Goodbye(Goodbye {})) => {
                state.end(hub, self, DisconnectReason::Dead);
                return Flow::Close;
            }
            Some(Kind::Refusal(_)) => return Flow::Close,
            // Said a second time it says nothing new; and what we do not know is of a later version.
            Some(Kind::Greeting(_) | Kind::Hello(_)) | None => Ok(None),
        };
        match result {
            Ok(Some(batch)) => {
                hub.shared.counters.batches_in.fetch_add(1, Relaxed);
                hub.shared.counters.bytes_in.fetch_add(batch.len() as u64, Relaxed);
                hub.handler.received(self.id, batch);
            }
            Ok(None) => {}
            Err(error) => {
                state.abort(hub, self, error);
                return Flow::Close;
            }
        }
        if (was_full && state.session.capacity() != 0) || state.session.must_acknowledge() {
            outbound.wake();
        }
        Flow::Continue
    }

    /// The number of the last piece it has, where others are on their way to it.
    pub(super) fn pending_acknowledgement(&self) -> Option<u64> {
        let state = self.state();
        state.session.awaits_acknowledgement().then(|| state.session.acknowledged())
    }

    /// Notes that `outbound` is of no use any more. True if it is to be dialled again by who is told so.
    pub(super) fn detach(&self, outbound: &Arc<OutboundQueue>, hub: &Hub) -> bool {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return false;
        }
        state.close_active(hub, self);
        let dials = !state.is_ended && !state.is_dialling;
        state.is_dialling |= dials;
        dials
    }

    /// Whether who dials it has to go on.
    pub(super) fn needs_dialling(&self) -> bool {
        let mut state = self.state();
        state.is_dialling = !state.is_ended && state.active.is_none() && !self.forgotten.load(Relaxed);
        state.is_dialling
    }

    /// Ends the session, if it has not ended.
    pub(super) fn end(&self, hub: &Hub, reason: DisconnectReason) {
        self.state().end(hub, self, reason);
    }

    /// Notes the proof that nobody is where it is dialled; a link that has come meanwhile proves the contrary.
    pub(super) fn end_unless_connected(&self, hub: &Hub) {
        let mut state = self.state();
        if state.active.is_none() {
            state.end(hub, self, DisconnectReason::Dead);
        }
    }

    /// Ends it unless it has begun.
    pub(super) fn end_unless_established(&self, hub: &Hub) {
        let mut state = self.state();
        if !state.session_ids.is_established() {
            state.end(hub, self, DisconnectReason::Forgotten);
        }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerState {
    fn is_active(&self, outbound: &Arc<OutboundQueue>) -> bool {
        self.active.as_ref().is_some_and(|active| Arc::ptr_eq(&active.outbound, outbound))
    }

    fn hello(&self, hub: &Hub, replaces_link: bool) -> Hello {
        let offer = self.session_ids.offer();
        Hello {
            version: VERSION,
            member: hub.shared.me.number(),
            address: hub.shared.address.clone(),
            session: offer.session,
            known_session: offer.known,
            received: self.session.received(),
            replaces_link,
        }
    }

    fn piece(&mut self, hub: &Hub) -> Option<Frame> {
        let next = self.session.next_piece()?;
        if next.is_resent {
            hub.shared.counters.resent.fetch_add(1, Relaxed);
        }
        Some(Kind::from(next.piece).into())
    }

    fn close_active(&mut self, hub: &Hub, peer: &Peer) {
        if let Some(active) = self.active.take() {
            hub.shared.counters.links_up.fetch_sub(1, Relaxed);
            active.outbound.closed.notify_one();
            active.outbound.wake();
            peer.active.store(None);
        }
    }

    fn end(&mut self, hub: &Hub, peer: &Peer, reason: DisconnectReason) {
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        self.close_active(hub, peer);
        if self.session_ids.is_established() {
            info!(peer = %peer.id, address = %peer.address(), ?reason, "a replica is lost");
            hub.handler.disconnected(peer.id, reason);
        }
        // Last, so that whoever finds it gone has been told that it is lost.
        hub.shared.roster.remove(peer.id);
    }

    fn abort(&mut self, hub: &Hub, peer: &Peer, error: SessionError) {
        error!(peer = %peer.id, address = %peer.address(), %error, "a session cannot go on");
        self.end(hub, peer, DisconnectReason::Forgotten);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).finish_non_exhaustive()
    }
}
