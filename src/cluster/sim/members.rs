//! What members cost each other: simulations of 3 to 200 replicas with all slots and without counters, whose figures are
//! in docs/cluster.md.
//!
//! `benches/members` prints the table. Each event happens when it is due, without steps of time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use prost::bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tollgate_limiter::{
    remote::{LocalShare, RemoteOutcome},
    store::{Memory, OnFull},
    time::{SECOND, Timestamp},
};

use crate::cluster::{
    Tuning, link,
    message::MemberState,
    node::{Action, Node, NodeSettings, Ticket},
    sim::keys::member,
    wire,
};

pub(super) const MILLISECOND: u64 = SECOND / 1_000;
const BEGINS_AT: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
/// The delay of a message in one region, in nanoseconds.
const DELAY: RangeInclusive<u64> = MILLISECOND / 5..=MILLISECOND;
/// What is added between two regions.
const DISTANCE: u64 = 40 * MILLISECOND;
/// TCP and TLS handshakes.
const CONNECT: Duration = Duration::from_millis(10);
/// The time until a peer's address has refused a connection.
const NOTICE: RangeInclusive<u64> = MILLISECOND..=20 * MILLISECOND;
/// What a frame has besides a batch, in bytes: headers of HTTP/2, gRPC, TLS, TCP and IP.
const FRAME_BYTES: usize = 94;
const MESSAGES_MAX: usize = 1_024;
const BATCH_BYTES_MAX: usize = 256 * 1024;
/// How often it is checked whether all agree.
const CHECK: Duration = Duration::from_millis(5);
/// The time without a change after which the cost of idle replicas is counted, and the time for which it is.
const CALM: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(10);
const AGREE_MAX: Duration = Duration::from_secs(60);
/// The numbers of members, unless `SIMULATION_MEMBERS` in the environment names others.
const MEMBERS: [usize; 2] = [3, 8];

const SETTINGS: NodeSettings = NodeSettings {
    silence: Duration::from_secs(1),
    bootstrap_timeout: Duration::from_millis(1_500),
    hand_offs_max: 256,
    data_bytes_max: 512 * 1024,
    tuning: Tuning {
        forward_budget_max: Duration::from_millis(500),
        backup_interval: Some(Duration::from_millis(100)),
        forget_after: Duration::from_secs(30),
        lease_from: Some(500),
    },
};

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(usize),
    /// Every link of the replica that wrote nothing since the last one writes a heartbeat.
    Heartbeat(usize),
    Connect(usize, usize),
    Deliver(usize, usize, Bytes),
    /// The first replica notices that the second has ended.
    Notice(usize, usize),
}

/// What was sent and done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    ticks: u64,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
struct Direction {
    arrives_at: Timestamp,
    has_written: bool,
}

/// A replica, and what it has admitted without owners.
pub(super) struct Replica {
    pub(super) node: Node,
    pub(super) share: LocalShare,
}

/// Replicas in one or several regions, and the links between them.
pub(super) struct Members {
    /// Replicas are in them by turns.
    regions: usize,
    rng: StdRng,
    pub(super) now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    queued: u64,
    pub(super) replicas: BTreeMap<usize, Replica>,
    /// The outcomes of checks that were submitted to a replica.
    pub(super) completed: Vec<(usize, Ticket, RemoteOutcome)>,
    links: BTreeMap<(usize, usize), Direction>,
    dialled: BTreeSet<(usize, usize)>,
    started: usize,
    counts: Counts,
}

/// What a change of the members costs.
#[derive(Clone, Copy, Debug)]
struct Cost {
    time: Duration,
    bytes: u64,
    slots: u64,
}

impl Members {
    fn new(regions: usize) -> Self {
        Self {
            regions,
            rng: StdRng::seed_from_u64(1),
            now: BEGINS_AT,
            events: BinaryHeap::new(),
            queued: 0,
            replicas: BTreeMap::new(),
            completed: Vec::new(),
            links: BTreeMap::new(),
            dialled: BTreeSet::new(),
            started: 0,
            counts: Counts::default(),
        }
    }

    fn queue(&mut self, at: Timestamp, event: Event) {
        self.queued += 1;
        self.events.push(Reverse((at, self.queued, event)));
    }

    fn random(&mut self, nanos: RangeInclusive<u64>) -> Duration {
        Duration::from_nanos(self.rng.random_range(nanos))
    }

