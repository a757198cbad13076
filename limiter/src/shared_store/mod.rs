//! Counters in Redis or Valkey, shared by all replicas.
//!
//! The arithmetic stays in `algorithm`: a replica decides on the value it knows, and one script compares and sets. If
//! another replica was first, the script returns the value and the replica decides again. So exactly the limit passes,
//! however many replicas race.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tracing::warn;

use crate::{
    descriptor::Key,
    remote::lock,
    resilience::BreakerState,
    rules::ActiveRules,
    store::LocalShare,
    time::{Clock, Stopwatch, Timestamp},
};

mod announcements;
mod batch;
mod connection;
mod counters;
mod driver;
mod failure;
mod greeting;
mod known;
mod lane;
mod link;
mod part;
mod passwords;
mod recovery;
mod script;
mod server_clock;
mod settings;
mod stats;
mod submit;
mod value;

pub use passwords::{PasswordError, PasswordFiles, Passwords};
pub use settings::{ConnectError, Mode, Settings, TlsFiles, is_prefix, is_url};
pub use stats::Stats;

use connection::Connection;
use failure::{Failure, LastFailure, unexpected, within};
use lane::Lane;
use link::Link;
use part::Part;
use server_clock::ServerClock;
use stats::Counts;

/// The hexadecimal digits of a key that name the hash slot of its counter in a cluster.
const TAG_DIGITS: usize = 3;
/// The lanes of a cluster: one for each such tag, so that all counters of a lane are in one hash slot.
const CLUSTER_LANES: usize = 1 << (4 * TAG_DIGITS);
/// How often a replica greets the store.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);

/// The shared store. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    settings: Arc<Settings>,
    /// This replica.
    replica: u64,
    started: Stopwatch,
    lanes: Box<[Mutex<Lane>]>,
    links: Box<[Link]>,
    /// The clock of this replica.
    clock: Clock,
    /// The clock of the servers.
    server_clock: Mutex<ServerClock>,
    /// They have the secret of the keys.
    active_rules: Arc<ActiveRules>,
    /// Whether the secret is that of the store.
    has_secret: AtomicBool,
    /// Notified when it becomes so.
    learnt: Notify,
    /// Whether refunds and resets of other replicas are heard.
    is_subscribed: AtomicBool,
    /// The replicas that use the store, as it last said.
    replicas: AtomicU32,
    share: Mutex<LocalShare>,
    open_withdrawals: AtomicUsize,
    last_failure: LastFailure,
    counts: Counts,
}

/// The state of the store as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The store answers.
    Ready,
    /// The store cannot be used, with the reason.
    Unavailable(String),
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Unavailable(reason) => f.write_str(reason),
        }
    }
}

impl SharedStore {
    /// Starts to connect to a store, with tasks in `background`. Passwords that cannot be read are an error.
    pub fn start(
        settings: Settings,
        clock: Clock,
        active_rules: Arc<ActiveRules>,
        background: &mut JoinSet<()>,
    ) -> Result<Self, PasswordError> {
        let files = settings.password_files.clone();
        let (passwords, received) = watch::channel(files.read()?);
        let store = Self::new(settings, clock, active_rules);
        background.spawn(store.clone().run(received));
        background.spawn(files.watch(passwords));
        Ok(store)
    }

    /// A store that has not been connected to. If it has a secret, that becomes the secret of the keys in
    /// `active_rules`; otherwise it gets theirs.
    pub fn new(settings: Settings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        let (lanes, memory_limit) = match settings.mode {
            Mode::Standalone | Mode::Sentinel { .. } => (settings.connections, settings.memory_limit),
            Mode::Cluster => (CLUSTER_LANES, settings.memory_limit),
        };
        let known_bytes_max = usize::try_from(memory_limit).unwrap_or(usize::MAX) / lanes;
        Self(Arc::new(Shared {
            replica: rand::random(),
            started: Stopwatch::start(),
            lanes: (0..lanes).map(|_| Mutex::new(Lane::new(known_bytes_max))).collect(),
            links: (0..settings.connections).map(|_| Link::new()).collect(),
            clock,
            server_clock: Mutex::default(),
            active_rules,
            has_secret: AtomicBool::new(false),
            learnt: Notify::new(),
            is_subscribed: AtomicBool::new(false),
            replicas: AtomicU32::new(1),
            share: Mutex::default(),
            open_withdrawals: AtomicUsize::new(0),
            last_failure: LastFailure::default(),
            counts: Counts::default(),
            settings: Arc::new(settings),
        }))
    }

