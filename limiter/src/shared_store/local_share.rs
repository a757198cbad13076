//! Local shares: what this replica decides without the store while it cannot be used, and charges to it afterwards.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    algorithm::Limit,
    descriptor::Key,
    remote::{self, Admitted, CounterCheck, CounterChecks, Mode, RemoteOutcome, lock},
    shared_store::{clocks::Clocks, lanes::Lanes, part::Part},
    store::CounterOperation,
    time::Timestamp,
};

/// How often charging is tried while something is to be charged.
const INTERVAL: Duration = Duration::from_millis(250);
/// Counters that are charged at once, so that callers need not wait for all.
const KEYS_AT_ONCE: usize = 256;

/// The local shares.
#[derive(Debug)]
pub(super) struct LocalShare {
    clocks: Clocks,
    /// The replicas that use the store, as it last said.
    replicas: AtomicU32,
    share: Mutex<remote::LocalShare>,
}

impl LocalShare {
    pub(super) fn new(clocks: Clocks) -> Self {
        Self { clocks, replicas: AtomicU32::new(1), share: Mutex::default() }
    }

    /// The number of operations that were decided without the store.
    pub(super) fn decided(&self) -> u64 {
        lock(&self.share).decided()
    }

    /// The replicas that use the store, as it last said.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Relaxed)
    }

    pub(super) fn set_replicas(&self, replicas: u32) {
        self.replicas.store(replicas.max(1), Relaxed);
    }

    /// Forgets what was admitted.
    pub(super) fn clear(&self) {
        lock(&self.share).clear();
    }

    /// Decides a check without the store.
    pub(super) fn decide(&self, check: &CounterCheck) -> RemoteOutcome {
        let CounterCheck { key, limit, operation, policy, .. } = check;
        let (replicas, now) = (self.replicas(), self.clocks.degraded());
        lock(&self.share).decide(*key, limit, operation, *policy, replicas, now)
    }

    /// Takes back what a check was charged.
    pub(super) fn take_back(&self, key: Key, limit: &Limit, outcome: &mut RemoteOutcome) {
        let (replicas, now) = (self.replicas(), self.clocks.degraded());
        lock(&self.share).take_back(key, limit, outcome, replicas, now);
    }

    /// Charges what was admitted, until it is cancelled.
    pub(super) async fn charge_admitted(&self, lanes: &Arc<Lanes>) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let keys: Vec<Key> = lock(&self.share).admitted_keys().collect();
            for keys in keys.chunks(KEYS_AT_ONCE) {
                let charges = keys.iter().map(|key| self.charge(*key, lanes));
                if !futures_util::future::join_all(charges).await.contains(&true) {
                    break;
                }
            }
        }
    }

    /// Charges what was admitted of one key. Returns whether the store took it. If only the answer is lost, it is
    /// charged twice.
    async fn charge(&self, key: Key, lanes: &Arc<Lanes>) -> bool {
        let Some(Admitted { limit, counter }) = lock(&self.share).take_admitted(key) else { return true };
        let operation = CounterOperation::Absorb(counter.clone());
        let checks = CounterChecks::from_iter([CounterCheck::by_counter(key, limit.clone(), operation)]);
        // The lane answers every part, so there is no other bound on the wait.
        if lanes.apply(Part::new(checks, Mode::Each, Timestamp::MAX, None)).await.is_some() {
            return true;
        }
        lock(&self.share).put_back(key, Admitted { limit, counter }, self.clocks.degraded());
        false
    }
}
