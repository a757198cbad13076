//! Checks, peeks and refunds with a server that answers.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_client::{Descriptor, LimitStatus, Outcome, Request, Source, Unit};

use crate::harness::{HOUR, RULES, Server, check, client, counted, options, remaining, request};

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
    assert!(client.refund(&request("user", "ann").hits(2)).await.unwrap().allowed);
    assert_eq!(remaining(&client, &request("user", "ann")).await, 2);
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
async fn call_above_bound_of_server_is_split() {
    let server = Server::start_with(RULES, &["--api-max-requests", "4"]).await;
    let client = client(server.target(), options());
    let mut checks = JoinSet::new();
    for _ in 0..30 {
        let client = client.clone();
        checks.spawn(async move { check(&client, &request("many", "x")).await.source });
    }
    assert_eq!(checks.join_all().await, [Source::Server; 30]);
    assert_eq!(remaining(&client, &request("many", "x")).await, 970);
}
