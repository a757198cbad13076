//! What happens while the store cannot be used, and after.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tollgate_counter::{
    algorithm::{Operation, Verdict},
    resilience::{Caller, Overloaded},
};
use tollgate_remote::Submit as _;
use tollgate_rules::OnOwnerUnavailable;
use tollgate_shared_store::{Passwords, SharedStoreSettings, SharedStoreState};

use crate::{
    replica::{Replica, a_day, check, key, settings, until, until_ok},
    server::{PATIENCE, Server},
};

const CHARGE: Operation = Operation::Charge(1);

fn reason(replica: &Replica) -> String {
    match replica.store.state() {
        SharedStoreState::Ready => "ready".to_owned(),
        SharedStoreState::Unavailable(reason) => reason,
    }
}

/// Decides until the store decides again.
async fn until_decided(replica: &Replica, name: &str) {
    until_ok(PATIENCE, "the store decides", async || {
        let decided = replica.decide(&[check(key(name), &a_day(1_000), CHARGE)]).await;
        if decided.degraded[0] { Err(reason(replica)) } else { Ok(()) }
    })
    .await;
}

/// Whether a check is decided without the store.
async fn is_degraded(replica: &Replica) -> bool {
    replica.decide(&[check(key("other"), &a_day(1_000), CHARGE)]).await.degraded[0]
}

#[tokio::test]
async fn policies_decide_while_server_is_down_and_share_is_charged_after() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (one, other) = (Replica::ready(settings(&[server.url()])).await, settings(&[server.url()]));
    let other = Replica::ready(other).await;
    let (limit, name) = (a_day(100), key("shared"));
    for _ in 0..10 {
        one.check(name, &limit, CHARGE).await;
    }
    until("both replicas are seen", async || {
        one.store.stats().replicas == 2 && other.store.stats().replicas == 2
    })
    .await;
    server.kill();
    until("the loss is noticed", async || {
        one.store.state() != SharedStoreState::Ready && other.store.state() != SharedStoreState::Ready
    })
    .await;
    let checks = [check(name, &limit, CHARGE)];
    let allowed = one.decide_with(&checks, OnOwnerUnavailable::Allow, None).await;
    assert_eq!((allowed.decisions[0].verdict, allowed.degraded[0]), (Verdict::Pass, true));
    let denied = one.decide_with(&checks, OnOwnerUnavailable::Deny, None).await;
    assert_eq!(denied.decisions[0].verdict, Verdict::Refuse { retry_after: None });
    // Half of the limit for each of two replicas.
    let mut passed = 0;
    for _ in 0..80 {
        let decided = one.decide_with(&checks, OnOwnerUnavailable::LocalShare, None).await;
        assert!(decided.degraded[0]);
        passed += usize::from(decided.decisions[0].verdict.passes());
    }
    assert_eq!(passed, 50);
    server.restart();
    until_decided(&one, "any").await;
    until_decided(&other, "any").await;
    until_ok(PATIENCE, "the local share is charged", async || {
        let peek = other.check(name, &limit, Operation::Peek).await;
        if peek.remaining == 100 - 10 - 50 { Ok(()) } else { Err(peek) }
    })
    .await;
}

#[tokio::test]
async fn frozen_server_costs_callers_half_of_their_timeout_at_most() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    server.signal("STOP");
    // Half of it is for the store, and the rest for the answer to arrive.
    let timeout = Duration::from_secs(1);
    let (mut slow, limit) = (0, a_day(10));
    for number in 0..200 {
        let started = Instant::now();
        let checks = [check(key(&number.to_string()), &limit, CHARGE)];
        let decided = replica.decide_with(&checks, OnOwnerUnavailable::Allow, Some(timeout)).await;
        assert!(decided.degraded[0]);
        let took = started.elapsed();
        assert!(took < timeout, "the answer arrives in time: {took:?}");
        slow += usize::from(took > timeout / 4);
    }
    assert!(slow < 20, "the circuit breaker spares callers: {slow} of 200 waited");
    assert!(
        replica.store.stats().counts.breaker_openings.get() > 0
            || replica.store.state() != SharedStoreState::Ready
    );
    server.signal("CONT");
    until_decided(&replica, "after").await;
}

#[tokio::test]
async fn calls_above_connection_bound_are_refused_alone() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    let (greedy, modest) = (Caller::default(), Caller::default());
    let (limit, one) = (a_day(10), key("one"));
    let checks = vec![check(one, &limit, Operation::Peek); 256];
    let call = |connection| replica.decide_over(connection, &checks, OnOwnerUnavailable::Deny, None);
    server.signal("STOP");
    let calls = futures_util::future::join_all((0..64).map(|_| call(&greedy)));
    let (answers, other) = tokio::join!(calls, call(&modest));
    assert!(other.is_ok(), "the other connection is admitted");
    let refused = answers.iter().filter(|answer| matches!(answer, Err(Overloaded))).count();
    assert_eq!(refused, 64 - 4_096 / 256);
    server.signal("CONT");
    until_decided(&replica, "after").await;
    assert!(call(&greedy).await.is_ok(), "earlier calls no longer count towards the bound");
}

