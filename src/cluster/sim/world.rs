//! The world of a simulation: processes, links that delay, and a record of what passed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    algorithm::{Decision, Excess, Limit, Operation, laws::every_limit},
    cluster::{
        MemberId,
        holds::{answered, reserve_operations, settle_operations, settled, withdrawals},
        message::{MemberState, Message, RemoteCheck},
        node::{Action, DecidedBy, ForwardPolicy, Node, NodeSettings, Outcome, Ticket},
        sim::{
            Step, Tamper,
            calls::{self, OpenCall, Progress, Purpose, TestCheck},
            holds::{Part, Reservations},
            keys::{self, TestKey},
            record::{Effect, Entry, Fault, Faults, Record, SKEW_MAX},
        },
    },
    descriptor::{Key, Secret},
    rules::OnOwnerUnavailable,
    store::{HoldTerms, Lead, Memory, OnFull, Reserved, Settled, Slot, StoredSlot},
    time::{SECOND, Timestamp},
};

const MILLISECOND: u64 = SECOND / 1000;
/// The time step.
const STEP: u64 = 5 * MILLISECOND;
/// The longest delay of a message, unless a script sets another.
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
    snapshots: VecDeque<Option<Snapshot>>,
    /// The snapshots of the last [`Step::Store`], by replica, and its time.
    stored: (u64, BTreeMap<usize, Snapshot>),
    cut: BTreeSet<usize>,
    is_cut_one_way: bool,
    delay_max: u64,
    bytes_max: u64,
    /// Frozen processes, each with the peers that have dropped its session meanwhile.
    frozen: BTreeMap<usize, Vec<usize>>,
    pub(super) keys: Vec<TestKey>,
    pub(super) record: Record,
    /// Hits of each key that passed and were not refunded.
    refundable: Vec<u64>,
    reservations: Reservations,
    open: BTreeMap<(usize, u64), OpenCall>,
    divided_by: u32,
    /// When replicas divide their limits by which number.
    rule_changes: Vec<(u64, usize, u32)>,
    flooded: usize,
    /// Replicas that do nothing that depends on time alone: see [`Tamper::Stall`].
    stalled: BTreeSet<usize>,
    calls_started: u64,
    pub(super) totals: Totals,
    traffic: Traffic,
}

/// What is called at random.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    calls_per_second: u32,
    keys: usize,
    is_mixed: bool,
    holds_per_second: u32,
}

/// Counts of the outcomes.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) answers: u64,
    pub(super) degraded: u64,
    pub(super) by_lease: u64,
    pub(super) slowest: u64,
}

struct Process {
    node: Node,
    memory: Arc<Memory>,
    /// The secret of its key hash, once known.
    secret: Option<Secret>,
    /// The offset of its clock from the world's, in nanoseconds.
    skew: i64,
    /// What its rules divide the limits by.
    divided_by: u32,
    /// Every slot is handed off: it answers checks that it has received, and takes no more calls.
    is_leaving: bool,
}

/// What a process writes before it ends, for a later one.
#[derive(Clone)]
struct Snapshot {
    secret: Secret,
    copies: Vec<StoredSlot>,
}

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

