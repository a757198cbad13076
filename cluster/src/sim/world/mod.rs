//! The world of a simulation: processes, links that delay, and a record of what passed.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::{SeedableRng, rngs::StdRng};
use tokio_util::bytes::Bytes;
use tollgate_counter::{
    descriptor::{Key, Secret},
    time::{SECOND, Timestamp},
};
use tollgate_remote::LocalShare;
use tollgate_store::{Memory, SWEEP_PARTS, SWEEP_ROUND, Slot, StoredSlot};

use crate::{
    member::MemberId,
    node::ClusterNode,
    sim::{
        calls::OpenCall,
        holds::Reservations,
        keys::{self, TestKey},
        own_limits::OwnLimits,
        record::{Effect, Entry, Fault, Faults, Record, UNSURE_BEFORE},
        world::readiness::{Seen, StrangersAt},
    },
    tuning::NodeSettings,
};

pub(super) mod envoys;
mod network;
mod own;
mod processes;
mod promises;
mod readiness;
mod reservations;
mod steps;
mod traffic;

pub(super) const MILLISECOND: u64 = SECOND / 1000;
/// When a script begins.
const BEGINS_AT: u64 = 1_790_000_000 * SECOND;
/// The time step.
const STEP: u64 = 5 * MILLISECOND;
/// The time from one check of the promises to the next.
const CHECK_EVERY: u64 = 100 * MILLISECOND;
/// The longest delay of a message, unless a script sets another.
const DELAY_MAX: u64 = 20 * MILLISECOND;
/// The longest time until a connected peer notices a death.
const NOTICE_MAX: u64 = 40 * MILLISECOND;
/// The timeout of a caller.
pub(super) const BUDGET: u64 = 500 * MILLISECOND;
/// What a crash may lose: hits that passed since the last backup that arrived, and until all replicas know of the
/// crash.
pub(super) const CRASH_WINDOW: u64 = 350 * MILLISECOND;
/// How often each replica evicts idle counters from one part of its slots.
const SWEEP_EVERY: u64 = SWEEP_ROUND.as_nanos() as u64 / SWEEP_PARTS as u64;
/// The delay of a message to another region, in addition to that of every message.
pub(super) const REGION_DELAY: u64 = 40 * MILLISECOND;

pub(super) const NODE_SETTINGS: NodeSettings = NodeSettings {
    silence: Duration::from_secs(1),
    bootstrap_timeout: Duration::from_millis(400),
    hand_offs_max: 3,
    // So little that backups and hand-offs wait for each other.
    data_bytes_max: 1_000,
    // So few that slots are claimed in several turns.
    claimed_counters_max: 3,
    tuning: crate::Tuning {
        backup_interval: Some(Duration::from_millis(100)),
        lease_from: Some(50),
        ..crate::Tuning::FOR_TESTS
    },
};

/// What the replicas of a world are, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) settings: NodeSettings,
    pub(super) slots: usize,
    /// The longest delay of a message at first.
    pub(super) delay_max: u64,
    /// The replicas are spread over so many regions by turns.
    pub(super) regions: usize,
}

impl Shape {
    /// A small cluster. It has few slots, so that faults hit every one of them.
    pub(super) const SMALL: Self =
        Self { settings: NODE_SETTINGS, slots: 16, delay_max: DELAY_MAX, regions: 1 };
}

/// The complete simulation.
pub(super) struct World {
    shape: Shape,
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
    strangers_at: StrangersAt,
    delay_max: u64,
    bytes_max: u64,
    /// Frozen processes, each with the peers that have dropped its session meanwhile.
    frozen: BTreeMap<usize, Vec<usize>>,
    pub(super) keys: Vec<TestKey>,
    pub(super) record: Record,
    /// Hits of each key that passed and were not refunded.
    refundable: Vec<u64>,
    reservations: Reservations,
    pub(super) own_limits: OwnLimits,
    open: BTreeMap<(usize, u64), OpenCall>,
    divided_by: u32,
    /// When replicas divide their limits by which number.
    rule_changes: Vec<(u64, usize, u32)>,
    flooded: usize,
    /// The keys whose owner had no memory for the data that it has started from.
    forgetful: BTreeSet<usize>,
    /// Replicas that do nothing that depends on time alone: see [`Tamper::Stall`].
    stalled: BTreeSet<usize>,
    /// By how many nanoseconds each copy says that its reservations are younger: [`Tamper::RejuvenateCopies`].
    copies_younger_by: u64,
    calls_started: u64,
    pub(super) totals: Totals,
    traffic: Traffic,
    envoys: envoys::Envoys,
    /// The faults of the script. Without them no promise is checked.
    pub(super) faults: Option<Faults>,
    checked_at: u64,
    /// The first promise that was broken.
    broken: Option<String>,
}

/// What is called at random.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    calls_per_second: u32,
    keys: usize,
    is_mixed: bool,
    holds_per_second: u32,
    own_per_second: u32,
}

/// Counts of the outcomes.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) answers: u64,
    pub(super) degraded: u64,
    /// Calls about reservations without an answer of all owners.
    pub(super) unanswered: u64,
    pub(super) by_lease: u64,
    pub(super) slowest: u64,
    /// Messages between replicas, the batches in which they were sent, and the bytes of these.
    pub(super) messages: u64,
    pub(super) batches: u64,
    pub(super) bytes: u64,
}

