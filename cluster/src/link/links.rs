//! All links of this process: the handle to them, and what their tasks share.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};
use tollgate_counter::{lock::lock, time::Clock};
use tracing::debug;

use crate::{
    link::{
        LinkHandler, LinkSettings,
        addresses::{Addresses, DIALS_MAX, DialResult, SeedState, Strangers},
        peer::{LocalProcess, PEERS_MAX, Peer},
        stats::LinkStats,
        ticks::next_tick,
    },
    member::{Departure, MemberId},
    trust::Credentials,
};

/// The most commands that wait for the task of the links: a dial of each address, and a redial and an end of the session
/// of each peer, with as many for peers that are gone.
pub(super) const COMMANDS_MAX: usize = DIALS_MAX + 4 * PEERS_MAX;

/// All links of this process.
pub struct Links {
    pub(super) local: LocalProcess,
    pub(super) settings: LinkSettings,
    pub(super) credentials: Arc<Credentials>,
    addresses: Mutex<Addresses>,
    commands: mpsc::Sender<Command>,
    pub(super) phase: watch::Sender<LinksPhase>,
    pub(super) seeds: Mutex<SeedState>,
    clock: Clock,
    /// Set when the links run. Weak, because a handler has the links.
    pub(super) handler: OnceLock<Weak<dyn LinkHandler>>,
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
pub(super) enum LinksPhase {
    Open,
    /// Drains the links and sends goodbyes, for this time at most.
    Closing(Duration),
    Ended,
}

impl Links {
    pub(super) fn new(
        id: MemberId,
        address: String,
        settings: LinkSettings,
        credentials: Arc<Credentials>,
        clock: Clock,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self {
            local: LocalProcess::new(id, address),
            settings,
            credentials,
            addresses: Mutex::default(),
            commands,
            phase: watch::Sender::new(LinksPhase::Open),
            seeds: Mutex::new(SeedState::Searching),
            clock,
            handler: OnceLock::new(),
        }
    }

    /// The id of this process.
    pub fn local_id(&self) -> MemberId {
        self.local.id
    }

    /// The advertised address, `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.local.address
    }

    /// Makes the link of `peer` poll [`LinkHandler::next_batch`].
    pub fn wake(&self, peer: MemberId) {
        self.local.wake(peer);
    }

    /// Dials this address, `HOST:PORT`, until a member answers, connections are refused, or 30 s have passed. Does
    /// nothing if the address is being dialled already or a peer is known there.
    pub fn dial(&self, address: &str) {
        self.dial_reporting(address, None);
    }

    /// Ends the session with `peer` and stops dialling it. Frames may still be received until
    /// [`LinkHandler::disconnected`] is called. If the peer connects again, a new session begins.
    pub fn forget(&self, peer: MemberId) {
        if let Some(peer) = self.local.get(peer)
            && !peer.forgotten.swap(true, Relaxed)
            && !self.command(Command::Forget(peer.clone()))
        {
            // The next call tries again.
            peer.forgotten.store(false, Relaxed);
        }
    }

    /// Sends queued batches and a goodbye on every link, and returns when all links have ended, after `within` at most.
    pub async fn close(&self, within: Duration) {
        self.phase.send_if_modified(|phase| {
            let is_open = *phase == LinksPhase::Open;
            if is_open {
                *phase = LinksPhase::Closing(within);
            }
            is_open
        });
        self.local.wake_all();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.phase.subscribe().wait_for(|phase| *phase == LinksPhase::Ended).await;
    }

    /// The state of the search at the seeds.
    pub fn seed_state(&self) -> SeedState {
        *lock(&self.seeds)
    }

    /// Addresses that reject links with the reasons, if there are any and no link is up. Then a certificate, a secret
    /// or a protocol version separates this replica from the others, not silence.
    pub fn strangers(&self) -> Option<Strangers> {
        if self.is_linked() { None } else { self.addresses().strangers() }
    }

    /// Whether a link is up.
    pub(crate) fn is_linked(&self) -> bool {
        self.local.stats.links_up() > 0
    }

    /// Statistics since the start.
    pub fn stats(&self) -> &Arc<LinkStats> {
        &self.local.stats
    }

    /// The time until the next tick of the link of this peer.
    pub(super) fn next_tick(&self, peer: MemberId) -> Duration {
        next_tick(self.clock.now(), self.local.id, peer, self.local.peers())
    }

    /// Starts to dial an address, once if the result is to be reported, unless it is own, known or already being dialled.
    pub(super) fn dial_reporting(&self, address: &str, report: Option<oneshot::Sender<DialResult>>) {
        let mut addresses = self.addresses();
        let known = if address == self.local.address || addresses.is_own(address) {
            Some(DialResult::OwnAddress)
        } else {
            let member = addresses.member(address).filter(|member| self.local.get(*member).is_some());
            self.local.member_at(address).or(member).map(DialResult::Linked)
        };
        if let Some(known) = known {
            if let Some(report) = report {
                let _ = report.send(known);
            }
            return;
        }
        if addresses.dialling.len() >= DIALS_MAX {
            self.local.stats.commands_refused.increase();
            debug!(address, "address not dialled: too many dials in progress");
            return;
        }
        if addresses.dialling.insert(address.to_owned())
            && !self.command(Command::Dial(address.to_owned(), report))
        {
            addresses.dialling.remove(address);
        }
    }

    /// Queues a command. False if too many wait, which is counted, or if the process leaves.
    pub(super) fn command(&self, command: Command) -> bool {
        match self.commands.try_send(command) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.local.stats.commands_refused.increase();
                false
            }
            // The receiver is dropped once the process leaves.
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }

    /// Records that `peer` answers at this address.
    pub(super) fn note_member_address(&self, address: &str, peer: MemberId) {
        self.addresses().note_member(address, peer, |peer| self.local.get(peer).is_some());
    }

    pub(super) fn addresses(&self) -> MutexGuard<'_, Addresses> {
        lock(&self.addresses)
    }

    /// The peer of this id, which is added if it is unknown; `None` if there are too many.
    pub(super) fn get_or_add_peer(&self, id: MemberId) -> Option<Arc<Peer>> {
        self.local.get_or_add(id, &self.handler.get()?.upgrade()?)
    }

    /// Queues the redial of a peer that has marked itself as being dialled. If too many commands wait, its session ends.
    pub(super) fn redial(&self, peer: Arc<Peer>) {
        if !self.command(Command::Redial(peer.clone())) && self.is_open() {
            peer.end(&self.local, Departure::Forgotten);
        }
    }

    /// Runs `work`; `None` if the process leaves first.
    pub(super) async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut phases = self.phase.subscribe();
        tokio::select! {
            done = work => Some(done),
            _ = phases.wait_for(|phase| *phase != LinksPhase::Open) => None,
        }
    }

    /// Whether the process is not leaving.
    pub(super) fn is_open(&self) -> bool {
        *self.phase.borrow() == LinksPhase::Open
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links")
            .field("id", &self.local.id)
            .field("address", &self.local.address)
            .finish_non_exhaustive()
    }
}
