//! Refusals that a replica repeats by itself, without the store.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tollgate_counter::{
    algorithm::{Limit, Operation},
    descriptor::Key,
};
use tollgate_store::CounterOperation;

use crate::{
    replica::{Replica, a_day, key, settings, until},
    server::{PATIENCE, Server},
};

const CHARGE: Operation = Operation::Charge(1);

/// The longest time for which a refusal is local.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// Waits until a change at another replica lets a caller of `one` pass sooner than the local refusal would have ended by
/// itself. A busy machine may be slower than that, so it is tried again.
async fn until_change_ends_refusal(one: &Replica, name: Key, limit: &Limit, change: impl AsyncFn()) {
    let started = Instant::now();
    loop {
        // The store confirms the value after this instant.
        let confirmed = Instant::now();
        while one.check(name, limit, CHARGE).await.verdict.passes() {}
        until("refusals are local", async || {
            one.check(name, limit, CHARGE).now_or_never().is_some_and(|decision| !decision.verdict.passes())
        })
        .await;
        change().await;
        while !one.check(name, limit, CHARGE).await.verdict.passes() {
            assert!(started.elapsed() < PATIENCE, "refusals end at all");
            tokio::task::yield_now().await;
        }
        if confirmed.elapsed() < REFUSAL_MAX {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "the change was announced");
    }
}

#[tokio::test]
async fn refund_or_reset_elsewhere_ends_local_refusal() {
    let server = Server::start(&[]);
    let (one, other) =
        (Replica::ready(settings(&[server.url()])).await, Replica::ready(settings(&[server.url()])).await);
    let (limit, name) = (a_day(2), key("refunded"));
    let refund = async || {
        other.check(name, &limit, Operation::Refund(1)).await;
    };
    until_change_ends_refusal(&one, name, &limit, refund).await;
    let reset = async || {
        other.remote.operate(name, &limit, [CounterOperation::Set(0)]).await.unwrap();
    };
    until_change_ends_refusal(&one, name, &limit, reset).await;
}

#[tokio::test]
async fn larger_limit_ends_local_refusal_at_once() {
    let server = Server::start(&[]);
    let replica = Replica::ready(settings(&[server.url()])).await;
    let name = key("raised");
    replica.check(name, &a_day(2), Operation::Charge(2)).await;
    assert!(!replica.check(name, &a_day(2), CHARGE).await.verdict.passes());
    assert!(replica.check(name, &a_day(3), CHARGE).await.verdict.passes());
}
