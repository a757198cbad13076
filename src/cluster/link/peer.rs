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
        Loss,
        hub::Hub,
        pact::{Meeting, Pact, replaces},
        pipe::Pipe,
        session::{Broken, PIECE_BYTES_MAX, Session},
        wire::{Frame, Goodbye, Heartbeat, Hello, Kind, Reason, VERSION},
    },
};

/// Another process.
pub(super) struct Peer {
    pub(super) id: MemberId,
    // Held while `Traffic` is called, so that what it is told has an order. What `Traffic` calls in turn never
    // takes it.
    standing: Mutex<Standing>,
    // These are read without that lock.
    present: ArcSwapOption<Pipe>,
    address: ArcSwap<String>,
    forgotten: AtomicBool,
}

struct Standing {
    pact: Pact,
    session: Session,
    present: Option<Present>,
    dialling: bool,
    over: bool,
}

/// The connection in use.
struct Present {
    pipe: Arc<Pipe>,
    dialler: MemberId,
}

/// What is written next.
pub(super) enum Next {
    Frame(Frame),
    /// Whoever has something wakes the pipe.
    Nothing,
    End,
}

/// What becomes of a connection when the other side has said hello.
#[derive(Debug)]
pub(super) enum Met {
    /// It is the link.
    Linked,
    /// It is none, and the other side is told so.
    Refused(Reason),
    /// The other side holds a session that is over, as our own hello tells.
    Behind(Hello),
    /// The session was over; the next connection begins another.
    Anew,
}

/// Whether to go on reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    GoesOn,
    Ends,
}

/// How the two sides of a connection met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Dialled,
    Accepted,
}

