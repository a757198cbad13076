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
    store::{Lead, Memory, Slot, StoredSlot},
    time::{Clock, SECOND, Stopwatch, Timestamp},
};

mod calls;
mod decide;
mod degraded;
pub mod link;
mod member;
mod message;
mod metrics;
mod node;
mod protocol;
mod seeds;
#[cfg(test)]
mod sim;
mod slots;
mod trust;
mod wire;

pub use calls::{OpenForwards, Overloaded};
pub use decide::{Afar, Alone, Wish};
pub use member::MemberId;
pub use message::State;
pub use metrics::Figures;
pub use node::View;
pub use seeds::{SeedState, Vain};
pub use trust::{Files, Trust, TrustError};

use calls::Calls;
use link::{Links, Listening, Loss, Traffic};
use message::Version;
use node::{Action, Event, Node, Tuning};

/// How often time alone brings something about.
const TURN: Duration = Duration::from_millis(10);
/// How long nothing may be heard of a peer before it counts as silent.
const SILENCE: Duration = Duration::from_secs(1);
/// How long to look for others before being the first.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The most hand-offs on their way to one peer, so that requests behind them do not wait for long.
const TRANSFERS_MAX: usize = 256;
/// The most messages in a batch.
const MESSAGES_MAX: usize = 1_024;
/// What the even clock shows at the start, so that there is a time before it.
const START: Timestamp = Timestamp::from_nanos(1_000_000 * SECOND);

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
    part: Mutex<Part>,
    links: Links,
    clock: Clock,
    began: Stopwatch,
    secret: SharedSecret,
    forward_budget_max: Duration,
    state: watch::Sender<State>,
    left: watch::Sender<bool>,
}

/// What is behind the lock: a replica's part, and the calls whose checks are under way.
#[derive(Debug)]
struct Part {
    node: Node,
    calls: Calls,
}

impl Cluster {
    /// Listens to other replicas. `memory` is shared, so it holds nothing yet; `stored` is what a former process held.
    pub async fn bind(
        settings: Settings,
        memory: Arc<Memory>,
        stored: Vec<StoredSlot>,
        secret: SharedSecret,
        clock: Clock,
    ) -> Result<(Self, Listening), link::Error> {
        let Settings { link, forward_budget_max, backup_interval, forget_after, lease_from } = settings;
        let me = MemberId::random();
        let (links, listening) = Links::bind(link, me, clock.clone()).await?;
        let tuning = Tuning {
            silence: SILENCE,
            forget_after,
            patience: PATIENCE,
            backup_interval,
            lease_from,
            transfers_max: TRANSFERS_MAX,
        };
        let mut node = Node::new(me, links.address().to_owned(), tuning, memory, START);
        node.set_wall(clock.now());
        if !stored.is_empty() {
            let copy =
                |StoredSlot { slot, epoch, seq, data: contents }| (slot, Version { epoch, seq }, contents);
            node.restore(secret.get(), stored.into_iter().map(copy).collect(), START);
        }
        let part = Part { node, calls: Calls::default() };
        let replica = Replica {
            part: Mutex::new(part),
            links,
            clock,
            began: Stopwatch::start(),
            secret,
            forward_budget_max,
            state: watch::Sender::new(State::Joining),
            left: watch::Sender::new(false),
        };
        Ok((Self(Arc::new(replica)), listening))
    }

    /// Takes part until [`Cluster::leave`] has ended.
    pub async fn run(self, listening: Listening) -> Result<(), link::Error> {
        let mut chores = JoinSet::new();
        chores.spawn(self.clone().take_turns());
        chores.spawn(self.clone().follow_seeds());
        chores.spawn(self.clone().tell_of_degraded());
        let ended = listening.run(self.0.clone()).await;
        chores.shutdown().await;
        ended
    }

    async fn take_turns(self) {
        let mut turns = interval(TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            self.0.with(Node::turn);
        }
    }

