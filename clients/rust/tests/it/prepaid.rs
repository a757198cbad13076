//! Slices that are spent without calls.

use std::time::{Duration, Instant};

use tokio::{task::JoinSet, time::sleep};
use tollgate_client::{Descriptor, Outcome, Prepaid, Request, Slices, Source};

use crate::harness::{FREE, HOUR, RULES, Server, client, counted, eventually, options, remaining, request};

const TEN: Slices = Slices { hits: 10, ttl: Duration::from_secs(60), keys_max: 10 };

async fn spends_slice(prepaid: &Prepaid, request: &Request) -> bool {
    prepaid.check(request).await.unwrap().source == Source::Prepaid
}

#[tokio::test]
async fn slice_is_spent_without_calls_and_settled_at_close() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), options);
    let (prepaid, red) =
        (Prepaid::new(client.clone(), Slices { hits: 50, ..TEN }).unwrap(), request("group", "red"));
    let mut checks = 0;
    eventually("a slice is reserved", async || {
        checks += 1;
        spends_slice(&prepaid, &red).await
    })
    .await;
    let sent = counts.batches();
    for _ in 0..20 {
        assert!(spends_slice(&prepaid, &red).await);
    }
    assert_eq!(counts.batches(), sent);
    assert_eq!(counts.of(Outcome::Prepaid), 21);
    assert_eq!(remaining(&client, &red).await, 100 - 50 - (checks - 1), "the slice is held");

    prepaid.close().await;

    assert_eq!(remaining(&client, &red).await, 100 - 20 - checks);
    assert!(!spends_slice(&prepaid, &red).await, "checks go to the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_with_slices_pass_exactly_what_is_charged() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let prepaid = Prepaid::new(client.clone(), TEN).unwrap();
        let red = red.clone();
        callers.spawn(async move {
            let mut passed = 0;
            for _ in 0..100 {
                passed += u64::from(prepaid.check(&red).await.unwrap().allowed);
            }
            prepaid.close().await;
            passed
        });
    }

    let passed: u64 = callers.join_all().await.into_iter().sum();

    assert!(passed <= 100, "{passed} passed of a limit of 100");
    assert_eq!(remaining(&client, &red).await, 100 - passed);
}

#[tokio::test]
async fn slice_is_renewed_before_it_is_used_up() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), options);
    let (prepaid, many) =
        (Prepaid::new(client.clone(), Slices { hits: 50, ..TEN }).unwrap(), request("many", "x"));
    let mut spent = 0;
    eventually("a slice is reserved", async || {
        spent += 1;
        spends_slice(&prepaid, &many).await
    })
    .await;
    let sent = counts.batches();
    for _ in 0..10 {
        // No other task runs in between.
        for _ in 0..39 {
            assert!(spends_slice(&prepaid, &many).await);
        }
        spent += 39;
        eventually("the slice is renewed", async || remaining(&client, &many).await == 1000 - spent - 50)
            .await;
    }
    assert_eq!(counts.batches(), sent);
    prepaid.close().await;
    assert_eq!(remaining(&client, &many).await, 1000 - spent);
}

#[tokio::test]
async fn slice_is_renewed_before_its_time_is_over() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let slices = Slices { ttl: Duration::from_secs(2), ..TEN };
    let (prepaid, red) = (Prepaid::new(client.clone(), slices).unwrap(), request("group", "red"));
    let mut spent = 0;
    eventually("a slice is reserved", async || {
        spent += 1;
        spends_slice(&prepaid, &red).await
    })
    .await;
    eventually("another slice is held", async || remaining(&client, &red).await == 100 - spent - 10).await;
    eventually("it is given back", async || remaining(&client, &red).await == 100 - spent).await;
}

#[tokio::test]
async fn slice_that_is_not_used_is_given_back() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), Slices { ttl: Duration::from_millis(200), ..TEN }).unwrap();
    let red = request("group", "red");
    assert!(prepaid.check(&red).await.unwrap().allowed);
    eventually("the slice is held", async || remaining(&client, &red).await == 89).await;
    eventually("the slice is given back", async || remaining(&client, &red).await == 99).await;
}

#[tokio::test]
async fn slice_ends_with_the_window_of_its_limit() {
    let mut server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let slices = Slices { hits: 500_000, ttl: HOUR, ..TEN };
    let (prepaid, second) = (Prepaid::new(client, slices).unwrap(), request("second", "any"));
    eventually("a slice is reserved", async || spends_slice(&prepaid, &second).await).await;
    server.kill().await;

    eventually("the slice cannot be spent any more", async || {
        matches!(prepaid.check(&second).await.unwrap().source, Source::Default(_))
    })
    .await;
}

#[tokio::test]
async fn key_beyond_the_bound_has_no_slice() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), Slices { keys_max: 1, ..TEN }).unwrap();
    let (red, blue) = (request("group", "red"), request("group", "blue"));
    eventually("a slice is reserved", async || spends_slice(&prepaid, &red).await).await;
    for left in [99, 98, 97] {
        let decision = prepaid.check(&blue).await.unwrap();
        assert_eq!((decision.source, decision.limits[0].remaining), (Source::Server, left));
    }
    prepaid.close().await;
    assert_eq!(remaining(&client, &blue).await, 97);
}

