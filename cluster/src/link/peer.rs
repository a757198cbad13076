//! Another process, its session and its link.

use std::{
    collections::HashMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::task::AtomicWaker;
use tollgate_counter::lock::lock;
use tracing::{error, info};

use crate::{
    link::{
        LinkHandler,
        assembly::AssemblyBudget,
        frame::{LinkFrame, LinkHello},
        session::{HelloOutcome, LinkRole, Session, SessionError},
        stats::LinkStats,
    },
    member::{Departure, MemberId},
};

/// The most peers.
pub(super) const PEERS_MAX: usize = 1024;

/// This process as its peers know it, and its peers.
pub(super) struct LocalProcess {
    pub(super) id: MemberId,
    /// The advertised address.
    pub(super) address: String,
    pub(super) stats: Arc<LinkStats>,
    // Invariant: changes only under the lock of `sessions`, so that there are never more than `PEERS_MAX`. Reads take no
    // lock.
    peers: ArcSwap<HashMap<MemberId, Arc<Peer>>>,
    sessions: Mutex<u64>,
    // Of all peers.
    assembly: AssemblyBudget,
}

/// A process of the cluster that is not this one, with the session of its link.
pub(super) struct Peer {
    pub(super) id: MemberId,
    handler: Arc<dyn LinkHandler>,
    // Held while `LinkHandler` is called, so that its calls for one peer are ordered. Methods that `LinkHandler` may
    // call never take it.
    state: Mutex<PeerState>,
    // These are read without that lock; the link changes under it.
    link: ArcSwapOption<ActiveLink>,
    address: ArcSwap<String>,
    /// The session is to end.
    pub(super) forgotten: AtomicBool,
}

struct PeerState {
    session: Session,
    is_dialling: bool,
    is_ended: bool,
}

/// The connection that carries a session, as other tasks reach it.
pub(super) struct ActiveLink {
    role: LinkRole,
    /// Wakes the task of the connection when there is something to write or the connection must close.
    pub(super) waker: AtomicWaker,
    /// The connection must close.
    pub(super) is_closed: AtomicBool,
    /// A heartbeat is due.
    pub(super) heartbeat_due: AtomicBool,
    /// Queued batches are written, then a goodbye.
    pub(super) goodbye_due: AtomicBool,
    /// The goodbye is written, so nothing follows.
    is_finished: AtomicBool,
}

impl LocalProcess {
    pub(super) fn new(id: MemberId, address: String) -> Self {
        Self {
            id,
            address,
            stats: Arc::default(),
            peers: ArcSwap::default(),
            sessions: Mutex::default(),
            assembly: AssemblyBudget::default(),
        }
    }

    pub(super) fn get(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.peers.load().get(&id).cloned()
    }

    /// Wakes the link of one peer.
    pub(super) fn wake(&self, id: MemberId) {
        if let Some(peer) = self.peers.load().get(&id) {
            peer.wake();
        }
    }

    /// Wakes all links.
    pub(super) fn wake_all(&self) {
        self.peers.load().values().for_each(|peer| peer.wake());
    }

    /// The number of peers.
    pub(super) fn peers(&self) -> usize {
        self.peers.load().len()
    }

    /// The peer that advertises this address.
    pub(super) fn member_at(&self, address: &str) -> Option<MemberId> {
        self.peers.load().values().find(|peer| *peer.address() == address).map(|peer| peer.id)
    }

    /// The peer of this id, which is added if it is unknown; `None` if there are too many.
    pub(super) fn get_or_add(&self, id: MemberId, handler: &Arc<dyn LinkHandler>) -> Option<Arc<Peer>> {
        let mut sessions = lock(&self.sessions);
        let peers = self.peers.load();
        if let Some(peer) = peers.get(&id) {
            return Some(peer.clone());
        }
        if peers.len() >= PEERS_MAX {
            return None;
        }
        *sessions += 1;
        // If both sides dial, the connection stays that the smaller id has dialled.
        let preferred = if self.id < id { LinkRole::Dialler } else { LinkRole::Acceptor };
        let peer = Arc::new(Peer::new(
            id,
            handler.clone(),
            Session::new(*sessions, preferred, self.assembly.clone()),
        ));
        let mut peers = HashMap::clone(&peers);
        peers.insert(id, peer.clone());
        self.peers.store(Arc::new(peers));
        Some(peer)
    }

    /// Drops all peers.
    pub(super) fn clear(&self) {
        let _sessions = lock(&self.sessions);
        self.peers.store(Arc::default());
    }

    fn remove(&self, id: MemberId) {
        let _sessions = lock(&self.sessions);
        let mut peers = HashMap::clone(&self.peers.load());
        peers.remove(&id);
        self.peers.store(Arc::new(peers));
    }
}

impl Peer {
    fn new(id: MemberId, handler: Arc<dyn LinkHandler>, session: Session) -> Self {
        Self {
            id,
            handler,
            state: Mutex::new(PeerState { session, is_dialling: false, is_ended: false }),
            link: ArcSwapOption::empty(),
            address: ArcSwap::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Wakes the link to write what is queued.
    pub(super) fn wake(&self) {
        if let Some(link) = &*self.link.load() {
            link.waker.wake();
        }
    }

    /// Whether there is a link.
    pub(super) fn is_connected(&self) -> bool {
        self.link.load().is_some()
    }

    /// The advertised address of the peer; empty before its first hello.
    pub(super) fn address(&self) -> Arc<String> {
        self.address.load_full()
    }

    /// The hello to send to the peer.
    pub(super) fn hello(&self, local: &LocalProcess) -> LinkFrame {
        LinkFrame::Hello(self.state().session.hello(local.id, local.address.clone()))
    }

    /// The peer has refused a connection because of a link. If there is none here, it is lost, and the next connection
    /// replaces it.
    pub(super) fn refused_as_duplicate(&self) {
        let mut state = self.state();
        if !self.is_connected() {
            state.session.replace_link();
        }
    }

    /// Handles a hello received on the connection of `link`, which becomes the link if the session allows it.
    pub(super) fn handle_hello(
        &self,
        local: &LocalProcess,
        hello: &LinkHello,
        link: &Arc<ActiveLink>,
    ) -> HelloOutcome {
        let mut state = self.state();
        if self.forgotten.load(Relaxed) {
            self.end_locked(local, &mut state, Departure::Forgotten);
        }
        if state.is_ended {
            return HelloOutcome::LocalLost;
        }
        let active = self.link.load().as_ref().map(|link| link.role);
        let outcome = state.session.judge(hello, link.role, active);
        match outcome {
            HelloOutcome::Begin | HelloOutcome::Resume => {
                self.address.store(Arc::new(hello.address.clone()));
                if outcome == HelloOutcome::Begin {
                    info!(peer = %self.id, address = hello.address, "connected to a replica");
                    self.handler.connected(self.id, &hello.address);
                } else {
                    local.stats.reconnects.increase();
                }
                self.handler.heard(self.id);
                local.stats.pieces_resent.add(state.session.connect(hello));
                self.replace_link(local, Some(link.clone()));
            }
            HelloOutcome::LocalLost => self.end_locked(local, &mut state, Departure::Forgotten),
            HelloOutcome::Invalid(error) => self.abort(local, &mut state, error),
            HelloOutcome::Refused(_) | HelloOutcome::RemoteLost => {}
        }
        outcome
    }

    /// Handles a frame received on `link`. Breaks if the connection must close. Returns the frame if the memory for
    /// incomplete batches is full: then the connection is not read further until the frame is handled.
    pub(super) fn receive(
        &self,
        local: &LocalProcess,
        link: &Arc<ActiveLink>,
        frame: LinkFrame,
    ) -> ControlFlow<(), Option<LinkFrame>> {
        let mut state = self.state();
        if !self.is_link(link) {
            return ControlFlow::Break(());
        }
        let session = &mut state.session;
        let batch = match frame {
            LinkFrame::Piece(piece) if !session.take_room(&piece) => {
                // The peer is not silent.
                self.handler.heard(self.id);
                return ControlFlow::Continue(Some(LinkFrame::Piece(piece)));
            }
            LinkFrame::Piece(piece) => session.receive(piece),
            LinkFrame::Heartbeat(received) => session.acknowledge(received).map(|()| None),
            LinkFrame::Goodbye => {
                self.end_locked(local, &mut state, Departure::Dead);
                return ControlFlow::Break(());
            }
            LinkFrame::Refusal(_) => return ControlFlow::Break(()),
            // A repeated greeting or hello has no effect.
            LinkFrame::Greeting(_) | LinkFrame::Hello(_) => Ok(None),
        };
        match batch {
            Ok(Some(batch)) => {
                local.stats.batches_in.increase();
                local.stats.bytes_in.add(batch.len() as u64);
                self.handler.received(self.id, batch);
            }
            Ok(None) => self.handler.heard(self.id),
            Err(error) => {
                self.abort(local, &mut state, error);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(None)
    }

    /// The next frame to write on `link`, if there is one.
    pub(super) fn next_frame(&self, local: &LocalProcess, link: &Arc<ActiveLink>) -> Option<LinkFrame> {
        let mut state = self.state();
        if !self.is_link(link) || link.is_finished.load(Relaxed) {
            return None;
        }
        let session = &mut state.session;
        if let Some(piece) = session.next_piece() {
            return Some(LinkFrame::Piece(piece));
        }
        let has_capacity = session.capacity() > 0;
        if has_capacity && let Some(batch) = self.handler.next_batch(self.id) {
            local.stats.batches_out.increase();
            local.stats.bytes_out.add(batch.len() as u64);
            session.push(batch);
            return session.next_piece().map(LinkFrame::Piece);
        }
        if has_capacity && link.goodbye_due.load(Relaxed) {
            link.is_finished.store(true, Relaxed);
            return Some(LinkFrame::Goodbye);
        }
        let is_heartbeat_due = link.heartbeat_due.swap(false, Relaxed) || session.must_acknowledge();
        is_heartbeat_due.then(|| LinkFrame::Heartbeat(session.report_received()))
    }

    /// The last acknowledged piece, if later ones are unacknowledged.
    pub(super) fn pending_acknowledgement(&self) -> Option<u64> {
        self.state().session.pending_acknowledgement()
    }

    /// Gives up `link`, whose connection has closed. True if the caller must start to redial the peer.
    pub(super) fn detach(&self, local: &LocalProcess, link: &Arc<ActiveLink>) -> bool {
        let mut state = self.state();
        if !self.is_link(link) {
            return false;
        }
        self.replace_link(local, None);
        let dials = !state.is_ended && !state.is_dialling;
        state.is_dialling |= dials;
        dials
    }

    /// Whether the task that redials the peer continues.
    pub(super) fn needs_dialling(&self) -> bool {
        let mut state = self.state();
        state.is_dialling = !state.is_ended && !self.is_connected() && !self.forgotten.load(Relaxed);
        state.is_dialling
    }

    /// Ends the session if it has not ended.
    pub(super) fn end(&self, local: &LocalProcess, reason: Departure) {
        self.end_locked(local, &mut self.state(), reason);
    }

    /// Ends the session as dead after proof that the process is gone, unless there is a link again.
    pub(super) fn end_unless_connected(&self, local: &LocalProcess) {
        let mut state = self.state();
        if !self.is_connected() {
            self.end_locked(local, &mut state, Departure::Dead);
        }
    }

    /// Ends the session unless both sides have established it.
    pub(super) fn end_unless_established(&self, local: &LocalProcess) {
        let mut state = self.state();
        if !state.session.is_established() {
            self.end_locked(local, &mut state, Departure::Forgotten);
        }
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        lock(&self.state)
    }

    fn is_link(&self, link: &Arc<ActiveLink>) -> bool {
        self.link.load().as_ref().is_some_and(|active| Arc::ptr_eq(active, link))
    }

    /// Called under the lock of the state.
    fn replace_link(&self, local: &LocalProcess, link: Option<Arc<ActiveLink>>) {
        let links_up = &local.stats.links_up;
        if link.is_some() {
            links_up.fetch_add(1, Relaxed);
        }
        if let Some(former) = self.link.swap(link) {
            links_up.fetch_sub(1, Relaxed);
            former.close();
        }
    }

    fn end_locked(&self, local: &LocalProcess, state: &mut PeerState, reason: Departure) {
        if state.is_ended {
            return;
        }
        state.is_ended = true;
        state.session.discard_partial_batch();
        self.replace_link(local, None);
        if state.session.is_established() {
            info!(peer = %self.id, address = %self.address(), ?reason, "lost a replica");
            self.handler.disconnected(self.id, reason);
        }
        // Last, so that `disconnected` was called before the peer can be looked up as absent.
        local.remove(self.id);
    }

    fn abort(&self, local: &LocalProcess, state: &mut PeerState, error: SessionError) {
        error!(peer = %self.id, address = %self.address(), %error, "session aborted after a protocol error");
        self.end_locked(local, state, Departure::Forgotten);
    }
}

impl ActiveLink {
    pub(super) fn new(role: LinkRole) -> Self {
        Self {
            role,
            waker: AtomicWaker::new(),
            is_closed: AtomicBool::new(false),
            heartbeat_due: AtomicBool::new(false),
            goodbye_due: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Relaxed);
        self.waker.wake();
    }
}
