//! How checks share calls.

use tokio::task::{JoinHandle, JoinSet, yield_now};
use tollgate_client::{
    Client, Decision, Descriptor, InvalidRequest, NoAnswer, Options, Outcome, Request, Source,
};

use crate::harness::{RULES, Server, check, client, counted, eventually, options, request};

type Check = JoinHandle<Result<Decision, InvalidRequest>>;

/// Starts a check that is in the queue, or sent, when this returns: the tests have one thread.
async fn start(client: &Client, request: Request) -> Check {
    let client = client.clone();
    let task = tokio::spawn(async move { client.check(&request).await });
    yield_now().await;
    task
}

async fn start_many(client: &Client, count: usize) -> Vec<Check> {
    let mut checks = Vec::with_capacity(count);
    for _ in 0..count {
        checks.push(start(client, request("many", "x")).await);
    }
    checks
}

async fn assert_decided(checks: Vec<Check>) {
    for check in checks {
        assert_eq!(check.await.unwrap().unwrap().source, Source::Server);
    }
}

#[tokio::test]
async fn single_check_is_sent_at_once() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), options);
    check(&client, &request("user", "ann")).await;
    assert_eq!(counts.batches(), [1]);
}

#[tokio::test]
async fn checks_during_a_call_are_sent_together() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { calls_max: 1, ..options });
    let paused = server.pause().await;
    let mut checks = start_many(&client, 1).await;
    eventually("the first check is sent at once", async || counts.batches() == [1]).await;
    checks.extend(start_many(&client, 300).await);
    drop(paused);
    assert_decided(checks).await;
    assert_eq!(counts.batches(), [1, 256, 44]);
}

#[tokio::test]
async fn large_checks_are_sent_apart() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { calls_max: 1, ..options });
    let large = request("user", &"x".repeat(600_000));
    let mut checks = Vec::new();
    for _ in 0..3 {
        checks.push(start(&client, large.clone()).await);
    }
    assert_decided(checks).await;
    assert_eq!(counts.batches(), [1, 1, 1]);
}

#[tokio::test]
async fn check_beyond_full_queue_gets_the_default() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { calls_max: 1, queue_max: 2, ..options });
    let paused = server.pause().await;
    let mut checks = start_many(&client, 1).await;
    eventually("a call is under way", async || counts.batches() == [1]).await;
    checks.extend(start_many(&client, 2).await);

    let decision = client.check(&request("many", "x")).await.unwrap();

    assert_eq!((decision.allowed, decision.source), (true, Source::Default(NoAnswer::QueueFull)));
    assert_eq!(counts.of(Outcome::QueueFull), 1);
    drop(paused);
    assert_decided(checks).await;
}

#[tokio::test]
async fn dropped_check_in_queue_is_not_sent() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { calls_max: 1, ..options });
    let paused = server.pause().await;
    let mut checks = start_many(&client, 1).await;
    eventually("a call is under way", async || counts.batches() == [1]).await;
    let dropped = start(&client, request("many", "x")).await;
    checks.extend(start_many(&client, 1).await);
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    drop(paused);
    assert_decided(checks).await;
    assert_eq!((counts.batches(), counts.of(Outcome::Failed)), (vec![1, 1], 1));
}

#[tokio::test]
async fn invalid_request_in_a_batch_fails_alone() {
    let server = Server::start(RULES).await;
    let (options, counts) = counted();
    let client = client(server.target(), Options { calls_max: 1, ..options });
    // So many descriptors that the server refuses the call and not only the request.
    let crowded = Request::new("edge", vec![Descriptor::new([("user", "ann")]); 1000]);
    let paused = server.pause().await;
    let mut valid = start_many(&client, 1).await;
    eventually("a call is under way", async || counts.batches() == [1]).await;
    let invalid = [start(&client, Request::new("edge", [])).await, start(&client, crowded).await];
    valid.extend(start_many(&client, 2).await);
    drop(paused);
    assert_decided(valid).await;
    for check in invalid {
        assert!(check.await.unwrap().is_err());
    }
    assert_eq!((counts.of(Outcome::Allowed), counts.of(Outcome::Failed)), (3, 2));
}

#[tokio::test]
async fn call_above_bound_of_server_is_split() {
    let server = Server::start_at(crate::harness::FREE, RULES, &["--api-max-requests", "4"]).await;
    let client = client(server.target(), options());
    let checks = start_many(&client, 30).await;
    assert_decided(checks).await;
    let left = client.peek(&request("many", "x")).await.unwrap();
    assert_eq!(left.tightest().unwrap().remaining, 970);
}

#[tokio::test]
async fn answers_belong_to_their_checks() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let mut checks = JoinSet::new();
    for hits in 0..100 {
        let (client, descriptor) =
            (client.clone(), Descriptor::new([("group", hits.to_string())]).hits(hits));
        checks.spawn(async move {
            let decision = check(&client, &Request::new("edge", [descriptor])).await;
            (hits, decision.tightest().unwrap().remaining)
        });
    }
    for (hits, remaining) in checks.join_all().await {
        assert_eq!(remaining, 100 - hits);
    }
}