#[tokio::test]
async fn limit_that_is_smaller_than_a_slice_is_checked() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), options);
    let (prepaid, ann) = (Prepaid::new(client, TEN).unwrap(), request("user", "ann"));
    for allowed in [true, true, true, false] {
        assert_eq!(prepaid.check(&ann).await.unwrap().allowed, allowed);
    }
    assert_eq!((counts.of(Outcome::Allowed), counts.of(Outcome::Denied)), (3, 1));
    prepaid.close().await;
}

#[tokio::test]
async fn decisions_of_a_slice_count_down_to_the_reset() {
    let server = Server::start(RULES).await;
    let slices = Slices { hits: 500, ..TEN };
    let prepaid = Prepaid::new(client(server.target(), options()), slices).unwrap();
    let many = request("many", "x");
    eventually("a slice is reserved", async || spends_slice(&prepaid, &many).await).await;
    let reset = async || prepaid.check(&many).await.unwrap().limits[0].reset_after;
    const PAUSE: Duration = Duration::from_millis(5);
    let first = reset().await;
    sleep(PAUSE).await;
    let second = reset().await;
    assert!(first <= HOUR && second + PAUSE <= first, "{first:?}, {second:?}");
}

/// Waits until the keeper of the only key has ended: another key has a slice then.
async fn until_keeper_ends(prepaid: &Prepaid) {
    // Its limit is not used up by checks without a slice.
    let second = request("second", "any");
    eventually("another key has a slice", async || spends_slice(prepaid, &second).await).await;
}

#[tokio::test]
async fn slice_allowed_by_shadow_mode_is_not_spent() {
    let server = Server::start_at(FREE, RULES, &["--limiter-shadow-mode", "true"]).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), Slices { keys_max: 1, ..TEN }).unwrap();
    let red = request("group", "red");
    client.check(&red.clone().hits(95)).await.unwrap();
    assert!(!spends_slice(&prepaid, &red).await);

    until_keeper_ends(&prepaid).await;

    assert_eq!(remaining(&client, &red).await, 4);
}

#[tokio::test]
async fn slice_that_ends_too_soon_is_given_back_and_pauses() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), Slices { keys_max: 1, ..TEN }).unwrap();
    // The bucket refills 10 hits within 10 us.
    let fast = [Descriptor::new([("fast", "x")]), Descriptor::new([("group", "red")])];
    let begin = Instant::now();
    assert!(!spends_slice(&prepaid, &Request::new("edge", fast)).await);

    until_keeper_ends(&prepaid).await;

    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(remaining(&client, &request("group", "red")).await, 99);
}

#[tokio::test]
async fn check_beyond_a_slice_neither_reserves_nor_renews_it() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), Slices { hits: 100, ..TEN }).unwrap();
    let many = request("many", "x");
    let beyond = async || {
        assert_eq!(prepaid.check(&many.clone().hits(101)).await.unwrap().source, Source::Server);
        let mut left = 0;
        // Long enough for a slice to be reserved.
        for _ in 0..20 {
            left = remaining(&client, &many).await;
        }
        left
    };
    assert_eq!(beyond().await, 1000 - 101);

    let mut spent = 0;
    eventually("a slice is reserved", async || {
        spent += 1;
        spends_slice(&prepaid, &many).await
    })
    .await;
    // A renewal would charge the hit that is spent of this slice.
    assert_eq!(beyond().await, 1000 - 2 * 101 - 100 - (spent - 1));
}

#[tokio::test]
async fn check_with_request_id_goes_to_the_server() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid = Prepaid::new(client.clone(), TEN).unwrap();
    let many = request("many", "x");
    eventually("a slice is reserved", async || spends_slice(&prepaid, &many).await).await;
    let before = remaining(&client, &many).await;
    for _ in 0..2 {
        assert!(!spends_slice(&prepaid, &many.clone().request_id("one")).await);
    }
    assert_eq!(remaining(&client, &many).await, before - 1);
}

#[tokio::test]
async fn lost_settlement_counts_hits_that_stay_charged() {
    let mut server = Server::start(RULES).await;
    let (options, counts) = counted();
    let prepaid = Prepaid::new(client(server.target(), options), TEN).unwrap();
    let red = request("group", "red");
    eventually("a slice is reserved", async || spends_slice(&prepaid, &red).await).await;
    assert!(spends_slice(&prepaid, &red).await);
    server.kill().await;

    prepaid.close().await;

    assert_eq!(counts.lost(), 8);
}

#[tokio::test]
async fn invalid_slices_are_errors() {
    let client = client("127.0.0.1:1", options());
    for slices in [
        Slices { hits: 0, ..TEN },
        Slices { ttl: Duration::ZERO, ..TEN },
        Slices { ttl: Duration::MAX, ..TEN },
    ] {
        assert!(Prepaid::new(client.clone(), slices).is_err(), "{slices:?}");
    }
}
