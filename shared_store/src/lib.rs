//! Counters in Redis or Valkey, shared by all replicas.
//!
//! The arithmetic stays in `algorithm`: a replica decides on the value it knows, and one script compares and sets. If
//! another replica was first, the script returns the value and the replica decides again. So exactly the limit passes,
//! however many replicas race.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::{SetOnce, watch},
    task::JoinSet,
};
use tollgate_counter::{lock::Lock, time::Clock};
use tollgate_remote::{
    CounterCheck, CounterChecks, LocalShare, LocalShareBasis, Outcomes, OwnLimits, RemoteExtent,
    RemoteOutcome, RemoteOutcomes, Submission, SubmissionMode, Submit,
};
use tollgate_rules::ActiveRules;
use tollgate_store::{Check, OperationOutcome, OwnLimitPosition};

mod batch;
mod clocks;
mod connection;
mod failure;
mod greeting;
mod lane;
mod lanes;
mod node;
mod own_limits;
mod script;
mod settings;
mod stats;
mod value;
mod values;

pub use settings::{ConnectError, SharedStoreSettings, StoreMode, StoreTlsFiles, is_prefix, is_url};
pub use settings::{PasswordError, PasswordSource, PasswordSources, Passwords};
pub use stats::{SharedStoreCounters, SharedStoreStats};
pub use values::{StoredValue, StoredValues};

use batch::BatchPart;
use clocks::Clocks;
use connection::Link;
use greeting::Greeter;
use lanes::Lanes;

/// The shared store. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<StoreParts>);

/// The parts of the store. Each owns its state.
#[derive(Debug)]
struct StoreParts {
    settings: Arc<SharedStoreSettings>,
    clocks: Clocks,
    counts: Arc<SharedStoreCounters>,
    lanes: Arc<Lanes>,
    greeter: Greeter,
    /// Whether announcements are received. Otherwise no refusal is decided without the store.
    announcements_are_received: AtomicBool,
    local_share: Lock<LocalShare>,
}

/// The state of the store as this replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedStoreState {
    /// The store answers.
    Ready,
    /// The store cannot be used, with the reason.
    Unavailable(String),
}

impl std::fmt::Display for SharedStoreState {
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
        settings: SharedStoreSettings,
        clock: Clock,
        active_rules: Arc<ActiveRules>,
        background: &mut JoinSet<()>,
    ) -> Result<Self, PasswordError> {
        let sources = settings.passwords.clone();
        let (passwords, received) = watch::channel(sources.read()?);
        let store = Self::new(settings, clock, active_rules);
        background.spawn(store.clone().run(received));
        background.spawn(sources.watch(passwords));
        Ok(store)
    }

    /// A store that has not been connected to. If it has a secret, that becomes the secret of the keys in
    /// `active_rules`; otherwise it gets theirs.
    pub fn new(settings: SharedStoreSettings, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        let settings = Arc::new(settings);
        let clocks = Clocks::new(clock);
        let counts = Arc::<SharedStoreCounters>::default();
        let replica = rand::random();
        let local_share = LocalShare::new(settings.memory_limit, settings.on_full);
        Self(Arc::new(StoreParts {
            lanes: Arc::new(Lanes::new(settings.clone(), clocks.clone(), counts.clone(), replica)),
            greeter: Greeter { replica, active_rules, replicas: AtomicU32::new(1), learnt: SetOnce::new() },
            announcements_are_received: AtomicBool::default(),
            local_share: Lock::new(local_share),
            settings,
            clocks,
            counts,
        }))
    }

    /// Keeps the connections to the store, until it is cancelled.
    pub async fn run(self, passwords: watch::Receiver<Passwords>) {
        let mut tasks = JoinSet::new();
        for link in &self.0.lanes.links {
            let store = self.0.clone();
            let link = link.clone();
            let passwords = passwords.clone();
            tasks.spawn(async move {
                let greet = |connection| store.greet(connection);
                link.run(&store.settings, passwords, greet).await;
            });
        }
        let [greeting, hearing, charging] = [(); 3].map(|()| self.0.clone());
        tasks.spawn(async move { greeting.keep_greeting().await });
        tasks.spawn(async move { hearing.receive_announcements(passwords).await });
        tasks.spawn(async move { charging.charge_admitted().await });
        while tasks.join_next().await.is_some() {}
    }

    /// The state of the store.
    pub fn state(&self) -> SharedStoreState {
        let lanes = &self.0.lanes;
        match lanes.links.iter().find_map(Link::problem) {
            Some(reason) => SharedStoreState::Unavailable(reason.to_string()),
            None if !self.has_secret() => SharedStoreState::Unavailable("the secret is not known yet".into()),
            None => {
                lanes.last_failure.reason().map_or(SharedStoreState::Ready, SharedStoreState::Unavailable)
            }
        }
    }

    /// Whether this replica has learnt the secret of the store. Before that it must not be used.
    pub fn has_secret(&self) -> bool {
        self.0.greeter.learnt.initialized()
    }

    /// Waits until this replica has learnt the secret of the store.
    pub async fn until_known(&self) {
        self.0.greeter.learnt.wait().await;
    }

    /// The statistics so far.
    pub fn stats(&self) -> SharedStoreStats {
        let StoreParts { counts, lanes, local_share, greeter, .. } = &*self.0;
        let (degraded, local_share_full) = {
            let local_share = local_share.lock();
            (local_share.decided(), local_share.full())
        };
        SharedStoreStats {
            counts: counts.clone(),
            is_ready: self.state() == SharedStoreState::Ready,
            replicas: greeter.replicas.load(Relaxed),
            degraded,
            local_share_full,
            breakers_open: lanes.breakers_open(),
            round_trips: lanes.round_trips.buckets(),
        }
    }
}

