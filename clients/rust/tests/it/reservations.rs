//! Hits that are held, and settled or canceled.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use tollgate_client::{
    Descriptor, Error, NoAnswer, OnExpiry, OnNoAnswer, Options, Request, SettledOutcome, Settlement, Source,
    Terms,
};

use crate::harness::{FREE, RULES, Relay, Server, client, eventually, options, remaining, request};

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

#[tokio::test]
async fn cancellation_gives_all_back() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let reservation = client.reserve(&red.clone().hits(80), Terms::default()).await.unwrap();
    assert_eq!(reservation.cancel().await.unwrap().limits[0].remaining, 100);
    assert_eq!(remaining(&client, &red).await, 100);
}

#[tokio::test]
async fn hits_of_descriptor_are_settled_as_they_were_reserved() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    // One request of up to 50 tokens.
    let (calls, tokens) = (Descriptor::new([("user", "ann")]).hits(1), Descriptor::new([("group", "red")]));
    let request = Request::new("edge", [calls, tokens]).hits(50);

    let settled = client.reserve(&request, Terms::default()).await.unwrap().settle(30).await.unwrap();
    assert_eq!(settled.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [2, 70]);

    let canceled = client.reserve(&request, Terms::default()).await.unwrap().cancel().await.unwrap();
    assert_eq!(canceled.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>(), [2, 70]);
}

#[tokio::test]
async fn refused_reservation_holds_nothing() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let first = client.reserve(&red.clone().hits(80), Terms::default()).await.unwrap();
    let second = client.reserve(&red.clone().hits(80), Terms::default()).await.unwrap();
    assert_eq!((first.decision.allowed, second.decision.allowed), (true, false));
    assert!(second.decision.retry_after.is_some());
    assert!(second.settle(10).await.unwrap().limits.is_empty());
    assert!(second.cancel().await.unwrap().limits.is_empty());
    assert_eq!(remaining(&client, &red).await, 20);
}

#[tokio::test]
async fn reservation_dropped_before_its_answer_is_canceled() {
    let server = Server::start(RULES).await;
    let direct = client(server.target(), options());
    let relay = Relay::start(server.address).await;
    let relayed = client(relay.address.to_string(), options());
    let red = request("group", "red");
    assert_eq!(remaining(&relayed, &red).await, 100);
    relay.hold_answers();
    let caller = tokio::spawn({
        let red = red.clone().hits(80);
        async move { relayed.reserve(&red, CHARGE).await }
    });
    eventually("the hits are held", async || remaining(&direct, &red).await == 20).await;

    caller.abort();
    assert!(caller.await.err().unwrap().is_cancelled());
    relay.release_answers();

    eventually("they are given back", async || remaining(&direct, &red).await == 100).await;
}

#[tokio::test]
async fn reservation_dropped_with_its_answer_is_canceled() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    // A settlement would keep the hits of a descriptor.
    let red = Request::new("edge", [Descriptor::new([("group", "red")]).hits(80)]);
    {
        let mut reserve = pin!(client.reserve(&red, CHARGE));
        let polled = poll_fn(|context| Poll::Ready(reserve.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        eventually("the hits are held", async || remaining(&client, &red).await == 20).await;
    }
    eventually("they are given back", async || remaining(&client, &red).await == 100).await;
}

#[tokio::test]
async fn reservation_allowed_by_shadow_mode_holds_nothing() {
    let server = Server::start_at(FREE, RULES, &["--limiter-shadow-mode", "true"]).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let reservation = client.reserve(&red.clone().hits(101), Terms::default()).await.unwrap();
    assert!(reservation.decision.allowed && reservation.decision.limits[0].refused);
    for settlement in [reservation.settle(30).await, reservation.cancel().await] {
        assert_eq!(settlement.unwrap(), Settlement::default());
    }
    assert_eq!(remaining(&client, &red).await, 100);
}

#[tokio::test]
async fn settlement_of_unknown_reservation_charges_and_says_so() {
    let mut server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let reservation = client.reserve(&red.clone().hits(80), Terms::default()).await.unwrap();
    server.kill().await;
    let _restarted = Server::start_at(&server.target(), RULES, &[]).await;
    eventually("the server answers", async || client.peek(&red).await.unwrap().source == Source::Server)
        .await;

    let settlement = reservation.settle(30).await.unwrap();

    let limit = &settlement.limits[0];
    assert!(settlement.unknown);
    assert_eq!((limit.outcome, limit.remaining), (SettledOutcome::Unknown, 70));
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

#[tokio::test]
async fn settlement_ends_local_refusals_of_the_key() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), Options { deny_cache_max: crate::harness::HOUR, ..options() });
    let ann = request("user", "ann");
    let reservation = client.reserve(&ann.clone().hits(3), Terms::default()).await.unwrap();
    assert!(!client.check(&ann).await.unwrap().allowed);
    reservation.cancel().await.unwrap();
    assert!(client.check(&ann).await.unwrap().allowed);
}

#[tokio::test]
async fn invalid_terms_are_an_error() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    for ttl in [Duration::ZERO, Duration::from_secs(86_401), Duration::MAX] {
        let terms = Terms { ttl, ..Terms::default() };
        assert!(client.reserve(&request("user", "ann"), terms).await.is_err(), "{ttl:?}");
    }
}

#[tokio::test]
async fn reservation_without_server_gets_the_default() {
    for (on_no_answer, allowed) in [(OnNoAnswer::Allow, true), (OnNoAnswer::Deny, false)] {
        // Nothing listens on port 1.
        let client = client("127.0.0.1:1", Options { on_no_answer, ..options() });
        let reservation = client.reserve(&request("user", "ann"), Terms::default()).await.unwrap();
        assert_eq!(reservation.decision.allowed, allowed);
        assert!(matches!(reservation.decision.source, Source::Default(_)));
        let error = reservation.settle(1).await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer(NoAnswer::Failed { .. })), "{error}");
    }
}
