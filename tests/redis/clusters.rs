//! Clusters of servers, and servers behind sentinels: exact over hash slots, and back after a failover.

use std::time::{Duration, Instant};

use tollgate_counter::{algorithm::Operation, descriptor::Key};
use tollgate_remote::Submit as _;
use tollgate_rules::OnOwnerUnavailable;
use tollgate_shared_store::{Passwords, SharedStore, SharedStoreSettings, SharedStoreState, StoreMode};
use tollgate_store::{CounterOperation, OwnLimitChange, OwnLimitState, OwnTerms};

use crate::{
    replica::{Replica, a_day, check, key, settings, terms, until, until_ok},
    server::{PATIENCE, Server},
};

const CHARGE: Operation = Operation::Charge(1);

/// Three masters with a replica each.
pub struct Cluster {
    pub servers: Vec<Server>,
}

impl Cluster {
    pub async fn start() -> Self {
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let servers: Vec<Server> = (0..6).map(|_| Server::start(&arguments)).collect();
        let first = &servers[0];
        for server in &servers[1..] {
            server.run::<()>(&format!("CLUSTER MEET 127.0.0.1 {}", first.port()));
        }
        for (number, range) in ["0 5460", "5461 10922", "10923 16383"].iter().enumerate() {
            servers[number].run::<()>(&format!("CLUSTER ADDSLOTSRANGE {range}"));
        }
        let cluster = Self { servers };
        cluster.until_all(|server| server.run::<String>("CLUSTER NODES").lines().count() == 6).await;
        for number in 0..3 {
            let master: String = cluster.servers[number].run("CLUSTER MYID");
            // A node can replicate a master once it knows it.
            let command = format!("CLUSTER REPLICATE {master}");
            let replicate = async || cluster.servers[number + 3].try_run::<()>(&command);
            until_ok(PATIENCE, "each node knows its master", replicate).await;
        }
        cluster.until_all(|server| server.run::<String>("CLUSTER INFO").contains("cluster_state:ok")).await;
        cluster
            .until_all(|server| {
                let info: String = server.run("INFO replication");
                info.contains("connected_slaves:1") || info.contains("master_link_status:up")
            })
            .await;
        cluster
    }

    async fn until_all(&self, condition: impl Fn(&Server) -> bool) {
        until("the cluster forms", async || self.servers.iter().all(&condition)).await;
    }

    fn settings(&self) -> SharedStoreSettings {
        let urls: Vec<String> = self.servers.iter().map(Server::url).collect();
        SharedStoreSettings { mode: StoreMode::Cluster, ..settings(&urls) }
    }
}

