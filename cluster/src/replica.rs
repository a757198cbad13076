//! This replica in the cluster: its state machine, its links with what they receive and send, and the calls that wait for
//! other replicas.

use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::bytes::Bytes;
use tollgate_counter::{
    lock::{Lock, lock},
    time::{Clock, ClockReading, SECOND, Stopwatch, Timestamp},
};
use tollgate_remote::LocalShare;
use tollgate_rules::ActiveRules;
use tollgate_store::{
    Lead, Memory, Slot, SlotCopy, StoredSlot,
    divider::{Assignments, Dividers},
};
use tracing::{info, warn};

use crate::{
    calls::{OpenRounds, Round},
    error::ClusterError,
    link::{self, LinkHandler, LinkListener, addresses::SeedState, links::Links},
    member::{Departure, MemberId},
    message::MemberState,
    node::{
        ClusterNode,
        output::NodeAction,
        ticks::{TICK, TICK_IDLE},
        view::ClusterView,
    },
    strangers::{LinkTrust, Situation, StrangerHistory},
    tuning::{NodeSettings, Tuning},
    wire,
};

/// A peer that is not heard for this long counts as silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);
/// How long to look for other replicas before this one bootstraps a cluster.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_millis(1500);
/// The most unacknowledged hand-offs to one peer, so that checks behind them are not delayed for long.
const HAND_OFFS_MAX: usize = 256;
/// The most bytes of slot data on their way to one peer before further data is held back. Checks wait behind them.
const DATA_BYTES_MAX: usize = 128 * 1024;
/// How many counters of lost owners are claimed in one turn before further slots wait for the next one. Checks wait
/// meanwhile.
const CLAIMED_COUNTERS_MAX: usize = 16_384;
/// The initial value of the monotonic clock. It is not 0, so that earlier instants exist.
const MONOTONIC_START: Timestamp = Timestamp::from_nanos(1_000_000 * SECOND);

/// The settings of the node of a replica.
pub(super) const fn node_settings(tuning: Tuning) -> NodeSettings {
    NodeSettings {
        silence: SILENCE_LIMIT,
        bootstrap_timeout: BOOTSTRAP_TIMEOUT,
        hand_offs_max: HAND_OFFS_MAX,
        data_bytes_max: DATA_BYTES_MAX,
        claimed_counters_max: CLAIMED_COUNTERS_MAX,
        tuning,
    }
}

/// The settings of a replica in a cluster.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The links to other replicas.
    pub link: link::LinkSettings,
    /// The tuning of the replica.
    pub tuning: Tuning,
}

/// This replica in the cluster. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster(pub(super) Arc<Replica>);

pub(super) struct Replica {
    node: Lock<ClusterNode>,
    /// What this replica has admitted without owners. It is locked after the node.
    pub(super) local_share: Lock<LocalShare>,
    /// The calls that wait for the node, outside its lock: replies wake callers on all cores.
    pub(super) calls: OpenRounds,
    pub(super) links: Arc<Links>,
    pub(super) dividers: Arc<Dividers>,
    /// Takes what clients of this replica may let pass.
    assign: OnceLock<Box<dyn Fn(Assignments) + Send + Sync>>,
    pub(super) clock: Clock,
    first_reading: ClockReading,
    pub(super) started: Stopwatch,
    active_rules: Arc<ActiveRules>,
    pub(super) forward_budget_max: Duration,
    history: Mutex<StrangerHistory>,
    /// Notified when the next tick is due earlier than before.
    tick_hastened: Notify,
    state: watch::Sender<MemberState>,
}

impl Cluster {
    /// Binds the listener for other replicas. `memory` is in shared mode and owns no slot yet; `stored` is the snapshot
    /// of an earlier process, whose secret is set in `active_rules`.
    pub async fn bind(
        settings: ClusterSettings,
        memory: Arc<Memory>,
        stored: Vec<StoredSlot>,
        active_rules: Arc<ActiveRules>,
        clock: Clock,
    ) -> Result<(Self, LinkListener), ClusterError> {
        let ClusterSettings { link, tuning } = settings;
        let local_id = MemberId::starting_at(clock.now());
        let (links, listening) = LinkListener::bind(link, local_id, clock.clone()).await?;
        let address = links.address().to_owned();
        let dividers = Arc::new(Dividers::new(memory.clone()));
        let local_share = Lock::new(LocalShare::within(&memory));
        let mut node = ClusterNode::new(
            local_id,
            address,
            node_settings(tuning),
            memory,
            dividers.clone(),
            MONOTONIC_START,
        );
        node.set_wall(clock.now());
        if !stored.is_empty() {
            node.restore(active_rules.secret(), stored, MONOTONIC_START);
        }
        let replica = Replica {
            node: Lock::new(node),
            local_share,
            calls: OpenRounds::default(),
            links,
            dividers,
            assign: OnceLock::new(),
            first_reading: clock.read(),
            clock,
            started: Stopwatch::start(),
            active_rules,
            forward_budget_max: tuning.forward_budget_max,
            history: Mutex::default(),
            tick_hastened: Notify::new(),
            state: watch::Sender::new(MemberState::Joining),
        };
        Ok((Self(Arc::new(replica)), listening))
    }

