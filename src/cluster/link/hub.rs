//! State that all links of this process share.

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
/// Time for which this process's own address is not dialled. Bounded, since a name may resolve to many processes.
const OWN_ADDRESS_TTL: Duration = Duration::from_secs(60);

/// State that handles and tasks share.
pub(in crate::cluster) struct Shared {
    pub(super) me: MemberId,
    pub(super) address: String,
    pub(super) settings: Settings,
    pub(super) credentials: Arc<Credentials>,
    pub(super) roster: Roster,
    addresses: Mutex<Addresses>,
    // Bounded: at most one command for each address that is dialled, and two for each peer.
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) seeds: watch::Sender<SeedState>,
    pub(super) counters: Counters,
    pub(super) rejections: Rejections,
    sessions: AtomicU64,
}

/// State that tasks share.
pub(super) struct Hub {
    pub(super) shared: Arc<Shared>,
    pub(super) handler: Arc<dyn LinkHandler>,
}

/// Work for a task.
pub(super) enum Command {
    /// Dials an address; once, if the result is to be reported.
    Dial(String, Option<oneshot::Sender<DialResult>>),
    /// Redials a peer whose connection broke.
    Redial(Arc<Peer>),
    /// Ends the session with a peer that is marked as forgotten.
    Forget(Arc<Peer>),
}

/// The lifecycle of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Drains the links and sends goodbyes, for this time at most.
    Closing(Duration),
    Ended,
}

/// What is known about addresses.
#[derive(Default)]
struct Addresses {
    dialling: HashSet<String>,
    own: HashMap<String, Stopwatch>,
    // Peers behind an address that is not the one they advertise.
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

    /// The peer of this id, which is added if it is unknown; `None` if there are too many.
    pub(super) fn get_or_add_peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.roster.get_or_add(id, || Peer::new(id, self.sessions.fetch_add(1, Relaxed) + 1))
    }

    /// Starts to dial an address unless it is own, known or already being dialled.
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
            debug!(address, "address not dialled: too many dials in progress");
            return;
        }
        if addresses.dialling.insert(address.to_owned()) {
            // The receiver is dropped once the process leaves.
            let _ = self.commands.send(Command::Dial(address.to_owned(), report));
        }
    }

    /// Records that an address is no longer dialled.
    pub(super) fn dial_finished(&self, address: &str) {
        self.addresses().dialling.remove(address);
    }

    /// Records that this address belongs to this process.
    pub(super) fn note_own_address(&self, address: &str) {
        let mut addresses = self.addresses();
        addresses.own.retain(|_, since| since.elapsed() < OWN_ADDRESS_TTL);
        addresses.own.insert(address.to_owned(), Stopwatch::start());
    }

    /// Records that `peer` answers at this address.
    pub(super) fn note_member_address(&self, address: &str, peer: MemberId) {
        let mut addresses = self.addresses();
        addresses.members.retain(|_, peer| self.roster.get(*peer).is_some());
        // More entries than dials are useless: a missing entry costs one needless dial.
        if addresses.members.len() < DIALS_MAX {
            addresses.members.insert(address.to_owned(), peer);
        }
    }

    /// The seeds.
    pub(in crate::cluster) fn seeds(&self) -> &[String] {
        &self.settings.seeds
    }

    /// Publishes the state of the search at the seeds.
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
        let _ = report.send(result);
    }
}

impl Hub {
    /// Queues the redial of a peer that has marked itself as being dialled.
    pub(super) fn redial(&self, peer: Arc<Peer>) {
        let _ = self.shared.commands.send(Command::Redial(peer));
    }

    /// Runs `work`; `None` if the process leaves first.
    pub(super) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut phases = self.shared.phase.subscribe();
        tokio::select! {
            done = work => Some(done),
            _ = phases.wait_for(|phase| *phase != Phase::Open) => None,
        }
    }

    /// Whether the process is not leaving.
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

    /// Wakes the link of one peer without taking a lock.
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

    /// Whether a peer advertises this address.
    fn has_address(&self, address: &str) -> bool {
        self.peers.load().values().any(|peer| *peer.address() == address)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("me", &self.me).field("address", &self.address).finish_non_exhaustive()
    }
}
