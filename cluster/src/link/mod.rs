//! Links: reliable, ordered channels of bytes between the processes of one cluster, always over mutual TLS.
//!
//! Two processes share one session while both live. Each batch of a session is delivered exactly once and in the
//! order in which it was sent, across any number of broken connections. [`LinkHandler`] interprets the bytes.

use std::{
    fmt::Display,
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::bytes::Bytes;
use tollgate_counter::{lock::lock, time::Clock};
use tollgate_net::accept::Acceptor;
use tracing::{info, warn};

use crate::{ClusterError, Departure, MemberId, Trust, trust::Credentials};

mod addresses;
mod advertise;
mod assembly;
mod connection;
mod dial;
mod frame;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod hub;
#[cfg(test)]
mod laws;
mod peer;
mod seeds;
mod session;
mod stats;
mod ticks;

pub use addresses::{SeedState, Strangers};
pub use advertise::is_host_port;
pub use stats::{LinkFailure, LinkStats};
#[cfg(test)]
pub(super) use ticks::interval as heartbeat_interval;

use hub::{COMMANDS_MAX, Command, Hub, LinksPhase};

/// Addresses and trust of the links.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The address on which the replica accepts links.
    pub listen: SocketAddr,
    /// The address that other replicas dial: `HOST:PORT`, or an IP address, which gets the port of the listener.
    /// Default: the address listened on; if that is unspecified, the source address that the machine would use.
    pub advertise: Option<String>,
    /// Addresses to search for other replicas: `HOST:PORT` each; a name may resolve to several addresses.
    pub seeds: Vec<String>,
    /// The certificates or the secret that authenticate members.
    pub trust: Trust,
}

/// Receives and supplies the batches of the links. Link tasks call it, for each peer one call at a time. An
/// implementation must not block; it may call every method of [`Links`] that is not `async`.
pub trait LinkHandler: Send + Sync + 'static {
    /// A session with `peer`, which is dialled at `address`, begins: the first one, or a new one after the previous
    /// session was lost. No batch of it was received before.
    fn connected(&self, peer: MemberId, address: &str);
    /// A frame was received that completes no batch. An idle link receives one every 200 ms, with many peers every
    /// 500 ms.
    fn heard(&self, peer: MemberId);
    /// The next batch of the session was received; each is passed once, in the order in which they were sent.
    fn received(&self, peer: MemberId, batch: Bytes);
    /// Returns the next batch to send, if anything is queued. The link calls it when it can write, after [`Links::wake`]
    /// and after each batch, but not while 8 MiB are unacknowledged.
    fn next_batch(&self, peer: MemberId) -> Option<Bytes>;
    /// The session has ended; nothing more of it will be received.
    fn disconnected(&self, peer: MemberId, reason: Departure);
}

/// A handle to all links of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Links(Arc<Hub>);

/// The bound listener, before it accepts or dials.
#[derive(Debug)]
pub struct LinkListener {
    listener: TcpListener,
    address: SocketAddr,
    commands: mpsc::Receiver<Command>,
    links: EndGuard,
}

/// Publishes [`LinksPhase::Ended`] when it is dropped, and drops the peers, which hold the handler.
#[derive(Debug)]
struct EndGuard(Links);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.0.local.clear();
        self.0.0.phase.send_replace(LinksPhase::Ended);
    }
}

impl Links {
    /// Loads the credentials and binds the listener of the process `local_id`; any invalid setting is an error.
    pub async fn bind(
        settings: LinkSettings,
        local_id: MemberId,
        clock: Clock,
    ) -> Result<(Self, LinkListener), ClusterError> {
        let credentials = Arc::new(Credentials::load(settings.trust.clone(), clock.clone()).await?);
        let failed = |error: io::Error| {
            ClusterError(format!("cluster.listen: cannot listen on {}: {error}", settings.listen))
        };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let advertised = advertise::address(settings.advertise.as_deref(), address, &settings.seeds).await;
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let links = Self(Arc::new(Hub::new(local_id, advertised, settings, credentials, clock, commands)));
        let listening =
            LinkListener { listener, address, commands: received, links: EndGuard(links.clone()) };
        Ok((links, listening))
    }

    /// The id of this process.
    pub fn local_id(&self) -> MemberId {
        self.0.local.id
    }