    /// Runs the replica until [`Cluster::leave`] has ended.
    pub async fn run(self, listening: LinkListener) -> Result<(), ClusterError> {
        let mut tasks = JoinSet::new();
        tasks.spawn(self.clone().run_ticks());
        tasks.spawn(self.clone().log_degraded());
        let ended = listening.run(self.0.clone()).await;
        tasks.shutdown().await;
        ended
    }

    async fn run_ticks(self) {
        loop {
            let due = self.0.node.lock().tick_due();
            let pause = self.0.pause_until(due);
            tokio::select! {
                () = sleep(pause) => self.0.with_node(|node, now| {
                    node.seeds_tried(self.0.links.seed_state() == SeedState::NotFound);
                    node.tick(now);
                    node.report(&mut self.0.local_share.lock(), now);
                }),
                () = self.0.tick_hastened.notified() => {}
            }
        }
    }

    /// What the processes at dialled addresses mean for the readiness of this replica.
    pub fn link_trust(&self) -> LinkTrust {
        let strangers = self.0.links.strangers();
        let mut history = lock(&self.0.history);
        let owns_all = |node: &ClusterNode| strangers.is_some() && node.owned_slots().count() == node.slots();
        let (owns_all, now) = self.0.with_node(|node, now| (owns_all(node), now));
        let situation = Situation {
            is_linked: self.0.links.is_linked(),
            is_serving: self.state() == MemberState::Serving,
            owns_all,
            has_tried_seeds: self.0.links.seed_state() != SeedState::Searching,
        };
        let went_on = history.goes_on;
        let trust = history.judge(strangers, situation, now);
        if let LinkTrust::GoesOn(strangers) = &trust
            && !went_on
        {
            warn!(
                strangers,
                "every link to another process is rejected; this replica has served and goes on without them"
            );
        }
        trust
    }

    /// The dividers of the counters that this replica owns.
    pub fn dividers(&self) -> &Arc<Dividers> {
        &self.0.dividers
    }

    /// Passes what clients of this replica may let pass to `assign`. Set once.
    pub fn on_assignments(&self, assign: impl Fn(Assignments) + Send + Sync + 'static) {
        // Another one is not expected.
        let _ = self.0.assign.set(Box::new(assign));
    }

    /// The id of this replica.
    pub fn local_id(&self) -> MemberId {
        self.0.links.local_id()
    }

    /// The state of this replica.
    pub fn state(&self) -> MemberState {
        *self.0.state.borrow()
    }

    /// Waits until this replica knows the owners of the slots and may answer.
    pub async fn joined(&self) {
        let mut state = self.0.state.subscribe();
        // The sender is in `self`, so the channel does not close.
        let _ = state.wait_for(|state| *state != MemberState::Joining).await;
    }

    /// Announces that this replica leaves, and begins to hand off its slots.
    pub fn drain(&self) {
        self.0.with_node(ClusterNode::drain);
    }

    /// Waits until every slot is handed off and no other replica needs the copies here.
    pub async fn drained(&self) {
        while !self.0.with_node(|node, now| node.is_drained(now)) {
            sleep(TICK).await;
        }
    }

    /// Announces the leaving of this replica and closes all links within this time. Returns the number of slots that
    /// were not handed off.
    pub async fn leave(&self, within: Duration) -> usize {
        // A replica that does not know of the departure yet may have forwarded another check. After the timeout the links
        // are closed all the same.
        let _ = timeout(within, self.drained()).await;
        let left = self.0.with_node(|node, _| node.owned_slots().count());
        self.0.links.close(within).await;
        left
    }

    /// Sets the hash of the active rules.
    pub fn rules_changed(&self, rules: u64) {
        self.0.with_node(|node, _| node.rules_changed(rules));
    }

    /// Applies a lead that the clock of the counters gives up. The caller applies it to the memory.
    pub fn give_up_lead(&self, lead: Lead) {
        self.0.local_share.lock().give_up_lead(lead);
    }

    /// The cluster as this replica sees it.
    pub fn view(&self) -> ClusterView {
        self.0.with_node(|node, now| node.view(now))
    }

    /// Whether no other member is known. A silent member is known until it is declared dead or forgotten.
    pub fn is_last_member(&self) -> bool {
        self.0.node.lock().is_last_member()
    }

    /// Treats a member as dead because an operator declares it. Returns whether the member was known.
    pub fn declare_dead(&self, member: MemberId) -> bool {
        self.0.with_node(|node, now| node.declare_dead(member, now))
    }

    /// A copy of `slot` for a snapshot: from `memory`, or the copy here if the owner is gone. Perhaps no other member
    /// has that copy.
    pub fn copy(&self, memory: &Memory, slot: Slot) -> SlotCopy {
        let now = self.0.clock.now();
        let mut node = self.0.node.lock();
        node.set_wall(now);
        if let Some(stored) = node.last_copy(slot) {
            return Box::new(|_| stored);
        }
        // The epoch first: if the owner changes meanwhile, the copy is only taken for older than it is.
        let epoch = node.epoch(slot);
        drop(node);
        memory.copy(slot, epoch)
    }
}

