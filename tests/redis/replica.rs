//! Replicas of Tollgate, as far as their store goes.

use std::{
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tollgate_counter::{
    algorithm::{Decision, Excess, FixedWindow, Limit, Operation, Span, Window},
    descriptor::{Key, KeyText, Secret},
    resilience::{Caller, Overloaded},
    time::Clock,
};
use tollgate_remote::{CounterCheck, Remote, RemoteHoldError, settle_operations, settled};
use tollgate_rules::{ActiveRules, ForwardPolicy, OnOwnerUnavailable};
use tollgate_shared_store::{
    PasswordSources, Passwords, SharedStore, SharedStoreSettings, SharedStoreState, StoreMode, StoreTlsFiles,
};
use tollgate_store::{
    Check, CheckRole, Checks, CounterOutcomes, HoldId, HoldTerms, LimitOrigin, OnExpiry, OnFull, OnRefusal,
    Refusal, Settled, UnknownId,
};

use crate::server::PATIENCE;

/// A replica that uses the store.
pub struct Replica {
    pub store: SharedStore,
    pub remote: Remote,
    pub active_rules: Arc<ActiveRules>,
    pub passwords: watch::Sender<Passwords>,
    task: JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replica {
    pub fn start(settings: SharedStoreSettings) -> Self {
        Self::start_with(settings, Passwords::default())
    }

    pub fn start_with(settings: SharedStoreSettings, passwords: Passwords) -> Self {
        Self::start_at(settings, passwords, Clock::system())
    }

    /// A replica that is ready and decides at the instants of this clock.
    pub async fn ready_with(settings: SharedStoreSettings, clock: Clock) -> Self {
        let replica = Self::start_at(settings, Passwords::default(), clock);
        replica.until_ready().await;
        replica
    }

    fn start_at(settings: SharedStoreSettings, passwords: Passwords, clock: Clock) -> Self {
        let active_rules = Arc::new(ActiveRules::default());
        let store = SharedStore::new(settings, clock, active_rules.clone());
        let (passwords, received) = watch::channel(passwords);
        let task = tokio::spawn(store.clone().run(received));
        let remote = Remote::new(Arc::new(store.clone()));
        Self { store, remote, active_rules, passwords, task }
    }

    /// A replica that is ready.
    pub async fn ready(settings: SharedStoreSettings) -> Self {
        let replica = Self::start(settings);
        replica.until_ready().await;
        replica
    }

    pub async fn until_ready(&self) {
        until_ok(PATIENCE, "the store can be used", async || match self.store.state() {
            SharedStoreState::Ready => Ok(()),
            SharedStoreState::Unavailable(reason) => Err(reason),
        })
        .await;
    }

    /// Decides one check.
    pub async fn check(&self, key: Key, limit: &Limit, operation: Operation) -> Decision {
        self.decide(&[check(key, limit, operation)]).await.decisions[0].decision
    }

    pub async fn decide(&self, checks: &[Check<'_>]) -> CounterOutcomes {
        self.decide_with(checks, OnOwnerUnavailable::Deny, None).await
    }

    pub async fn decide_with(
        &self,
        checks: &[Check<'_>],
        policy: OnOwnerUnavailable,
        timeout: Option<Duration>,
    ) -> CounterOutcomes {
        self.decide_over(&Caller::default(), checks, policy, timeout).await.unwrap()
    }

    /// Decides a call of `connection`.
    pub async fn decide_over(
        &self,
        connection: &Caller,
        checks: &[Check<'_>],
        on_owner_unavailable: OnOwnerUnavailable,
        timeout: Option<Duration>,
    ) -> Result<CounterOutcomes, Overloaded> {
        let policy = ForwardPolicy { on_owner_unavailable, lease: false };
        let counters: Vec<_> = checks.iter().map(|check| CounterCheck::new(check, policy)).collect();
        self.remote.decide(&counters, timeout, connection, &refusal(checks)).await
    }

    /// Reserves the hits of charges.
    pub async fn reserve(
        &self,
        checks: &[Check<'_>],
        terms: &HoldTerms,
    ) -> Result<CounterOutcomes, RemoteHoldError> {
        let connection = Caller::default();
        self.remote.reserve(&Checks::from_slice(checks), terms, None, &connection, refusal(checks)).await
    }

    /// Settles a reservation at the hits of charges.
    pub async fn settle(&self, checks: &[Check<'_>], id: &str) -> Result<Vec<Settled>, RemoteHoldError> {
        let id = HoldId::new(id.as_bytes()).unwrap();
        let (checks, connection) = (Checks::from_slice(checks), Caller::default());
        let operations = settle_operations(&checks, &id, UnknownId::Remember);
        let outcomes = self.remote.ask(operations, None, &connection).await?;
        settled(&outcomes).map(|settled| settled.into_vec())
    }
}

/// The settings for servers at these addresses.
pub fn settings(urls: &[String]) -> SharedStoreSettings {
    SharedStoreSettings {
        urls: urls.to_vec(),
        mode: StoreMode::Standalone,
        username: None,
        sentinel_username: None,
        tls: StoreTlsFiles::default(),
        passwords: PasswordSources::default(),
        unready_without_store: false,
        connections: 1,
        timeout: Duration::from_millis(500),
        prefix: "tollgate:".to_owned(),
        memory_limit: 16 * 1024 * 1024,
        on_full: OnFull::Deny,
    }
}

/// Every check refuses its call.
pub fn refusal(checks: &[Check<'_>]) -> Refusal {
    Refusal { roles: checks.iter().map(|_| CheckRole::default()).collect(), do_quotas_refuse: false }
}

/// A reservation of this id that is released after `ttl`.
pub fn terms(id: &str, ttl: Duration) -> HoldTerms {
    HoldTerms::new(HoldId::new(id.as_bytes()).unwrap(), ttl, OnExpiry::Release).unwrap()
}

pub fn check(key: Key, limit: &Limit, operation: Operation) -> Check<'_> {
    Check { key, limit, operation, on_refusal: OnRefusal::TakeBack, origin: LimitOrigin::Rule }
}

pub fn key(name: &str) -> Key {
    KeyText::new(name).key(&[], &Secret::from_bytes([1; 16]))
}

/// So many hits in a window of a day.
pub fn a_day(limit: u64) -> Limit {
    let day = Span::from_nanos(86_400 * 1_000_000_000).unwrap();
    Limit::FixedWindow(FixedWindow { limit, window: Window::Aligned(day), excess: Excess::Refuse })
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    until_ok(PATIENCE, what, async || condition().await.then_some(()).ok_or("it does not hold")).await;
}

/// Repeats an attempt until it succeeds, and returns its result. Fails after `limit` with the last error.
pub async fn until_ok<T, E: Debug>(
    limit: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let started = Instant::now();
    loop {
        match attempt().await {
            Ok(found) => return found,
            Err(error) => assert!(started.elapsed() < limit, "not within {limit:?}: {what}: {error:?}"),
        }
        sleep(Duration::from_millis(5)).await;
    }
}
