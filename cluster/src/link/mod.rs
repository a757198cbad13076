//! Links: reliable, ordered channels of bytes between the processes of one cluster, always over mutual TLS.
//!
//! Two processes share one session while both live. Each batch of a session is delivered exactly once and in the
//! order in which it was sent, across any number of broken connections. [`LinkHandler`] interprets the bytes.

use std::{fmt::Display, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::bytes::Bytes;
use tollgate_counter::time::Clock;
use tollgate_net::accept::Acceptor;
use tracing::{info, warn};

use crate::{
    error::ClusterError,
    member::{Departure, MemberId},
    trust::{Credentials, Trust},
};

pub(crate) mod addresses;
mod advertise;
mod assembly;
mod connection;
mod dial;
mod frame;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
#[cfg(test)]
mod laws;
pub(crate) mod links;
mod peer;
mod seeds;
mod session;
mod stats;
pub(crate) mod ticks;

pub use addresses::{SeedState, Strangers};
pub use advertise::is_host_port;
pub use links::Links;
pub use stats::{LinkFailure, LinkStats};

use links::{COMMANDS_MAX, Command, LinksPhase};

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
struct EndGuard(Arc<Links>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.local.clear();
        self.0.phase.send_replace(LinksPhase::Ended);
    }
}

impl LinkListener {
    /// Loads the credentials and binds the listener of the process `local_id`; any invalid setting is an error.
    pub async fn bind(
        settings: LinkSettings,
        local_id: MemberId,
        clock: Clock,
    ) -> Result<(Arc<Links>, Self), ClusterError> {
        let credentials = Arc::new(Credentials::load(settings.trust.clone(), clock.clone()).await?);
        let failed = |error: io::Error| {
            ClusterError(format!("cluster.listen: cannot listen on {}: {error}", settings.listen))
        };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let advertised = advertise::address(settings.advertise.as_deref(), address, &settings.seeds).await;
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let links = Arc::new(Links::new(local_id, advertised, settings, credentials, clock, commands));
        let listening = Self { listener, address, commands: received, links: EndGuard(links.clone()) };
        Ok((links, listening))
    }

    /// The bound address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and dials until [`Links::close`] is called. Owns every task of the links: dropping the future ends them.
    pub async fn run(self, handler: Arc<dyn LinkHandler>) -> Result<(), ClusterError> {
        let Self { listener, address, mut commands, links: guard } = self;
        let links = guard.0.clone();
        // Set once, because the listener is consumed.
        let _ = links.handler.set(Arc::downgrade(&handler));
        info!(member = %links.local.id, listen = %address, advertised = links.local.address, "listening for links from other replicas");
        let mut background = JoinSet::new();
        background.spawn(links.credentials.clone().watch());
        background.spawn(seeds::watch(links.clone()));
        let mut tasks = JoinSet::new();
        let mut phases = links.phase.subscribe();
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
                    tasks.spawn(execute(links.clone(), order));
                }
                (permit, (socket, from)) = next_connection => {
                    tasks.spawn(dial::accept(links.clone(), socket, from, permit));
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
async fn execute(links: Arc<Links>, order: Command) {
    match order {
        Command::Dial(address, report) => dial::dial_address(links, address, report).await,
        Command::Redial(peer) => dial::redial(links, peer).await,
        Command::Forget(peer) => peer.end(&links.local, Departure::Forgotten),
    }
}
