//! Bounds on the memory and time of one request, body or page.

use std::{net::SocketAddr, time::Duration};

use axum::body::Body;
use hyper::{Request, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tonic::Code;

use crate::{
    frames::{METHOD, partial_message},
    harness::{Service, TIMEOUT, http, until},
    program::Program,
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: queue
    rate_limit: {unit: day, requests_per_unit: 1, algorithm: leaky_queue, burst: 100}
";

const LARGEST: usize = 4 * 1024 * 1024;

/// A list of `number` copies of `one`.
fn repeated(number: usize, begin: &str, one: &str, end: &str) -> String {
    format!("{begin}{}{end}", vec![one; number].join(","))
}

/// JSON requests that are small on the wire and large when built.
fn large_requests() -> [String; 2] {
    let entries = r#"{"domain":"shop","descriptors":[{"entries":["#;
    let number = (LARGEST - 1024) / 3;
    [
        repeated(number, r#"{"domain":"shop","descriptors":["#, "{}", "]}"),
        repeated(number, entries, "{}", "]}]}"),
    ]
}

/// The gRPC status of a refused call with this message.
async fn status(address: SocketAddr, message: Vec<u8>) -> Code {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let framed = partial_message(u32::try_from(message.len()).unwrap(), &message);
    let request = Request::post(format!("http://x{METHOD}")).header("content-type", "application/grpc");
    let response = client.send_request(request.body(Body::from(framed)).unwrap()).await.unwrap();
    connection.abort();
    Code::from_bytes(response.headers()["grpc-status"].as_bytes())
}

#[tokio::test]
async fn repetitive_4_mib_requests_take_little_memory() {
    const AT_A_TIME: usize = 4;
    let program = Program::start(RULES, &[]).await;
    // Field tags, each with a length of 0.
    let (descriptors, entries) = ([0x12, 0].repeat(LARGEST / 2), [0x0a, 0].repeat(LARGEST / 2 - 8));
    let descriptor = [&[0x12, 0xf0, 0xff, 0xff, 0x01][..], &entries].concat();
    for message in [descriptors, descriptor] {
        let mut calls = JoinSet::new();
        for _ in 0..AT_A_TIME {
            calls.spawn(status(program.grpc, message.clone()));
        }
        let codes = timeout(TIMEOUT, calls.join_all()).await.unwrap();
        assert_eq!(codes, [Code::InvalidArgument; AT_A_TIME]);
    }
    for body in large_requests() {
        for (address, path) in [(program.http, "/json"), (program.admin, "/explain")] {
            let mut calls = JoinSet::new();
            for _ in 0..AT_A_TIME {
                let body = body.clone();
                calls.spawn(async move { http(address, "POST", path, &body).await.unwrap().0 });
            }
            let codes = timeout(TIMEOUT, calls.join_all()).await.unwrap();
            assert_eq!(codes, [400; AT_A_TIME]);
        }
    }
    // Eight messages of 4 MiB at a time, their decoded form, and the process itself.
    let peak = program.peak_bytes();
    assert!(peak < 160 << 20, "{} MiB", peak >> 20);
}

#[tokio::test]
async fn large_json_bodies_are_read_in_turn_and_answered() {
    let service = Service::start(RULES).await;
    let body = format!(
        r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{}"}}]}}]}}"#,
        "x".repeat(4_000_000)
    );
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let (body, address) = (body.clone(), service.addresses.http);
        calls.spawn(async move { http(address, "POST", "/json", &body).await.unwrap().0 });
    }
    assert_eq!(timeout(TIMEOUT, calls.join_all()).await.unwrap(), [200; 6]);
}

#[tokio::test]
async fn body_above_4_mib_answers_413() {
    let service = Service::start(RULES).await;
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    let head = format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", LARGEST + 1);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    // The same without a declared length.
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    stream.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
    for _ in 0..=LARGEST / 0x10000 {
        // The server may answer before it has read the whole body.
        let _ = stream.write_all(&chunk).await;
    }
    timeout(TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

/// Connections that each send `bytes` and nothing more.
async fn open_many(address: SocketAddr, number: usize, bytes: &str) -> Vec<TcpStream> {
    let mut clients = Vec::new();
    for _ in 0..number {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        clients.push(stream);
    }
    clients
}

#[tokio::test]
async fn full_listener_closes_the_longest_idle_connection_for_a_new_one() {
    let most = ["http", "admin", "metrics"].map(|listener| (format!("{listener}.max_connections"), "2"));
    let most = most.each_ref().map(|(name, value)| (name.as_str(), *value));
    let service = Service::start_with(RULES, &most).await;
    for (address, path, counters) in [
        (service.addresses.http, "/livez", &service.counters.http),
        (service.addresses.admin, "/", &service.counters.admin),
        (service.addresses.metrics, "/metrics", &service.counters.metrics),
    ] {
        until(async || (counters.open() == 0).then_some(())).await;
        let mut idle = open_many(address, 1, "").await;
        until(async || (counters.open() == 1).then_some(())).await;
        let mut kept = TcpStream::connect(address).await.unwrap();
        until(async || (counters.open() == 2).then_some(())).await;
        let get = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        kept.write_all(get.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        timeout(TIMEOUT, kept.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(http(address, "GET", path, "").await.unwrap().0, 200);
        assert_eq!(timeout(TIMEOUT, idle[0].read(&mut [0])).await.unwrap().unwrap_or(0), 0);
        let figures = counters;
        assert_eq!((figures.closed_idle.get(), figures.refused_full.get()), (1, 0));
        // The other connection is still open.
        kept.write_all(get.as_bytes()).await.unwrap();
        timeout(TIMEOUT, kept.read_exact(&mut answer)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn liveness_probe_is_answered_while_all_connections_are_used() {
    const MOST: usize = 100;
    let service = Service::start_with(RULES, &[("http.max_connections", &MOST.to_string())]).await;
    let queued = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"queue"}]}]}"#;
    let waiting =
        format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{queued}", queued.len());
    for bytes in [
        "",
        "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: ",
        "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
        "POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{",
        // These calls are delayed by up to a day.
        waiting.as_str(),
    ] {
        let clients = open_many(service.addresses.http, MOST + 10, bytes).await;
        for _ in 0..8 {
            let (code, _) = timeout(Duration::from_secs(5), service.http("GET", "/livez", "")).await.unwrap();
            assert_eq!(code, 200, "beside connections that send {bytes:?}");
        }
        drop(clients);
        until(async || (service.counters.http.open() == 0).then_some(())).await;
    }
}

#[tokio::test]
async fn connection_with_queued_call_is_not_closed_for_a_new_one() {
    let rules = RULES.replace("unit: day", "unit: second");
    let service = Service::start_with(&rules, &[("http.max_connections", "2")]).await;
    let queued = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"queue"}]}]}"#;
    assert_eq!(service.http("POST", "/json", queued).await.0, 200);
    let (call, ()) = tokio::join!(service.http("POST", "/json", queued), async {
        until(async || {
            let page = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().1;
            page.contains("tollgate_queue_waiting_requests 1\n").then_some(())
        })
        .await;
        let _idle = open_many(service.addresses.http, 5, "").await;
        until(async || (service.counters.http.accepted.get() >= 7).then_some(())).await;
    });
    assert_eq!(call.0, 200);
}

#[tokio::test]
async fn json_is_parsed_outside_grpc_and_probe_threads() {
    let program = Program::start(RULES, &[]).await;
    let descriptor = repeated(100, "{\"entries\":[", "{}", "]}");
    let body = repeated(200, r#"{"domain":"shop","descriptors":["#, &descriptor, "]}");
    let before = program.cpu_nanos();
    for path in ["/json", "/json", "/json", "/json"] {
        assert_eq!(http(program.http, "POST", path, &body).await.unwrap().0, 200);
    }
    let after = program.cpu_nanos();
    let spent = |thread: &str| -> u64 {
        let threads = after.iter().filter(|(_, (name, _))| name.starts_with(thread));
        threads.map(|(id, (_, nanos))| nanos - before.get(id).map_or(0, |(_, nanos)| *nanos)).sum()
    };
    let (all, grpc, probes) = (spent(""), spent("worker-"), spent("http"));
    assert!(grpc < all / 10, "{grpc} of {all} ns");
    assert!(probes < all / 2, "{probes} of {all} ns");
}