#[tokio::test]
async fn server_that_was_down_at_start_is_used_when_it_comes() {
    let mut server = Server::start(&[]);
    server.kill();
    let replica = Replica::start(settings(&[server.url()]));
    until("the reason is known", async || reason(&replica).contains("refused")).await;
    assert!(!replica.store.has_secret());
    assert!(is_degraded(&replica).await);
    server.restart();
    replica.until_ready().await;
    until_decided(&replica, "any").await;
}

#[tokio::test]
async fn flushed_server_begins_anew_and_keeps_its_secret() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    let (limit, name) = (a_day(10), key("flushed"));
    for _ in 0..4 {
        replica.check(name, &limit, CHARGE).await;
    }
    let secret: Vec<u8> = server.run("GET tollgate:{replicas}:secret");
    server.run::<()>("FLUSHALL");
    assert_eq!(replica.check(name, &limit, CHARGE).await.remaining, 9, "the counter begins anew");
    assert!(replica.store.stats().counts.lost.get() > 0, "the loss is noticed");
    until("the secret is stored again", async || {
        server.run::<Option<Vec<u8>>>("GET tollgate:{replicas}:secret") == Some(secret.clone())
    })
    .await;
}

#[tokio::test]
async fn replicas_share_the_secret_of_the_first() {
    let server = Server::start(&[]);
    let first = Replica::ready(settings(&[server.url()])).await;
    let secret = first.active_rules.secret();
    let second = Replica::ready(settings(&[server.url()])).await;
    assert!(secret == first.active_rules.secret() && secret == second.active_rules.secret());
}

#[tokio::test]
async fn server_that_forgot_the_script_gets_it_again() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    let (limit, name) = (a_day(10), key("script"));
    replica.check(name, &limit, CHARGE).await;
    server.run::<()>("SCRIPT FLUSH");
    let decided = replica.decide(&[check(name, &limit, CHARGE)]).await;
    assert_eq!((decided.decisions[0].remaining, decided.degraded[0]), (8, false));
}

#[tokio::test]
async fn read_only_server_is_not_ready_until_it_is_a_master() {
    let (master, server) = (Server::start(&[]), Server::start(&[]));
    server.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let replica = Replica::start(settings(&[server.url()]));
    until("the reason is known", async || {
        let reason = reason(&replica).to_lowercase();
        reason.contains("readonly") || reason.contains("read only")
    })
    .await;
    assert!(is_degraded(&replica).await);
    server.run::<()>("REPLICAOF NO ONE");
    until_decided(&replica, "any").await;
    // And if the server becomes a replica later.
    server.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    assert!(is_degraded(&replica).await);
    server.run::<()>("REPLICAOF NO ONE");
    until_decided(&replica, "any").await;
}

#[tokio::test]
async fn server_without_memory_degrades_and_recovers() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    server.run::<()>("CONFIG SET maxmemory 1");
    assert!(is_degraded(&replica).await);
    assert!(reason(&replica).contains("OOM"), "{}", reason(&replica));
    server.run::<()>("CONFIG SET maxmemory 0");
    until_decided(&replica, "any").await;
    assert_eq!(replica.store.state(), SharedStoreState::Ready);
}