struct Process {
    node: ClusterNode,
    memory: Arc<Memory>,
    /// What it has admitted without owners.
    local_share: LocalShare,
    /// The secret of its key hash, once known.
    secret: Option<Secret>,
    /// The offset of its clock from the world's, in nanoseconds.
    skew: i64,
    /// What its rules divide the limits by.
    divided_by: u32,
    /// Every slot is handed off: it answers checks that it has received, and takes no more calls.
    is_leaving: bool,
    seen: Seen,
}

/// What a process writes before it ends, for a later one.
#[derive(Clone)]
struct Snapshot {
    secret: Secret,
    copies: Vec<StoredSlot>,
}

/// A batch of messages on its way.
struct Sent {
    at: u64,
    due: u64,
    batch: Bytes,
}

/// One direction of a session. Messages arrive in order, once.
#[derive(Default)]
struct Link {
    in_flight: VecDeque<Sent>,
    last: u64,
}

impl Link {
    /// The next batch that has arrived by now.
    fn next_due(&mut self, now: u64) -> Option<Sent> {
        self.in_flight.pop_front_if(|sent| sent.due <= now)
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_shape(Shape::SMALL, seed)
    }

    /// A small world with `bytes_max` bytes of memory for each replica.
    pub(super) fn with_memory(seed: u64, bytes_max: u64) -> Self {
        Self { bytes_max, ..Self::new(seed) }
    }

    /// A world of this shape.
    pub(super) fn with_shape(shape: Shape, seed: u64) -> Self {
        let keys = keys::all();
        Self {
            shape,
            rng: StdRng::seed_from_u64(seed),
            now: BEGINS_AT,
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
            strangers_at: StrangersAt::None,
            delay_max: shape.delay_max,
            bytes_max: 1 << 30,
            frozen: BTreeMap::new(),
            refundable: vec![0; keys.len()],
            keys,
            record: Record::default(),
            reservations: Reservations::default(),
            own_limits: OwnLimits::default(),
            open: BTreeMap::new(),
            divided_by: 1,
            rule_changes: Vec::new(),
            flooded: 0,
            forgetful: BTreeSet::new(),
            stalled: BTreeSet::new(),
            copies_younger_by: 0,
            calls_started: 0,
            totals: Totals::default(),
            traffic: Traffic::default(),
            envoys: envoys::Envoys::default(),
            faults: None,
            checked_at: 0,
            broken: None,
        }
    }

    /// Records a fault that concerns all keys, and may forget what passed since then.
    fn note_fault(&mut self, forgets_since: Option<u64>) {
        let forgets = forgets_since.map(|since| (since, self.now));
        self.note_fault_of(self.each_slot_of_key().map(|(key, _)| key).collect(), forgets);
    }

    /// Records a fault that may forget what passed of these keys in this time.
    fn note_fault_of(&mut self, keys: BTreeSet<usize>, forgets: Option<(u64, u64)>) {
        let unsure_from = self.now.saturating_sub(UNSURE_BEFORE);
        self.record.faults.push(Fault { at: self.now, unsure_from, forgets, keys });
    }

    /// A replica's node, its time, a key that the other replica owns, and the id of that replica.
    pub(super) fn caller(&mut self, number: usize) -> (&mut ClusterNode, Timestamp, TestKey, MemberId) {
        let now = self.time_of(number);
        let node = &mut self.processes.get_mut(&number).expect("a replica that was started").node;
        let owned: Vec<Slot> = node.owned_slots().collect();
        let slots = self.shape.slots;
        let remote = self.keys.iter().find(|test_key| !owned.contains(&Slot::for_key(test_key.key, slots)));
        let owner = keys::member(1 - number);
        (node, now, remote.expect("a key that the other replica owns").clone(), owner)
    }

    /// The owner of a key.
    pub(super) fn owner(&self, key: Key) -> Option<usize> {
        let slot = Slot::for_key(key, self.shape.slots);
        let owns = |number: &usize| self.processes[number].node.owned_slots().any(|owned| owned == slot);
        self.processes.keys().copied().find(owns)
    }

    fn note(&mut self, key: usize, effect: Effect, called_at: u64, degraded: bool) {
        let answered_at = self.now;
        self.record.note(Entry { key, effect, called_at, answered_at, degraded });
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
            self.sweep();
            self.end_departed();
            self.judge_readiness();
            self.run_envoys();
            self.call_at_random();
            self.hold_at_random();
            self.own_at_random();
            self.observe();
            if self.now >= self.checked_at + CHECK_EVERY {
                self.check_promises();
            }
        }
    }

    /// Evicts idle counters as every process does.
    fn sweep(&mut self) {
        let round = self.now / SWEEP_EVERY;
        let is_due = self.now % SWEEP_EVERY < STEP;
        let running = self.processes.iter().filter(|(number, _)| is_due && !self.frozen.contains_key(number));
        for (number, process) in running {
            process.memory.sweep_part(round as usize % SWEEP_PARTS, self.wall_of(*number));
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

    /// What the rules divide the limits by.
    pub(super) fn divided_by(&self) -> u32 {
        self.divided_by
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }
}
