//! The world of a simulation: processes, links that delay, and the books that are kept of what passed.

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
        message::{Deed, Message, Question, State, Version},
        node::{Action, By, Node, Ticket, Tuning, Wish},
        sim::{Step, keys, keys::Asked},
    },
    descriptor::Secret,
    rules::OnOwnerUnavailable,
    store::{Check, Lead, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::{SECOND, Timestamp},
};

const MILLISECOND: u64 = SECOND / 1000;
/// One step of the world.
const STEP: u64 = 5 * MILLISECOND;
/// The longest that a message takes.
const DELAY_MAX: u64 = 20 * MILLISECOND;
/// The longest until a death is noticed by those who were linked.
const NOTICE_MAX: u64 = 40 * MILLISECOND;
/// How long a caller waits.
pub(super) const BUDGET: u64 = 500 * MILLISECOND;
/// What a crash may cost: what passed since the last backup that arrived, and until everybody knows.
const CRASH_WINDOW: u64 = 350 * MILLISECOND;
/// Few, so that every one of them has its troubles.
const SLOTS: usize = 16;

pub(super) const TUNING: Tuning = Tuning {
    silence: Duration::from_secs(1),
    forget_after: Duration::from_secs(8),
    patience: Duration::from_millis(400),
    backup_interval: Some(Duration::from_millis(100)),
    lease_from: Some(50),
    transfers_max: 3,
};

/// All there is.
pub(super) struct World {
    dice: StdRng,
    now: u64,
    processes: BTreeMap<usize, Process>,
    started: usize,
    links: BTreeMap<(usize, usize), Link>,
    dials: Vec<(u64, usize, usize)>,
    notices: Vec<(u64, usize, usize)>,
    /// What those who have left said last: it still arrives, and then it is known that they have left.
    farewells: Vec<(usize, usize, Link)>,
    /// What those who have left held, oldest first, until somebody resumes with it.
    snapshots: VecDeque<Snapshot>,
    cut: BTreeSet<usize>,
    /// Processes that are stopped, and those with whom each has lost its session meanwhile.
    frozen: BTreeMap<usize, Vec<usize>>,
    pub(super) keys: Vec<Asked>,
    /// When a hit of a key passed.
    passed: Vec<(u64, usize)>,
    /// When which keys lost their holder.
    crashes: Vec<(u64, BTreeSet<usize>)>,
    open: BTreeMap<(usize, u64), (usize, u64)>,
    tickets: u64,
    pub(super) books: Books,
    rate: u32,
    keys_asked: usize,
}

/// What is counted of the answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) answers: u64,
    pub(super) degraded: u64,
    pub(super) by_lease: u64,
    pub(super) slowest: u64,
    /// Hits that passed while the world was cut, and in the second after.
    pub(super) cut_at: Option<u64>,
}

struct Process {
    node: Node,
    memory: Arc<Memory>,
    /// What it hashes keys with, once it knows.
    secret: Option<Secret>,
    /// Its clock less the world's, in nanoseconds.
    skew: i64,
    /// All is handed on: it answers what it was asked before, and no more.
    leaves: bool,
}

/// What a process writes before it ends, for one that comes after it.
type Snapshot = (Secret, Vec<(Slot, Version, SlotData)>);

/// One direction of a session. What is on its way arrives in order, once.
#[derive(Default)]
struct Link {
    on_the_way: VecDeque<(u64, Timestamp, Vec<Message>)>,
    last: u64,
}

