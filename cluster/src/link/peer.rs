//! Another process, its session and its active connection.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use arc_swap::{ArcSwap, ArcSwapOption};
use tracing::{error, info};

use crate::{
    MemberId,
    link::{
        DisconnectReason, LinkHandler,
        assembly::AssemblyBudget,
        frame::{Frame, Hello, Kind, Reason, Resolution, SessionIds, VERSION, supersedes},
        outbound::OutboundQueue,
        session::{Session, SessionError},
        stats::LinkStats,
    },
};

mod frames;

/// The most peers.
pub(super) const PEERS_MAX: usize = 1024;

/// What peers know about this process.
#[derive(Debug)]
pub(super) struct LocalProcess {
    pub(super) id: MemberId,
    /// The advertised address.
    pub(super) address: String,
    pub(super) stats: Arc<LinkStats>,
}

/// All peers.
// Invariant: changes only under the lock, so that there are never more than `PEERS_MAX`. Reads take no lock.
#[derive(Default)]
pub(super) struct PeerRoster {
    peers: ArcSwap<HashMap<MemberId, Arc<Peer>>>,
    sessions: Mutex<u64>,
    // Of all peers.
    assembly: Arc<AssemblyBudget>,
}

/// Another process of the cluster, with the session of its link.
pub(super) struct Peer {
    pub(super) id: MemberId,
    local: Arc<LocalProcess>,
    handler: Arc<dyn LinkHandler>,
    roster: Weak<PeerRoster>,
    // Held while `LinkHandler` is called, so that its calls for one peer are ordered. Methods that `LinkHandler` may
    // call never take it.
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

/// The connection that carries the session.
struct ActiveConnection {
    outbound: Arc<OutboundQueue>,
    dialler: MemberId,
}

/// The effect of a peer's hello on its connection.
#[derive(Debug)]
pub(super) enum HelloOutcome {
    /// The connection is now the link.
    Linked,
    /// The connection is refused, and the peer is sent the reason.
    Refused(Reason),
    /// The peer holds a session that has ended; this hello tells it so.
    RemoteLost(Hello),
    /// The session has ended; the next connection begins a new one.
    SessionEnded,
}

/// Whether the connection keeps reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// The side of the connection that this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRole {
    Dialler,
    Acceptor,
}

impl PeerRoster {
    pub(super) fn get(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.peers.load().get(&id).cloned()
    }

    /// Wakes the link of one peer.
    pub(super) fn wake(&self, id: MemberId) {
        if let Some(peer) = self.peers.load().get(&id) {
            peer.wake();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.peers.load().len()
    }

    /// Whether a peer advertises this address.
    pub(super) fn has_address(&self, address: &str) -> bool {
        self.peers.load().values().any(|peer| *peer.address() == address)
    }

    /// The peer of this id, which is added if it is unknown; `None` if there are too many.
    pub(super) fn get_or_add(
        self: &Arc<Self>,
        id: MemberId,
        local: &Arc<LocalProcess>,
        handler: &Arc<dyn LinkHandler>,
    ) -> Option<Arc<Peer>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = self.peers.load();
        if let Some(peer) = peers.get(&id) {
            return Some(peer.clone());
        }
        if peers.len() >= PEERS_MAX {
            return None;
        }
        *sessions += 1;
        let peer = Arc::new(Peer::new(id, *sessions, local, handler, self));
        let mut peers = HashMap::clone(&peers);
        peers.insert(id, peer.clone());
        self.peers.store(Arc::new(peers));
        Some(peer)
    }

    /// Drops all peers.
    pub(super) fn clear(&self) {
        let _sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        self.peers.store(Arc::default());
    }

    fn remove(&self, id: MemberId) {
        let _sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peers = HashMap::clone(&self.peers.load());
        peers.remove(&id);
        self.peers.store(Arc::new(peers));
    }
}