/// The records of all limits of their own, which name the keys, and the number of pages.
async fn listed(store: &SharedStore) -> (Vec<String>, usize) {
    let (mut records, mut pages, mut next) = (Vec::new(), 0, None);
    loop {
        let page = store.own_limits(next, 10).unwrap().await.unwrap();
        let record = |(found, state): &(Key, OwnLimitState)| {
            let record = String::from_utf8(state.record.to_vec()).unwrap();
            assert_eq!(*found, key(record.strip_prefix("own ").unwrap()), "{record}");
            record
        };
        records.extend(page.limits.iter().filter(|(_, state)| state.terms.is_some()).map(record));
        (next, pages) = (page.next, pages + 1);
        if next.is_none() {
            records.sort_unstable();
            return (records, pages);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_limits_on_all_servers_of_a_cluster_are_listed() {
    let cluster = Cluster::start().await;
    let replica = Replica::ready(cluster.settings()).await;
    let limit = a_day(5);
    let change = |terms, record: &str| {
        let record = record.as_bytes().into();
        CounterOperation::SetOwnLimit(Box::new(OwnLimitChange {
            terms,
            expires_after: None,
            record,
            replaces: None,
        }))
    };
    let own = || Some(OwnTerms { limit: a_day(9), requests_per_unit: 9 });
    assert_eq!(listed(&replica.store).await.0, Vec::<String>::new());
    let mut expected: Vec<String> = (0..60).map(|number| format!("own {number}")).collect();
    for number in 0..200 {
        let key = key(&number.to_string());
        assert_eq!(replica.check(key, &limit, CHARGE).await.remaining, 4);
        if let Some(record) = expected.get(number) {
            replica.remote.operate(key, &limit, [change(own(), record)]).await.unwrap();
        }
    }
    expected.sort_unstable();
    let (records, pages) = listed(&replica.store).await;
    assert_eq!(records, expected);
    assert!(pages > 3, "{pages}");
    // A claimed value, and one with a hold.
    let terms = terms("a", Duration::from_secs(60));
    let hold = CounterOperation::Reserve { terms: Box::new(terms), hits: 1 };
    replica.remote.operate(key("1"), &limit, [hold, change(None, "")]).await.unwrap();
    expected.retain(|record| record != "own 1");
    assert_eq!(listed(&replica.store).await.0, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_admits_exactly_the_limits_over_hash_slots() {
    let cluster = Cluster::start().await;
    let replicas = [Replica::ready(cluster.settings()).await, Replica::ready(cluster.settings()).await];
    // In steps: one of the counters may be in another slot.
    let (wide, tight) = (key("wide"), key("tight"));
    let (many, few) = (a_day(60), a_day(20));
    let mut passed = 0;
    for _ in 0..40 {
        let calls = replicas.iter().map(|replica| {
            let checks = [check(wide, &many, CHARGE), check(tight, &few, CHARGE)];
            async move {
                let decided = replica.decide(&checks).await;
                assert_eq!(decided.degraded[..], [false, false]);
                decided.decisions.iter().all(|each| each.verdict.passes())
            }
        });
        passed += futures_util::future::join_all(calls).await.into_iter().filter(|passes| *passes).count();
    }
    assert!((18..=20).contains(&passed), "a lost race refuses early, and never admits: {passed}");
    let peek = replicas[0].check(wide, &many, Operation::Peek).await;
    assert_eq!(peek.remaining, 60 - passed as u64, "refused calls left nothing");
    // Keys on all masters.
    for number in 0..100 {
        let name = key(&number.to_string());
        assert_eq!(replicas[0].check(name, &few, CHARGE).await.remaining, 19);
        assert_eq!(replicas[1].check(name, &few, CHARGE).await.remaining, 18);
    }
    for server in &cluster.servers[..3] {
        assert!(server.run::<u64>("DBSIZE") > 10, "every master has counters");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_and_password_open_every_node_of_a_cluster() {
    let cluster = Cluster::start().await;
    for server in &cluster.servers {
        server.run::<()>("ACL SETUSER tollgate on >secret allcommands allkeys allchannels");
        server.run::<()>("ACL SETUSER default off");
    }
    let user = SharedStoreSettings { username: Some("tollgate".to_owned()), ..cluster.settings() };
    let login = Passwords { server: Some("secret".to_owned()), sentinel: None };
    let replica = Replica::start_with(user, login);
    replica.until_ready().await;
    let limit = a_day(9);
    // Keys on all masters.
    for number in 0..50 {
        let checks = [check(key(&number.to_string()), &limit, CHARGE)];
        assert!(!replica.decide(&checks).await.degraded[0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_is_replaced_and_others_decide_meanwhile() {
    let mut cluster = Cluster::start().await;
    let replica = Replica::ready(cluster.settings()).await;
    let limit = a_day(1_000_000);
    let names: Vec<_> = (0..60).map(|number| key(&number.to_string())).collect();
    for name in &names {
        replica.check(*name, &limit, CHARGE).await;
    }
    cluster.servers[0].kill();
    let started = Instant::now();
    // Half of it is for the store, and the rest for the answer to arrive.
    let timeout = Duration::from_millis(500);
    let (mut degraded, mut decided, mut slowest) = (0, 0, Duration::ZERO);
    loop {
        let mut all_decided = true;
        for name in &names {
            let began = Instant::now();
            let checks = [check(*name, &limit, CHARGE)];
            let answer = replica.decide_with(&checks, OnOwnerUnavailable::Allow, Some(timeout)).await;
            slowest = slowest.max(began.elapsed());
            if answer.degraded[0] {
                all_decided = false;
                degraded += 1;
            } else {
                decided += 1;
            }
        }
        if all_decided {
            break;
        }
        assert!(started.elapsed() < 2 * PATIENCE, "{:?}", replica.store.state());
    }
    assert!(degraded > 0 && decided > 0, "{degraded} degraded, {decided} decided");
    assert!(slowest < timeout, "answers arrive in time: {slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_hash_slot_keeps_its_counters() {
    let cluster = Cluster::start().await;
    let replica = Replica::ready(cluster.settings()).await;
    let limit = a_day(100);
    let names: Vec<_> = (0..40).map(|number| key(&number.to_string())).collect();
    for name in &names {
        replica.check(*name, &limit, CHARGE).await;
    }
    // One slot of the first master that has counters moves to the second, in the steps of a resharding tool.
    let (from, to) = (&cluster.servers[0], &cluster.servers[1]);
    let (from_id, to_id): (String, String) = (from.run("CLUSTER MYID"), to.run("CLUSTER MYID"));
    let stored: Vec<String> = from.run("KEYS *");
    let counter =
        stored.iter().find(|name| !name.contains("replicas")).expect("the first master has counters");
    let slot: u64 = from.run(&format!("CLUSTER KEYSLOT {counter}"));
    to.run::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
    from.run::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
    let charge_all = |left: u64| {
        let (replica, limit, names) = (&replica, &limit, &names);
        async move {
            for name in names {
                let decided = replica.decide(&[check(*name, limit, CHARGE)]).await;
                assert_eq!((decided.decisions[0].remaining, decided.degraded[0]), (left, false));
            }
        }
    };
    charge_all(98).await;
    let moving: Vec<String> = from.run(&format!("CLUSTER GETKEYSINSLOT {slot} 100"));
    for name in moving {
        from.run::<()>(&format!("MIGRATE 127.0.0.1 {} {name} 0 5000", to.port()));
    }
    // The counters are with the second master, and the first one answers `ASK`.
    charge_all(97).await;
    for server in [to, from, &cluster.servers[2]] {
        server.run::<()>(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
    }
    // Now it answers `MOVED`.
    charge_all(96).await;
}

/// A master and its follower, which three sentinels watch as `counters`.
pub struct Watched {
    pub master: Server,
    pub follower: Server,
    sentinels: Vec<Server>,
}

impl Watched {
    pub async fn start() -> Self {
        let master = Server::start(&[]);
        let follower = Server::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        until("the follower follows", async || {
            follower.run::<String>("INFO replication").contains("master_link_status:up")
        })
        .await;
        let sentinels: Vec<Server> = (0..3).map(|_| Server::start_sentinel(master.port())).collect();
        until("the sentinels know each other and the follower", async || {
            sentinels.iter().all(|sentinel| {
                let info: String = sentinel.run("INFO sentinel");
                info.contains("slaves=1") && info.contains("sentinels=3")
            })
        })
        .await;
        Self { master, follower, sentinels }
    }

    /// The addresses of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_next_master_after_a_failover() {
    let mut watched = Watched::start().await;
    let urls = watched.urls();
    let mode = StoreMode::Sentinel { service: "counters".to_owned() };
    let replica = Replica::ready(SharedStoreSettings { mode, ..settings(&urls) }).await;
    let limit = a_day(1_000);
    assert_eq!(replica.check(key("a"), &limit, CHARGE).await.remaining, 999);
    until("the follower has the counter", async || watched.follower.run::<u64>("DBSIZE") >= 3).await;
    watched.master.kill();
    let after = until_ok(2 * PATIENCE, "the next master decides", async || {
        let decided = replica.decide(&[check(key("a"), &limit, CHARGE)]).await;
        if decided.degraded[0] { Err(replica.store.state()) } else { Ok(decided.decisions[0].remaining) }
    })
    .await;
    assert_eq!(after, 998, "the next master has the counter");
    assert_eq!(replica.store.state(), SharedStoreState::Ready);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_over_hash_slots_holds_all_or_nothing() {
    let cluster = Cluster::start().await;
    let replicas = [Replica::ready(cluster.settings()).await, Replica::ready(cluster.settings()).await];
    let (wide, tight) = (key("wide"), key("tight"));
    let (many, few) = (a_day(60), a_day(20));
    let hold =
        |hits| [check(wide, &many, Operation::Charge(hits)), check(tight, &few, Operation::Charge(hits))];
    let ttl = Duration::from_secs(60);
    let held = replicas[0].reserve(&hold(15), &terms("a", ttl)).await.unwrap();
    assert!(held.is_held);
    assert!(!replicas[1].reserve(&hold(6), &terms("b", ttl)).await.unwrap().is_held);
    // What was held in vain is withdrawn.
    until("the refused reservation holds nothing", async || {
        replicas[0].check(wide, &many, Operation::Peek).await.remaining == 45
    })
    .await;
    assert_eq!(replicas[0].check(tight, &few, Operation::Peek).await.remaining, 5);
    let settled = replicas[1].settle(&hold(4), "a").await.unwrap();
    let remaining: Vec<u64> = settled.iter().map(|settled| settled.remaining).collect();
    assert_eq!(remaining, [56, 16]);
    let mut ids = 0..;
    let racing = replicas.iter().flat_map(|replica| (0..20).map(move |_| replica)).map(|replica| {
        let id = ids.next().unwrap_or_default().to_string();
        async move { replica.reserve(&hold(1), &terms(&id, ttl)).await.unwrap().is_held }
    });
    let passed = futures_util::future::join_all(racing).await.into_iter().filter(|held| *held).count();
    assert_eq!(passed, 16);
}
