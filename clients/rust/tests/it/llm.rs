//! The example that limits the users of a language model.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate_client::{Client, Descriptor, OnNoAnswer, Options, Request};

use crate::harness::{FREE, HOUR, Relay, Server, client, eventually, get, options};

#[path = "../../examples/llm.rs"]
#[expect(dead_code, reason = "the program's main")]
mod example;

const RULES: &str = include_str!("../../../llm.yaml");

/// Starts the example, and a client of the same server.
async fn start(pace: Duration) -> (Server, Client, SocketAddr) {
    let tollgate = Server::start(RULES).await;
    let client = client(tollgate.target(), options());
    let address = serve(client.clone(), pace).await;
    (tollgate, client, address)
}

/// The address of the example with this client.
async fn serve(client: Client, pace: Duration) -> SocketAddr {
    let app = example::app(client, example::Model { pace });
    let listener = TcpListener::bind(FREE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// The tokens of the month, and the calls in flight.
async fn used(client: &Client) -> [u64; 2] {
    let descriptors = ["tokens_of_month", "in_flight"].map(|key| Descriptor::new([(key, "ann")]));
    let decision = client.peek(&Request::new("models", descriptors)).await.unwrap();
    [1_000_000 - decision.limits[0].remaining, 4 - decision.limits[1].remaining]
}

async fn eventually_used(client: &Client, expected: [u64; 2]) {
    eventually("the limits are used", async || used(client).await == expected).await;
}

/// Sends a request, and returns the connection when the answer has this text.
async fn begin_chat(address: SocketAddr, until: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /chat?max_tokens=6000 HTTP/1.1\r\nhost: example\r\nuser: ann\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    while !until.is_empty() && !text.windows(until.len()).any(|part| part == until) {
        assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{}", String::from_utf8_lossy(&text));
    }
    stream
}

#[tokio::test]
async fn answer_shorter_than_reserved_is_charged_as_sent() {
    let (_tollgate, client, address) = start(Duration::ZERO).await;
    let answer = get(address, "/chat?max_tokens=500", &[("user", "ann")]).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("exactly"), "{}", answer.body);
    eventually_used(&client, [18, 0]).await;

    let never = get(address, "/chat?max_tokens=10001", &[("user", "ann")]).await;
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(get(address, "/chat?max_tokens=0", &[]).await.status, 400);
    assert_eq!(used(&client).await, [18, 0]);
}

#[tokio::test]
async fn answer_whose_caller_goes_away_is_charged_as_sent() {
    let (_tollgate, client, address) = start(HOUR).await;
    let stream = begin_chat(address, b"Limits").await;
    assert_eq!(used(&client).await, [6000, 1], "they are held");
    let refused = get(address, "/chat?max_tokens=6000", &[("user", "ann")]).await;
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(refused.status == 429 && (1..=12).contains(&wait), "{refused:?}");

    drop(stream);

    eventually_used(&client, [1, 0]).await;
}

/// Starts the example with a server whose answers are lost from now on, and a client that gets them.
async fn start_without_answers() -> (Server, Client, SocketAddr) {
    let tollgate = Server::start(RULES).await;
    let direct = client(tollgate.target(), options());
    let relay = Relay::start(tollgate.address).await;
    // Long enough for a busy machine to reserve, and to cancel.
    let lossy = Options { timeout: Duration::from_secs(3), on_no_answer: OnNoAnswer::Deny, ..options() };
    let lossy = client(relay.address.to_string(), lossy);
    assert_eq!(used(&lossy).await, [0, 0]);
    let address = serve(lossy, Duration::ZERO).await;
    relay.loses_answers.store(true, Ordering::SeqCst);
    (tollgate, direct, address)
}

#[tokio::test]
async fn caller_that_leaves_before_the_answer_is_charged_nothing() {
    let (_tollgate, direct, address) = start_without_answers().await;
    let stream = begin_chat(address, b"").await;
    eventually_used(&direct, [6000, 1]).await;

    drop(stream);

    eventually_used(&direct, [0, 0]).await;
}

#[tokio::test]
async fn reservation_whose_answer_is_lost_is_canceled() {
    let (_tollgate, direct, address) = start_without_answers().await;

    let answer = tokio::spawn(async move { get(address, "/chat?max_tokens=600", &[("user", "ann")]).await });
    eventually_used(&direct, [600, 1]).await;

    eventually_used(&direct, [0, 0]).await;
    assert_eq!(answer.await.unwrap().status, 503);
}