    /// Starts a replica with the earliest one as its seed.
    fn start(&mut self) {
        let number = self.started;
        self.started += 1;
        let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny).shared());
        let mut node = Node::new(member(number), number.to_string(), SETTINGS, memory, self.now);
        let seed = self.replicas.keys().next().copied();
        node.seeds_tried(seed.is_none());
        let tick_due = node.tick_due();
        self.replicas.insert(number, Replica { node, share: LocalShare::default() });
        self.queue(tick_due, Event::Tick(number));
        self.queue(self.now, Event::Heartbeat(number));
        if let Some(seed) = seed {
            self.dial(number, seed);
        }
    }

    fn kill(&mut self, number: usize) {
        self.replicas.remove(&number);
        self.links.retain(|(from, to), _| *from != number && *to != number);
        let observers: Vec<usize> = self.replicas.keys().copied().collect();
        for observer in observers {
            let noticed_at = self.now.after(self.random(NOTICE));
            self.queue(noticed_at, Event::Notice(observer, number));
        }
    }

    fn dial(&mut self, from: usize, to: usize) {
        let pair = (from.min(to), from.max(to));
        if !self.links.contains_key(&(from, to)) && self.dialled.insert(pair) {
            self.queue(self.now.after(CONNECT), Event::Connect(pair.0, pair.1));
        }
    }

    /// Sends a frame. Frames of a link arrive in order.
    fn send(&mut self, from: usize, to: usize, batch: Bytes) {
        let distance = if from % self.regions == to % self.regions { 0 } else { DISTANCE };
        let delay = self.random(distance + DELAY.start()..=distance + DELAY.end());
        let Some(direction) = self.links.get_mut(&(from, to)) else { return };
        direction.arrives_at = direction.arrives_at.max(self.now.after(delay));
        direction.has_written = true;
        self.counts.frames += 1;
        self.counts.bytes += (FRAME_BYTES + batch.len()) as u64;
        let arrives_at = direction.arrives_at;
        self.queue(arrives_at, Event::Deliver(from, to, batch));
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Tick(number) => {
                let Some(Replica { node, share }) = self.replicas.get_mut(&number) else { return };
                // An earlier tick was queued instead, or another input has brought it forward.
                if node.tick_due() > now {
                    return;
                }
                node.set_wall(now);
                node.tick(now);
                node.report(share, now);
                let due = node.tick_due();
                self.counts.ticks += 1;
                self.queue(due, Event::Tick(number));
                self.act(number);
            }
            Event::Heartbeat(number) => {
                let links = self.links.range_mut((number, 0)..(number + 1, 0));
                let idle = links.filter_map(|((_, to), direction)| {
                    (!std::mem::take(&mut direction.has_written)).then_some(*to)
                });
                for to in idle.collect::<Vec<_>>() {
                    self.send(number, to, Bytes::new());
                }
                let peers = self.links.range((number, 0)..(number + 1, 0));
                // A link checks whether it has written twice in this time.
                let half = link::heartbeat_interval(peers.count()) / 2;
                if self.replicas.contains_key(&number) {
                    self.queue(now.after(half), Event::Heartbeat(number));
                }
            }
            Event::Connect(one, other) => {
                self.dialled.remove(&(one, other));
                for (from, to) in [(one, other), (other, one)] {
                    if self.replicas.contains_key(&from) && self.replicas.contains_key(&to) {
                        let direction = Direction { arrives_at: now, has_written: true };
                        self.links.insert((from, to), direction);
                        self.input(from, |node| node.connected(member(to), &to.to_string(), now));
                    }
                }
            }
            Event::Deliver(from, to, batch) => {
                if self.links.contains_key(&(from, to)) {
                    let messages = wire::decode(&batch, now).expect("a batch that was just encoded");
                    self.input(to, |node| {
                        node.heard(member(from), now);
                        messages.into_iter().for_each(|message| node.receive(member(from), message, now));
                    });
                }
            }
            Event::Notice(observer, dead) => {
                self.input(observer, |node| node.disconnected(member(dead), true, now));
            }
        }
    }

    pub(super) fn input(&mut self, number: usize, input: impl FnOnce(&mut Node)) {
        let Some(Replica { node, .. }) = self.replicas.get_mut(&number) else { return };
        node.set_wall(self.now);
        input(node);
        if node.hasten_tick(self.now) {
            let due = node.tick_due();
            self.queue(due, Event::Tick(number));
        }
        self.act(number);
    }

    /// Sends the messages and performs the actions of a replica.
    fn act(&mut self, number: usize) {
        let now = self.now;
        let Some(Replica { node, .. }) = self.replicas.get_mut(&number) else { return };
        let mut batches = Vec::new();
        for peer in node.ready_peers() {
            loop {
                let messages = node.outgoing(peer, MESSAGES_MAX, BATCH_BYTES_MAX, now);
                if messages.is_empty() {
                    break;
                }
                batches.push((peer, wire::encode(&messages, now)));
            }
        }
        for action in node.actions() {
            match action {
                Action::Dial(address) => {
                    self.dial(number, address.parse().expect("addresses are numbers in the simulation"));
                }
                Action::Complete(ticket, outcome) => self.completed.push((number, ticket, outcome)),
                Action::SetHashSecret(_) | Action::Disconnect(_) | Action::Leave | Action::Report(_) => {}
            }
        }
        for (peer, batch) in batches {
            let to = (0..self.started).find(|other| member(*other) == peer);
            self.send(number, to.expect("a replica that was started"), batch);
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= end
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    /// Whether every replica serves, and all know the same members and owners.
    fn agree(&self) -> bool {
        let count = self.replicas.len();
        let is_settled = |node: &Node| {
            node.state() == MemberState::Serving && node.serving() == count && node.moving() == 0
        };
        let nodes = || self.replicas.values().map(|replica| &replica.node);
        let views = || nodes().map(|node| node.view(self.now).view);
        nodes().all(is_settled) && views().collect::<BTreeSet<_>>().len() == 1
    }

    fn acquired(&self) -> u64 {
        self.replicas.values().map(|replica| replica.node.stats().slots_acquired).sum()
    }

    /// What it costs until all agree after this change.
    fn cost_of(&mut self, change: impl FnOnce(&mut Self)) -> Cost {
        let begin = self.now;
        change(self);
        let (before, acquired) = (self.counts, self.acquired());
        while !self.agree() {
            assert!(self.now.since(begin) < AGREE_MAX, "{} members do not agree", self.replicas.len());
            self.pass(CHECK);
        }
        let cost = Cost {
            time: self.now.since(begin),
            bytes: self.counts.bytes - before.bytes,
            slots: self.acquired() - acquired,
        };
        self.pass(CALM);
        cost
    }

    /// A settled cluster. The first replica begins it.
    pub(super) fn settled(count: usize, regions: usize) -> Self {
        let mut members = Self::new(regions);
        members.cost_of(Self::start);
        members.cost_of(|members| (1..count).for_each(|_| members.start()));
        members
    }

    /// What all replicas send and do in a second without calls.
    fn idle(&mut self) -> Counts {
        let before = self.counts;
        self.pass(IDLE);
        let each = |now: u64, before: u64| (now - before) / IDLE.as_secs();
        Counts {
            frames: each(self.counts.frames, before.frames),
            bytes: each(self.counts.bytes, before.bytes),
            ticks: each(self.counts.ticks, before.ticks),
        }
    }
}

/// The figures of clusters of these sizes, as a table.
fn table(sizes: &[usize]) -> String {
    let mut table = "| members | frames/s | Mbit/s | join (ms) | MB | slots | death (ms) | MB | slots | 10 join (ms) | MB | slots |\n"
        .to_owned();
    table += &format!("|{}\n", "---:|".repeat(12));
    for size in sizes {
        let mut members = Members::settled(*size, 1);
        let idle = members.idle();
        let per_member = |sum: u64| sum as f64 / *size as f64;
        let mbit = per_member(idle.bytes) * 8.0 / 1e6;
        let join = members.cost_of(Members::start);
        let last = members.started - 1;
        let death = members.cost_of(|members| members.kill(last));
        let ten = members.cost_of(|members| (0..10).for_each(|_| members.start()));
        let cost = |Cost { time, bytes, slots }: Cost| {
            format!("{} | {:.2} | {slots}", time.as_millis(), bytes as f64 / 1e6)
        };
        let frames = per_member(idle.frames);
        table += &format!(
            "| {size} | {frames:.0} | {mbit:.3} | {} | {} | {} |\n",
            cost(join),
            cost(death),
            cost(ten)
        );
    }
    table
}

#[expect(clippy::disallowed_methods, reason = "prints the figures of other sizes")]
fn sizes() -> Vec<usize> {
    let Ok(text) = std::env::var("SIMULATION_MEMBERS") else { return MEMBERS.to_vec() };
    let number = |number: &str| number.parse().expect("SIMULATION_MEMBERS is numbers with commas");
    text.split(',').map(number).collect()
}

#[test]
fn members_agree_soon_after_each_change() {
    println!("{}", table(&sizes()));
}

#[test]
fn idle_members_tick_rarely_and_soon_when_needed() {
    let mut members = Members::settled(3, 1);
    let idle = members.idle();
    // The checks for backups every 100 ms, and silence.
    assert!((27..=36).contains(&idle.ticks), "{idle:?}");
    let death = members.cost_of(|members| members.kill(2));
    assert!(death.time < Duration::from_millis(60), "{death:?}");
    let join = members.cost_of(Members::start);
    assert!(join.time < Duration::from_millis(200), "{join:?}");
}