impl Link {
    /// What has arrived by now, if anything.
    fn next_due(&mut self, now: u64) -> Option<(Timestamp, Vec<Message>)> {
        self.on_the_way
            .pop_front_if(|(due, ..)| *due <= now)
            .map(|(_, sent_at, messages)| (sent_at, messages))
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: StdRng::seed_from_u64(seed),
            now: 1_790_000_000 * SECOND,
            processes: BTreeMap::new(),
            started: 0,
            links: BTreeMap::new(),
            dials: Vec::new(),
            notices: Vec::new(),
            farewells: Vec::new(),
            snapshots: VecDeque::new(),
            cut: BTreeSet::new(),
            frozen: BTreeMap::new(),
            keys: keys::all(),
            passed: Vec::new(),
            crashes: Vec::new(),
            open: BTreeMap::new(),
            tickets: 0,
            books: Books::default(),
            rate: 0,
            keys_asked: usize::MAX,
        }
    }

    pub(super) fn do_all(&mut self, steps: &[Step]) {
        for step in steps {
            self.perform(step);
        }
    }

    pub(super) fn perform(&mut self, step: &Step) {
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
                self.books.cut_at = Some(self.now);
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
            Step::Traffic(rate) => (self.rate, self.keys_asked) = (*rate, usize::MAX),
            Step::Hot(rate) => (self.rate, self.keys_asked) = (*rate, 1),
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
        let (end, rate) = (self.now + 5 * SECOND, self.rate);
        while self.now < end {
            if self.borrower().is_some() {
                self.rate = 0;
                while !self.open.is_empty() {
                    self.pass(STEP);
                }
                if let Some(borrower) = self.borrower() {
                    self.frozen.insert(borrower, Vec::new());
                    return;
                }
                self.rate = rate;
            }
            self.pass(STEP);
        }
        panic!("no replica has borrowed anything");
    }

    /// A replica's node, its time, and a key that another replica holds.
    pub(super) fn asker(&mut self, number: usize) -> (&mut Node, Timestamp, Asked, MemberId) {
        let now = self.time_of(number);
        let node = &mut self.processes.get_mut(&number).expect("a replica that was started").node;
        let held: Vec<Slot> = node.slots_held().collect();
        let afar = self.keys.iter().find(|asked| !held.contains(&Slot::of(asked.key, SLOTS)));
        let owner = keys::member(1 - number);
        (node, now, afar.expect("a key that the other holds").clone(), owner)
    }

    /// A replica that has borrowed hits of the first key and not used them.
    fn borrower(&self) -> Option<usize> {
        let key = self.keys[0].key;
        let borrows =
            |number: &usize| 1 < self.processes[number].node.borrowed(key, self.even_time_of(*number));
        self.processes.keys().copied().find(borrows)
    }

    /// The replica that holds the first key.
    fn owner(&self) -> Option<usize> {
        let slot = Slot::of(self.keys[0].key, SLOTS);
        let holds = |number: &usize| self.processes[number].node.slots_held().any(|held| held == slot);
        self.processes.keys().copied().find(holds)
    }

    fn thaw(&mut self) {
        for (number, lost) in std::mem::take(&mut self.frozen) {
            for gone in lost {
                self.lose_session(number, gone);
            }
        }
    }

    fn start(&mut self, snapshot: Option<Snapshot>) {
        let number = self.started;
        self.started += 1;
        let memory = Arc::new(Memory::new(1 << 30, OnFull::Deny).with_slots(SLOTS).shared());
        let skew = self.dice.random_range(0..2) as i64 * self.dice.random_range(0..40) * MILLISECOND as i64;
        let now = self.time_of(number);
        let mut node = Node::new(keys::member(number), number.to_string(), TUNING, memory.clone(), now);
        if let Some((secret, copies)) = snapshot {
            node.restore(secret, copies, now);
        }
        self.processes.insert(number, Process { node, memory, secret: None, skew, leaves: false });
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
        let held: BTreeSet<Slot> = process.node.slots_at_risk().collect();
        let keys = (0..self.keys.len()).filter(|key| held.contains(&Slot::of(self.keys[*key].key, SLOTS)));
        self.crashes.push((self.now, keys.collect()));
        self.end(number);
    }

    /// The process has said goodbye, and keeps what it still holds.
    fn leave(&mut self, number: usize) {
        if let Some(Process { node, memory, secret: Some(secret), .. }) = self.processes.get(&number) {
            let copy = |slot| {
                let held = memory.whole(slot);
                (slot, Version { epoch: node.epoch(slot), seq: held.seq }, held.data)
            };
            let copies: Vec<_> = node.slots_held().map(copy).collect();
            if !copies.is_empty() {
                self.snapshots.push_back((secret.clone(), copies));
            }
        }
        let linked: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        for to in linked {
            let link = self.links.remove(&(number, to)).unwrap_or_default();
            self.farewells.push((number, to, link));
        }
        self.end(number);
    }

    fn hear_farewells(&mut self) {
        for (from, to, mut link) in std::mem::take(&mut self.farewells) {
            while !self.is_cut(from, to)
                && !self.frozen.contains_key(&to)
                && let Some(batch) = link.next_due(self.now)
            {
                self.hand_over(batch, from, to);
            }
            if !link.on_the_way.is_empty() {
                self.farewells.push((from, to, link));
                continue;
            }
            let now = self.time_of(to);
            if let Some(process) = self.processes.get_mut(&to) {
                process.node.lost(keys::member(from), true, now);
            }
            self.act(to);
        }
    }

    /// The process is no more. Those who were linked notice soon, unless they are cut off.
    fn end(&mut self, number: usize) {
        self.processes.remove(&number);
        let linked: Vec<usize> =
            self.links.keys().filter(|(from, _)| *from == number).map(|(_, to)| *to).collect();
        self.links.retain(|(from, to), _| *from != number && *to != number);
        for other in linked {
            let due = self.now + self.dice.random_range(1..=NOTICE_MAX);
            self.notices.push((due, other, number));
        }
        self.open.retain(|(process, _), _| *process != number);
    }

    fn dial(&mut self, from: usize, to: usize) {
        let due = self.now + self.dice.random_range(1..=DELAY_MAX);
        self.dials.push((due, from, to));
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&a) != self.cut.contains(&b)
    }

    /// What its even clock shows: the time since it began, more or less.
    fn time_of(&mut self, number: usize) -> Timestamp {
        let wall = self.wall_of(number);
        if let Some(process) = self.processes.get_mut(&number) {
            process.node.set_wall(wall);
        }
        self.even_time_of(number)
    }

    fn even_time_of(&self, number: usize) -> Timestamp {
        Timestamp::from_nanos(self.now - 1_000_000 * (number as u64 + 1) * SECOND)
    }

    /// What its clock of counters shows.
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
                self.turn(number);
            }
            self.see_off();
            self.ask_by_chance();
        }
    }

    /// Ends those who have handed everything on and answered everything.
    fn see_off(&mut self) {
        let owes = |number: &usize| self.open.keys().any(|(process, _)| process == number);
        let done =
            |(number, process): (&usize, &Process)| (process.leaves && !owes(number)).then_some(*number);
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
                    process.node.linked(keys::member(other), &other.to_string(), now);
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
        self.hear_farewells();
    }

    fn hand_over(&mut self, (sent_at, messages): (Timestamp, Vec<Message>), from: usize, to: usize) {
        let (now, wall) = (self.time_of(to), self.wall_of(to));
        if let Some(process) = self.processes.get_mut(&to) {
            for message in super::carried(&messages, sent_at, wall) {
                process.node.receive(keys::member(from), message, now);
            }
        }
        self.act(to);
    }

    fn notice(&mut self) {
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.notices).into_iter().partition(|(at, ..)| *at <= self.now);
        self.notices = later;
        for (_, observer, dead) in due {
            if self.is_cut(observer, dead) || self.frozen.contains_key(&observer) {
                self.notices.push((self.now + 100 * MILLISECOND, observer, dead));
                continue;
            }
            let now = self.time_of(observer);
            if let Some(process) = self.processes.get_mut(&observer) {
                process.node.lost(keys::member(dead), true, now);
            }
            self.act(observer);
        }
    }

    fn turn(&mut self, number: usize) {
        let now = self.time_of(number);
        if self.frozen.contains_key(&number) {
            return;
        }
        if self.dice.random_bool(0.8)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.turn(now);
            self.act(number);
        }
    }

    /// Takes what the replica wants sent and done.
    fn act(&mut self, number: usize) {
        let (now, wall) = (self.time_of(number), self.wall_of(number));
        let Some(process) = self.processes.get_mut(&number) else { return };
        let waiting: Vec<MemberId> = process.node.woken();
        let actions = process.node.actions();
        for peer in waiting {
            let messages = process.node.outgoing(peer, usize::MAX, usize::MAX, now);
            let to = (0..self.started).find(|other| keys::member(*other) == peer);
            if let Some(link) = to.and_then(|to| self.links.get_mut(&(number, to))) {
                link.last = link.last.max(self.now + self.dice.random_range(1..=DELAY_MAX));
                link.on_the_way.push_back((link.last, wall, messages));
            }
        }
        let mut leaves = false;
        for action in actions {
            match action {
                Action::Dial(address) => {
                    let to = address.parse().expect("addresses are numbers here");
                    self.dial(number, to);
                }
                Action::Forget(member) => {
                    let other = (0..self.started).find(|other| keys::member(*other) == member);
                    if let Some(other) = other.filter(|other| self.links.contains_key(&(number, *other))) {
                        self.links.remove(&(number, other));
                        self.links.remove(&(other, number));
                        // The other learns of it when it can.
                        if self.processes.contains_key(&other) {
                            self.lose_session(other, number);
                        }
                    }
                }
                Action::Answer(ticket, outcome) => {
                    let by_lease = outcome.by == By::Lease;
                    self.books.degraded += u64::from(outcome.by == By::Degraded);
                    self.books.by_lease += u64::from(by_lease);
                    self.answered(number, ticket.call, outcome.decision.verdict.passes());
                }
                Action::Hash(secret) => {
                    if let Some(process) = self.processes.get_mut(&number) {
                        process.secret = Some(secret);
                    }
                }
                Action::Tell(_) => {}
                Action::Leave => leaves = true,
            }
        }
        if leaves && let Some(process) = self.processes.get_mut(&number) {
            process.leaves = true;
        }
    }

    /// The session cannot go on, for the other side has given it up.
    fn lose_session(&mut self, number: usize, gone: usize) {
        if let Some(lost) = self.frozen.get_mut(&number) {
            lost.push(gone);
            return;
        }
        let now = self.time_of(number);
        if !self.is_cut(number, gone)
            && let Some(process) = self.processes.get_mut(&number)
        {
            process.node.lost(keys::member(gone), false, now);
            self.act(number);
        }
    }

    fn ask_by_chance(&mut self) {
        let mut asks = f64::from(self.rate) * STEP as f64 / SECOND as f64;
        while 0.0 < asks {
            if asks < 1.0 && !self.dice.random_bool(asks) {
                return;
            }
            asks -= 1.0;
            let answers = |process: &Process| process.node.state() != State::Joining && !process.leaves;
            let able: Vec<usize> = self
                .processes
                .iter()
                .filter(|(number, process)| answers(process) && !self.frozen.contains_key(number))
                .map(|(number, _)| *number)
                .collect();
            if able.is_empty() {
                return;
            }
            let number = able[self.dice.random_range(0..able.len())];
            let key = self.dice.random_range(0..self.keys.len().min(self.keys_asked));
            self.ask(number, key);
        }
    }

    fn ask(&mut self, number: usize, key: usize) {
        let (now, wall) = (self.time_of(number), self.wall_of(number));
        self.tickets += 1;
        let ticket = self.tickets;
        self.open.insert((number, ticket), (key, self.now));
        let Asked { key, limit } = self.keys[key].clone();
        let Some(process) = self.processes.get_mut(&number) else { return };
        let check =
            Check { key, limit: &limit, operation: Operation::Charge(1), on_refusal: OnRefusal::Keep };
        match process.memory.apply(&[check], wall, |_| false) {
            Ok(decisions) => self.answered(number, ticket, decisions[0].verdict.passes()),
            Err(_) => {
                let question = Question { key, limit, deed: Deed::Ask(Operation::Charge(1)), wish: 0 };
                let wish = Wish { otherwise: OnOwnerUnavailable::LocalShare, lease: true };
                process.node.ask(Ticket { call: ticket, check: 0 }, question, wish, now.plus(BUDGET), now);
                self.act(number);
            }
        }
    }

    fn answered(&mut self, number: usize, ticket: u64, passes: bool) {
        let Some((key, asked_at)) = self.open.remove(&(number, ticket)) else { return };
        self.books.answers += 1;
        self.books.slowest = self.books.slowest.max(self.now - asked_at);
        if passes {
            self.passed.push((self.now, key));
        }
    }

    /// What keeps the world from being settled, if anything.
    pub(super) fn unsettled(&self) -> Option<String> {
        let mut holders: BTreeMap<Slot, Vec<usize>> = BTreeMap::new();
        for (number, process) in &self.processes {
            if process.node.state() == State::Joining {
                return Some(format!("{number} is still joining"));
            }
            for slot in process.node.slots_held() {
                holders.entry(slot).or_default().push(*number);
            }
        }
        let mut views = BTreeSet::new();
        for (number, process) in &self.processes {
            let view = process.node.view(self.even_time_of(*number));
            if 0 < view.moving {
                return Some(format!("{number} sees {} slots moving", view.moving));
            }
            views.insert(view.view);
        }
        let twice = holders.iter().find(|(_, holders)| 1 < holders.len());
        match twice {
            Some((slot, holders)) => Some(format!("{slot:?} is held by {holders:?}")),
            None if !self.processes.is_empty() && holders.len() != SLOTS => {
                Some("a slot is held by nobody".to_owned())
            }
            None if 1 < views.len() => Some("their views differ".to_owned()),
            None => None,
        }
    }

    /// Those who serve now.
    pub(super) fn serving(&self) -> Vec<usize> {
        let serves = |process: &Process| process.node.state() == State::Serving;
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
