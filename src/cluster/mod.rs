//! Replicas that share keys and answer as one.
//!
//! `node` decides what a replica does, without input or output; `link` carries messages; [`Cluster`] is what is
//! between them, and what the limiter asks.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prost::bytes::Bytes;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    descriptor::SharedSecret,
    store::{Lead, Memory, Slot, Stored},
    time::{Clock, SECOND, Stopwatch, Timestamp},
};

mod calls;
mod degraded;
pub mod link;
mod member;
mod message;
mod node;
mod placement;
mod protocol;
mod remote_check;
mod seeds;
#[cfg(test)]
mod sim;
mod stats;
mod trust;
mod wire;

pub use calls::{OpenForwards, Overloaded};
pub use member::MemberId;
pub use message::MemberState;
pub use node::View;
pub use remote_check::{ForwardPolicy, RemoteDecision, RemoteDecisions};
pub use seeds::{SeedState, Vain};
pub use stats::Stats;
pub use trust::{Files, Trust, TrustError};

use calls::Calls;
use link::{Links, Listening, Loss, Traffic};
use message::Version;
use node::{Action, Event, Node, NodeSettings};

/// How often time alone brings something about.
const TICK: Duration = Duration::from_millis(10);
/// How long nothing may be heard of a peer before it counts as silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);
/// How long to look for others before being the first.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_millis(1500);
/// The most hand-offs on their way to one peer, so that requests behind them do not wait for long.
const HAND_OFFS_MAX: usize = 256;
/// The most messages in a batch.
const MESSAGES_MAX: usize = 1_024;
/// What the even clock shows at the start, so that there is a time before it.
const MONOTONIC_START: Timestamp = Timestamp::from_nanos(1_000_000 * SECOND);

/// How this replica takes part in a cluster.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How it reaches others.
    pub link: link::Settings,
    /// The longest that a request waits for another replica.
    pub forward_budget_max: Duration,
    /// How often changed counters go to the replica that would hold them next; `None` for never.
    pub backup_interval: Option<Duration>,
    /// After so long a silence a replica is treated as dead.
    pub forget_after: Duration,
    /// Parts of a limit are lent to a replica that forwards its key so often a second; `None` for never.
    pub lease_from: Option<u64>,
}

/// This replica's place among the others. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster(Arc<Replica>);

#[derive(Debug)]
struct Replica {
    core: Mutex<Core>,
    links: Links,
    clock: Clock,
    started: Stopwatch,
    secret: SharedSecret,
    forward_budget_max: Duration,
    state: watch::Sender<MemberState>,
    left: watch::Sender<bool>,
}

/// What is behind the lock: a replica's part, and the calls whose checks are under way.
#[derive(Debug)]
struct Core {
    node: Node,
    calls: Calls,
}

impl Cluster {
    /// Listens to other replicas. `memory` is shared, so it holds nothing yet; `stored` is what a former process held.
    pub async fn bind(
        settings: Settings,
        memory: Arc<Memory>,
        stored: Vec<Stored>,
        secret: SharedSecret,
        clock: Clock,
    ) -> Result<(Self, Listening), link::Error> {
        let Settings { link, forward_budget_max, backup_interval, forget_after, lease_from } = settings;
        let local_id = MemberId::random();
        let (links, listening) = Links::bind(link, local_id, clock.clone()).await?;
        let node_settings = NodeSettings {
            silence: SILENCE_LIMIT,
            forget_after,
            bootstrap_timeout: BOOTSTRAP_TIMEOUT,
            backup_interval,
            lease_from,
            hand_offs_max: HAND_OFFS_MAX,
        };
        let mut node =
            Node::new(local_id, links.address().to_owned(), node_settings, memory, MONOTONIC_START);
        node.set_wall(clock.now());
        if !stored.is_empty() {
            let copy = |Stored { slot, epoch, seq, contents }| (slot, Version { epoch, seq }, contents);
            node.restore(secret.get(), stored.into_iter().map(copy).collect(), MONOTONIC_START);
        }
        let core = Core { node, calls: Calls::default() };
        let replica = Replica {
            core: Mutex::new(core),
            links,
            clock,
            started: Stopwatch::start(),
            secret,
            forward_budget_max,
            state: watch::Sender::new(MemberState::Joining),
            left: watch::Sender::new(false),
        };
        Ok((Self(Arc::new(replica)), listening))
    }

