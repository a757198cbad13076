//! Slow and hostile clients do not affect other clients.

use std::fs;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    task::JoinSet,
    time::timeout,
};
use tollgate_wire::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};

use crate::{
    certificates::{Authority, Files, borrowed, connect},
    frames::{self, PREFACE, RST_STREAM, call_headers, read_until, reset_calls, stream},
    harness::{Service, TIMEOUT, request_for, rounds, until},
};

pub const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

pub fn sample_request() -> RateLimitRequest {
    request_for("shop", "user", "x")
}

/// Opens `number` connections and sends the same bytes on each.
async fn open_many(address: &str, number: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..number {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        clients.push(stream);
    }
    clients
}

/// Waits until the server has closed every connection.
async fn wait_until_closed(clients: Vec<TcpStream>) {
    for mut stream in clients {
        // A reset is an end, too.
        let _ = timeout(TIMEOUT, stream.read_to_end(&mut Vec::new())).await.unwrap();
    }
}

#[tokio::test]
async fn slow_http_headers_are_closed_while_others_are_answered() {
    let service = Service::start_with(RULES, &[("http.header_timeout", "1s")]).await;
    for address in [service.addresses.http, service.addresses.admin] {
        let slow = open_many(&address.to_string(), 100, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
        for _ in 0..10 {
            assert_eq!(service.http("GET", "/livez", "").await.0, 200);
        }
        wait_until_closed(slow).await;
    }
    until(async || (service.counters.http.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn half_open_handshakes_are_closed_while_others_are_answered() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let mut settings = files.settings("grpc");
    settings.push(("grpc.handshake_timeout".to_owned(), "1s".to_owned()));
    let service = Service::start_with(RULES, &borrowed(&settings)).await;
    let address = service.addresses.grpc.to_string();
    // No byte, and the first bytes of a ClientHello.
    let silent = open_many(&address, 50, b"").await;
    let slow = open_many(&address, 50, &[22, 3, 1, 2, 0, 1]).await;
    for _ in 0..10 {
        let channel = connect(&address, &ours, None).await.unwrap();
        let mut client = RateLimitServiceClient::new(channel);
        assert!(client.should_rate_limit(sample_request()).await.is_ok());
    }
    wait_until_closed(silent).await;
    wait_until_closed(slow).await;
    until(async || (service.counters.grpc.handshakes_slow.get() == 100).then_some(())).await;
}

#[tokio::test]
async fn connections_without_preface_are_closed_and_counted() {
    let service = Service::start_with(RULES, &[("grpc.handshake_timeout", "300ms")]).await;
    let address = service.addresses.grpc.to_string();
    let silent = open_many(&address, 20, b"").await;
    let slow = open_many(&address, 20, &PREFACE[..10]).await;
    assert!(service.call(sample_request()).await.is_ok());
    wait_until_closed(silent).await;
    wait_until_closed(slow).await;
    until(async || (service.counters.grpc.handshakes_slow.get() == 40).then_some(())).await;
}

#[tokio::test]
async fn rapid_resets_do_not_block_other_callers() {
    let service = Service::start(RULES).await;
    let mut other = service.client().await;
    let mut attackers = JoinSet::new();
    for _ in 0..10 {
        let address = service.addresses.grpc.to_string();
        attackers.spawn(async move {
            let mut stream = frames::connect(address).await;
            // The server may close the connection before all bytes are written.
            let _ = stream.write_all(&reset_calls(10_000)).await;
            stream
        });
    }
    while !attackers.is_empty() {
        assert!(timeout(TIMEOUT, other.should_rate_limit(sample_request())).await.unwrap().is_ok());
        while attackers.try_join_next().is_some() {}
    }
    until(async || (service.counters.grpc.open() == 1).then_some(())).await;
}

#[tokio::test]
async fn call_above_stream_limit_is_refused_while_others_are_open() {
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    let service = Service::start_with(RULES, &[("grpc.max_concurrent_streams", "2")]).await;
    let mut client = frames::connect(service.addresses.grpc.to_string()).await;
    client.write_all(&(0..3).flat_map(call_headers).collect::<Vec<_>>()).await.unwrap();
    let reset = timeout(TIMEOUT, read_until(&mut client, |frame| frame.kind == RST_STREAM)).await.unwrap();
    let reset = reset.expect("the connection stays open");
    assert_eq!((reset.stream, &*reset.payload), (stream(2), &REFUSED_STREAM[..]));
}

/// The number of sockets of this machine that belong to a connection of `port`.
fn sockets(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Established or CLOSE_WAIT, with an inode: a process still holds them.
    lines
        .filter(|line| line[1].ends_with(&local) && ["01", "08"].contains(&line[3]) && line[9] != "0")
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opening_and_dropping_connections_leaks_nothing() {
    const AT_A_TIME: u64 = 50;
    let connections = rounds(10_000, 100_000) as u64;
    let service = Service::start(RULES).await;
    let address: std::net::SocketAddr = service.addresses.grpc.to_string().parse().unwrap();
    assert!(service.call(sample_request()).await.is_ok());
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut clients = JoinSet::new();
    for client in 0..AT_A_TIME {
        clients.spawn(async move {
            for number in 0..connections / AT_A_TIME {
                let mut stream = TcpStream::connect(address).await.unwrap();
                // Some of them send the preface.
                if (client + number) % 4 == 0 {
                    let _ = stream.write_all(PREFACE).await;
                }
                // Reset at once: ports in TIME_WAIT would run out.
                stream.set_zero_linger().unwrap();
            }
        });
    }
    timeout(6 * TIMEOUT, clients.join_all()).await.unwrap();
    assert!(service.call(sample_request()).await.is_ok());
    // Some connections were reset before they could be accepted.
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
    let figures = &service.counters.grpc;
    assert!(figures.accepted.get() > connections / 2, "{figures:?}");
    assert_eq!((figures.refused_full.get(), figures.accept_errors.get()), (0, 0));
    until(async || (sockets(address.port()) == 0).then_some(())).await;
    until(async || (Handle::current().metrics().num_alive_tasks() <= tasks).then_some(())).await;
}
