//! Servers whose replies never end.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tollgate_counter::algorithm::Operation;
use tollgate_shared_store::{SharedStoreSettings, SharedStoreState, StoreMode};

use crate::{
    replica::{Replica, a_day, check, key, settings, until},
    server::PATIENCE,
};

/// A reply is not continued beyond so many bytes. The buffers of two sockets take some megabytes of it.
const SENT_MAX: usize = 256 << 20;
/// More bytes are not taken by a connection that was closed for the length of a reply of one counter.
const TAKEN_MAX: usize = 32 << 20;

/// How a reply without an end begins, and what it repeats.
struct Endless {
    head: &'static [u8],
    repeated: &'static [u8],
}

/// Starts a server that greets as Redis does and answers every other script, and the question of a sentinel, without an end. Returns its address, and
/// how many bytes each connection took of such an answer.
async fn start(reply: Endless) -> (String, mpsc::UnboundedReceiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (taken, received) = mpsc::unbounded_channel();
    let port = listener.local_addr().unwrap().port();
    let reply = Arc::new((reply.head, reply.repeated.repeat(1 << 14)));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, port, reply.clone(), taken.clone()));
        }
    });
    (url, received)
}

async fn serve(
    mut socket: TcpStream,
    port: u16,
    reply: Arc<(&'static [u8], Vec<u8>)>,
    taken: mpsc::UnboundedSender<usize>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = socket.read(&mut bytes).await {
        let command = String::from_utf8_lossy(&bytes[..length]);
        if command.contains("{replicas}") {
            let greeting = "*5\r\n:1790000000\r\n:0\r\n$16\r\n0123456789abcdef\r\n:1\r\n:0\r\n";
            let _ = socket.write_all(greeting.as_bytes()).await;
        } else if command.contains("EVALSHA") || command.contains("SENTINEL") {
            let mut sent = 0;
            let mut chunk = reply.0;
            while sent < SENT_MAX && socket.write_all(chunk).await.is_ok() {
                sent += chunk.len();
                chunk = &reply.1;
            }
            let _ = taken.send(sent);
            return;
        } else if command.contains("SLOTS") {
            let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
            let _ = socket.write_all(slots.as_bytes()).await;
        } else {
            let ok = "+OK\r\n".repeat(command.matches("CLIENT").count() + command.matches("PING").count());
            let _ = socket.write_all(ok.as_bytes()).await;
        }
    }
}

async fn assert_closed(mode: StoreMode, reply: Endless) {
    let (url, mut taken) = start(reply).await;
    let replica = Replica::ready(SharedStoreSettings { mode, timeout: PATIENCE, ..settings(&[url]) }).await;
    let decided = replica.decide(&[check(key("a"), &a_day(10), Operation::Charge(1))]).await;
    assert!(decided.degraded[0] && !decided.decisions[0].verdict.passes());
    let taken = tokio::time::timeout(Duration::from_secs(5), taken.recv()).await.unwrap().unwrap();
    assert!(taken < TAKEN_MAX, "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_reply_of_sentinel_closes_its_connection() {
    let (url, mut taken) = start(ARRAY).await;
    let mode = StoreMode::Sentinel { service: "counters".to_owned() };
    let replica = Replica::start(SharedStoreSettings { mode, timeout: PATIENCE, ..settings(&[url]) });
    let taken = tokio::time::timeout(PATIENCE, taken.recv()).await.unwrap().unwrap();
    assert!(taken < TAKEN_MAX, "{taken}");
    let unavailable = async || matches!(replica.store.state(), SharedStoreState::Unavailable(_));
    until("the sentinel names no master", unavailable).await;
}

const STRING: Endless = Endless { head: b"*3\r\n:1790000000\r\n:0\r\n$1073741824\r\n", repeated: b"aaaa" };
const ARRAY: Endless = Endless { head: b"*1073741824\r\n", repeated: b":1\r\n" };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_string_closes_its_connection() {
    assert_closed(StoreMode::Standalone, STRING).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_array_closes_its_connection() {
    assert_closed(StoreMode::Standalone, ARRAY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_reply_of_cluster_closes_its_connection() {
    assert_closed(StoreMode::Cluster, STRING).await;
}