impl Submit for SharedStore {
    fn submit(&self, Submission { checks, mode, within, open }: Submission<'_>) -> Option<Outcomes> {
        if checks.is_empty() {
            return Some(Box::pin(async { RemoteOutcomes::new() }));
        }
        let lanes = self.0.lanes.clone();
        let is_one_step = self.0.settings.is_one_step(checks.iter().map(|check| check.key));
        if !is_one_step && !matches!(mode, SubmissionMode::Each) {
            return None;
        }
        let part = BatchPart::new(checks.into(), mode, lanes.deadline(within), open);
        Some(Box::pin(async move {
            let each: SmallVec<[Option<OperationOutcome>; 1]> = if is_one_step {
                let undecided = SmallVec::from_elem(None, part.checks.len());
                let outcomes = lanes.apply(part).await;
                outcomes.map_or(undecided, |outcomes| outcomes.into_iter().map(Some).collect())
            } else {
                lanes.apply_by_lane(part).await
            };
            let outcome = |each: Option<OperationOutcome>| {
                each.map_or_else(RemoteOutcome::unreachable, RemoteOutcome::from_counter)
            };
            each.into_iter().map(outcome).collect()
        }))
    }

    fn send(&self, checks: CounterChecks) {
        // At the end of the process no lane can be driven.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let is_withdrawal = |check: &CounterCheck| check.operation.properties().must_arrive;
        let (withdrawals, others): (CounterChecks, CounterChecks) =
            checks.into_iter().partition(is_withdrawal);
        self.0.lanes.take_back_late(others);
        if !withdrawals.is_empty() {
            self.0.lanes.withdraw(withdrawals);
        }
    }

    fn local_share(&self) -> MutexGuard<'_, LocalShare> {
        self.0.local_share.lock()
    }

    fn local_share_basis(&self) -> LocalShareBasis {
        LocalShareBasis { replicas: self.0.greeter.replicas.load(Relaxed), now: self.0.clocks.degraded() }
    }

    fn refuse_known(&self, check: &Check<'_>) -> Option<RemoteOutcome> {
        let StoreParts { announcements_are_received, lanes, .. } = &*self.0;
        let refused = announcements_are_received.load(Relaxed).then(|| lanes.refuse_known(check))?;
        refused.map(RemoteOutcome::from_counter)
    }

    fn own_limits(&self, after: Option<OwnLimitPosition>, most: usize) -> Option<OwnLimits> {
        let store = self.0.clone();
        Some(Box::pin(async move { store.own_limits(after, most).await }))
    }

    fn extent(&self) -> RemoteExtent {
        RemoteExtent::All
    }

    fn is_joining(&self) -> bool {
        false
    }

    fn budget_max(&self) -> Duration {
        self.0.settings.timeout
    }
}