    async fn follow_seeds(self) {
        let mut seeds = self.0.links.seeds();
        loop {
            let state = *seeds.borrow_and_update();
            self.0.with(|node, _| node.seeds_tried(matches!(state, SeedState::InVain(_))));
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
    pub fn me(&self) -> MemberId {
        self.0.links.me()
    }

    /// What this replica is doing.
    pub fn state(&self) -> State {
        *self.0.state.borrow()
    }

    /// Waits until this replica knows who holds what, and may answer.
    pub async fn joined(&self) {
        let mut state = self.0.state.subscribe();
        // It is kept by ourselves, so it does not end.
        state.wait_for(|state| *state != State::Joining).await.ok();
    }

    /// Tells the others that this replica leaves, and begins to hand everything on.
    pub fn drain(&self) {
        self.0.with(Node::drain);
    }

    /// Waits until all is handed on, and nobody depends on what is kept here.
    pub async fn drained(&self) {
        self.0.left.subscribe().wait_for(|left| *left).await.ok();
    }

    /// Says goodbye, and ends all links within this time. Says how many slots were not handed on.
    pub async fn leave(&self, within: Duration) -> usize {
        // Somebody who does not know yet may have asked again meanwhile.
        let done = async {
            while !self.0.with(|node, now| node.is_done(now)) {
                sleep(TURN).await;
            }
        };
        timeout(within, done).await.ok();
        let left = self.0.with(|node, _| node.slots_held().count());
        self.0.links.close(within).await;
        left
    }

    /// The hash of the rules in force.
    pub fn rules_changed(&self, rules: u64) {
        self.0.with(|node, _| node.rules_changed(rules));
    }

    /// The clock of counters gives up a lead; the memory has been told.
    pub fn give_up_lead(&self, lead: Lead) {
        self.0.with(|node, _| node.give_up_lead(lead));
    }

    /// How the cluster looks from here.
    pub fn view(&self) -> View {
        self.0.with(|node, now| node.view(now))
    }

    /// Treats a member as dead because an operator knows that it is. Says whether it was known.
    pub fn declare_dead(&self, member: MemberId) -> bool {
        self.0.with(|node, now| node.declare_dead(member, now))
    }

    /// How often a slot has changed hands, as far as is known here.
    pub fn epoch(&self, slot: Slot) -> u64 {
        self.0.lock().node.epoch(slot)
    }
}

impl Replica {
    fn lock(&self) -> MutexGuard<'_, Part> {
        // What panics here has a bug; the others may still be served.
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time by a clock that goes on evenly.
    fn now(&self) -> Timestamp {
        START.after(self.began.elapsed())
    }

    /// Does something with this replica's part, and then whatever that brought about.
    fn with<T>(&self, deed: impl FnOnce(&mut Node, Timestamp) -> T) -> T {
        self.with_part(|part, now| deed(&mut part.node, now))
    }

    fn with_part<T>(&self, deed: impl FnOnce(&mut Part, Timestamp) -> T) -> T {
        let (result, woken) = self.with_links_asleep(deed);
        self.wake(&woken);
        result
    }

    fn wake(&self, peers: &[MemberId]) {
        for peer in peers {
            self.links.wake(*peer);
        }
    }

    /// The same, and leaves it to the caller to wake the links to those for whom something waits.
    fn with_links_asleep<T>(&self, deed: impl FnOnce(&mut Part, Timestamp) -> T) -> (T, Vec<MemberId>) {
        let (result, woken, actions) = {
            let mut part = self.lock();
            let now = self.now();
            part.node.set_wall(self.clock.now());
            let result = deed(&mut part, now);
            let actions = part.node.actions();
            for action in &actions {
                if let Action::Answer(ticket, outcome) = action {
                    part.calls.answered(*ticket, outcome.clone());
                }
            }
            self.state.send_if_modified(|state| {
                let now = part.node.state();
                std::mem::replace(state, now) != now
            });
            (result, part.node.woken(), actions)
        };
        for action in actions {
            match action {
                Action::Dial(address) => self.links.dial(&address),
                Action::Forget(member) => self.links.forget(member),
                Action::Hash(secret) => self.secret.set(secret),
                Action::Leave => {
                    self.left.send_replace(true);
                }
                Action::Tell(event) => tell(event),
                Action::Answer(..) => {}
            }
        }
        (result, woken)
    }
}

fn tell(event: Event) {
    match event {
        Event::Joined => info!("joined: this replica knows who holds what"),
        Event::BegunAnew => warn!("met another cluster: its counters stay, all of this replica are given up"),
        Event::Isolated => {
            warn!(
                "hears too few replicas to rely on its counters: every key gets this replica's share of its limit"
            );
        }
        Event::Reunited => info!("hears enough replicas again"),
    }
}

impl Traffic for Replica {
    fn linked(&self, peer: MemberId, address: &str) {
        self.with(|node, now| node.linked(peer, address, now));
    }

    fn heard(&self, peer: MemberId) {
        let now = self.now();
        self.lock().node.heard(peer, now);
    }

    fn received(&self, peer: MemberId, batch: Bytes) {
        match wire::decode(batch, self.clock.now()) {
            Ok(messages) => self.with(|node, now| {
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
        self.with(|node, now| node.lost(peer, how == Loss::Dead, now));
    }
}
