//! Links: reliable, ordered channels of bytes between the processes of one cluster, always over mutual TLS.
//!
//! Two processes have one session for as long as both live, and each batch of it is delivered once, in the order
//! in which it was sent, across any number of broken connections. What the bytes mean is [`LinkHandler`]'s business.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use prost::bytes::Bytes;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    cluster::{MemberId, SeedState, Trust, TrustError, seeds, trust::Credentials},
    time::Clock,
};

mod accept;
mod advertise;
mod connection;
mod dial;
mod drive;
mod frame;
mod handshake;
mod hub;
#[cfg(test)]
mod laws;
mod outbound;
mod peer;
mod rejections;
mod session;
mod stats;

pub use advertise::is_host_port;
pub(in crate::cluster) use dial::DialResult;
pub(in crate::cluster) use hub::Shared;
pub use stats::{LinkFailure, Stats};

use accept::IncomingConnection;
use hub::{Command, Hub, Phase};

/// How long to wait before accepting again where the system could not.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where this process listens and looks for others, and whom it trusts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where other replicas connect.
    pub listen: SocketAddr,
    /// Where others are told to connect: `HOST:PORT`, or an IP address, which gets the port that is listened on.
    /// Unless set, the address listened on, or the one the machine would use where that is every address.
    pub advertise: Option<String>,
    /// Where others may be: `HOST:PORT` each; a name may stand for several.
    pub seeds: Vec<String>,
    /// What members are known by.
    pub trust: Trust,
}

/// Why there can be no links, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cluster.listen: cannot listen on {address}: {error}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// What should be an address is none.
    #[error("cluster.{setting}: {value:?} is not HOST:PORT")]
    Address {
        /// Which setting.
        setting: &'static str,
        /// What it holds.
        value: String,
    },
    /// Nobody can be trusted.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A task has ended by itself.
    #[error("a task of the links has ended: {0}")]
    TaskEnded(String),
}

/// What runs over the links. Called by the links' tasks, for one peer by one at a time: it must not block, and may
/// call every method of [`Links`] that is not `async`.
pub trait LinkHandler: Send + Sync + 'static {
    /// A session with this process begins, and nothing of it was received yet: a first one, or another after the
    /// former was lost. It is dialled at `address`.
    fn connected(&self, peer: MemberId, address: &str);
    /// Anything at all was heard of it, heartbeats included: about every 200 ms where there is nothing else.
    fn heard(&self, peer: MemberId);
    /// The next batch of a session: each exactly once, in the order in which they were sent.
    fn received(&self, peer: MemberId, batch: Bytes);
    /// What is to be sent next, if anything: all that waits, up to about `bytes_max` bytes and never more than
    /// 64 MiB. Asked when the link can take it, after [`Links::wake`] and after each batch; not asked while
    /// 8 MiB are on their way.
    fn next_batch(&self, peer: MemberId, bytes_max: usize) -> Option<Bytes>;
    /// The session is over and nothing of it will be heard again.
    fn disconnected(&self, peer: MemberId, reason: DisconnectReason);
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The process has ended, for certain: its address refuses connections or is another's, or it said goodbye.
    Dead,
    /// It may live, but the session cannot go on: it was told to be forgotten, or the other side has forgotten it.
    Forgotten,
}

/// A handle of all links of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Links(Arc<Shared>);

/// The links' listener, before anything is accepted or dialled.
#[derive(Debug)]
pub struct LinkListener {
    listener: TcpListener,
    address: SocketAddr,
    commands: mpsc::UnboundedReceiver<Command>,
    links: EndGuard,
}

/// Says that all has ended when it does, however it does.
#[derive(Debug)]
struct EndGuard(Links);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.0.phase.send_replace(Phase::Ended);
    }
}

impl Links {
    /// Listens, as the process `me`. What is trusted is read first, and none of it may be bad.
    pub async fn bind(settings: Settings, me: MemberId, clock: Clock) -> Result<(Self, LinkListener), Error> {
        let credentials = Arc::new(Credentials::load(settings.trust.clone(), clock).await?);
        for seed in &settings.seeds {
            advertise::validate("seed", seed)?;
        }
        let failed = |error| Error::Listen { address: settings.listen, error };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let advertised = advertise::address(settings.advertise.as_deref(), address, &settings.seeds).await;
        advertise::validate("advertise", &advertised)?;
        let (commands, received) = mpsc::unbounded_channel();
        let links = Self(Arc::new(Shared::new(me, advertised, settings, credentials, commands)));
        let listening =
            LinkListener { listener, address, commands: received, links: EndGuard(links.clone()) };
        Ok((links, listening))
    }

    /// Who we are.
    pub fn me(&self) -> MemberId {
        self.0.me
    }

    /// Where others are told to dial us: `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Something waits in [`LinkHandler::next_batch`] for this peer.
    pub fn wake(&self, peer: MemberId) {
        self.0.roster.wake(peer);
    }

    /// Somebody may be at this address, `HOST:PORT`. It is dialled, unless it is already or a peer is known there,
    /// until somebody answers, or connections are refused, or for 30 s.
    pub fn dial(&self, address: &str) {
        self.0.dial(address, None);
    }

