//! The example that limits tokens.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate_client::{Client, Descriptor, OnNoAnswer, Options, Request};

use crate::harness::{FREE, HOUR, Relay, Server, client, eventually, get, options, remaining};

#[path = "../../examples/llm.rs"]
#[expect(dead_code, reason = "the program's main")]
mod example;

const RULES: &str = "
domain: models
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 150, algorithm: sliding_log}
";

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

fn ann() -> Request {
    Request::new("models", [Descriptor::new([("user", "ann")])])
}

#[tokio::test]
async fn tokens_of_an_answer_are_charged_at_its_end() {
    let (_tollgate, client, address) = start(Duration::ZERO).await;
    let answer = get(address, "/generate", &[("user", "ann")]).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("happen "), "{}", answer.body);
    eventually("12 tokens are charged", async || remaining(&client, &ann()).await == 138).await;
}

#[tokio::test]
async fn tokens_are_charged_if_the_caller_goes_away() {
    let (_tollgate, client, address) = start(HOUR).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /generate HTTP/1.1\r\nhost: example\r\nuser: ann\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    while !text.windows(4).any(|part| part == b"\nA \r") {
        assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{}", String::from_utf8_lossy(&text));
    }
    assert_eq!(remaining(&client, &ann()).await, 150 - example::TOKENS_MAX, "they are held");
    assert_eq!(get(address, "/generate", &[("user", "ann")]).await.status, 429);

    drop(stream);

    eventually("one token is charged", async || remaining(&client, &ann()).await == 149).await;
}

/// Starts the example with a server whose answers are lost from now on, and a client that gets them. One hit is charged.
async fn start_without_answers() -> (Server, Client, SocketAddr) {
    let tollgate = Server::start(RULES).await;
    let direct = client(tollgate.target(), options());
    let relay = Relay::start(tollgate.address).await;
    // Long enough for a busy machine to reserve, and to cancel.
    let lossy = Options { timeout: Duration::from_secs(3), on_no_answer: OnNoAnswer::Deny, ..options() };
    let lossy = client(relay.address.to_string(), lossy);
    assert!(lossy.check(&ann()).await.unwrap().allowed);
    let address = serve(lossy, Duration::ZERO).await;
    relay.loses_answers.store(true, Ordering::SeqCst);
    (tollgate, direct, address)
}

#[tokio::test]
async fn caller_that_leaves_before_the_answer_is_charged_nothing() {
    let (_tollgate, direct, address) = start_without_answers().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /generate HTTP/1.1\r\nhost: example\r\nuser: ann\r\n\r\n").await.unwrap();
    eventually("tokens are held", async || remaining(&direct, &ann()).await == 149 - example::TOKENS_MAX)
        .await;

    drop(stream);

    eventually("they are given back", async || remaining(&direct, &ann()).await == 149).await;
}

#[tokio::test]
async fn reservation_whose_answer_is_lost_is_canceled() {
    let (_tollgate, direct, address) = start_without_answers().await;

    let answer = tokio::spawn(async move { get(address, "/generate", &[("user", "ann")]).await });
    eventually("tokens are held", async || remaining(&direct, &ann()).await == 149 - example::TOKENS_MAX)
        .await;

    eventually("they are given back", async || remaining(&direct, &ann()).await == 149).await;
    assert_eq!(answer.await.unwrap().status, 503);
}
