//! Calls whose checks are forwarded to other replicas: their cost and their bounds.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tollgate_cluster::{Cluster, ClusterError, Trust, link};
use tollgate_counter::{
    algorithm::{Classic, Excess, FixedWindow, Limit, Operation, Window},
    descriptor::{Entry, Key, KeyText, Secret},
    resilience::{Caller, Overloaded, SharedUse},
    time::{Clock, SECOND},
};
use tollgate_remote::{CounterCheck, Remote, RemoteHoldError, settle_operations, settled};
use tollgate_rules::{ActiveRules, ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{
    Check, CheckRole, Checks, CounterOperation, CounterOutcomes, HOLD_TTL_MAX, HoldId, HoldOutcome,
    HoldTerms, LimitOrigin, Memory, OnExpiry, OnFull, OnRefusal, Refusal, SettleOutcome, Settled, UnknownId,
};

use crate::{
    harness::{rounds, until},
    links::proxy::Proxy,
};

/// Longer than any check here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two replicas in this process, over real links.
struct Pair {
    caller: Remote,
    other: Cluster,
    memories: [Arc<Memory>; 2],
    _running: JoinSet<Result<(), ClusterError>>,
    _folder: TempDir,
}

/// Every check refuses the call.
fn any_refuses(checks: usize) -> Refusal {
    Refusal { roles: vec![CheckRole::default(); checks].into(), do_quotas_refuse: false }
}

impl Pair {
    async fn start() -> Self {
        Self::start_with(1 << 30).await
    }

    /// Two replicas with this memory limit each.
    async fn start_with(memory_bytes: u64) -> Self {
        Self::start_behind(&[], memory_bytes, TIMEOUT).await
    }

    /// Two replicas that reach each other through these proxies, if there are any.
    async fn start_behind(proxies: &[Proxy], memory_bytes: u64, forward_budget_max: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "a secret that two replicas share\n").unwrap();
        let mut running = JoinSet::new();
        let (mut clusters, mut memories, mut seeds) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..2 {
            let trust = Trust {
                files: None,
                secret_file: Some(secret.clone()),
                poll_interval: Duration::from_secs(10),
            };
            let listen = "127.0.0.1:0".parse().unwrap();
            let proxy = proxies.get(index);
            let advertise = proxy.map(|proxy| proxy.address.to_string());
            let link = link::LinkSettings { listen, advertise, seeds: seeds.clone(), trust };
            let settings = tollgate_cluster::ClusterSettings {
                link,
                tuning: tollgate_cluster::Tuning {
                    forward_budget_max,
                    forget_after: Duration::from_secs(30),
                    ..tollgate_cluster::Tuning::FOR_TESTS
                },
            };
            let memory = Arc::new(Memory::new(memory_bytes, OnFull::Deny).shared());
            let rules = Arc::new(ActiveRules::default());
            let bound = Cluster::bind(settings, memory.clone(), Vec::new(), rules, Clock::system()).await;
            let (cluster, listening) = bound.unwrap();
            if let Some(proxy) = proxy {
                proxy.set_target(listening.address());
            }
            seeds.push(proxy.map_or(listening.address(), |proxy| proxy.address).to_string());
            running.spawn(cluster.clone().run(listening));
            cluster.joined().await;
            clusters.push(cluster);
            memories.push(memory);
        }
        let settled = |cluster: &Cluster| {
            let figures = cluster.stats();
            figures.members == 2 && figures.slots_moving == 0
        };
        until(async || clusters.iter().all(settled).then_some(())).await;
        let [caller, other] = <[_; 2]>::try_from(clusters).unwrap();
        let caller = Remote::new(Arc::new(caller));
        let memories = <[_; 2]>::try_from(memories).unwrap();
        Self { caller, other, memories, _running: running, _folder: folder }
    }

    /// Decides a call of `checks` checks with distinct keys. Returns how many pass, and the number of polls.
    async fn decide(&self, checks: usize, connection: &Caller) -> (Result<usize, Overloaded>, usize) {
        let window = Window::from_nanos(1_000 * SECOND).unwrap();
        let limit = Limit::Classic(Classic::new(10, window));
        let secret = Secret::random();
        let key = |number: u64| {
            let (value, mut text) = (number.to_string(), KeyText::new("forwards"));
            text.entry(Entry::new("number", &value));
            text.key(&limit.kind().bytes(), &secret)
        };
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
        let operation = Operation::Charge(1);
        let check = |number| {
            let check = Check {
                key: key(number),
                limit: &limit,
                operation,
                on_refusal: OnRefusal::TakeBack,
                origin: LimitOrigin::Rule,
            };
            CounterCheck::new(&check, policy)
        };
        let batch: Vec<CounterCheck> = (0..checks as u64).map(check).collect();
        let refusal = any_refuses(checks);
        let polls = AtomicUsize::new(0);
        let mut deciding = pin!(self.caller.decide(&batch, None, connection, &refusal));
        let decided = poll_fn(|cx| {
            polls.fetch_add(1, Relaxed);
            deciding.as_mut().poll(cx)
        })
        .await;
        let passed = decided.map(|afar| {
            assert!(!afar.degraded.contains(&true));
            afar.decisions.iter().filter(|one| one.verdict.passes()).count()
        });
        (passed, polls.into_inner())
    }

    /// Reserves `hits` of ten for each key, under one id. Returns whether everything is held.
    async fn reserve(&self, keys: &[Key], hits: u64, id: &HoldId) -> bool {
        self.reserved(keys, hits, id).await.is_held
    }

    async fn reserved(&self, keys: &[Key], hits: u64, id: &HoldId) -> CounterOutcomes {
        let (limit, connection) = (ten(), Caller::default());
        let terms = HoldTerms::new(id.clone(), HOLD_TTL_MAX, OnExpiry::Release).unwrap();
        let (checks, refusal) = (charges(keys, &limit, hits), any_refuses(keys.len()));
        self.caller.reserve(&checks, &terms, None, &connection, refusal).await.unwrap()
    }

    async fn settle(&self, keys: &[Key], hits: u64, id: &HoldId) -> Vec<Settled> {
        let (limit, connection) = (ten(), Caller::default());
        let checks = charges(keys, &limit, hits);
        let operations = settle_operations(&checks, id, UnknownId::Remember);
        let outcomes = self.caller.ask(operations, None, &connection).await.unwrap();
        settled(&outcomes).unwrap().to_vec()
    }

    /// The open reservations of each replica.
    fn holds(&self) -> [usize; 2] {
        self.memories.each_ref().map(|memory| memory.stats().holds_open)
    }

    fn counters(&self) -> usize {
        self.memories.iter().map(|memory| memory.stats().live).sum()
    }
}

