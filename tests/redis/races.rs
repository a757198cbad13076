//! Exactly the limit passes, however many replicas race.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
};
use tollgate_shared_store::SharedStoreSettings;
use tollgate_store::{CounterOperation, HoldOutcome, OwnLimitChange, OwnTerms};

use crate::{
    replica::{Replica, a_day, check, key, settings},
    server::{PATIENCE, Server},
};

/// Replicas of one server, which wait for it however busy the machine is.
async fn replicas(server: &Server, count: usize) -> Vec<Arc<Replica>> {
    let settings = SharedStoreSettings { timeout: PATIENCE, ..settings(&[server.url()]) };
    join_all((0..count).map(|_| async { Arc::new(Replica::ready(settings.clone()).await) })).await
}

/// Charges each set of checks `times` at every replica, with `at_once` calls at a time, and counts what passes.
async fn race(
    replicas: &[Arc<Replica>],
    sets: &[Vec<(Key, Limit)>],
    at_once: usize,
    times: usize,
) -> Vec<usize> {
    let callers = replicas.iter().flat_map(|replica| (0..at_once).map(move |_| replica.clone()));
    let tasks = callers.map(|replica| {
        let sets = sets.to_vec();
        tokio::spawn(async move {
            let mut passed = vec![0; sets.len()];
            for _ in 0..times {
                for (set, passed) in sets.iter().zip(&mut passed) {
                    let checks: Vec<_> =
                        set.iter().map(|(key, limit)| check(*key, limit, Operation::Charge(1))).collect();
                    let decided = replica.decide(&checks).await;
                    assert!(decided.degraded.iter().all(|degraded| !degraded), "the store decides all");
                    *passed += usize::from(decided.decisions.iter().all(|each| each.verdict.passes()));
                }
            }
            passed
        })
    });
    let mut sums = vec![0; sets.len()];
    for passed in join_all(tasks).await {
        sums.iter_mut().zip(passed.unwrap()).for_each(|(sum, passed)| *sum += passed);
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_admit_exactly_the_limit_of_one_key() {
    let server = Server::start(&[]);
    let replicas = replicas(&server, 3).await;
    let set = vec![(key("hot"), a_day(1_000))];
    assert_eq!(race(&replicas, &[set], 32, 40).await, [1_000]);
}

#[tokio::test]
async fn calls_during_a_round_trip_share_the_next_one() {
    let server = Server::start(&[]);
    let replica = replicas(&server, 1).await.remove(0);
    let (name, limit) = (key("hot"), a_day(1_000));
    let counts = replica.store.stats().counts;
    let [checks, batches] = [&counts.checks, &counts.batches].map(|counter| counter.get());
    // No round trip ends before all calls have come.
    server.signal("STOP");
    let mut calls = pin!(join_all((0..100).map(|_| replica.check(name, &limit, Operation::Charge(1)))));
    assert!((&mut calls).now_or_never().is_none());
    server.signal("CONT");
    assert!(calls.await.iter().all(|decision| decision.verdict.passes()));
    assert_eq!(counts.checks.get() - checks, 100);
    let batches = counts.batches.get() - batches;
    assert!((1..=2).contains(&batches), "{batches}: the one under way, and the next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_admit_exactly_the_limits_of_many_keys() {
    let server = Server::start(&[]);
    let replicas = replicas(&server, 3).await;
    let sets: Vec<_> = (0..100).map(|number| vec![(key(&number.to_string()), a_day(20))]).collect();
    assert_eq!(race(&replicas, &sets, 8, 2).await, [20; 100]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_check_sets_admit_exactly_the_tightest_limit() {
    let server = Server::start(&[]);
    let replicas = replicas(&server, 3).await;
    let (tight, wide, other) = (key("tight"), key("wide"), key("other"));
    let sets = [
        vec![(wide, a_day(500)), (tight, a_day(100))],
        vec![(wide, a_day(500)), (other, a_day(50))],
        vec![(wide, a_day(500))],
    ];
    let passed = race(&replicas, &sets, 8, 40).await;
    assert_eq!(passed.iter().sum::<usize>(), 500, "{passed:?}");
    assert!(passed[0] <= 100 && passed[1] <= 50, "{passed:?}");
    // What passed is what is charged: refused calls left nothing.
    for (key, limit, charged) in [(tight, a_day(100), passed[0]), (other, a_day(50), passed[1])] {
        let peek = replicas[0].check(key, &limit, Operation::Peek).await;
        assert_eq!(peek.remaining, limit.allowance() - charged as u64);
    }
}

/// Passes connections on to a server, and delays what is sent in either direction. Returns its address.
async fn delayed(server: &Server, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let port = server.port();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(pass_on(near_in, far_out, delay));
            tokio::spawn(pass_on(far_in, near_out, delay));
        }
    });
    url
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        tokio::time::sleep(delay).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn far_replica_gets_its_turn_at_a_hot_key() {
    let server = Server::start(&[]);
    let near = replicas(&server, 1).await.remove(0);
    let far = settings(&[delayed(&server, Duration::from_millis(5)).await]);
    let far = Replica::ready(SharedStoreSettings { timeout: PATIENCE, ..far }).await;
    let (name, limit) = (key("hot"), a_day(1_000_000_000));
    let done = Arc::new(AtomicBool::new(false));
    let (busy, until) = (near.clone(), done.clone());
    let hot = limit.clone();
    let hammering = tokio::spawn(async move {
        while !until.load(Relaxed) {
            assert!(busy.check(name, &hot, Operation::Charge(1)).await.verdict.passes());
        }
    });
    for _ in 0..20 {
        let decided = far.decide(&[check(name, &limit, Operation::Charge(1))]).await;
        assert!(!decided.degraded[0], "{:?}", far.store.stats());
    }
    done.store(true, Relaxed);
    hammering.await.unwrap();
    assert!(far.store.stats().counts.conflicts.get() > 0, "the replicas raced");
    // Nothing was lost.
    let charged = near.store.stats().counts.checks.get() + 20;
    let peek = near.check(name, &limit, Operation::Peek).await;
    assert_eq!(peek.remaining, 1_000_000_000 - charged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_limits_that_change_under_load_admit_no_more_than_they_allow() {
    const KEYS: usize = 8;
    const CHANGES: u64 = 12;
    let server = Server::start(&[]);
    let replicas = replicas(&server, 3).await;
    let rule = a_day(1);
    let keys: Vec<Key> = (0..KEYS).map(|number| key(&format!("own {number}"))).collect();
    // The number of each change, up and down. The first one is the rule's.
    let number = |change: u64| if change == 0 { 1 } else { 10 + change * 37 % 50 };
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let begun: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let passed: Arc<Vec<AtomicU64>> = Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let is_over = Arc::new(AtomicBool::new(false));
    let callers = replicas.iter().flat_map(|replica| (0..3).map(move |_| replica.clone()));
    let tasks = callers.map(|replica| {
        let (keys, rule, is_over) = (keys.clone(), rule.clone(), is_over.clone());
        let (acknowledged, begun, passed) = (acknowledged.clone(), begun.clone(), passed.clone());
        tokio::spawn(async move {
            while !is_over.load(Relaxed) {
                for (index, key) in keys.iter().enumerate() {
                    let least = acknowledged[index].load(SeqCst);
                    let counted = passed[index].load(SeqCst);
                    let decided = replica.decide(&[check(*key, &rule, Operation::Charge(1))]).await;
                    let change = decided.decisions[0].own.unwrap_or(0);
                    let latest = begun[index].load(SeqCst);
                    if decided.decisions[0].verdict.passes() {
                        assert!((least..=latest).contains(&change), "{change} is none of {least}..={latest}");
                        assert!(counted < number(change), "a hit passes after {counted}");
                        passed[index].fetch_add(1, SeqCst);
                    }
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for change in 1..=CHANGES {
        for (index, key) in keys.iter().enumerate() {
            let terms = OwnTerms { limit: a_day(number(change)), requests_per_unit: change };
            let (terms, record) = (Some(terms), Box::default());
            let set = OwnLimitChange { terms, expires_after: None, record, replaces: None };
            let set = CounterOperation::SetOwnLimit(Box::new(set));
            begun[index].store(change, SeqCst);
            let replica = &replicas[index % replicas.len()];
            let [outcome] = replica.remote.operate(*key, &rule, [set]).await.unwrap();
            let HoldOutcome::OwnLimit(outcome) = outcome.hold else { panic!("{outcome:?}") };
            assert_eq!(outcome.refusal, None);
            acknowledged[index].store(change, SeqCst);
        }
    }
    is_over.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let all: u64 = passed.iter().map(|passed| passed.load(SeqCst)).sum();
    assert!(all > KEYS as u64, "{all}");
}