impl Peer {
    fn new(
        id: MemberId,
        session: u64,
        local: &Arc<LocalProcess>,
        handler: &Arc<dyn LinkHandler>,
        roster: &Arc<PeerRoster>,
    ) -> Self {
        let state = PeerState {
            session_ids: SessionIds::new(session),
            session: Session::new(roster.assembly.clone()),
            active: None,
            is_dialling: false,
            is_ended: false,
        };
        Self {
            id,
            local: local.clone(),
            handler: handler.clone(),
            roster: Arc::downgrade(roster),
            state: Mutex::new(state),
            active: ArcSwapOption::empty(),
            address: ArcSwap::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Wakes the active connection to write what is queued.
    pub(super) fn wake(&self) {
        if let Some(outbound) = &*self.active.load() {
            outbound.wake();
        }
    }

    /// Marks the peer as forgotten; true for the first call.
    pub(super) fn mark_forgotten(&self) -> bool {
        !self.forgotten.swap(true, Relaxed)
    }

    /// Undoes [`Peer::mark_forgotten`].
    pub(super) fn unmark_forgotten(&self) {
        self.forgotten.store(false, Relaxed);
    }

    /// Whether a connection is active.
    pub(super) fn is_connected(&self) -> bool {
        self.active.load().is_some()
    }

    /// The advertised address of the peer; empty before its first hello.
    pub(super) fn address(&self) -> Arc<String> {
        self.address.load_full()
    }

    /// The hello to send to the peer.
    pub(super) fn hello(&self, replaces_link: bool) -> Hello {
        self.state().hello(&self.local, replaces_link)
    }

    /// Resolves a hello received on `outbound`'s connection, and activates the connection if the session allows it.
    pub(super) fn handle_hello(
        self: &Arc<Self>,
        hello: &Hello,
        role: LinkRole,
        outbound: &Arc<OutboundQueue>,
    ) -> HelloOutcome {
        let mut state = self.state();
        if self.forgotten.load(Relaxed) {
            state.end(self, DisconnectReason::Forgotten);
        }
        if state.is_ended {
            return HelloOutcome::SessionEnded;
        }
        let dialler = match role {
            LinkRole::Dialler => self.local.id,
            LinkRole::Acceptor => self.id,
        };
        match state.session_ids.resolve(hello.offer()) {
            Resolution::Outdated => return HelloOutcome::Refused(Reason::Stale),
            Resolution::RemoteLost => return HelloOutcome::RemoteLost(state.hello(&self.local, false)),
            Resolution::LocalLost => {
                state.end(self, DisconnectReason::Forgotten);
                return HelloOutcome::SessionEnded;
            }
            Resolution::Begin => {
                self.address.store(Arc::new(hello.address.clone()));
                info!(peer = %self.id, address = hello.address, "connected to a replica");
                self.handler.connected(self.id, &hello.address);
            }
            Resolution::Resume => {
                let smaller = self.local.id.min(self.id);
                let stays = |active: &ActiveConnection| {
                    !supersedes(active.dialler, dialler, smaller, hello.replaces_link)
                };
                if state.active.as_ref().is_some_and(stays) {
                    return HelloOutcome::Refused(Reason::Linked);
                }
                self.address.store(Arc::new(hello.address.clone()));
                self.local.stats.reconnects.increase();
            }
        }
        self.handler.heard(self.id);
        if let Err(error) = state.session.resume(hello.received) {
            state.abort(self, error);
            return HelloOutcome::SessionEnded;
        }
        if role == LinkRole::Acceptor {
            outbound.send(Kind::Hello(state.hello(&self.local, false)));
        }
        match state.active.replace(ActiveConnection { outbound: outbound.clone(), dialler }) {
            Some(former) => former.outbound.closed.notify_one(),
            None => {
                self.local.stats.links_up.fetch_add(1, Relaxed);
            }
        }
        self.active.store(Some(outbound.clone()));
        outbound.attach(Arc::<Self>::downgrade(self));
        HelloOutcome::Linked
    }

    /// The last acknowledged piece, if later ones are unacknowledged.
    pub(super) fn pending_acknowledgement(&self) -> Option<u64> {
        let state = self.state();
        state.session.awaits_acknowledgement().then(|| state.session.acknowledged())
    }

    /// Deactivates `outbound`. True if the caller must start to redial the peer.
    pub(super) fn detach(&self, outbound: &Arc<OutboundQueue>) -> bool {
        let mut state = self.state();
        if !state.is_active(outbound) {
            return false;
        }
        state.close_active(self);
        let dials = !state.is_ended && !state.is_dialling;
        state.is_dialling |= dials;
        dials
    }

    /// Whether the task that redials the peer continues.
    pub(super) fn needs_dialling(&self) -> bool {
        let mut state = self.state();
        state.is_dialling = !state.is_ended && state.active.is_none() && !self.forgotten.load(Relaxed);
        state.is_dialling
    }

    /// Ends the session if it has not ended.
    pub(super) fn end(&self, reason: DisconnectReason) {
        self.state().end(self, reason);
    }

    /// Ends the session as dead after proof that the process is gone, unless a connection became active meanwhile.
    pub(super) fn end_unless_connected(&self) {
        let mut state = self.state();
        if state.active.is_none() {
            state.end(self, DisconnectReason::Dead);
        }
    }

    /// Ends the session unless both sides have established it.
    pub(super) fn end_unless_established(&self) {
        let mut state = self.state();
        if !state.session_ids.is_established() {
            state.end(self, DisconnectReason::Forgotten);
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

    fn hello(&self, local: &LocalProcess, replaces_link: bool) -> Hello {
        let offer = self.session_ids.offer();
        Hello {
            version: VERSION,
            member: local.id.number(),
            address: local.address.clone(),
            session: offer.session,
            known_session: offer.known,
            received: self.session.received(),
            replaces_link,
        }
    }

    fn piece(&mut self, stats: &LinkStats) -> Option<Frame> {
        let next = self.session.next_piece()?;
        if next.is_resent {
            stats.pieces_resent.increase();
        }
        Some(Kind::Piece(next.piece).into())
    }

    fn close_active(&mut self, peer: &Peer) {
        if let Some(active) = self.active.take() {
            peer.local.stats.links_up.fetch_sub(1, Relaxed);
            active.outbound.closed.notify_one();
            active.outbound.wake();
            peer.active.store(None);
        }
    }

    fn end(&mut self, peer: &Peer, reason: DisconnectReason) {
        if self.is_ended {
            return;
        }
        self.is_ended = true;
        self.session.discard_partial_batch();
        self.close_active(peer);
        if self.session_ids.is_established() {
            info!(peer = %peer.id, address = %peer.address(), ?reason, "lost a replica");
            peer.handler.disconnected(peer.id, reason);
        }
        // Last, so that `disconnected` was called before the peer can be looked up as absent.
        if let Some(roster) = peer.roster.upgrade() {
            roster.remove(peer.id);
        }
    }

    fn abort(&mut self, peer: &Peer, error: SessionError) {
        error!(peer = %peer.id, address = %peer.address(), %error, "session aborted after a protocol error");
        self.end(peer, DisconnectReason::Forgotten);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).finish_non_exhaustive()
    }
}
