//! Checks, peeks and refunds with a server that answers.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use tollgate_client::{
    Descriptor, Error, InvalidRequest, LimitStatus, Options, Outcome, Request, Source, Unit,
};

use crate::harness::{HOUR, RULES, Server, check, client, counted, options, request};

#[tokio::test]
async fn check_says_all_of_the_limit() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());

    let allowed = check(&client, &request("user", "ann").hits(3)).await;
    let denied = check(&client, &request("user", "ann")).await;

    let want = LimitStatus {
        descriptor: 0,
        rule: "of-user".to_owned(),
        requests_per_unit: 3,
        unit: Unit::Hour,
        remaining: 0,
        reset_after: HOUR,
        retry_after: None,
        refused: false,
        refused_in_shadow: false,
        refused_by_candidate: false,
        degraded: false,
    };
    assert!(allowed.allowed && !allowed.degraded);
    assert_eq!((allowed.retry_after, allowed.delay), (None, Duration::ZERO));
    assert_eq!(allowed.limits, [want]);
    assert_eq!((denied.allowed, denied.source), (false, Source::Server));
    let wait = denied.retry_after.unwrap();
    assert!(wait > HOUR / 2 && wait <= HOUR, "{wait:?}");
    assert_eq!((denied.limits[0].refused, denied.limits[0].retry_after), (true, Some(wait)));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_checks_pass_exactly_the_limit() {
    const CALLERS: usize = 1000;
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), options);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move { check(&client, &request("group", "red")).await.allowed });
    }

    let passed = callers.join_all().await.into_iter().filter(|passed| *passed).count();

    let [allowed, denied, local] =
        [Outcome::Allowed, Outcome::Denied, Outcome::DeniedLocally].map(|outcome| counts.of(outcome));
    assert_eq!((passed, allowed, allowed + denied + local), (100, 100, CALLERS));
    assert_eq!(counts.batches().iter().sum::<usize>(), allowed + denied);
}

#[tokio::test]
async fn refused_key_is_denied_without_server() {
    let mut server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { deny_cache_max: HOUR, ..options });
    for _ in 0..4 {
        check(&client, &request("user", "ann")).await;
    }
    server.kill().await;

    let decision = client.check(&request("user", "ann")).await.unwrap();

    assert_eq!((decision.allowed, decision.source), (false, Source::DenyCache));
    assert!(decision.retry_after.is_some());
    assert_eq!(counts.of(Outcome::DeniedLocally), 1);
    let other = client.check(&request("user", "bob")).await.unwrap();
    assert!(matches!(other.source, Source::Default(_)), "{other:?}");
}

#[tokio::test]
async fn refusal_that_never_ends_is_not_cached() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), Options { deny_cache_max: HOUR, ..options() });
    for _ in 0..2 {
        let decision = check(&client, &request("user", "ann").hits(4)).await;
        assert_eq!((decision.allowed, decision.retry_after, decision.source), (false, None, Source::Server));
    }
}

#[tokio::test]
async fn client_without_deny_cache_asks_for_refused_key() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), Options { deny_cache_keys: 0, ..options() });
    for allowed in [true, true, true, false, false] {
        let decision = check(&client, &request("user", "ann")).await;
        assert_eq!((decision.allowed, decision.source), (allowed, Source::Server));
    }
}

#[tokio::test]
async fn invalid_request_is_an_error_of_each_call() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let invalid = [
        Request::new("", [Descriptor::new([("user", "ann")])]),
        Request::new("edge", []),
        Request::new("edge", [Descriptor::new([("user", "ann")]).limit(1, Unit::Unknown)]),
        request("user", &"x".repeat(4 << 20)),
    ];
    for request in &invalid {
        let errors = [
            client.check(request).await.map_err(Error::from),
            client.peek(request).await.map_err(Error::from),
            client.refund(request).await,
        ];
        for result in errors {
            assert!(matches!(result, Err(Error::InvalidRequest(InvalidRequest(_)))), "{result:?}");
        }
    }
}

#[tokio::test]
async fn largest_request_of_a_message_is_decided() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    assert!(check(&client, &request("user", &"x".repeat((4 << 20) - 64))).await.allowed);
}

#[tokio::test]
async fn refund_of_refused_key_lets_it_pass() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), Options { deny_cache_max: HOUR, ..options() });
    let ann = request("user", "ann");
    check(&client, &ann.clone().hits(3)).await;
    assert_eq!(check(&client, &ann).await.source, Source::Server);
    assert_eq!(check(&client, &ann).await.source, Source::DenyCache);

    let refund = client.refund(&ann).await.unwrap();

    assert!(refund.allowed);
    assert_eq!(refund.tightest().unwrap().remaining, 1);
    assert!(check(&client, &ann).await.allowed);
}

#[tokio::test]
async fn repeated_check_with_request_id_counts_once() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let ann = request("user", "ann");
    for (id, left) in [("one", 2), ("one", 2), ("two", 1)] {
        let decision = check(&client, &ann.clone().request_id(id)).await;
        assert_eq!((decision.allowed, decision.limits[0].remaining), (true, left), "{id}");
    }
    let refund = client.refund(&ann.clone().request_id("one")).await.unwrap();
    assert_eq!(refund.limits[0].remaining, 2);
    assert_eq!(client.peek(&ann.request_id("one")).await.unwrap().limits[0].remaining, 2);
}

#[tokio::test]
async fn check_with_request_id_passes_over_the_deny_cache() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), Options { deny_cache_max: HOUR, ..options() });
    let ann = request("user", "ann");
    assert!(check(&client, &ann.clone().hits(3).request_id("one")).await.allowed);
    for _ in 0..2 {
        let decision = check(&client, &ann.clone().request_id("two")).await;
        assert_eq!((decision.allowed, decision.source), (false, Source::Server));
    }
    assert_eq!(check(&client, &ann).await.source, Source::DenyCache, "its refusal is cached");
    assert!(check(&client, &ann.hits(3).request_id("one")).await.allowed);
}

#[tokio::test]
async fn peek_charges_nothing() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    for _ in 0..5 {
        let decision = client.peek(&request("user", "ann").hits(9)).await.unwrap();
        assert_eq!((decision.allowed, decision.tightest().unwrap().remaining), (true, 3));
    }
}

#[tokio::test]
async fn limit_and_hits_of_descriptor_replace_those_of_rule() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let descriptor = Descriptor::new([("user", "ann")]).limit(10, Unit::Day).hits(7);

    let decision = check(&client, &Request::new("edge", [descriptor])).await;

    let limit = &decision.limits[0];
    assert_eq!((limit.requests_per_unit, limit.unit, limit.remaining), (10, Unit::Day, 3));
    assert_eq!(limit.rule, "");
}

#[tokio::test]
async fn request_of_a_queue_is_allowed_with_its_delay() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let [first, second] =
        [check(&client, &request("turn", "a")).await, check(&client, &request("turn", "a")).await];
    assert_eq!((first.allowed, first.delay), (true, Duration::ZERO));
    assert!(second.allowed && second.delay > Duration::ZERO && second.delay <= Duration::from_secs(1));
}

#[tokio::test]
async fn dropped_check_counts_as_failed() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = Arc::new(client(server.target(), options));
    let paused = server.pause().await;
    let task = tokio::spawn({
        let client = client.clone();
        async move { client.check(&request("user", "ann")).await }
    });
    crate::harness::eventually("the check is sent", async || counts.batches().len() == 1).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    drop(paused);
    assert_eq!(counts.of(Outcome::Failed), 1);
}