impl Peer {
    pub(super) fn new(id: MemberId, session: u64) -> Self {
        let standing = Standing {
            pact: Pact::new(session),
            session: Session::default(),
            present: None,
            dialling: false,
            over: false,
        };
        Self {
            id,
            standing: Mutex::new(standing),
            present: ArcSwapOption::empty(),
            address: ArcSwap::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Something waits for it.
    pub(super) fn wake(&self) {
        if let Some(pipe) = &*self.present.load() {
            pipe.wake();
        }
    }

    /// Notes that it is to be forgotten; true for who is the first.
    pub(super) fn mark_forgotten(&self) -> bool {
        !self.forgotten.swap(true, Relaxed)
    }

    /// Whether there is a link to it.
    pub(super) fn is_linked(&self) -> bool {
        self.present.load().is_some()
    }

    /// Where it is dialled; empty before it has said so.
    pub(super) fn address(&self) -> Arc<String> {
        self.address.load_full()
    }

    /// What we say to it.
    pub(super) fn hello(&self, hub: &Hub, insists: bool) -> Hello {
        self.standing().hello(hub, insists)
    }

    /// Judges a hello that has come over `pipe`, and makes that the link where it can be.
    pub(super) fn meet(self: &Arc<Self>, hub: &Hub, hello: &Hello, side: Side, pipe: &Arc<Pipe>) -> Met {
        let mut standing = self.standing();
        if self.forgotten.load(Relaxed) {
            standing.end(hub, self, Loss::Forgotten);
        }
        if standing.over {
            return Met::Anew;
        }
        let dialler = match side {
            Side::Dialled => hub.shared.me,
            Side::Accepted => self.id,
        };
        match standing.pact.meet(hello.claim()) {
            Meeting::Stale => return Met::Refused(Reason::Stale),
            Meeting::TheyAreBehind => return Met::Behind(standing.hello(hub, false)),
            Meeting::WeAreBehind => {
                standing.end(hub, self, Loss::Forgotten);
                return Met::Anew;
            }
            Meeting::Begins => {
                self.address.store(Arc::new(hello.address.clone()));
                info!(peer = %self.id, address = hello.address, "a replica is met");
                hub.traffic.linked(self.id, &hello.address);
            }
            Meeting::GoesOn => {
                let smaller = hub.shared.me.min(self.id);
                let stays = |present: &Present| !replaces(present.dialler, dialler, smaller, hello.insists);
                if standing.present.as_ref().is_some_and(stays) {
                    return Met::Refused(Reason::Linked);
                }
                self.address.store(Arc::new(hello.address.clone()));
                hub.shared.counts.reconnects.fetch_add(1, Relaxed);
            }
        }
        hub.traffic.heard(self.id);
        if let Err(broken) = standing.session.resume(hello.received) {
            standing.break_off(hub, self, broken);
            return Met::Anew;
        }
        if side == Side::Accepted {
            pipe.say(Kind::Hello(standing.hello(hub, false)));
        }
        match standing.present.replace(Present { pipe: pipe.clone(), dialler }) {
            Some(former) => former.pipe.end.notify_one(),
            None => {
                hub.shared.counts.links_up.fetch_add(1, Relaxed);
            }
        }
        self.present.store(Some(pipe.clone()));
        pipe.carry(self);
        Met::Linked
    }

    /// What goes over `pipe` next.
    pub(super) fn next(&self, pipe: &Arc<Pipe>, hub: &Hub) -> Next {
        let mut standing = self.standing();
        if !standing.is_present(pipe) {
            return Next::End;
        }
        if let Some(frame) = standing.piece(hub) {
            return Next::Frame(frame);
        }
        let room = standing.session.room().min(PIECE_BYTES_MAX);
        let batch = if room == 0 { None } else { hub.traffic.outgoing(self.id, room) };
        if let Some(batch) = batch {
            hub.shared.counts.batches_out.fetch_add(1, Relaxed);
            hub.shared.counts.bytes_out.fetch_add(batch.len() as u64, Relaxed);
            if let Err(broken) = standing.session.push(batch) {
                standing.break_off(hub, self, broken);
                return Next::End;
            }
            if let Some(frame) = standing.piece(hub) {
                return Next::Frame(frame);
            }
        }
        if pipe.closing.load(Relaxed) && room != 0 {
            pipe.finish();
            return Next::Frame(Kind::Goodbye(Goodbye {}).into());
        }
        if pipe.beat.swap(false, Relaxed) || standing.session.owes() {
            let received = standing.session.tell_received();
            return Next::Frame(Kind::Heartbeat(Heartbeat { received }).into());
        }
        Next::Nothing
    }

    /// Takes a frame that has come over `pipe`.
    pub(super) fn take(&self, pipe: &Arc<Pipe>, hub: &Hub, frame: Frame) -> Reading {
        let mut standing = self.standing();
        if !standing.is_present(pipe) {
            return Reading::Ends;
        }
        hub.traffic.heard(self.id);
        let was_full = standing.session.room() == 0;
        let taken = match frame.kind {
            Some(Kind::Piece(piece)) => standing.session.receive(piece.into()),
            Some(Kind::Heartbeat(heartbeat)) => {
                standing.session.acknowledge(heartbeat.received).map(|()| None)
            }
            Some(Kind::Goodbye(Goodbye {})) => {
                standing.end(hub, self, Loss::Dead);
                return Reading::Ends;
            }
            Some(Kind::Refusal(_)) => return Reading::Ends,
            // Said a second time it says nothing new; and what we do not know is of a later version.
            Some(Kind::Greeting(_) | Kind::Hello(_)) | None => Ok(None),
        };
        match taken {
            Ok(Some(batch)) => {
                hub.shared.counts.batches_in.fetch_add(1, Relaxed);
                hub.shared.counts.bytes_in.fetch_add(batch.len() as u64, Relaxed);
                hub.traffic.received(self.id, batch);
            }
            Ok(None) => {}
            Err(broken) => {
                standing.break_off(hub, self, broken);
                return Reading::Ends;
            }
        }
        if (was_full && standing.session.room() != 0) || standing.session.owes() {
            pipe.wake();
        }
        Reading::GoesOn
    }

    /// The number of the last piece it has, where others are on their way to it.
    pub(super) fn awaited(&self) -> Option<u64> {
        let standing = self.standing();
        standing.session.awaits().then(|| standing.session.acknowledged())
    }

    /// Notes that `pipe` is of no use any more. True if it is to be dialled again by who is told so.
    pub(super) fn detach(&self, pipe: &Arc<Pipe>, hub: &Hub) -> bool {
        let mut standing = self.standing();
        if !standing.is_present(pipe) {
            return false;
        }
        standing.leave(hub, self);
        let dials = !standing.over && !standing.dialling;
        standing.dialling |= dials;
        dials
    }

    /// Whether who dials it has to go on.
    pub(super) fn wants_dialling(&self) -> bool {
        let mut standing = self.standing();
        standing.dialling = !standing.over && standing.present.is_none() && !self.forgotten.load(Relaxed);
        standing.dialling
    }

    /// Ends the session, if it has not ended.
    pub(super) fn end(&self, hub: &Hub, how: Loss) {
        self.standing().end(hub, self, how);
    }

    /// Notes the proof that nobody is where it is dialled; a link that has come meanwhile proves the contrary.
    pub(super) fn end_unless_linked(&self, hub: &Hub) {
        let mut standing = self.standing();
        if standing.present.is_none() {
            standing.end(hub, self, Loss::Dead);
        }
    }

    /// Ends it unless it has begun.
    pub(super) fn end_unless_begun(&self, hub: &Hub) {
        let mut standing = self.standing();
        if !standing.pact.has_begun() {
            standing.end(hub, self, Loss::Forgotten);
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    fn is_present(&self, pipe: &Arc<Pipe>) -> bool {
        self.present.as_ref().is_some_and(|present| Arc::ptr_eq(&present.pipe, pipe))
    }

    fn hello(&self, hub: &Hub, insists: bool) -> Hello {
        let claim = self.pact.claim();
        Hello {
            version: VERSION,
            member: hub.shared.me.number(),
            address: hub.shared.address.clone(),
            session: claim.session,
            knows: claim.knows,
            received: self.session.received(),
            insists,
        }
    }

    fn piece(&mut self, hub: &Hub) -> Option<Frame> {
        let handed = self.session.hand()?;
        if handed.again {
            hub.shared.counts.resent.fetch_add(1, Relaxed);
        }
        Some(Kind::from(handed.piece).into())
    }

    fn leave(&mut self, hub: &Hub, peer: &Peer) {
        if let Some(present) = self.present.take() {
            hub.shared.counts.links_up.fetch_sub(1, Relaxed);
            present.pipe.end.notify_one();
            present.pipe.wake();
            peer.present.store(None);
        }
    }

    fn end(&mut self, hub: &Hub, peer: &Peer, how: Loss) {
        if self.over {
            return;
        }
        self.over = true;
        self.leave(hub, peer);
        if self.pact.has_begun() {
            info!(peer = %peer.id, address = %peer.address(), ?how, "a replica is lost");
            hub.traffic.lost(peer.id, how);
        }
        // Last, so that whoever finds it gone has been told that it is lost.
        hub.shared.roster.remove(peer.id);
    }

    fn break_off(&mut self, hub: &Hub, peer: &Peer, broken: Broken) {
        error!(peer = %peer.id, address = %peer.address(), %broken, "a session cannot go on");
        self.end(hub, peer, Loss::Forgotten);
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("id", &self.id).finish_non_exhaustive()
    }
}