    /// Takes part until [`Cluster::leave`] has ended.
    pub async fn run(self, listening: Listening) -> Result<(), link::Error> {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().run_ticks());
        tasks.spawn(self.clone().follow_seeds());
        tasks.spawn(self.clone().log_degraded());
        let ended = listening.run(self.0.clone()).await;
        tasks.shutdown().await;
        ended
    }

    async fn run_ticks(self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.0.with_node(Node::tick);
        }
    }

    async fn follow_seeds(self) {
        let mut seeds = self.0.links.seeds();
        loop {
            let state = *seeds.borrow_and_update();
            self.0.with_node(|node, _| node.seeds_tried(matches!(state, SeedState::InVain(_))));
            if seeds.changed().await.is_err() {
                return;
            }
        }
    }

    /// Which other replicas reject links, if all links are rejected: see [`Links::rejected`].
    pub fn rejected(&self) -> Option<String> {
        self.0.links.rejected()
    }

    /// Who we are.
    pub fn local_id(&self) -> MemberId {
        self.0.links.me()
    }

    /// What this replica is doing.
    pub fn state(&self) -> MemberState {
        *self.0.state.borrow()
    }

    /// Waits until this replica knows who holds what, and may answer.
    pub async fn joined(&self) {
        let mut state = self.0.state.subscribe();
        // It is kept by ourselves, so it does not end.
        state.wait_for(|state| *state != MemberState::Joining).await.ok();
    }

    /// Tells the others that this replica leaves, and begins to hand everything on.
    pub fn drain(&self) {
        self.0.with_node(Node::drain);
    }

    /// Waits until all is handed on, and nobody depends on what is kept here.
    pub async fn drained(&self) {
        self.0.left.subscribe().wait_for(|left| *left).await.ok();
    }

    /// Says goodbye, and ends all links within this time. Says how many slots were not handed on.
    pub async fn leave(&self, within: Duration) -> usize {
        // Somebody who does not know yet may have asked again meanwhile.
        let done = async {
            while !self.0.with_node(|node, now| node.is_drained(now)) {
                sleep(TICK).await;
            }
        };
        timeout(within, done).await.ok();
        let left = self.0.with_node(|node, _| node.owned_slots().count());
        self.0.links.close(within).await;
        left
    }

    /// The hash of the rules in force.
    pub fn rules_changed(&self, rules: u64) {
        self.0.with_node(|node, _| node.rules_changed(rules));
    }

    /// The clock of counters gives up a lead; the memory has been told.
    pub fn give_up_lead(&self, lead: Lead) {
        self.0.with_node(|node, _| node.give_up_lead(lead));
    }

    /// How the cluster looks from here.
    pub fn view(&self) -> View {
        self.0.with_node(|node, now| node.view(now))
    }

    /// Treats a member as dead because an operator knows that it is. Says whether it was known.
    pub fn declare_dead(&self, member: MemberId) -> bool {
        self.0.with_node(|node, now| node.declare_dead(member, now))
    }

    /// How often a slot has changed hands, as far as is known here.
    pub fn epoch(&self, slot: Slot) -> u64 {
        self.0.lock().node.epoch(slot)
    }
}

impl Replica {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // What panics here has a bug; the others may still be served.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time by a clock that goes on evenly.
    fn now(&self) -> Timestamp {
        MONOTONIC_START.after(self.started.elapsed())
    }

    /// Does something with this replica's part, and then whatever that brought about.
    fn with_node<T>(&self, operation: impl FnOnce(&mut Node, Timestamp) -> T) -> T {
        self.with_core(|core, now| operation(&mut core.node, now))
    }

    fn with_core<T>(&self, operation: impl FnOnce(&mut Core, Timestamp) -> T) -> T {
        let (result, ready_peers) = self.with_core_without_wakes(operation);
        self.wake(&ready_peers);
        result
    }

    fn wake(&self, peers: &[MemberId]) {
        for peer in peers {
            self.links.wake(*peer);
        }
    }

    /// The same, and leaves it to the caller to wake the links to those for whom something waits.
    fn with_core_without_wakes<T>(
        &self,
        operation: impl FnOnce(&mut Core, Timestamp) -> T,
    ) -> (T, Vec<MemberId>) {
        let (result, ready_peers, actions) = {
            let mut core = self.lock();
            let now = self.now();
            core.node.set_wall(self.clock.now());
            let result = operation(&mut core, now);
            let actions = core.node.actions();
            for action in &actions {
                if let Action::Complete(ticket, outcome) = action {
                    core.calls.complete(*ticket, outcome.clone());
                }
            }
            self.state.send_if_modified(|state| {
                let now = core.node.state();
                std::mem::replace(state, now) != now
            });
            (result, core.node.ready_peers(), actions)
        };
        for action in actions {
            match action {
                Action::Dial(address) => self.links.dial(&address),
                Action::Disconnect(member) => self.links.forget(member),
                Action::SetHashSecret(secret) => self.secret.set(secret),
                Action::Leave => {
                    self.left.send_replace(true);
                }
                Action::Report(event) => log_event(event),
                Action::Complete(..) => {}
            }
        }
        (result, ready_peers)
    }
}

fn log_event(event: Event) {
    match event {
        Event::Joined => info!("joined: this replica knows who holds what"),
        Event::ClusterAdopted => {
            warn!("met another cluster: its counters stay, all of this replica are given up")
        }
        Event::Isolated => {
            warn!(
                "hears too few replicas to rely on its counters: every key gets this replica's share of its limit"
            );
        }
        Event::IsolationEnded => info!("hears enough replicas again"),
    }
}

impl Traffic for Replica {
    fn linked(&self, peer: MemberId, address: &str) {
        self.with_node(|node, now| node.connected(peer, address, now));
    }

    fn heard(&self, peer: MemberId) {
        let now = self.now();
        self.lock().node.heard(peer, now);
    }

    fn received(&self, peer: MemberId, batch: Bytes) {
        match wire::decode(batch, self.clock.now()) {
            Ok(messages) => self.with_node(|node, now| {
                for message in messages {
                    node.receive(peer, message, now);
                }
            }),
            Err(error) => {
                warn!(member = %peer, %error, "a replica sent what cannot be read");
                self.links.forget(peer);
            }
        }
    }

    fn outgoing(&self, peer: MemberId, bytes_max: usize) -> Option<Bytes> {
        let now = self.now();
        let messages = self.lock().node.outgoing(peer, MESSAGES_MAX, bytes_max, now);
        (!messages.is_empty()).then(|| wire::encode(&messages, self.clock.now()))
    }

    fn lost(&self, peer: MemberId, how: Loss) {
        self.with_node(|node, now| node.disconnected(peer, how == Loss::Dead, now));
    }
}