#[tokio::test]
async fn server_that_loads_its_data_degrades_until_it_has_loaded() {
    let mut server = Server::start(&[
        "--key-load-delay",
        "2000",
        "--loading-process-events-interval-bytes",
        "1024",
        "--enable-debug-command",
        "local",
    ]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    // Keys that take two seconds to load.
    server.run::<()>("DEBUG POPULATE 1000");
    server.run::<()>("SAVE");
    server.kill();
    server.restart();
    assert!(is_degraded(&replica).await);
    until("loading is the reason", async || reason(&replica).to_lowercase().contains("loading")).await;
    until_decided(&replica, "any").await;
}

#[tokio::test]
async fn wrong_password_is_named_and_new_one_is_used() {
    let server = Server::start(&["--requirepass", "right"]);
    let login = |password: &str| Passwords { server: Some(password.to_owned()), sentinel: None };
    let replica = Replica::start_with(settings(&[server.url()]), login("open sesame"));
    until("the reason is known", async || !matches!(reason(&replica).as_str(), "ready" | "connecting")).await;
    let named = reason(&replica);
    assert!(named.contains("authentication failed"), "{named}");
    assert!(!named.contains("sesame"), "a password is shown: {named}");
    replica.passwords.send_replace(login("right"));
    replica.until_ready().await;
    // Once it is subscribed, it logs in for new connections only.
    let channels = || server.run_with_password::<Vec<String>>("right", "PUBSUB CHANNELS");
    until("the replica is subscribed", async || !channels().is_empty()).await;
    let refused = refused_logins(&server, "right");
    replica.passwords.send_replace(login("mistaken"));
    // The second login follows what the replica does after the first refusal.
    until("two logins are refused", async || refused_logins(&server, "right") >= refused + 2).await;
    assert!(!is_degraded(&replica).await, "a wrong password ends the connection that works");
}

/// How many logins the server has refused.
fn refused_logins(server: &Server, password: &str) -> u64 {
    let errors: String = server.run_with_password(password, "INFO errorstats");
    let count = errors.lines().find_map(|line| line.strip_prefix("errorstat_WRONGPASS:count="));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn user_with_few_rights_suffices() {
    let server = Server::start(&[]);
    server.run::<()>(
        "ACL SETUSER tollgate on >secret ~tollgate:* &tollgate:* -@all +evalsha +eval +mget +scan +set +get +del \
         +time +publish +subscribe +zadd +zremrangebyscore +zcard +pexpire",
    );
    let user = SharedStoreSettings { username: Some("tollgate".to_owned()), ..settings(&[server.url()]) };
    let login = Passwords { server: Some("secret".to_owned()), sentinel: None };
    let replica = Replica::start_with(user.clone(), login.clone());
    replica.until_ready().await;
    assert!(!is_degraded(&replica).await);
    assert!(replica.store.own_limits(None, 10).unwrap().await.is_some());
    // A user who may not run scripts.
    server.run::<()>("ACL SETUSER tollgate -evalsha -eval");
    assert!(is_degraded(&replica).await);
    assert!(reason(&replica).to_lowercase().contains("perm"), "{}", reason(&replica));
}

/// A connection of which the server answered a command.
fn accepted_client(server: &Server) -> Option<TcpStream> {
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 7];
    let answered = client.write_all(b"PING\r\n").and_then(|()| client.read_exact(&mut answer));
    (answered.is_ok() && &answer == b"+PONG\r\n").then_some(client)
}

#[tokio::test]
async fn server_with_too_many_clients_degrades_and_recovers() {
    let server = Server::start(&["--maxclients", "10"]);
    // A connection that the server has not yet cleaned up counts, so each client waits for an answer.
    let mut hogs = Vec::new();
    until("the server accepts ten clients", async || {
        hogs.extend(accepted_client(&server));
        hogs.len() == 10
    })
    .await;
    let replica = Replica::start(settings(&[server.url()]));
    until("the reason is known", async || !matches!(reason(&replica).as_str(), "ready" | "connecting")).await;
    assert!(is_degraded(&replica).await);
    drop(hogs);
    until_decided(&replica, "any").await;
}

#[tokio::test]
async fn closed_connection_is_replaced_without_a_degraded_answer() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    for number in 0..20 {
        server.run::<i64>("CLIENT KILL TYPE normal");
        let decided = replica.decide(&[check(key(&number.to_string()), &a_day(10), CHARGE)]).await;
        assert_eq!((decided.decisions[0].remaining, decided.degraded[0]), (9, false));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_under_load_keeps_answers_within_budget() {
    const CALLERS: usize = 64;
    const ANSWERS: usize = 2_000;
    let mut server = Server::start(&[]);
    let settings = settings(&[server.url()]);
    // A call waits for the store for half of its timeout.
    let (budget, timeout) = (settings.timeout, 2 * settings.timeout);
    let replica = Arc::new(Replica::ready(settings).await);
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (replica, counts, done) = (replica.clone(), counts.clone(), done.clone());
            tokio::spawn(async move {
                let (name, limit) = (key(&(caller % 8).to_string()), a_day(1_000_000));
                let mut took = Vec::new();
                while !done.load(Relaxed) {
                    let began = Instant::now();
                    let checks = [check(name, &limit, CHARGE)];
                    let decided =
                        replica.decide_with(&checks, OnOwnerUnavailable::Allow, Some(timeout)).await;
                    took.push(began.elapsed());
                    counts[usize::from(decided.degraded[0])].fetch_add(1, Relaxed);
                    // A degraded answer needs no wait, and the other callers need their turn.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                took
            })
        })
        .collect();
    let [decided, degraded] = &*counts;
    until("the store decides", async || decided.load(Relaxed) >= ANSWERS).await;
    server.kill();
    until("calls are decided without the store", async || degraded.load(Relaxed) >= ANSWERS).await;
    server.restart();
    let before = decided.load(Relaxed);
    until("the store decides again", async || decided.load(Relaxed) >= before + ANSWERS).await;
    done.store(true, Relaxed);
    let mut took = Vec::new();
    for caller in callers {
        took.extend(caller.await.unwrap());
    }
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    println!("{} answers, p99 {p99:?}, slowest {:?}", took.len(), took[took.len() - 1]);
    assert!(p99 < budget, "p99 {p99:?}");
}
