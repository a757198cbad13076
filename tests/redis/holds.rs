//! Reservations whose counters are in the store.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tollgate_counter::{
    algorithm::Operation,
    time::{Clock, Timestamp},
};
use tollgate_remote::RemoteHoldError;
use tollgate_shared_store::SharedStoreSettings;
use tollgate_store::{HOLDS_MAX, SettleOutcome};

use crate::{
    replica::{Replica, a_day, check, key, settings, terms, until, until_ok},
    server::{PATIENCE, Server},
};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_replicas_reserve_and_charge_exactly_the_limit() {
    let server = Server::start(&[]);
    let settings = SharedStoreSettings { timeout: PATIENCE, ..settings(&[server.url()]) };
    let replicas = join_all((0..3).map(|_| async { Arc::new(Replica::ready(settings.clone()).await) })).await;
    let (name, limit) = (key("raced"), a_day(600));
    let callers = (0..24_usize).map(|caller| {
        let (limit, replicas) = (limit.clone(), replicas.clone());
        tokio::spawn(async move {
            let mut used = 0;
            for round in 0..20_usize {
                let (here, there) = (&replicas[caller % 3], &replicas[(caller + round) % 3]);
                let id = format!("{caller} {round}");
                let hold = [check(name, &limit, Operation::Charge(3))];
                if !here.reserve(&hold, &terms(&id, 60 * MINUTE)).await.unwrap().is_held {
                    let charge = here.check(name, &limit, Operation::Charge(1)).await;
                    used += u64::from(charge.verdict.passes());
                    continue;
                }
                let actual = (round % 4) as u64;
                let settled =
                    there.settle(&[check(name, &limit, Operation::Charge(actual))], &id).await.unwrap();
                assert_eq!((settled[0].outcome, settled[0].reserved), (SettleOutcome::Open, 3));
                used += actual;
            }
            used
        })
    });
    let used: u64 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    let left = replicas[0].check(name, &limit, Operation::Peek).await.remaining;
    assert_eq!(used + left, 600);
    let reservations = (0..left + 5).map(async |number| {
        let hold = [check(name, &limit, Operation::Charge(1))];
        let replica = &replicas[(number % 3) as usize];
        replica.reserve(&hold, &terms(&format!("last {number}"), MINUTE)).await.unwrap().is_held
    });
    let held = join_all(reservations).await.into_iter().filter(|is_held| *is_held).count();
    assert_eq!(held as u64, left);
}

#[tokio::test]
async fn reservation_survives_restart_of_all_replicas() {
    let server = Server::start(&[]);
    let (name, limit) = (key("restart"), a_day(10));
    let hold = |hits| [check(name, &limit, Operation::Charge(hits))];
    let first = Replica::ready(settings(&[server.url()])).await;
    assert!(first.reserve(&hold(8), &terms("a", MINUTE)).await.unwrap().is_held);
    drop(first);
    let second = Replica::ready(settings(&[server.url()])).await;
    assert!(!second.check(name, &limit, Operation::Charge(3)).await.verdict.passes());
    let settled = second.settle(&hold(1), "a").await.unwrap()[0];
    assert_eq!((settled.outcome, settled.reserved, settled.remaining), (SettleOutcome::Open, 8, 9));
    let again = second.reserve(&hold(8), &terms("a", MINUTE)).await.unwrap();
    assert!(again.is_held && again.has_ended, "it is settled");
    assert_eq!(second.check(name, &limit, Operation::Peek).await.remaining, 9);
}

#[tokio::test]
async fn expiry_ends_refusals_of_all_replicas() {
    let server = Server::start(&[]);
    let clock = Clock::manual(Timestamp::from_nanos(1_790_000_040 * 1_000_000_000));
    let one = Replica::ready_with(settings(&[server.url()]), clock.clone()).await;
    let other = Replica::ready_with(settings(&[server.url()]), clock.clone()).await;
    let (name, limit) = (key("expiring"), a_day(10));
    let hold = [check(name, &limit, Operation::Charge(10))];
    assert!(one.reserve(&hold, &terms("a", MINUTE)).await.unwrap().is_held);
    for replica in [&one, &other] {
        assert!(!replica.check(name, &limit, Operation::Charge(1)).await.verdict.passes());
    }
    clock.set(clock.now().after(MINUTE));
    for (replica, left) in [(&one, 9), (&other, 8)] {
        assert_eq!(replica.check(name, &limit, Operation::Charge(1)).await.remaining, left);
    }
    let released: u64 =
        [&one, &other].map(|replica| replica.store.stats().counts.events.holds_released.get()).iter().sum();
    assert_eq!(released, 1);
}