    /// The advertised address, `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.0.local.address
    }

    /// Makes the link of `peer` poll [`LinkHandler::next_batch`].
    pub fn wake(&self, peer: MemberId) {
        self.0.local.wake(peer);
    }

    /// Dials this address, `HOST:PORT`, until a member answers, connections are refused, or 30 s have passed. Does
    /// nothing if the address is being dialled already or a peer is known there.
    pub fn dial(&self, address: &str) {
        self.0.dial(address, None);
    }

    /// Ends the session with `peer` and stops dialling it. Frames may still be received until
    /// [`LinkHandler::disconnected`] is called. If the peer connects again, a new session begins.
    pub fn forget(&self, peer: MemberId) {
        if let Some(peer) = self.0.local.get(peer)
            && !peer.forgotten.swap(true, Relaxed)
            && !self.0.command(Command::Forget(peer.clone()))
        {
            // The next call tries again.
            peer.forgotten.store(false, Relaxed);
        }
    }

    /// Sends queued batches and a goodbye on every link, and returns when all links have ended, after `within` at most.
    pub async fn close(&self, within: Duration) {
        self.0.phase.send_if_modified(|phase| {
            let is_open = *phase == LinksPhase::Open;
            if is_open {
                *phase = LinksPhase::Closing(within);
            }
            is_open
        });
        self.0.local.wake_all();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.0.phase.subscribe().wait_for(|phase| *phase == LinksPhase::Ended).await;
    }

    /// The state of the search at the seeds.
    pub fn seed_state(&self) -> SeedState {
        *lock(&self.0.seeds)
    }

    /// Addresses that reject links with the reasons, if there are any and no link is up. Then a certificate, a secret
    /// or a protocol version separates this replica from the others, not silence.
    pub fn strangers(&self) -> Option<Strangers> {
        if self.is_linked() { None } else { self.0.addresses().strangers() }
    }

    /// Whether a link is up.
    pub(super) fn is_linked(&self) -> bool {
        self.0.local.stats.links_up() > 0
    }

    /// Statistics since the start.
    pub fn stats(&self) -> &Arc<LinkStats> {
        &self.0.local.stats
    }
}

impl LinkListener {
    /// The bound address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and dials until [`Links::close`] is called. Owns every task of the links: dropping the future ends them.
    pub async fn run(self, handler: Arc<dyn LinkHandler>) -> Result<(), ClusterError> {
        let Self { listener, address, mut commands, links } = self;
        let hub = links.0.0.clone();
        // Set once, because the listener is consumed.
        let _ = hub.handler.set(Arc::downgrade(&handler));
        info!(member = %hub.local.id, listen = %address, advertised = hub.local.address, "listening for links from other replicas");
        let mut background = JoinSet::new();
        background.spawn(hub.credentials.clone().watch());
        background.spawn(seeds::watch(hub.clone()));
        let mut tasks = JoinSet::new();
        let mut phases = hub.phase.subscribe();
        let mut acceptor = Acceptor::new("cluster");
        let handshakes = Arc::new(Semaphore::new(dial::HANDSHAKES_MAX));
        let within = loop {
            let next_connection = async {
                let permit = handshakes.clone().acquire_owned().await.expect("the semaphore is never closed");
                (permit, acceptor.next(|| listener.accept(), || {}).await)
            };
            tokio::select! {
                phase = phases.wait_for(|phase| *phase != LinksPhase::Open) => match phase.map(|phase| *phase) {
                    Ok(LinksPhase::Closing(within)) => break within,
                    Ok(LinksPhase::Open | LinksPhase::Ended) | Err(_) => break Duration::ZERO,
                },
                Some(order) = commands.recv() => {
                    tasks.spawn(execute(hub.clone(), order));
                }
                (permit, (socket, from)) = next_connection => {
                    tasks.spawn(dial::accept(hub.clone(), socket, from, permit));
                }
                Some(ended) = tasks.join_next() => ended.map_err(task_ended)?,
                Some(ended) = background.join_next() => {
                    return Err(ended.map_or_else(task_ended, |()| task_ended("background task returned")));
                }
            }
        };
        // Stop accepting and searching before draining the links.
        drop((listener, background));
        let end = Instant::now() + within;
        while let Ok(Some(_)) = timeout_at(end, tasks.join_next()).await {}
        if !tasks.is_empty() {
            warn!(links = tasks.len(), "closed links before the announcement of leaving was sent");
        }
        tasks.shutdown().await;
        Ok(())
    }
}

fn task_ended(reason: impl Display) -> ClusterError {
    ClusterError(format!("a link task exited unexpectedly: {reason}"))
}

/// Executes one command.
async fn execute(hub: Arc<Hub>, order: Command) {
    match order {
        Command::Dial(address, report) => dial::dial_address(hub, address, report).await,
        Command::Redial(peer) => dial::redial(hub, peer).await,
        Command::Forget(peer) => peer.end(&hub.local, Departure::Forgotten),
    }
}
