//! The world of a simulation: processes, links that delay, and a record of what passed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    algorithm::Operation,
    cluster::{
        MemberId,
        message::{MemberState, Message, RemoteCheck, RemoteOperation, Version},
        node::{Action, DecidedBy, ForwardPolicy, Node, NodeSettings, Ticket},
        sim::{Step, keys, keys::TestKey},
    },
    descriptor::Secret,
    rules::OnOwnerUnavailable,
    store::{Check, Lead, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::{SECOND, Timestamp},
};

const MILLISECOND: u64 = SECOND / 1000;
/// The time step.
const STEP: u64 = 5 * MILLISECOND;
/// The longest delay of a message.
const DELAY_MAX: u64 = 20 * MILLISECOND;
/// The longest time until a connected peer notices a death.
const NOTICE_MAX: u64 = 40 * MILLISECOND;
/// The timeout of a caller.
pub(super) const BUDGET: u64 = 500 * MILLISECOND;
/// What a crash may lose: hits that passed since the last backup that arrived, and until all replicas know of the
/// crash.
const CRASH_WINDOW: u64 = 350 * MILLISECOND;
/// Few slots, so that faults hit every one of them.
const SLOTS: usize = 16;

pub(super) const NODE_SETTINGS: NodeSettings = NodeSettings {
    silence: Duration::from_secs(1),
    forget_after: Duration::from_secs(8),
    bootstrap_timeout: Duration::from_millis(400),
    backup_interval: Some(Duration::from_millis(100)),
    lease_from: Some(50),
    hand_offs_max: 3,
};

/// The complete simulation.
pub(super) struct World {
    rng: StdRng,
    now: u64,
    processes: BTreeMap<usize, Process>,
    started: usize,
    links: BTreeMap<(usize, usize), Link>,
    dials: Vec<(u64, usize, usize)>,
    loss_notices: Vec<(u64, usize, usize)>,
    /// The last messages of replicas that have left. They still arrive; after them the departure is known.
    departing_links: Vec<(usize, usize, Link)>,
    /// Snapshots of replicas that have left, oldest first, for [`Step::Resume`].
    snapshots: VecDeque<Snapshot>,
    cut: BTreeSet<usize>,
    /// Frozen processes, each with the peers that have dropped its session meanwhile.
    frozen: BTreeMap<usize, Vec<usize>>,
    pub(super) keys: Vec<TestKey>,
    /// When a hit of a key passed.
    passed: Vec<(u64, usize)>,
    /// When which keys lost their owner.
    crashes: Vec<(u64, BTreeSet<usize>)>,
    open: BTreeMap<(usize, u64), (usize, u64)>,
    calls_started: u64,
    pub(super) totals: Totals,
    calls_per_second: u32,
    keys_called: usize,
}

/// Counts of the outcomes.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) answers: u64,
    pub(super) degraded: u64,
    pub(super) by_lease: u64,
    pub(super) slowest: u64,
    /// When the network was last cut.
    pub(super) cut_at: Option<u64>,
}

struct Process {
    node: Node,
    memory: Arc<Memory>,
    /// The secret of its key hash, once known.
    secret: Option<Secret>,
    /// The offset of its clock from the world's, in nanoseconds.
    skew: i64,
    /// Every slot is handed off: it answers checks that it has received, and takes no more calls.
    is_leaving: bool,
}

/// What a process writes before it ends, for a later one.
type Snapshot = (Secret, Vec<(Slot, Version, SlotData)>);

/// One direction of a session. Messages arrive in order, once.
#[derive(Default)]
struct Link {
    in_flight: VecDeque<(u64, Timestamp, Vec<Message>)>,
    last: u64,
}