#[tokio::test]
async fn settlement_elsewhere_ends_local_refusal() {
    let server = Server::start(&[]);
    let one = Replica::ready(settings(&[server.url()])).await;
    let other = Replica::ready(settings(&[server.url()])).await;
    let (name, limit) = (key("settled"), a_day(10));
    let hold = |hits| [check(name, &limit, Operation::Charge(hits))];
    assert!(one.reserve(&hold(10), &terms("a", MINUTE)).await.unwrap().is_held);
    let refused = other.store.stats().counts.refused_locally.get();
    until("the refusals are local", async || {
        assert!(!other.check(name, &limit, Operation::Charge(1)).await.verdict.passes());
        other.store.stats().counts.refused_locally.get() > refused
    })
    .await;
    one.settle(&hold(0), "a").await.unwrap();
    until_ok(Duration::from_millis(500), "the settlement is announced", async || {
        let decision = other.check(name, &limit, Operation::Charge(1)).await;
        if decision.verdict.passes() { Ok(()) } else { Err(decision) }
    })
    .await;
}

#[tokio::test]
async fn more_than_the_most_reservations_are_refused() {
    let server = Server::start(&[]);
    let settings = SharedStoreSettings { timeout: PATIENCE, ..settings(&[server.url()]) };
    let replica = Replica::ready(settings).await;
    let (name, limit) = (key("full"), a_day(1_000_000));
    let hold = [check(name, &limit, Operation::Charge(1))];
    let reserve = async |number: usize| replica.reserve(&hold, &terms(&number.to_string(), MINUTE)).await;
    for held in join_all((0..HOLDS_MAX).map(reserve)).await {
        assert!(held.unwrap().is_held);
    }
    assert_eq!(reserve(HOLDS_MAX).await.unwrap_err(), RemoteHoldError::Exhausted);
    assert_eq!(replica.store.stats().counts.events.holds_exhausted.get(), 1);
    assert_eq!(replica.check(name, &limit, Operation::Peek).await.remaining, 999_000);
    let size: usize = server.run("DBSIZE");
    assert_eq!(size, 3, "the counter, the secret and the replicas");
    replica.settle(&hold, "0").await.unwrap();
    assert!(reserve(HOLDS_MAX).await.unwrap().is_held);
}

#[tokio::test]
async fn forgotten_ids_are_counted_and_their_counter_stays_bounded() {
    const IDS: usize = 4_800;
    let server = Server::start(&[]);
    let settings = SharedStoreSettings { timeout: PATIENCE, ..settings(&[server.url()]) };
    let replica = Replica::ready(settings).await;
    let (name, limit) = (key("many"), a_day(1_000_000));
    let charge = [check(name, &limit, Operation::Charge(1))];
    for first in (0..IDS).step_by(100) {
        let settle = async |number: usize| replica.settle(&charge, &number.to_string()).await;
        for settled in join_all((first..first + 100).map(settle)).await {
            assert_eq!(settled.unwrap()[0].outcome, SettleOutcome::Unknown);
        }
    }
    let forgotten = replica.store.stats().counts.events.ids_forgotten.get() as usize;
    assert!((IDS - 4_096 - 255..=IDS - 4_096).contains(&forgotten), "{forgotten}");
    // The newest is answered as the first time, and the oldest is unknown.
    assert_eq!(
        replica.settle(&charge, &(IDS - 1).to_string()).await.unwrap()[0].remaining,
        1_000_000 - IDS as u64
    );
    replica.settle(&charge, "0").await.unwrap();
    assert_eq!(replica.check(name, &limit, Operation::Peek).await.remaining, 1_000_000 - IDS as u64 - 1);
}

#[tokio::test]
async fn reservation_without_the_store_is_an_error_and_holds_nothing() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    let (name, limit) = (key("outage"), a_day(10));
    let hold = [check(name, &limit, Operation::Charge(8))];
    assert!(replica.reserve(&hold, &terms("a", MINUTE)).await.unwrap().is_held);
    replica.settle(&hold, "a").await.unwrap();
    server.signal("STOP");
    let hold = [check(name, &limit, Operation::Charge(2))];
    let error = replica.reserve(&hold, &terms("b", MINUTE)).await.unwrap_err();
    assert_eq!(error, RemoteHoldError::OwnerUnreachable);
    assert_eq!(replica.settle(&hold, "a").await.unwrap_err(), RemoteHoldError::OwnerUnreachable);
    server.signal("CONT");
    replica.until_ready().await;
    // The store may have held it without an answer, which is withdrawn.
    until("nothing is held", async || replica.check(name, &limit, Operation::Peek).await.remaining == 2)
        .await;
}
