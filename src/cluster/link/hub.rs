//! What all links of this process share.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::debug;

use crate::{
    cluster::{
        MemberId, SeedState,
        link::{
            LinkHandler, Settings, dial::DialResult, peer::Peer, rejections::Rejections, stats::Counters,
        },
        trust::Credentials,
    },
    time::Stopwatch,
};

/// The most peers.
const PEERS_MAX: usize = 1024;
/// The most addresses that are dialled at a time.
const DIALS_MAX: usize = 1024;
/// How long an address where we have met own is left alone. Not for ever: behind one name may be many.
const OWN_ADDRESS_TTL: Duration = Duration::from_secs(60);

/// What handles and tasks share.
pub(in crate::cluster) struct Shared {
    pub(super) me: MemberId,
    pub(super) address: String,
    pub(super) settings: Settings,
    pub(super) credentials: Arc<Credentials>,
    pub(super) roster: Roster,
    addresses: Mutex<Addresses>,
    // Bounded by what it is for: an order for each address that is dialled, and two for each peer.
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) seeds: watch::Sender<SeedState>,
    pub(super) counters: Counters,
    pub(super) rejections: Rejections,
    sessions: AtomicU64,
}

/// What tasks share.
pub(super) struct Hub {
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Arc<dyn LinkHandler>,
}

/// What is to be done by a task.
pub(super) enum Command {
    /// Dials an address; once, if somebody wants to know what came of it.
    Dial(String, Option<oneshot::Sender<DialResult>>),
    /// Dials a peer whose link has broken.
    Redial(Arc<Peer>),
    /// Ends the session with a peer that is marked as forgotten.
    Forget(Arc<Peer>),
}

/// How far the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Says goodbye, for so long at most.
    Closing(Duration),
    Ended,
}

/// Addresses of which something is known.
#[derive(Default)]
struct Addresses {
    dialling: HashSet<String>,
    own: HashMap<String, Stopwatch>,
    // Whom we have met at an address that is not the one it names itself.
    members: HashMap<String, MemberId>,
}

/// All peers.
#[derive(Default)]
pub(super) struct Roster {
    peers: ArcSwap<HashMap<MemberId, Arc<Peer>>>,
    changes: Mutex<()>,
}

impl Shared {
    pub(super) fn new(
        me: MemberId,
        address: String,
        settings: Settings,
        credentials: Arc<Credentials>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Self {
        Self {
            me,
            address,
            settings,
            credentials,
            roster: Roster::default(),
            addresses: Mutex::default(),
            commands,
            phase: watch::Sender::new(Phase::Open),
            seeds: watch::Sender::new(SeedState::Searching),
            counters: Counters::default(),
            rejections: Rejections::default(),
            sessions: AtomicU64::new(0),
        }
    }

    /// The peer of this id, known or new; `None` when there are too many.
    pub(super) fn get_or_add_peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.roster.get_or_add(id, || Peer::new(id, self.sessions.fetch_add(1, Relaxed) + 1))
    }

    /// Begins dialling an address, unless that is of no use.
    pub(in crate::cluster) fn dial(&self, address: &str, report: Option<oneshot::Sender<DialResult>>) {
        if address == self.address {
            return report_result(report, DialResult::OwnAddress);
        }
        if self.roster.has_address(address) {
            return report_result(report, DialResult::Linked);
        }
        let mut addresses = self.addresses();
        if addresses.is_own(address) {
            return report_result(report, DialResult::OwnAddress);
        }
        if addresses.members.get(address).is_some_and(|id| self.roster.get(*id).is_some()) {
            return report_result(report, DialResult::Linked);
        }
        if addresses.dialling.len() >= DIALS_MAX {
            debug!(address, "too many addresses are being dialled");
            return;
        }
        if addresses.dialling.insert(address.to_owned()) {
            // Nobody takes commands any more once the process leaves.
            self.commands.send(Command::Dial(address.to_owned(), report)).ok();
        }
    }

    /// The dialling of an address is over.
    pub(super) fn dial_finished(&self, address: &str) {
        self.addresses().dialling.remove(address);
    }

    /// We have met own at this address.
    pub(super) fn note_own_address(&self, address: &str) {
        let mut addresses = self.addresses();
        addresses.own.retain(|_, since| since.elapsed() < OWN_ADDRESS_TTL);
        addresses.own.insert(address.to_owned(), Stopwatch::start());
    }

    /// We have met this peer at this address.
    pub(super) fn note_member_address(&self, address: &str, peer: MemberId) {
        let mut addresses = self.addresses();
        addresses.members.retain(|_, peer| self.roster.get(*peer).is_some());
        // There is no need to know more than can be dialled: what is not known is dialled once too often.
        if addresses.members.len() < DIALS_MAX {
            addresses.members.insert(address.to_owned(), peer);
        }
    }

    /// Where others may be.
    pub(in crate::cluster) fn seeds(&self) -> &[String] {
        &self.settings.seeds
    }

    /// Notes what came of looking there.
    pub(in crate::cluster) fn set_seeds(&self, state: SeedState) {
        self.seeds.send_if_modified(|former| std::mem::replace(former, state) != state);
    }

    /// Whether no other process is known.
    pub(in crate::cluster) fn is_alone(&self) -> bool {
        self.roster.is_empty()
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report_result(report: Option<oneshot::Sender<DialResult>>, result: DialResult) {
    if let Some(report) = report {
        report.send(result).ok();
    }
}

impl Hub {
    /// Orders that a peer be dialled again; it has noted that already.
    pub(super) fn redial(&self, peer: Arc<Peer>) {
        self.shared.commands.send(Command::Redial(peer)).ok();
    }

    /// What `work` comes to, unless the process leaves before.
    pub(super) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut phases = self.shared.phase.subscribe();
        tokio::select! {
            done = work => Some(done),
            _ = phases.wait_for(|phase| *phase != Phase::Open) => None,
        }
    }

    /// Whether the process does not leave.
    pub(super) fn is_open(&self) -> bool {
        *self.shared.phase.borrow() == Phase::Open
    }
}

impl Addresses {
    fn is_own(&self, address: &str) -> bool {
        self.own.get(address).is_some_and(|since| since.elapsed() < OWN_ADDRESS_TTL)
    }
}

impl Roster {
    pub(super) fn get(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.peers.load().get(&id).cloned()
    }

    /// Wakes one peer's link, without holding anything up.
    pub(super) fn wake(&self, id: MemberId) {
        if let Some(peer) = self.peers.load().get(&id) {
            peer.wake();
        }
    }

    fn is_empty(&self) -> bool {
        self.peers.load().is_empty()
    }

    fn get_or_add(&self, id: MemberId, new: impl FnOnce() -> Peer) -> Option<Arc<Peer>> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = self.peers.load();
        if let Some(peer) = peers.get(&id) {
            return Some(peer.clone());
        }
        if peers.len() >= PEERS_MAX {
            return None;
        }
        let peer = Arc::new(new());
        let mut peers = HashMap::clone(&peers);
        peers.insert(id, peer.clone());
        self.peers.store(Arc::new(peers));
        Some(peer)
    }

    pub(super) fn remove(&self, id: MemberId) {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peers = HashMap::clone(&self.peers.load());
        peers.remove(&id);
        self.peers.store(Arc::new(peers));
    }

    /// Whether a peer is dialled at this address.
    fn has_address(&self, address: &str) -> bool {
        self.peers.load().values().any(|peer| *peer.address() == address)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("me", &self.me).field("address", &self.address).finish_non_exhaustive()
    }
}