impl Link {
    /// The next batch that has arrived by now.
    fn next_due(&mut self, now: u64) -> Option<(Timestamp, Vec<Message>)> {
        self.in_flight.pop_front_if(|(due, ..)| *due <= now).map(|(_, sent_at, messages)| (sent_at, messages))
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: 1_790_000_000 * SECOND,
            processes: BTreeMap::new(),
            started: 0,
            links: BTreeMap::new(),
            dials: Vec::new(),
            loss_notices: Vec::new(),
            departing_links: Vec::new(),
            snapshots: VecDeque::new(),
            cut: BTreeSet::new(),
            frozen: BTreeMap::new(),
            keys: keys::all(),
            passed: Vec::new(),
            crashes: Vec::new(),
            open: BTreeMap::new(),
            calls_started: 0,
            totals: Totals::default(),
            calls_per_second: 0,
            keys_called: usize::MAX,
        }
    }

    pub(super) fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.run_step(step);
        }
    }

    pub(super) fn run_step(&mut self, step: &Step) {
        match step {
            Step::Start(count) => (0..*count).for_each(|_| self.start(None)),
            Step::Resume(count) => {
                for _ in 0..*count {
                    let snapshot = self.snapshots.pop_front();
                    self.start(snapshot);
                }
            }
            Step::Drain(number) => self.drain(*number),
            Step::DrainOwner => {
                if let Some(owner) = self.owner() {
                    self.drain(owner);
                }
            }
            Step::Kill(number) => self.kill(*number),
            Step::Cut(numbers) => {
                self.cut = numbers.iter().copied().collect();
                self.totals.cut_at = Some(self.now);
            }
            Step::Heal => self.cut.clear(),
            Step::FreezeBorrower => self.freeze_borrower(),
            Step::Thaw => self.thaw(),
            Step::Skew(number, millis) => {
                let until = self.wall_of(*number);
                if let Some(process) = self.processes.get_mut(number) {
                    process.skew += *millis * MILLISECOND as i64;
                    if *millis < 0 {
                        let at = Timestamp::from_nanos(self.now.wrapping_add_signed(process.skew));
                        process.memory.give_up_lead(Lead { at, until });
                        process.node.give_up_lead(Lead { at, until });
                    }
                }
            }
            Step::Traffic(calls_per_second) => {
                (self.calls_per_second, self.keys_called) = (*calls_per_second, usize::MAX)
            }
            Step::Hot(calls_per_second) => (self.calls_per_second, self.keys_called) = (*calls_per_second, 1),
            Step::Pass(time) => self.pass(time.as_nanos() as u64),
            Step::Settle => {
                let end = self.now + 20 * SECOND;
                while self.unsettled().is_some() && self.now < end {
                    self.pass(STEP);
                }
            }
        }
    }

    fn drain(&mut self, number: usize) {
        let now = self.time_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.drain(now);
        }
    }

    fn freeze_borrower(&mut self) {
        let (end, calls_per_second) = (self.now + 5 * SECOND, self.calls_per_second);
        while self.now < end {
            if self.borrower().is_some() {
                self.calls_per_second = 0;
                while !self.open.is_empty() {
                    self.pass(STEP);
                }
                if let Some(borrower) = self.borrower() {
                    self.frozen.insert(borrower, Vec::new());
                    return;
                }
                self.calls_per_second = calls_per_second;
            }
            self.pass(STEP);
        }
        panic!("no replica has borrowed hits");
    }

    /// A replica's node, its time, a key that the other replica owns, and the id of that replica.
    pub(super) fn caller(&mut self, number: usize) -> (&mut Node, Timestamp, TestKey, MemberId) {
        let now = self.time_of(number);
        let node = &mut self.processes.get_mut(&number).expect("a replica that was started").node;
        let owned: Vec<Slot> = node.owned_slots().collect();
        let remote = self.keys.iter().find(|test_key| !owned.contains(&Slot::of(test_key.key, SLOTS)));
        let owner = keys::member(1 - number);
        (node, now, remote.expect("a key that the other replica owns").clone(), owner)
    }

    /// A replica that has borrowed hits of the first key and not used them.
    fn borrower(&self) -> Option<usize> {
        let key = self.keys[0].key;
        let borrows =
            |number: &usize| self.processes[number].node.borrowed(key, self.monotonic_time_of(*number)) > 1;
        self.processes.keys().copied().find(borrows)
    }

    /// The owner of the first key.
    fn owner(&self) -> Option<usize> {
        let slot = Slot::of(self.keys[0].key, SLOTS);
        let owns = |number: &usize| self.processes[number].node.owned_slots().any(|owned| owned == slot);
        self.processes.keys().copied().find(owns)
    }

    fn thaw(&mut self) {
        for (number, lost) in std::mem::take(&mut self.frozen) {
            for peer in lost {
                self.lose_session(number, peer);
            }
        }
    }

    fn start(&mut self, snapshot: Option<Snapshot>) {
        let number = self.started;
        self.started += 1;
        let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny).with_slots(SLOTS).shared());
        let skew = self.rng.random_range(0..2) as i64 * self.rng.random_range(0..40) * MILLISECOND as i64;
        let now = self.time_of(number);
        let mut node =
            Node::new(keys::member(number), number.to_string(), NODE_SETTINGS, memory.clone(), now);
        if let Some((secret, copies)) = snapshot {
            node.restore(secret, copies, now);
        }
        self.processes.insert(number, Process { node, memory, secret: None, skew, is_leaving: false });
        let others: Vec<usize> = self.processes.keys().copied().filter(|other| *other != number).collect();
        let reachable: Vec<usize> =
            others.iter().copied().filter(|other| !self.is_cut(number, *other)).collect();
        for other in others {
            self.dial(number, other);
        }
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.seeds_tried(reachable.is_empty());
        }
    }

    fn kill(&mut self, number: usize) {
        let Some(process) = self.processes.remove(&number) else { return };
        let owned: BTreeSet<Slot> = process.node.slots_at_risk().collect();
        let keys = (0..self.keys.len()).filter(|key| owned.contains(&Slot::of(self.keys[*key].key, SLOTS)));
        self.crashes.push((self.now, keys.collect()));
        self.end(number);
    }

    /// The process has said goodbye, and writes a snapshot of the slots that it still owns.
    fn leave(&mut self, number: usize) {
        if let Some(Process { node, memory, secret: Some(secret), .. }) = self.processes.get(&number) {
            let copy = |slot| {
                let owned = memory.whole(slot);
                (slot, Version { epoch: node.epoch(slot), seq: owned.seq }, owned.data)
            };
            let copies: Vec<_> = node.owned_slots().map(copy).collect();
            if !copies.is_empty() {
                self.snapshots.push_back((secret.clone(), copies));
            }
        }
        let peers: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        for to in peers {
            let link = self.links.remove(&(number, to)).unwrap_or_default();
            self.departing_links.push((number, to, link));
        }
        self.end(number);
    }

    fn deliver_departing(&mut self) {
        for (from, to, mut link) in std::mem::take(&mut self.departing_links) {
            while !self.is_cut(from, to)
                && !self.frozen.contains_key(&to)
                && let Some(batch) = link.next_due(self.now)
            {
                self.hand_over(batch, from, to);
            }
            if !link.in_flight.is_empty() {
                self.departing_links.push((from, to, link));
                continue;
            }
            let now = self.time_of(to);
            if let Some(process) = self.processes.get_mut(&to) {
                process.node.disconnected(keys::member(from), true, now);
            }
            self.act(to);
        }
    }

    /// Removes the process. Connected peers notice soon, unless they are cut off.
    fn end(&mut self, number: usize) {
        self.processes.remove(&number);
        let peers: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        self.links.retain(|(from, to), _| *from != number && *to != number);
        for other in peers {
            let due = self.now + self.rng.random_range(1..=NOTICE_MAX);
            self.loss_notices.push((due, other, number));
        }
        self.open.retain(|(process, _), _| *process != number);
    }

    fn dial(&mut self, from: usize, to: usize) {
        let due = self.now + self.rng.random_range(1..=DELAY_MAX);
        self.dials.push((due, from, to));
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&a) != self.cut.contains(&b)
    }

    /// The reading of its monotonic clock: the time since it started, more or less.
    fn time_of(&mut self, number: usize) -> Timestamp {
        let wall = self.wall_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.set_wall(wall);
        }
        self.monotonic_time_of(number)
    }

    fn monotonic_time_of(&self, number: usize) -> Timestamp {
        Timestamp::from_nanos(self.now - 1_000_000 * (number as u64 + 1) * SECOND)
    }

    /// The reading of its clock of counters.
    fn wall_of(&self, number: usize) -> Timestamp {
        let skew = self.processes.get(&number).map_or(0, |process| process.skew);
        Timestamp::from_nanos(self.now.wrapping_add_signed(skew))
    }

    fn pass(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.connect();
            self.deliver();
            self.notice();
            let numbers: Vec<usize> = self.processes.keys().copied().collect();
            for number in numbers {
                self.tick(number);
            }
            self.end_departed();
            self.call_at_random();
        }
    }

    /// Ends processes that have handed off every slot and answered every call.
    fn end_departed(&mut self) {
        let has_open_calls = |number: &usize| self.open.keys().any(|(process, _)| process == number);
        let done = |(number, process): (&usize, &Process)| {
            (process.is_leaving && !has_open_calls(number)).then_some(*number)
        };
        let done: Vec<usize> = self.processes.iter().filter_map(done).collect();
        for number in done {
            self.leave(number);
        }
    }

    fn connect(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.dials).into_iter().partition(|(at, ..)| *at <= self.now);
        self.dials = later;
        for (_, from, to) in due {
            if !self.processes.contains_key(&from) || self.links.contains_key(&(from, to)) {
                continue;
            }
            if self.is_cut(from, to) || self.frozen.contains_key(&from) || self.frozen.contains_key(&to) {
                self.dials.push((self.now + 100 * MILLISECOND, from, to));
            } else if self.processes.contains_key(&to) {
                for (one, other) in [(from, to), (to, from)] {
                    self.links.insert((one, other), Link::default());
                    let now = self.time_of(one);
                    let process = self.processes.get_mut(&one).expect("both were looked up");
                    process.node.connected(keys::member(other), &other.to_string(), now);
                }
            }
        }
    }

    fn deliver(&mut self) {
        let pairs: Vec<(usize, usize)> = self.links.keys().copied().collect();
        for (from, to) in pairs {
            if self.is_cut(from, to) || self.frozen.contains_key(&to) {
                continue;
            }
            let now = self.time_of(to);
            // Heartbeats.
            if !self.frozen.contains_key(&from)
                && let Some(process) = self.processes.get_mut(&to)
            {
                process.node.heard(keys::member(from), now);
            }
            loop {
                let due = |link: &mut Link| link.next_due(self.now);
                let Some(batch) = self.links.get_mut(&(from, to)).and_then(due) else { break };
                self.hand_over(batch, from, to);
            }
        }
        self.deliver_departing();
    }

    fn hand_over(&mut self, (sent_at, messages): (Timestamp, Vec<Message>), from: usize, to: usize) {
        let (now, wall) = (self.time_of(to), self.wall_of(to));
        if let Some(process) = self.processes.get_mut(&to) {
            for message in super::over_the_wire(&messages, sent_at, wall) {
                process.node.receive(keys::member(from), message, now);
            }
        }
        self.act(to);
    }

    fn notice(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.loss_notices).into_iter().partition(|(at, ..)| *at <= self.now);
        self.loss_notices = later;
        for (_, observer, dead) in due {
            if self.is_cut(observer, dead) || self.frozen.contains_key(&observer) {
                self.loss_notices.push((self.now + 100 * MILLISECOND, observer, dead));
                continue;
            }
            let now = self.time_of(observer);
            if let Some(process) = self.processes.get_mut(&observer) {
                process.node.disconnected(keys::member(dead), true, now);
            }
            self.act(observer);
        }
    }

    fn tick(&mut self, number: usize) {
        let now = self.time_of(number);
        if self.frozen.contains_key(&number) {
            return;
        }
        if self.rng.random_bool(0.8)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.tick(now);
            self.act(number);
        }
    }

    /// Sends the messages and performs the actions of a replica.
    fn act(&mut self, number: usize) {
        let (now, wall) = (self.time_of(number), self.wall_of(number));
        let Some(process) = self.processes.get_mut(&number) else { return };
        let waiting: Vec<MemberId> = process.node.ready_peers();
        let actions = process.node.actions();
        for peer in waiting {
            let messages = process.node.outgoing(peer, usize::MAX, usize::MAX, now);
            let to = (0..self.started).find(|other| keys::member(*other) == peer);
            if let Some(link) = to.and_then(|to| self.links.get_mut(&(number, to))) {
                link.last = link.last.max(self.now + self.rng.random_range(1..=DELAY_MAX));
                link.in_flight.push_back((link.last, wall, messages));
            }
        }
        let mut is_leaving = false;
        for action in actions {
            match action {
                Action::Dial(address) => {
                    let to = address.parse().expect("addresses are numbers in the simulation");
                    self.dial(number, to);
                }
                Action::Disconnect(member) => {
                    let other = (0..self.started).find(|other| keys::member(*other) == member);
                    if let Some(other) = other.filter(|other| self.links.contains_key(&(number, *other))) {
                        self.links.remove(&(number, other));
                        self.links.remove(&(other, number));
                        // The peer learns of it when it can.
                        if self.processes.contains_key(&other) {
                            self.lose_session(other, number);
                        }
                    }
                }
                Action::Complete(ticket, outcome) => {
                    let by_lease = outcome.decided_by == DecidedBy::Lease;
                    self.totals.degraded += u64::from(outcome.decided_by == DecidedBy::Degraded);
                    self.totals.by_lease += u64::from(by_lease);
                    self.finish_call(number, ticket.call, outcome.decision.verdict.passes());
                }
                Action::SetHashSecret(secret) => {
                    if let Some(process) = self.processes.get_mut(&number) {
                        process.secret = Some(secret);
                    }
                }
                Action::Report(_) => {}
                Action::Leave => is_leaving = true,
            }
        }
        if is_leaving && let Some(process) = self.processes.get_mut(&number) {
            process.is_leaving = true;
        }
    }

    /// The peer has dropped the session.
    fn lose_session(&mut self, number: usize, peer: usize) {
        if let Some(lost) = self.frozen.get_mut(&number) {
            lost.push(peer);
            return;
        }
        let now = self.time_of(number);
        if !self.is_cut(number, peer)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.disconnected(keys::member(peer), false, now);
            self.act(number);
        }
    }

    fn call_at_random(&mut self) {
        let mut calls = f64::from(self.calls_per_second) * STEP as f64 / SECOND as f64;
        while calls > 0.0 {
            if calls < 1.0 && !self.rng.random_bool(calls) {
                return;
            }
            calls -= 1.0;
            let answers =
                |process: &Process| process.node.state() != MemberState::Joining && !process.is_leaving;
            let able: Vec<usize> = self
                .processes
                .iter()
                .filter(|(number, process)| answers(process) && !self.frozen.contains_key(number))
                .map(|(number, _)| *number)
                .collect();
            if able.is_empty() {
                return;
            }
            let number = able[self.rng.random_range(0..able.len())];
            let key = self.rng.random_range(0..self.keys.len().min(self.keys_called));
            self.call(number, key);
        }
    }

    fn call(&mut self, number: usize, key: usize) {
        let (now, wall) = (self.time_of(number), self.wall_of(number));
        self.calls_started += 1;
        let ticket = self.calls_started;
        self.open.insert((number, ticket), (key, self.now));
        let TestKey { key, limit } = self.keys[key].clone();
        let Some(process) = self.processes.get_mut(&number) else { return };
        let local_check =
            Check { key, limit: &limit, operation: Operation::Charge(1), on_refusal: OnRefusal::Keep };
        match process.memory.apply(&[local_check], wall, |_| false) {
            Ok(decisions) => self.finish_call(number, ticket, decisions[0].verdict.passes()),
            Err(_) => {
                let check = RemoteCheck {
                    key,
                    limit,
                    operation: RemoteOperation::Decide(Operation::Charge(1)),
                    lease_hits: 0,
                };
                let policy =
                    ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: true };
                process.node.submit(Ticket { call: ticket, check: 0 }, check, policy, now.plus(BUDGET), now);
                self.act(number);
            }
        }
    }

    fn finish_call(&mut self, number: usize, ticket: u64, passes: bool) {
        let Some((key, called_at)) = self.open.remove(&(number, ticket)) else { return };
        self.totals.answers += 1;
        self.totals.slowest = self.totals.slowest.max(self.now - called_at);
        if passes {
            self.passed.push((self.now, key));
        }
    }

    /// Why the world is not settled, if it is not.
    pub(super) fn unsettled(&self) -> Option<String> {
        let mut owners: BTreeMap<Slot, Vec<usize>> = BTreeMap::new();
        for (number, process) in &self.processes {
            if process.node.state() == MemberState::Joining {
                return Some(format!("{number} is still joining"));
            }
            for slot in process.node.owned_slots() {
                owners.entry(slot).or_default().push(*number);
            }
        }
        let mut views = BTreeSet::new();
        for (number, process) in &self.processes {
            let view = process.node.view(self.monotonic_time_of(*number));
            if view.moving > 0 {
                return Some(format!("{number} sees {} slots moving", view.moving));
            }
            views.insert(view.view);
        }
        let twice = owners.iter().find(|(_, owners)| owners.len() > 1);
        match twice {
            Some((slot, owners)) => Some(format!("{slot:?} is owned by {owners:?}")),
            None if !self.processes.is_empty() && owners.len() != SLOTS => {
                Some("a slot has no owner".to_owned())
            }
            None if views.len() > 1 => Some("their views differ".to_owned()),
            None => None,
        }
    }

    /// The replicas that serve.
    pub(super) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.node.state() == MemberState::Serving;
        self.processes.iter().filter(|(_, process)| serves(process)).map(|(number, _)| *number).collect()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.open.len()
    }

    pub(super) fn passed(&self, key: usize) -> u64 {
        self.passed.iter().filter(|(_, passed)| *passed == key).count() as u64
    }

    /// Hits of a key that passed in this time.
    pub(super) fn passed_between(&self, key: usize, from: u64, to: u64) -> u64 {
        let between = |(at, passed): &&(u64, usize)| *passed == key && (from..to).contains(at);
        self.passed.iter().filter(between).count() as u64
    }

    /// Hits of a key that crashes may have lost.
    pub(super) fn slack(&self, key: usize) -> u64 {
        let lost = self.crashes.iter().filter(|(_, keys)| keys.contains(&key));
        lost.map(|(at, _)| self.passed_between(key, at - CRASH_WINDOW, at + CRASH_WINDOW)).sum()
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }
}