    /// Keeps the connections to the store, until it is cancelled.
    pub async fn run(self, passwords: watch::Receiver<Passwords>) {
        let mut tasks = JoinSet::new();
        for link in &self.0.links {
            let (store, link) = (self.clone(), link.clone());
            let (settings, passwords) = (self.0.settings.clone(), passwords.clone());
            tasks.spawn(async move {
                let greet = |connection| store.0.greet(connection);
                link.run(settings, passwords, greet).await;
            });
        }
        tasks.spawn(self.clone().keep_greeting());
        tasks.spawn(self.clone().hear_announcements(passwords));
        tasks.spawn(self.clone().charge_admitted());
        while tasks.join_next().await.is_some() {}
    }

    /// The state of the store.
    pub fn state(&self) -> State {
        match self.0.links.iter().find_map(Link::trouble) {
            Some(reason) => State::Unavailable(reason.to_string()),
            None if !self.0.has_secret.load(Relaxed) => {
                State::Unavailable("the secret is not known yet".into())
            }
            None => self.0.last_failure.reason().map_or(State::Ready, State::Unavailable),
        }
    }

    /// Whether this replica has learnt the secret of the store. Before that it must not be asked.
    pub fn has_secret(&self) -> bool {
        self.0.has_secret.load(Relaxed)
    }

    /// Waits until this replica has learnt the secret of the store.
    pub async fn until_known(&self) {
        while !self.has_secret() {
            self.0.learnt.notified().await;
        }
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        let Shared { counts, replicas, lanes, .. } = &*self.0;
        let local = self.0.local();
        let is_open = |lane: &&Mutex<Lane>| lock(lane).breaker(local) != BreakerState::Closed;
        Stats {
            is_ready: self.state() == State::Ready,
            replicas: replicas.load(Relaxed),
            checks: counts.checks.get(),
            batches: counts.batches.get(),
            conflicts: counts.conflicts.get(),
            lost: counts.lost.get(),
            refused_locally: counts.refused_locally.get(),
            degraded: counts.degraded.get(),
            late: counts.late.get(),
            breaker_openings: counts.breaker_openings.get(),
            holds_released: counts.holds_released.get(),
            holds_charged: counts.holds_charged.get(),
            holds_exhausted: counts.holds_exhausted.get(),
            breakers_open: lanes.iter().filter(is_open).count(),
            round_trips: counts.round_trips.buckets(),
        }
    }

    async fn keep_greeting(self) {
        loop {
            tokio::time::sleep(GREETING_INTERVAL).await;
            let shared = &self.0;
            let link = &shared.links[0];
            let Some((connection, number)) = link.connection(shared.settings.timeout).await else { continue };
            let greeting = within(shared.settings.timeout, shared.greet(connection)).await;
            if greeting.is_err_and(|error| Failure::of(&error).is_broken) {
                link.report_broken(number);
            }
        }
    }
}

impl Shared {
    /// Greets the store: learns its secret, its time and the number of replicas.
    async fn greet(&self, mut connection: Connection) -> redis::RedisResult<()> {
        let prefix = &self.settings.prefix;
        let secret = self.active_rules.secret();
        let call =
            |command: &str, script: &str| greeting::call(command, script, prefix, &secret, self.replica);
        let value = connection.call(greeting::script(), call).await?;
        let greeting = greeting::read(&value).ok_or_else(unexpected)?;
        lock(&self.server_clock).observe(greeting.time, self.local());
        self.replicas.store(greeting.replicas.max(1), Relaxed);
        let had_secret = self.has_secret.load(Relaxed);
        if greeting.secret != secret {
            if had_secret {
                warn!("the shared store has another secret: it lost its data, and all counters begin anew");
            }
            // Keys were hashed with another secret until now.
            *lock(&self.share) = LocalShare::default();
            self.active_rules.set_secret(greeting.secret);
        } else if greeting.is_created && had_secret {
            self.counts.lost.increase();
            warn!("the shared store has lost its secret, and probably counters; the secret was stored again");
        }
        self.has_secret.store(true, Relaxed);
        // One waits, before the first.
        self.learnt.notify_one();
        Ok(())
    }