/// The hits of a charge.
fn hits_of(check: &TestCheck) -> u64 {
    match check.operation {
        Operation::Charge(hits) => hits,
        Operation::Peek | Operation::Refund(_) => 0,
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_memory(seed, 1 << 30)
    }

    /// The same with this many bytes of memory for each replica.
    pub(super) fn with_memory(seed: u64, bytes_max: u64) -> Self {
        let keys = keys::all();
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
            stored: (0, BTreeMap::new()),
            cut: BTreeSet::new(),
            is_cut_one_way: false,
            delay_max: DELAY_MAX,
            bytes_max,
            frozen: BTreeMap::new(),
            refundable: vec![0; keys.len()],
            keys,
            record: Record::default(),
            reservations: Reservations::default(),
            open: BTreeMap::new(),
            divided_by: 1,
            rule_changes: Vec::new(),
            flooded: 0,
            stalled: BTreeSet::new(),
            calls_started: 0,
            totals: Totals::default(),
            traffic: Traffic::default(),
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
                    self.start(snapshot.flatten());
                }
            }
            Step::LoseSnapshots(count) => {
                for snapshot in self.snapshots.iter_mut().take(*count) {
                    *snapshot = None;
                }
                self.note_fault(Some(0));
            }
            Step::Store => {
                let snapshot = |number: &usize| Some((*number, self.snapshot(*number)?));
                self.stored = (self.now, self.processes.keys().filter_map(snapshot).collect());
            }
            Step::AgeSnapshots => {
                let (at, stored) = &self.stored;
                let since = at.saturating_sub(CRASH_WINDOW);
                self.snapshots = stored.values().cloned().map(Some).collect();
                self.note_fault(Some(since));
            }
            Step::Drain(number) => self.drain(*number),
            Step::DrainOwner => {
                if let Some(owner) = self.owner(self.keys[0].key) {
                    self.drain(owner);
                }
            }
            Step::Kill(number) => self.kill(&[*number]),
            Step::KillTogether(numbers) => self.kill(numbers),
            Step::Freeze(number) => {
                self.note_fault(None);
                self.frozen.insert(*number, Vec::new());
            }
            Step::Cut(numbers) => self.set_cut(numbers, false),
            Step::CutOneWay(numbers) => self.set_cut(numbers, true),
            Step::Heal => {
                if !self.cut.is_empty() {
                    self.note_fault(None);
                }
                self.cut.clear();
            }
            Step::Delay(millis) => self.delay_max = millis * MILLISECOND,
            Step::FreezeBorrower => self.freeze_borrower(),
            Step::Thaw => self.thaw(),
            Step::Skew(number, millis) => {
                self.reservations.expire_any(&mut self.record);
                let until = self.wall_of(*number);
                if let Some(process) = self.processes.get_mut(number) {
                    process.skew += *millis * MILLISECOND as i64;
                    if *millis < 0 {
                        self.record.leads += 1;
                        let at = Timestamp::from_nanos(self.now.wrapping_add_signed(process.skew));
                        process.memory.give_up_lead(Lead { at, until });
                        process.node.give_up_lead(Lead { at, until });
                    }
                }
            }
            Step::Rules(divided_by) => {
                self.divided_by = *divided_by;
                self.record.divided_by = self.record.divided_by.max(*divided_by);
                // A replica that has not seen the last change sees only this one.
                self.rule_changes.clear();
                for number in self.processes.keys() {
                    let due = self.now + self.rng.random_range(0..300 * MILLISECOND);
                    self.rule_changes.push((due, *number, *divided_by));
                }
            }
            Step::Traffic(calls_per_second) => self.set_traffic(*calls_per_second, usize::MAX, false),
            Step::Hot(calls_per_second) => self.set_traffic(*calls_per_second, 1, false),
            Step::Mixed(calls_per_second) => self.set_traffic(*calls_per_second, usize::MAX, true),
            Step::Hold(calls_per_second) => {
                self.traffic.holds_per_second = *calls_per_second;
                self.record.has_holds = true;
            }
            Step::Flood(keys) => self.flood(*keys),
            Step::Tamper(Tamper::CancelHolds(key)) => self.cancel_holds(*key),
            Step::Tamper(Tamper::SetHits(key, hits)) => {
                let TestKey { key, limit, .. } = self.keys[*key].clone();
                if let Some(owner) = self.owner(key) {
                    self.processes[&owner].memory.set(key, &limit, *hits, self.wall_of(owner));
                }
            }
            Step::Tamper(Tamper::Stall(number)) => {
                self.stalled.insert(*number);
            }
            Step::Tamper(Tamper::ShrinkMemory(bytes_max)) => self.bytes_max = *bytes_max,
            Step::Pass(time) => self.pass(time.as_nanos() as u64),
            Step::Settle => {
                let end = self.now + 20 * SECOND;
                while self.unsettled().is_some() && self.now < end {
                    self.pass(STEP);
                }
            }
        }
    }

    fn set_traffic(&mut self, calls_per_second: u32, keys: usize, is_mixed: bool) {
        // No traffic at all has no reservations either.
        let holds_per_second = if calls_per_second > 0 { self.traffic.holds_per_second } else { 0 };
        self.traffic = Traffic { calls_per_second, keys, is_mixed, holds_per_second };
        self.record.is_mixed |= is_mixed;
    }

    fn set_cut(&mut self, numbers: &[usize], is_one_way: bool) {
        self.cut = numbers.iter().copied().collect();
        self.is_cut_one_way = is_one_way;
        self.record.cut_at = Some(self.now);
        self.note_fault(None);
    }

    /// Records a fault that concerns all keys, and may forget what passed since then.
    fn note_fault(&mut self, forgets_since: Option<u64>) {
        let forgets = forgets_since.map(|since| (since, self.now));
        self.record.faults.push(Fault { at: self.now, forgets, keys: (0..self.keys.len()).collect() });
    }

    fn drain(&mut self, number: usize) {
        let now = self.time_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.drain(now);
        }
    }

    fn freeze_borrower(&mut self) {
        let (end, traffic) = (self.now + 5 * SECOND, self.traffic);
        while self.now < end {
            if self.borrower().is_some() {
                self.traffic.calls_per_second = 0;
                while !self.open.is_empty() {
                    self.pass(STEP);
                }
                if let Some(borrower) = self.borrower() {
                    self.frozen.insert(borrower, Vec::new());
                    return;
                }
                self.traffic = traffic;
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

    /// The owner of a key.
    fn owner(&self, key: Key) -> Option<usize> {
        let slot = Slot::of(key, SLOTS);
        let owns = |number: &usize| self.processes[number].node.owned_slots().any(|owned| owned == slot);
        self.processes.keys().copied().find(owns)
    }

    fn thaw(&mut self) {
        for (number, lost) in std::mem::take(&mut self.frozen) {
            let open = self.open.range_mut((number, 0)..(number + 1, 0));
            open.for_each(|(_, call)| call.waits_since = self.now);
            for peer in lost {
                self.lose_session(number, peer);
            }
        }
    }

    fn start(&mut self, snapshot: Option<Snapshot>) {
        let number = self.started;
        self.started += 1;
        let memory = Arc::new(Memory::new(self.bytes_max, OnFull::Deny).with_slots(SLOTS).shared());
        let skew_max = (SKEW_MAX / MILLISECOND) as i64;
        let skew =
            self.rng.random_range(0..2) as i64 * self.rng.random_range(0..skew_max) * MILLISECOND as i64;
        let now = self.time_of(number);
        let mut node =
            Node::new(keys::member(number), number.to_string(), NODE_SETTINGS, memory.clone(), now);
        if let Some(Snapshot { secret, copies }) = snapshot {
            node.restore(secret, copies, now);
        }
        self.processes.insert(
            number,
            Process { node, memory, secret: None, skew, divided_by: self.divided_by, is_leaving: false },
        );
        let others: Vec<usize> = self.processes.keys().copied().filter(|other| *other != number).collect();
        let reachable: Vec<usize> =
            others.iter().copied().filter(|other| !self.is_cut_between(number, *other)).collect();
        for other in others {
            self.dial(number, other);
        }
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.seeds_tried(reachable.is_empty());
        }
    }

    fn kill(&mut self, numbers: &[usize]) {
        let killed: BTreeSet<usize> =
            numbers.iter().copied().filter(|number| self.processes.contains_key(number)).collect();
        if killed.is_empty() {
            return;
        }
        let at_risk: BTreeSet<Slot> =
            killed.iter().flat_map(|number| self.processes[number].node.slots_at_risk()).collect();
        let window = CRASH_WINDOW + 4 * (self.delay_max - self.delay_max.min(DELAY_MAX));
        // Backups do not cross a cut.
        let cut_at = self.record.cut_at.filter(|_| !self.cut.is_empty()).unwrap_or(self.now);
        let recent = self.now.min(cut_at).saturating_sub(window);
        let (mut lost, mut forgotten) = (BTreeSet::new(), BTreeSet::new());
        for key in 0..self.keys.len() {
            let slot = Slot::of(self.keys[key].key, SLOTS);
            if at_risk.contains(&slot) {
                if self.has_recent_copy(slot, &killed) { &mut lost } else { &mut forgotten }.insert(key);
            }
        }
        for (since, keys) in [(recent, lost), (0, forgotten)] {
            self.record.faults.push(Fault { at: self.now, forgets: Some((since, self.now + window)), keys });
        }
        for number in killed {
            for key in 0..self.keys.len() {
                let hits =
                    self.processes[&number].node.borrowed(self.keys[key].key, self.monotonic_time_of(number));
                self.note(key, Effect::Lost(hits), self.now, false);
            }
            if let Some(snapshot) = self.stored.1.get(&number) {
                self.snapshots.push_back(Some(snapshot.clone()));
            }
            self.end(number);
        }
    }

    /// Whether a replica that survives has a copy of the slot that its owner has sent, and has not gone on sending to one
    /// that is killed too.
    fn has_recent_copy(&self, slot: Slot, killed: &BTreeSet<usize>) -> bool {
        let (dead, survivors): (Vec<_>, Vec<_>) =
            self.processes.iter().partition(|(number, _)| killed.contains(number));
        let newest = |processes: &[(&usize, &Process)]| {
            processes.iter().filter_map(|(_, process)| process.node.newest_version(slot)).max()
        };
        let is_backed_up_at_dead = dead.iter().any(|(_, process)| {
            let receiver = process.node.backed_up_at(slot);
            killed.iter().any(|number| receiver == Some(keys::member(*number)))
        });
        let (dead, copy) = (newest(&dead), newest(&survivors));
        !is_backed_up_at_dead && copy.map(|copy| copy.epoch) >= dead.map(|dead| dead.epoch)
    }

    /// What the process writes to its snapshot.
    fn snapshot(&self, number: usize) -> Option<Snapshot> {
        let Process { node, memory, secret, .. } = self.processes.get(&number)?;
        let now = self.wall_of(number);
        let copy = |slot| node.snapshot_source(slot).read(slot, memory, now);
        let copies: Vec<_> = memory.each_slot().filter_map(copy).collect();
        let secret = secret.clone()?;
        (!copies.is_empty()).then_some(Snapshot { secret, copies })
    }

    /// The process has said goodbye, and writes a snapshot.
    fn leave(&mut self, number: usize) {
        let snapshot = self.snapshot(number);
        self.snapshots.extend(snapshot.map(Some));
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
        let calls = self.open.extract_if(.., |(process, _), _| *process == number);
        let lost: Vec<OpenCall> = calls.map(|(_, call)| call).collect();
        for OpenCall { purpose, checks, called_at, .. } in lost {
            match purpose {
                Purpose::Settle(number) | Purpose::SettleAgain(number) => {
                    let is_first = matches!(purpose, Purpose::Settle(_));
                    self.finish_settlement(number, is_first, &checks, called_at, None);
                    continue;
                }
                Purpose::Decide | Purpose::Reserve(_) | Purpose::ReserveAgain(..) => {}
            }
            for check in checks {
                if let (Some(key), Operation::Charge(hits) | Operation::Refund(hits)) =
                    (check.number, check.operation)
                {
                    self.note(key, Effect::Lost(hits), called_at, false);
                }
            }
        }
    }

    fn note(&mut self, key: usize, effect: Effect, called_at: u64, degraded: bool) {
        let answered_at = self.now;
        self.record.note(Entry { key, effect, called_at, answered_at, degraded });
    }

    fn dial(&mut self, from: usize, to: usize) {
        let due = self.now + self.rng.random_range(1..=self.delay_max);
        self.dials.push((due, from, to));
    }

    /// Whether nothing that `from` sends reaches `to`.
    fn is_cut(&self, from: usize, to: usize) -> bool {
        if self.is_cut_one_way {
            self.cut.contains(&from) && !self.cut.contains(&to)
        } else {
            self.cut.contains(&from) != self.cut.contains(&to)
        }
    }

    fn is_cut_between(&self, a: usize, b: usize) -> bool {
        self.is_cut(a, b) || self.is_cut(b, a)
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
            self.change_rules();
            self.connect();
            self.deliver();
            self.notice();
            let numbers: Vec<usize> = self.processes.keys().copied().collect();
            for number in numbers {
                self.tick(number);
            }
            self.end_departed();
            self.call_at_random();
            self.hold_at_random();
        }
    }

    fn change_rules(&mut self) {
        for (_, number, divided_by) in self.rule_changes.extract_if(.., |(due, ..)| *due <= self.now) {
            if let Some(process) = self.processes.get_mut(&number) {
                process.divided_by = divided_by;
                process.node.rules_changed(divided_by.into());
            }
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
            if self.is_cut_between(from, to)
                || self.frozen.contains_key(&from)
                || self.frozen.contains_key(&to)
            {
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
            if self.is_cut_between(observer, dead) || self.frozen.contains_key(&observer) {
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
        if self.frozen.contains_key(&number) || self.stalled.contains(&number) {
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
                link.last = link.last.max(self.now + self.rng.random_range(1..=self.delay_max));
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
                    self.totals.degraded += u64::from(outcome.decided_by == DecidedBy::Degraded);
                    self.totals.by_lease += u64::from(outcome.decided_by == DecidedBy::Lease);
                    let call = self.open.get_mut(&(number, ticket.call));
                    if call.is_some_and(|call| call.complete(ticket.check, outcome)) {
                        self.advance(number, ticket.call);
                    }
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
        if !self.is_cut(peer, number)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.disconnected(keys::member(peer), false, now);
            self.act(number);
        }
    }

    fn call_at_random(&mut self) {
        let mut calls = f64::from(self.traffic.calls_per_second) * STEP as f64 / SECOND as f64;
        while calls > 0.0 {
            if calls < 1.0 && !self.rng.random_bool(calls) {
                return;
            }
            calls -= 1.0;
            let Some(number) = self.random_replica() else { return };
            let checks = if self.traffic.is_mixed {
                self.mixed_checks(number)
            } else {
                let key = self.rng.random_range(0..self.keys.len().min(self.traffic.keys));
                vec![self.check(number, key, Operation::Charge(1))]
            };
            self.call(number, checks);
        }
    }

    fn hold_at_random(&mut self) {
        self.reservations.expire(self.now, &mut self.record);
        let chance = f64::from(self.traffic.holds_per_second) * STEP as f64 / SECOND as f64;
        if chance <= 0.0 || !self.rng.random_bool(chance.min(1.0)) {
            return;
        }
        let Some(number) = self.random_replica() else { return };
        let to_settle = self.reservations.any_to_settle(self.now, &mut self.rng);
        match to_settle.filter(|_| self.rng.random_bool(0.3)) {
            Some(hold) => {
                self.reservations.begin_settling(hold, &mut self.record);
                self.settle(number, hold, Purpose::Settle(hold));
            }
            None => {
                let mut checks: Vec<TestCheck> = Vec::new();
                for _ in 0..self.rng.random_range(1..=3) {
                    let key = self.rng.random_range(0..self.keys.len());
                    let is_new = checks.iter().all(|check| check.number != Some(key));
                    if is_new && !matches!(self.keys[key].limit.excess(), Excess::Overdraft(_)) {
                        let hits = self.rng.random_range(1..=4);
                        checks.push(self.hold_check(number, key, hits));
                    }
                }
                let terms = self.reservations.terms(&mut self.rng);
                self.reserve(number, checks, Purpose::Reserve(terms));
            }
        }
    }

    /// A check that only the owner decides.
    fn hold_check(&self, number: usize, key: usize, hits: u64) -> TestCheck {
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
        TestCheck { policy, ..self.check(number, key, Operation::Charge(hits)) }
    }

    /// Reserves as the limiter does: here if this replica owns all counters, otherwise at the owners.
    fn reserve(&mut self, number: usize, checks: Vec<TestCheck>, purpose: Purpose) {
        let (Purpose::Reserve(terms) | Purpose::ReserveAgain(_, terms)) = &purpose else { return };
        let wall = self.wall_of(number);
        let memory = &self.processes[&number].memory;
        if let Ok(Reserved { is_held, decisions }) =
            memory.reserve(&calls::of_store(&checks), terms, wall, calls::refused)
        {
            let answer = is_held.then(|| decisions.as_ref());
            return self.finish_reservation(purpose, &checks, self.now, answer, |_| Effect::Refused, false);
        }
        let operations = reserve_operations(&calls::of_store(&checks), terms);
        self.submit_holds(number, OpenCall::of_holds(purpose, checks, operations, self.now));
    }

    /// Settles a reservation at random hits, at the owners.
    fn settle(&mut self, number: usize, hold: usize, purpose: Purpose) {
        let parts = self.reservations.get(hold).parts.clone();
        let mut check = |Part { key, hits, .. }: &Part| {
            let actual = self.rng.random_range(0..=hits + 1);
            self.hold_check(number, *key, actual)
        };
        let checks: Vec<TestCheck> = parts.iter().map(&mut check).collect();
        let id = self.reservations.get(hold).terms.id.clone();
        let operations = settle_operations(&calls::of_store(&checks), &id);
        self.submit_holds(number, OpenCall::of_holds(purpose, checks, operations, self.now));
    }

    fn submit_holds(&mut self, number: usize, call: OpenCall) {
        self.calls_started += 1;
        let ticket = self.calls_started;
        self.open.insert((number, ticket), call);
        self.advance(number, ticket);
    }

    /// The owners have answered, or not.
    fn finish_holds(&mut self, number: usize, call: OpenCall, outcomes: &[Outcome]) {
        let OpenCall { purpose, checks, called_at, waits_since, .. } = call;
        self.totals.answers += 1;
        self.totals.slowest = self.totals.slowest.max(self.now - waits_since);
        match &purpose {
            Purpose::Decide => {}
            Purpose::Settle(hold) | Purpose::SettleAgain(hold) => {
                let (is_first, answer) = (matches!(purpose, Purpose::Settle(_)), settled(outcomes).ok());
                self.finish_settlement(*hold, is_first, &checks, called_at, answer.as_deref());
                if is_first
                    && answer.is_some()
                    && self.rng.random_bool(0.3)
                    && let Some(other) = self.random_replica()
                {
                    self.settle(other, *hold, Purpose::SettleAgain(*hold));
                }
            }
            Purpose::Reserve(terms) | Purpose::ReserveAgain(_, terms) => {
                let answer = answered(outcomes).ok();
                let held = answer.as_deref().filter(|decisions| !calls::refused(decisions));
                if held.is_none() {
                    self.withdraw(number, &checks, terms);
                }
                let passes = |index: usize| answer.as_ref().is_some_and(|all| all[index].verdict.passes());
                let effect = |index| if passes(index) { Effect::TakenBack } else { Effect::Refused };
                let is_unanswered = answer.is_none();
                self.finish_reservation(purpose.clone(), &checks, called_at, held, effect, is_unanswered);
            }
        }
    }

    fn withdraw(&mut self, number: usize, checks: &[TestCheck], terms: &HoldTerms) {
        let now = self.time_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            let checks = withdrawals(&calls::of_store(checks), terms);
            checks.into_iter().for_each(|check| process.node.send(check, now));
        }
        self.act(number);
    }

    /// `held` has the decisions if everything is held; otherwise `effect` is what became of each check.
    fn finish_reservation(
        &mut self,
        purpose: Purpose,
        checks: &[TestCheck],
        called_at: u64,
        held: Option<&[Decision]>,
        effect: impl Fn(usize) -> fn(u64) -> Effect,
        is_unanswered: bool,
    ) {
        let part = |(index, check): (usize, &TestCheck)| Part {
            key: check.number.expect("a key of the world"),
            limit: check.limit.clone(),
            hits: hits_of(check),
            remaining: held.map_or(0, |decisions| decisions[index].remaining),
        };
        let parts: Vec<Part> = checks.iter().enumerate().map(part).collect();
        match (purpose, held) {
            (Purpose::Reserve(terms), Some(_)) => {
                for Part { key, hits, .. } in &parts {
                    self.note(*key, Effect::Passed(*hits), called_at, false);
                }
                let again = HoldTerms { attempt: self.rng.random(), ..terms.clone() };
                let hold = self.reservations.held(terms, parts, called_at, self.now);
                if self.rng.random_bool(0.2)
                    && let Some(other) = self.random_replica()
                {
                    let parts = self.reservations.get(hold).parts.clone();
                    let check = |Part { key, hits, .. }: &Part| self.hold_check(other, *key, *hits);
                    let checks = parts.iter().map(check).collect();
                    self.reserve(other, checks, Purpose::ReserveAgain(hold, again));
                }
            }
            (Purpose::ReserveAgain(hold, _), _) => {
                let left = |parts: &[Part]| parts.iter().map(|part| part.remaining).collect::<Vec<_>>();
                let first = left(&self.reservations.get(hold).parts);
                if held.is_none() || left(&parts) != first {
                    let problem = format!("a repeated reservation answers {held:?}, not {first:?}");
                    self.reservations.wrong.get_or_insert(problem);
                    // After a fault it may be a new one.
                    for Part { key, hits, .. } in parts {
                        self.note(key, Effect::Lost(hits), called_at, false);
                    }
                }
            }
            (_, None) => {
                for (index, Part { key, hits, .. }) in parts.into_iter().enumerate() {
                    self.note(key, effect(index)(hits), called_at, is_unanswered);
                }
            }
            (Purpose::Decide | Purpose::Settle(_) | Purpose::SettleAgain(_), Some(_)) => {}
        }
    }

    fn finish_settlement(
        &mut self,
        hold: usize,
        is_first: bool,
        checks: &[TestCheck],
        called_at: u64,
        answer: Option<&[Settled]>,
    ) {
        let (actual, times): (Vec<u64>, _) = (checks.iter().map(hits_of).collect(), (called_at, self.now));
        if is_first {
            self.reservations.settled(hold, &actual, answer, times, &mut self.record);
        } else {
            self.reservations.settled_again(hold, &actual, answer, times, &mut self.record);
        }
    }

    /// Cancels the open reservations of a key at its owner, without their callers.
    fn cancel_holds(&mut self, key: usize) {
        let Some(owner) = self.owner(self.keys[key].key) else { return };
        let (check, wall) = (self.hold_check(owner, key, 0), self.wall_of(owner));
        for id in self.reservations.open_ids(key) {
            let checks = std::slice::from_ref(&check);
            // Without an answer there is nothing to break.
            let _ = self.processes[&owner].memory.settle(&calls::of_store(checks), &id, wall);
        }
    }

    /// A replica that takes calls.
    fn random_replica(&mut self) -> Option<usize> {
        let answers = |process: &Process| process.node.state() != MemberState::Joining && !process.is_leaving;
        let able: Vec<usize> = self
            .processes
            .iter()
            .filter(|(number, process)| answers(process) && !self.frozen.contains_key(number))
            .map(|(number, _)| *number)
            .collect();
        (!able.is_empty()).then(|| able[self.rng.random_range(0..able.len())])
    }

    fn check(&self, number: usize, key: usize, operation: Operation) -> TestCheck {
        let TestKey { key: its_key, limit, .. } = &self.keys[key];
        let divided_by = self.processes[&number].divided_by;
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::LocalShare, lease: true };
        TestCheck { number: Some(key), key: *its_key, limit: limit.share(divided_by), operation, policy }
    }

    /// The checks of a call with any operation.
    fn mixed_checks(&mut self, number: usize) -> Vec<TestCheck> {
        let descriptors = if self.rng.random_bool(0.3) { self.rng.random_range(2..=4) } else { 1 };
        let mut checks: Vec<TestCheck> = Vec::new();
        for _ in 0..descriptors {
            let key = self.rng.random_range(0..self.keys.len());
            if checks.iter().any(|check| check.number == Some(key)) {
                continue;
            }
            let hits = self.rng.random_range(1..=4);
            let operation = match self.rng.random_range(0..10) {
                0 => Operation::Peek,
                // What was admitted, and was not refunded yet.
                1 | 2 if self.refundable[key] >= hits => {
                    self.refundable[key] -= hits;
                    Operation::Refund(hits)
                }
                3 | 4 => Operation::Charge(hits),
                _ => Operation::Charge(1),
            };
            let mut check = self.check(number, key, operation);
            check.policy.lease = self.rng.random_bool(0.7);
            if let Limit::Classic(_) = check.limit
                && self.rng.random_bool(0.3)
            {
                // An override uses the counter of the classic limit with the same window.
                check.limit = check.limit.share(2);
            }
            checks.push(check);
        }
        checks
    }

    /// Charges this many new keys, at any replica.
    fn flood(&mut self, keys: usize) {
        let limit = every_limit(1_000, 100 * 86_400 * SECOND).remove(1);
        for _ in 0..keys {
            let Some(number) = self.random_replica() else { return };
            self.flooded += 1;
            let key = keys::key(1_000_000 + self.flooded);
            let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
            let (limit, operation) = (limit.clone(), Operation::Charge(1));
            self.call(number, vec![TestCheck { number: None, key, limit, operation, policy }]);
            if self.flooded.is_multiple_of(50) {
                self.pass(STEP);
            }
        }
    }

    fn call(&mut self, number: usize, checks: Vec<TestCheck>) {
        let wall = self.wall_of(number);
        self.calls_started += 1;
        let (ticket, call) = (self.calls_started, OpenCall::new(checks, self.now));
        let has_refund = call.checks.iter().any(|check| matches!(check.operation, Operation::Refund(_)));
        if !has_refund {
            let applied =
                self.processes[&number].memory.apply(&calls::of_store(&call.checks), wall, calls::refused);
            if let Ok(decisions) = applied {
                return self.finish_call(call, !calls::refused(&decisions), |_| false);
            }
        }
        self.open.insert((number, ticket), call);
        self.advance(number, ticket);
    }

    /// Submits the next round of a call, or ends it.
    fn advance(&mut self, number: usize, ticket: u64) {
        let now = self.time_of(number);
        let Some(call) = self.open.get_mut(&(number, ticket)) else { return };
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (taken_back_here, progress) = call.advance();
        for (index, mut outcome) in taken_back_here {
            let TestCheck { key, limit, .. } = &call.checks[index];
            process.node.take_back_here(*key, limit, &mut outcome);
        }
        match progress {
            Progress::Submitted(operations) => {
                let deadline = now.plus(BUDGET - (self.now - call.called_at).min(BUDGET));
                for (check, (index, operation)) in (0..).zip(operations) {
                    let TestCheck { key, limit, policy, .. } = call.checks[index].clone();
                    let remote_check = RemoteCheck { key, limit, operation, lease_hits: 0 };
                    process.node.submit(Ticket { call: ticket, check }, remote_check, policy, deadline, now);
                }
                self.act(number);
            }
            Progress::Finished(outcomes) => {
                let call = self.open.remove(&(number, ticket)).expect("it was looked up");
                if !matches!(call.purpose, Purpose::Decide) {
                    return self.finish_holds(number, call, &outcomes);
                }
                let passes = outcomes.iter().all(|outcome| outcome.decision.verdict.passes());
                let is_degraded = |outcome: &Outcome| outcome.decided_by == DecidedBy::Degraded;
                self.finish_call(call, passes, |check| is_degraded(&outcomes[check]));
            }
        }
    }

    fn finish_call(&mut self, call: OpenCall, passes: bool, is_degraded: impl Fn(usize) -> bool) {
        let OpenCall { checks, called_at, waits_since, taken_back, .. } = call;
        self.totals.answers += 1;
        self.totals.slowest = self.totals.slowest.max(self.now - waits_since);
        for (index, check) in checks.iter().enumerate() {
            let Some(key) = check.number else { continue };
            let effect = match check.operation {
                Operation::Peek => continue,
                Operation::Charge(hits) if passes => Effect::Passed(hits),
                Operation::Charge(hits) if taken_back.contains(&index) => Effect::TakenBack(hits),
                Operation::Charge(hits) => Effect::Refused(hits),
                Operation::Refund(hits) => Effect::Refunded(hits),
            };
            if let Effect::Passed(hits) = effect
                && !is_degraded(index)
            {
                self.refundable[key] += hits;
            }
            self.note(key, effect, called_at, is_degraded(index));
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
            if process.node.is_isolated() {
                return Some(format!("{number} is isolated"));
            }
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

    /// The first promise that is broken now.
    pub(super) fn broken(&self, faults: Faults) -> Option<String> {
        let runs = |((number, _), _): &(&(usize, u64), &OpenCall)| !self.frozen.contains_key(number);
        let waits = self.open.iter().filter(runs).map(|(_, call)| self.now - call.waits_since).max();
        let longest = waits.unwrap_or_default().max(self.totals.slowest);
        if longest > BUDGET + SECOND / 10 {
            return Some(format!("a call waits for {} ms", longest / MILLISECOND));
        }
        if faults == Faults::None && self.totals.degraded > 0 {
            return Some(format!("{} answers were degraded", self.totals.degraded));
        }
        if faults == Faults::None
            && let Some(wrong) = &self.reservations.wrong
        {
            return Some(wrong.clone());
        }
        let bytes = self.processes.values().map(|process| process.memory.stats().bytes).max();
        if bytes.is_some_and(|bytes| bytes as u64 > self.bytes_max) {
            return Some(format!("counters take {bytes:?} bytes, the most is {}", self.bytes_max));
        }
        let refunding = self.refunding();
        let long = self.keys.iter().enumerate().filter(|(_, key)| !key.is_short);
        let too_many = |(key, TestKey { limit, .. }): (usize, &TestKey)| {
            let (passed, most) =
                (self.record.passed(key), self.record.most(key, limit, faults) + refunding[key]);
            (passed > most).then(|| format!("{passed} hits passed, the most is {most}: {limit:?}"))
        };
        let mut long = long.map(too_many);
        long.find_map(|broken| broken)
            .or_else(|| self.record.broken_short_limit(&self.keys, &refunding, faults, self.now))
    }

    /// The refunds of each key by calls that are not answered yet: the owner may have applied them already.
    fn refunding(&self) -> Vec<u64> {
        let mut refunding = vec![0; self.keys.len()];
        for check in self.open.values().flat_map(|call| &call.checks) {
            if let (Some(key), Operation::Refund(hits)) = (check.number, check.operation) {
                refunding[key] += hits;
            }
        }
        refunding
    }

    /// What the rules divide the limits by.
    pub(super) fn divided_by(&self) -> u32 {
        self.divided_by
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }
}
