//! Hits that are held, and settled or canceled.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use tollgate_client::{Descriptor, OnExpiry, Request, SettledOutcome, Terms};

use crate::harness::{RULES, Server, client, eventually, options, remaining, request};

/// Without a cancellation, the hits stay charged.
const CHARGE: Terms = Terms { ttl: Duration::from_secs(600), on_expiry: OnExpiry::Charge };

#[tokio::test]
async fn settlement_gives_back_what_was_not_used() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");

    let reservation = client.reserve(&red.clone().hits(80), Terms::default()).await.unwrap();
    assert!(reservation.decision.allowed);
    assert_eq!(remaining(&client, &red).await, 20);
    let settlement = reservation.settle(30).await.unwrap();

    let limit = &settlement.limits[0];
    assert_eq!(
        (limit.outcome, limit.reserved, limit.not_charged, limit.remaining),
        (SettledOutcome::Open, 80, 0, 70)
    );
    assert!(!settlement.unknown);
    assert_eq!(reservation.settle(99).await.unwrap(), settlement, "a repeated call answers as the first one");
    assert_eq!(remaining(&client, &red).await, 70);
}

/// Polls a call once.
async fn begin<T>(mut call: Pin<&mut impl Future<Output = T>>) {
    assert!(poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await.is_pending());
}

#[tokio::test]
async fn settlement_dropped_before_its_answer_is_sent() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let reservation = client.reserve(&red.clone().hits(80), CHARGE).await.unwrap();
    begin(pin!(reservation.settle(30))).await;
    eventually("it is settled", async || remaining(&client, &red).await == 70).await;
}

#[tokio::test]
async fn reservation_dropped_before_its_answer_is_canceled() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    // A settlement would keep the hits of a descriptor.
    let red = Request::new("edge", [Descriptor::new([("group", "red")]).hits(80)]);
    {
        let mut reserve = pin!(client.reserve(&red, CHARGE));
        begin(reserve.as_mut()).await;
        eventually("the hits are held", async || remaining(&client, &red).await == 20).await;
    }
    eventually("they are given back", async || remaining(&client, &red).await == 100).await;
}

#[tokio::test]
async fn expired_reservation_is_released_or_charged() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    for (on_expiry, left) in [(OnExpiry::Release, 100), (OnExpiry::Charge, 20)] {
        let group = request("group", on_expiry.as_str_name());
        let terms = Terms { ttl: Duration::from_millis(1), on_expiry };
        let reservation = client.reserve(&group.clone().hits(80), terms).await.unwrap();
        eventually("it has expired", async || remaining(&client, &group).await == left).await;
        // A settlement adjusts what its expiry did.
        assert_eq!(reservation.settle(30).await.unwrap().limits[0].remaining, 70, "{on_expiry:?}");
    }
}
