//! The example that limits tokens.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tollgate_client::{Client, Descriptor, Request};

use crate::harness::{FREE, HOUR, Server, client, eventually, get, options, remaining};

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
    let app = example::app(client.clone(), example::Model { pace });
    let listener = TcpListener::bind(FREE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (tollgate, client, address)
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