/// Ten hits in a window.
fn ten() -> Limit {
    let window = Window::from_nanos(1_000 * SECOND).unwrap();
    Limit::FixedWindow(FixedWindow { limit: 10, window, excess: Excess::Refuse })
}

fn keys(number: usize) -> Vec<Key> {
    let secret = Secret::random();
    let key = |index: usize| {
        let (value, mut text) = (index.to_string(), KeyText::new("reservations"));
        text.entry(Entry::new("number", &value));
        text.key(&ten().kind().bytes(), &secret)
    };
    (0..number).map(key).collect()
}

fn charges<'l>(keys: &[Key], limit: &'l Limit, hits: u64) -> Checks<'l> {
    let (operation, on_refusal) = (Operation::Charge(hits), OnRefusal::TakeBack);
    keys.iter()
        .map(|key| Check { key: *key, limit, operation, on_refusal, origin: LimitOrigin::Rule })
        .collect()
}

#[tokio::test]
async fn reservation_over_two_owners_is_held_whole_or_not_at_all() {
    let (pair, keys) = (Pair::start().await, keys(64));
    let [held, refused] = [(), ()].map(|()| HoldId::random());
    assert!(pair.reserve(&keys, 6, &held).await);
    let holds = pair.holds();
    assert!(holds.iter().all(|holds| *holds > 0) && holds.iter().sum::<usize>() == 64, "{holds:?}");

    // One key more than before has too little left, so all others are withdrawn.
    assert!(pair.reserve(&keys[..1], 2, &HoldId::random()).await);
    assert!(!pair.reserve(&keys, 4, &refused).await);
    until(async || (pair.holds().iter().sum::<usize>() == 65).then_some(())).await;
    assert!(pair.reserve(&keys, 2, &refused).await, "a refused reservation is not remembered");

    let settled = pair.settle(&keys[1..], 1, &held).await;
    assert!(
        settled.iter().all(|one| (one.outcome, one.remaining) == (SettleOutcome::Open, 7)),
        "{settled:?}"
    );
    assert_eq!(pair.settle(&keys[1..], 9, &held).await, settled, "a repeated call answers as the first");
    assert!(!pair.reserved(&keys[..1], 6, &held).await.has_ended, "the first key is not settled");
    let again = pair.reserved(&keys, 6, &held).await;
    assert!(again.is_held && again.has_ended && again.decisions.iter().all(|one| one.verdict.passes()));
}