impl Replica {
    /// The monotonic time.
    fn now(&self) -> Timestamp {
        self.monotonic(&self.clock.read())
    }

    /// The time until a tick that is due at this monotonic time. A tick that is not due soon comes earlier if other
    /// periodic work is due before it, so that one wake-up serves both.
    fn pause_until(&self, due: Timestamp) -> Duration {
        let reading = self.clock.read();
        let pause = due.since(self.monotonic(&reading));
        let end = reading.now.after(pause).as_nanos();
        let shared = Timestamp::from_nanos(end - end % TICK_IDLE.as_nanos() as u64);
        if reading.now < shared { shared.since(reading.now) } else { pause }
    }

    /// The monotonic time of a reading of the clock, so that one reading serves for both times.
    fn monotonic(&self, reading: &ClockReading) -> Timestamp {
        let since_start = self.clock.between(&self.first_reading, reading);
        MONOTONIC_START.after(since_start.unwrap_or_else(|| self.started.elapsed()))
    }

    /// Calls `operation` on the node, and then performs the actions that it caused.
    pub(super) fn with_node<T>(&self, operation: impl FnOnce(&mut ClusterNode, Timestamp) -> T) -> T {
        let (result, ready_peers) = self.with_node_without_wakes(operation);
        self.wake(&ready_peers);
        result
    }

    pub(super) fn wake(&self, peers: &[MemberId]) {
        for peer in peers {
            self.links.wake(*peer);
        }
    }

    /// Runs `operation` on the node. The caller wakes the links that have messages to send.
    pub(super) fn with_node_without_wakes<T>(
        &self,
        operation: impl FnOnce(&mut ClusterNode, Timestamp) -> T,
    ) -> (T, Vec<MemberId>) {
        let (result, ready_peers, actions) = {
            let mut node = self.node.lock();
            let reading = self.clock.read();
            let now = self.monotonic(&reading);
            node.set_wall(reading.now);
            let result = operation(&mut node, now);
            if node.hasten_tick(now) {
                self.tick_hastened.notify_one();
            }
            if *self.state.borrow() != node.state() {
                self.state.send_replace(node.state());
            }
            (result, node.ready_peers(), node.actions())
        };
        let mut complete = Vec::new();
        for action in actions {
            match action {
                NodeAction::Complete(ticket, outcome) => {
                    complete.extend(self.calls.complete(ticket, outcome))
                }
                NodeAction::Dial(address) => self.links.dial(&address),
                NodeAction::Disconnect(member) => self.links.forget(member),
                NodeAction::Assign(assignments) => {
                    if let Some(assign) = self.assign.get() {
                        assign(assignments);
                    }
                }
                NodeAction::SetHashSecret(secret) => {
                    self.active_rules.set_secret(secret);
                    // The keys in it were hashed with another secret.
                    self.local_share.lock().clear();
                }
                NodeAction::LogJoined => info!("joined the cluster: the owners of the slots are known"),
                NodeAction::LogClusterAdopted => {
                    warn!(
                        "met another cluster: adopted its secret and discarded all counters of this replica"
                    );
                }
                NodeAction::LogIsolation { is_isolated: true } => {
                    warn!("isolated from most replicas: every key gets this replica's share of its limit");
                }
                NodeAction::LogIsolation { is_isolated: false } => {
                    info!("no longer isolated: most replicas are reachable again");
                }
                NodeAction::LogOutOfRange(member) => {
                    warn!(%member, "closed the link to a replica that named a slot or an epoch out of range");
                }
            }
        }
        Round::answer_all(complete);
        (result, ready_peers)
    }
}

/// The most messages in a batch, and the most bytes of slot data in it, unless one message has more.
const BATCH_MESSAGES_MAX: usize = 1_024;
const BATCH_DATA_BYTES_MAX: usize = 256 * 1024;

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("links", &self.links).finish_non_exhaustive()
    }
}

impl LinkHandler for Replica {
    fn connected(&self, peer: MemberId, address: &str) {
        self.with_node(|node, now| node.connected(peer, address, now));
    }

    fn heard(&self, peer: MemberId) {
        let now = self.now();
        self.node.lock().heard(peer, now);
    }

    fn received(&self, peer: MemberId, batch: Bytes) {
        match wire::decode(&batch, self.clock.now()) {
            Ok(messages) => self.with_node(|node, now| {
                node.heard(peer, now);
                for message in messages {
                    node.receive(peer, message, now);
                }
            }),
            Err(error) => {
                warn!(member = %peer, %error, "closed the link to a replica that sent an unreadable batch");
                self.links.forget(peer);
            }
        }
    }

    fn next_batch(&self, peer: MemberId) -> Option<Bytes> {
        let now = self.now();
        let messages = self.node.lock().outgoing(peer, BATCH_MESSAGES_MAX, BATCH_DATA_BYTES_MAX, now);
        (!messages.is_empty()).then(|| wire::encode(&messages, self.clock.now()))
    }

    fn disconnected(&self, peer: MemberId, reason: Departure) {
        self.with_node(|node, now| node.depart(peer, reason, now));
    }
}
