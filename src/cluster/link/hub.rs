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
        link::{Settings, Traffic, dial::Tried, figures::Counts, peer::Peer, rejections::Rejections},
        trust::Credentials,
    },
    time::Stopwatch,
};

/// The most peers.
const PEERS_MAX: usize = 1024;
/// The most addresses that are dialled at a time.
const DIALLED_MAX: usize = 1024;
/// How long an address where we have met ourselves is left alone. Not for ever: behind one name may be many.
const OURSELVES_FOR: Duration = Duration::from_secs(60);

/// What handles and tasks share.
pub(in crate::cluster) struct Shared {
    pub(super) me: MemberId,
    pub(super) address: String,
    pub(super) settings: Settings,
    pub(super) credentials: Arc<Credentials>,
    pub(super) roster: Roster,
    addresses: Mutex<Addresses>,
    // Bounded by what it is for: an order for each address that is dialled, and two for each peer.
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) stage: watch::Sender<Stage>,
    pub(super) seeds: watch::Sender<SeedState>,
    pub(super) counts: Counts,
    pub(super) rejections: Rejections,
    sessions: AtomicU64,
}

/// What tasks share.
pub(super) struct Hub {
    pub(super) shared: Arc<Shared>,
    pub(super) traffic: Arc<dyn Traffic>,
}

/// What is to be done by a task.
pub(super) enum Order {
    /// Dials an address; once, if somebody wants to know what came of it.
    Dial(String, Option<oneshot::Sender<Tried>>),
    /// Dials a peer whose link has broken.
    Redial(Arc<Peer>),
    /// Ends the session with a peer that is marked as forgotten.
    Forget(Arc<Peer>),
}

/// How far the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Says goodbye, for so long at most.
    Closing(Duration),
    Ended,
}

/// Addresses of which something is known.
#[derive(Default)]
struct Addresses {
    dialled: HashSet<String>,
    ourselves: HashMap<String, Stopwatch>,
    // Whom we have met at an address that is not the one it names itself.
    met: HashMap<String, MemberId>,
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
        orders: mpsc::UnboundedSender<Order>,
    ) -> Self {
        Self {
            me,
            address,
            settings,
            credentials,
            roster: Roster::default(),
            addresses: Mutex::default(),
            orders,
            stage: watch::Sender::new(Stage::Open),
            seeds: watch::Sender::new(SeedState::Trying),
            counts: Counts::default(),
            rejections: Rejections::default(),
            sessions: AtomicU64::new(0),
        }
    }

    /// The peer of this id, known or new; `None` when there are too many.
    pub(super) fn peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.roster.get_or_add(id, || Peer::new(id, self.sessions.fetch_add(1, Relaxed) + 1))
    }

    /// Begins dialling an address, unless that is of no use.
    pub(in crate::cluster) fn dial(&self, address: &str, report: Option<oneshot::Sender<Tried>>) {
        if address == self.address {
            return tell(report, Tried::Ourselves);
        }
        if self.roster.knows(address) {
            return tell(report, Tried::Met);
        }
        let mut addresses = self.addresses();
        if addresses.are_ours(address) {
            return tell(report, Tried::Ourselves);
        }
        if addresses.met.get(address).is_some_and(|id| self.roster.get(*id).is_some()) {
            return tell(report, Tried::Met);
        }
        if DIALLED_MAX <= addresses.dialled.len() {
            debug!(address, "too many addresses are being dialled");
            return;
        }
        if addresses.dialled.insert(address.to_owned()) {
            // Nobody takes orders any more once the process leaves.
            self.orders.send(Order::Dial(address.to_owned(), report)).ok();
        }
    }

    /// The dialling of an address is over.
    pub(super) fn dialled(&self, address: &str) {
        self.addresses().dialled.remove(address);
    }

    /// We have met ourselves at this address.
    pub(super) fn is_ours(&self, address: &str) {
        let mut addresses = self.addresses();
        addresses.ourselves.retain(|_, since| since.elapsed() < OURSELVES_FOR);
        addresses.ourselves.insert(address.to_owned(), Stopwatch::start());
    }

    /// We have met this peer at this address.
    pub(super) fn is_of(&self, address: &str, peer: MemberId) {
        let mut addresses = self.addresses();
        addresses.met.retain(|_, peer| self.roster.get(*peer).is_some());
        // There is no need to know more than can be dialled: what is not known is dialled once too often.
        if addresses.met.len() < DIALLED_MAX {
            addresses.met.insert(address.to_owned(), peer);
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

fn tell(report: Option<oneshot::Sender<Tried>>, tried: Tried) {
    if let Some(report) = report {
        report.send(tried).ok();
    }
}

impl Hub {
    /// Orders that a peer be dialled again; it has noted that already.
    pub(super) fn redial(&self, peer: Arc<Peer>) {
        self.shared.orders.send(Order::Redial(peer)).ok();
    }

    /// What `work` comes to, unless the process leaves before.
    pub(super) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stages = self.shared.stage.subscribe();
        tokio::select! {
            done = work => Some(done),
            _ = stages.wait_for(|stage| *stage != Stage::Open) => None,
        }
    }

    /// Whether the process does not leave.
    pub(super) fn is_open(&self) -> bool {
        *self.shared.stage.borrow() == Stage::Open
    }
}

impl Addresses {
    fn are_ours(&self, address: &str) -> bool {
        self.ourselves.get(address).is_some_and(|since| since.elapsed() < OURSELVES_FOR)
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
        if PEERS_MAX <= peers.len() {
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
    fn knows(&self, address: &str) -> bool {
        self.peers.load().values().any(|peer| *peer.address() == address)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("me", &self.me).field("address", &self.address).finish_non_exhaustive()
    }
}