#[tokio::test]
async fn reservation_moves_with_its_slot_when_the_owner_drains() {
    let (pair, keys, id) = (Pair::start().await, keys(64), HoldId::random());
    assert!(pair.reserve(&keys, 6, &id).await);
    pair.other.drain();
    until(async || (pair.holds() == [64, 0]).then_some(())).await;
    assert!(pair.reserve(&keys, 6, &id).await, "a repeated call answers as the first");
    let settled = pair.settle(&keys, 0, &id).await;
    assert!(
        settled.iter().all(|one| (one.outcome, one.remaining) == (SettleOutcome::Open, 10)),
        "{settled:?}"
    );
}

#[tokio::test]
async fn forwarded_ids_leave_room_for_callers_of_the_owner() {
    let (pair, limit, keys) = (Pair::start_with(1 << 20).await, ten(), keys(2_020));
    let terms = |id: &HoldId| HoldTerms::new(id.clone(), HOLD_TTL_MAX, OnExpiry::Release).unwrap();
    // Below the shares of callers, as if there were one for each call.
    let reserve = async |key: &Key, id: &HoldId| {
        let (checks, connection) = (charges(&[*key], &limit, 1), Caller::default());
        pair.caller.reserve(&checks, &terms(id), None, &connection, any_refuses(1)).await
    };
    let (first, mut refused) = (HoldId::random(), 0);
    for (number, key) in keys[..2_000].iter().enumerate() {
        let id = if number == 0 { &first } else { &HoldId::random() };
        match reserve(key, id).await {
            Ok(reserved) => assert!(reserved.is_held),
            Err(error) => {
                assert_eq!(error, RemoteHoldError::Exhausted);
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "there is room for a part of these ids");
    assert!(reserve(&keys[0], &first).await.is_ok(), "a known id is answered as the first time");

    let owner = &pair.memories[1];
    let SharedUse { all: used, max, .. } = owner.id_memory(0);
    // An id of a counter without others takes more than is charged to its sender.
    assert!((max / 2..=max * 3 / 4).contains(&used), "{used} of {max}");
    let (now, mut held) = (Clock::system().now(), 0);
    for key in &keys[2_000..] {
        let reserve = CounterOperation::Reserve { terms: Box::new(terms(&HoldId::random())), hits: 1 };
        // Only the keys of its slots are decided there.
        if let Ok(outcome) = owner.operate(*key, &limit, &reserve, now) {
            assert_eq!(outcome.hold, HoldOutcome::Decided);
            held += 1;
        }
    }
    assert!(held > 0);
}

#[tokio::test]
async fn call_is_polled_once_per_round_for_any_number_of_checks() {
    let pair = Pair::start().await;
    for checks in [2, 256, 1_024] {
        let (passed, polls) = pair.decide(checks, &Caller::default()).await;
        assert_eq!(passed, Ok(checks));
        // At the start, when all peeks are answered, and when all charges are answered.
        assert!(polls <= 3, "{polls} polls for {checks} checks");
    }
}

#[tokio::test]
async fn call_above_forward_limit_is_refused_and_charges_nothing() {
    let pair = Pair::start().await;
    let connection = Caller::default();
    let (refused, _) = pair.decide(30_000, &connection).await;
    assert_eq!((refused, pair.counters()), (Err(Overloaded), 0));
    let (passed, _) = pair.decide(256, &connection).await;
    assert_eq!((passed, pair.counters()), (Ok(256), 256));
}

#[tokio::test]
async fn calls_above_connection_forward_limit_are_refused_alone() {
    let pair = Pair::start().await;
    let (greedy, modest) = (Caller::default(), Caller::default());
    let calls = (0..64).map(|_| pair.decide(256, &greedy));
    let (answers, other) = tokio::join!(futures_util::future::join_all(calls), pair.decide(256, &modest));
    assert_eq!(other.0, Ok(256));
    let refused = answers.iter().filter(|(answer, _)| *answer == Err(Overloaded)).count();
    assert_eq!(refused, 64 - 4_096 / 256);
    let (again, _) = pair.decide(256, &greedy).await;
    assert!(again.is_ok(), "earlier calls no longer count towards the bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_across_resets_are_charged_once_and_not_degraded() {
    let proxies = [Proxy::start().await, Proxy::start().await];
    let budget = tollgate_cluster::Tuning::FOR_TESTS.forward_budget_max;
    let pair = Pair::start_behind(&proxies, 1 << 30, budget).await;
    // Of these keys each replica owns about half. No window ends during the test.
    let (keys, window) = (keys(64), Window::from_nanos(1_000_000_000 * SECOND).unwrap());
    let limit = Limit::FixedWindow(FixedWindow { limit: 1_000_000_000, window, excess: Excess::Refuse });
    let decide = async |key: Key, operation| {
        let check = Check {
            key,
            limit: &limit,
            operation,
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        };
        let policy = ForwardPolicy { on_owner_unavailable: OnOwnerUnavailable::Deny, lease: false };
        let check = CounterCheck::new(&check, policy);
        let decided = pair.caller.decide(&[check], None, &Caller::default(), &any_refuses(1)).await.unwrap();
        assert_eq!(decided.degraded[..], [false]);
        assert!(decided.decisions[0].verdict.passes());
        decided.decisions[0].remaining
    };
    let (calls, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let calling = futures_util::future::join_all((0..16).map(async |first| {
        for key in keys.iter().cycle().skip(first * 4) {
            if is_over.load(Relaxed) {
                return;
            }
            decide(*key, Operation::Charge(1)).await;
            calls.fetch_add(1, Relaxed);
        }
    }));
    let resetting = async {
        for _reset in 0..rounds(100, 1_000) {
            let (before, links) = (calls.load(Relaxed), pair.other.stats().links.reconnects.get());
            proxies.iter().for_each(Proxy::cut);
            // The link goes on, and each caller has got further.
            let reconnected = || pair.other.stats().links.reconnects.get() > links;
            until(async || (reconnected() && calls.load(Relaxed) >= before + 32).then_some(())).await;
        }
        is_over.store(true, Relaxed);
    };
    tokio::join!(calling, resetting);
    let mut charged = 0;
    for key in &keys {
        charged += 1_000_000_000 - decide(*key, Operation::Peek).await;
    }
    assert_eq!(charged, calls.into_inner() as u64);
    assert!(pair.memories.iter().all(|memory| memory.stats().live > 0), "both replicas own keys");
}