    /// The local instant: monotonic, and of no meaning elsewhere.
    fn local(&self) -> Timestamp {
        Timestamp::EPOCH.after(self.started.elapsed())
    }

    /// The servers' clock, and when it gave up a lead. A manual clock takes its place.
    fn server_now(&self, local: Timestamp) -> Option<(Timestamp, Option<Timestamp>)> {
        if self.clock.is_manual() {
            return Some((self.clock.now(), None));
        }
        let mut clock = lock(&self.server_clock);
        let now = clock.now(local)?;
        Some((now, clock.given_up_at()))
    }

    /// The clock for decisions without the store: that of the servers if it is known.
    fn degraded_now(&self) -> Timestamp {
        self.server_now(self.local()).map_or_else(|| self.clock.now(), |(now, _)| now)
    }

    /// The lane of a key. In a cluster only counters of one lane can change in one step.
    fn lane_of(&self, key: Key) -> usize {
        match self.settings.mode {
            Mode::Standalone | Mode::Sentinel { .. } => key.low() as usize % self.lanes.len(),
            Mode::Cluster => (key.high() >> (u64::BITS as usize - 4 * TAG_DIGITS)) as usize,
        }
    }

    /// Whether the counters can change in one step: those of a hash slot can, and all outside a cluster.
    fn is_one_step(&self, keys: impl Iterator<Item = Key>) -> bool {
        match self.settings.mode {
            Mode::Standalone | Mode::Sentinel { .. } => true,
            Mode::Cluster => {
                let mut lanes = keys.map(|key| self.lane_of(key));
                let first = lanes.next();
                lanes.all(|lane| Some(lane) == first)
            }
        }
    }

    /// The name of a key in the store: the prefix and the hexadecimal key, whose first digits are in braces, so that
    /// they alone select the hash slot in a cluster. It is the same outside a cluster, so that data can be moved.
    fn name(&self, key: Key) -> Vec<u8> {
        let mut name = String::with_capacity(self.settings.prefix.len() + 34);
        let digits = format!("{:016x}{:016x}", key.high(), key.low());
        let (tag, rest) = digits.split_at(TAG_DIGITS);
        name.extend([&self.settings.prefix, "{", tag, "}", rest]);
        name.into_bytes()
    }

    /// The key with this name.
    fn key_of(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name.strip_prefix(self.settings.prefix.as_bytes())?).ok()?;
        let (tag, rest) = name.strip_prefix('{')?.split_once('}')?;
        let digits = format!("{tag}{rest}");
        let half = |range: std::ops::Range<usize>| u64::from_str_radix(digits.get(range)?, 16).ok();
        Some(Key::from_halves(half(0..16)?, half(16..32)?))
    }

    /// The channel of announcements.
    fn channel(&self) -> String {
        format!("{}refunds", self.settings.prefix)
    }

    /// Hands a part to its lane. Returns it if the lane cannot reach the store.
    #[expect(clippy::result_large_err, reason = "the part is handed back, and a box would allocate")]
    fn submit(self: &Arc<Self>, part: Part) -> Result<(), Part> {
        let Some(first) = part.checks.first() else { return Err(part) };
        let number = self.lane_of(first.key);
        let mut lane = lock(&self.lanes[number]);
        if self.links[number % self.links.len()].is_closed() || !lane.accepts(self.local()) {
            return Err(part);
        }
        if lane.push(part) {
            tokio::spawn(self.clone().drive(number));
        }
        Ok(())
    }
}