    /// Ends the session with this process and dials it no more. Until [`LinkHandler::disconnected`] is called it may still be
    /// heard; and if it comes again, another session begins.
    pub fn forget(&self, peer: MemberId) {
        if let Some(peer) = self.0.roster.get(peer)
            && peer.mark_forgotten()
        {
            // Nobody takes commands any more once the process leaves.
            self.0.commands.send(Command::Forget(peer)).ok();
        }
    }

    /// Sends what waits, says goodbye to all and ends, within this time. Ready when it is done.
    pub async fn close(&self, within: Duration) {
        self.0.phase.send_if_modified(|phase| {
            let is_open = *phase == Phase::Open;
            if is_open {
                *phase = Phase::Closing(within);
            }
            is_open
        });
        // The phase is kept by ourselves, so there is no error to wait for.
        self.0.phase.subscribe().wait_for(|phase| *phase == Phase::Ended).await.ok();
    }

    /// How far the search for others at the seeds is.
    pub fn seed_state(&self) -> SeedState {
        *self.0.seeds.borrow()
    }

    /// The same, to be followed.
    pub fn seeds(&self) -> watch::Receiver<SeedState> {
        self.0.seeds.subscribe()
    }

    /// Which addresses reject links, and for what, if there is such an address and no link is up: then this replica
    /// is cut off from the others by a certificate, a secret or a version, not by silence.
    pub fn rejected(&self) -> Option<String> {
        if self.0.counters.read().links_up == 0 { self.0.rejections.summary() } else { None }
    }

    /// What has become of links, counted.
    pub fn stats(&self) -> Stats {
        self.0.counters.read()
    }
}

impl LinkListener {
    /// Where it listens, with the port that port 0 has become.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts and dials, until it is told to close. Owns everything that is done for links: dropped, it ends all
    /// of it at once.
    pub async fn run(self, handler: Arc<dyn LinkHandler>) -> Result<(), Error> {
        let Self { listener, address, mut commands, links } = self;
        let shared = links.0.0.clone();
        let hub = Arc::new(Hub { shared: shared.clone(), handler });
        info!(member = %shared.me, listen = %address, advertised = shared.address, "listening to other replicas");
        let mut background = JoinSet::new();
        background.spawn(shared.credentials.clone().follow());
        background.spawn(seeds::watch(shared.clone()));
        let mut tasks = JoinSet::new();
        let mut phases = shared.phase.subscribe();
        let mut acceptor = Acceptor::new(listener);
        let within = loop {
            tokio::select! {
                phase = phases.wait_for(|phase| *phase != Phase::Open) => match phase.map(|phase| *phase) {
                    Ok(Phase::Closing(within)) => break within,
                    Ok(Phase::Open | Phase::Ended) | Err(_) => break Duration::ZERO,
                },
                Some(order) = commands.recv() => {
                    tasks.spawn(execute(hub.clone(), order));
                }
                incoming = acceptor.next() => {
                    tasks.spawn(accept::accept(hub.clone(), incoming));
                }
                Some(ended) = tasks.join_next() => ended.map_err(|panic| Error::TaskEnded(panic.to_string()))?,
                Some(ended) = background.join_next() => {
                    let why = ended.err().map_or("nobody told it to".to_owned(), |panic| panic.to_string());
                    return Err(Error::TaskEnded(why));
                }
            }
        };
        // From here on nobody can connect, and nobody new is dialled.
        drop((acceptor, background));
        let end = Instant::now() + within;
        while let Ok(Some(_)) = timeout_at(end, tasks.join_next()).await {}
        if !tasks.is_empty() {
            warn!(links = tasks.len(), "not everybody has heard the goodbye in time");
        }
        tasks.shutdown().await;
        Ok(())
    }
}

/// Does what an order says.
async fn execute(hub: Arc<Hub>, order: Command) {
    match order {
        Command::Dial(address, report) => dial::dial_address(hub, address, report).await,
        Command::Redial(peer) => dial::redial(hub, peer).await,
        Command::Forget(peer) => peer.end(&hub, DisconnectReason::Forgotten),
    }
}

/// Where connections come from.
struct Acceptor {
    listener: TcpListener,
    handshakes: Arc<Semaphore>,
    is_failing: bool,
}

impl Acceptor {
    fn new(listener: TcpListener) -> Self {
        Self { listener, handshakes: Arc::new(Semaphore::new(accept::HANDSHAKES_MAX)), is_failing: false }
    }

    /// The next connection, once fewer than so many are being handshakes. May be dropped while it waits, and loses
    /// none.
    async fn next(&mut self) -> IncomingConnection {
        let handshakes = self.handshakes.clone().acquire_owned().await;
        let permit = handshakes.expect("nobody closes the semaphore");
        loop {
            match self.listener.accept().await {
                Ok((socket, from)) => {
                    self.is_failing = false;
                    return IncomingConnection { socket, from, permit };
                }
                Err(error) if is_connection_error(&error) => debug!(%error, "gone already"),
                Err(error) => {
                    if !self.is_failing {
                        warn!(%error, "cannot accept other replicas");
                    }
                    self.is_failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
