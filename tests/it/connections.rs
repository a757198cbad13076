//! Connections: where they come from, how long they last, how many there may be.

use std::{
    os::unix::fs::{FileTypeExt, PermissionsExt},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixListener},
    process::Command,
    task::JoinSet,
    time::timeout,
};
use tollgate::{
    api::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient,
    server::Server, time::Clock,
};
use tonic::transport::Channel;

use crate::{
    certificates::{Authority, Files, given},
    harness::{PATIENCE, START, Service, one, settings, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: once
    rate_limit: {unit: minute, requests_per_unit: 1}
";

/// What an HTTP/2 client says first: the preface and its settings, of which there are none.
pub const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of the frame that tells a client to go away.
pub const GOAWAY: u8 = 7;

/// Reads frames until one is of `kind`; its content. `None` where the connection ends before.
pub async fn frame(stream: &mut TcpStream, kind: u8) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let mut content =
            vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut content).await.ok()?;
        if head[3] == kind {
            return Some(content);
        }
    }
}

async fn ask_by_command(to: &str, more: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["ask", "--to", to, "shop", "once=x"]).args(more);
    timeout(PATIENCE, command.output()).await.unwrap().unwrap().status.code()
}

#[tokio::test]
async fn a_unix_socket_is_served_with_its_mode_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    let listen = format!("unix:{}", path.display());
    let given = [("grpc.listen", listen.as_str()), ("grpc.socket_mode", "0600")];
    let service = Service::start_with(RULES, &given).await;
    assert_eq!(service.addresses.grpc.to_string(), listen);
    let file = std::fs::metadata(&path).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!([ask_by_command(&listen, &[]).await, ask_by_command(&listen, &[]).await], [Some(0), Some(2)]);

    let error = Server::bind(settings(&service.rules, &given), Clock::manual(START)).await.unwrap_err();
    let expected = format!("grpc.listen: cannot listen on {listen}: another process listens on it");
    assert_eq!(error.to_string(), expected);

    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_that_a_dead_process_left_is_replaced_and_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "nobody listens, but it is there");
    let listen = format!("unix:{}", path.display());
    let service = Service::start_with(RULES, &[("grpc.listen", &listen)]).await;
    assert_eq!(ask_by_command(&listen, &[]).await, Some(0));

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let listen = format!("unix:{}", file.display());
    let settings = settings(&service.rules, &[("grpc.listen", &listen)]);
    let error = Server::bind(settings, Clock::manual(START)).await.unwrap_err().to_string();
    assert!(error.ends_with("the file exists and is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn a_process_leaves_a_socket_alone_that_is_no_longer_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    let service = Service::start_with(RULES, &[("grpc.listen", &format!("unix:{}", path.display()))]).await;
    std::fs::remove_file(&path).unwrap();
    let _next = UnixListener::bind(&path).unwrap();
    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
    assert!(path.exists());
}

#[tokio::test]
async fn the_command_asks_over_tls_and_shows_its_certificate() {
    let ours = Authority::new("ours");
    let files = Files::of(&ours.server());
    let service = Service::start_with(RULES, &given(&files.mutual("grpc", &ours))).await;
    let client = Files::of(&ours.pair(&["edge"], 2100));
    let to = service.addresses.grpc.to_string();
    let (ca, cert, key) = (files.path("ca.crt"), client.path("tls.crt"), client.path("tls.key"));
    let shown = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    assert_eq!(ask_by_command(&to, &shown).await, Some(0));
    assert_eq!(ask_by_command(&to, &shown).await, Some(2));
    assert_eq!(ask_by_command(&to, &["--tls-ca", &ca]).await, Some(1), "without a certificate");
    assert_eq!(ask_by_command(&to, &[]).await, Some(1), "without TLS");
    assert_eq!(ask_by_command(&to, &["--tls-cert", &cert]).await, Some(1), "a certificate without its key");
    let named = [&shown[..], &["--tls-name", "localhost"]].concat();
    assert_eq!(ask_by_command(&to, &named).await, Some(2));
    assert_eq!(ask_by_command(&to, &[&shown[..], &["--tls-name", "other"]].concat()).await, Some(1));
}

#[tokio::test]
async fn connections_made_together_are_told_to_go_away_at_different_times() {
    const AGE: Duration = Duration::from_millis(500);
    let service = Service::start_with(RULES, &[("grpc.max_connection_age", "500ms")]).await;
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let mut stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
        #[expect(clippy::disallowed_methods, reason = "what is measured is real time")]
        let start = Instant::now();
        clients.spawn(async move {
            stream.write_all(GREETING).await.unwrap();
            assert!(frame(&mut stream, GOAWAY).await.is_some());
            start.elapsed()
        });
    }
    let ages = timeout(PATIENCE, clients.join_all()).await.unwrap();
    let (first, last) = (*ages.iter().min().unwrap(), *ages.iter().max().unwrap());
    assert!(AGE.mul_f64(0.79) <= first, "{ages:?}");
    assert!(AGE.mul_f64(0.05) <= last - first, "{ages:?}");
    assert_eq!(service.counters.grpc.read().aged, 16);
}

#[tokio::test]
async fn a_call_that_is_open_when_its_connection_ages_is_finished() {
    let queue = "
domain: shop
descriptors:
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 1}
";
    let service = Service::start_with(queue, &[("grpc.max_connection_age", "100ms")]).await;
    let mut client = service.client().await;
    client.should_rate_limit(one("shop", "queue", "x")).await.unwrap();
    // This one waits for half a second.
    assert!(client.should_rate_limit(one("shop", "queue", "x")).await.is_ok());
    assert_eq!(service.counters.grpc.read().aged, 1);
}

#[tokio::test]
async fn at_the_end_of_the_grace_a_connection_is_cut() {
    let given = [("grpc.max_connection_age", "50ms"), ("grpc.max_connection_age_grace", "50ms")];
    let service = Service::start_with(RULES, &given).await;
    let mut stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    // This client does not go away when it is told to.
    stream.write_all(GREETING).await.unwrap();
    assert!(timeout(PATIENCE, frame(&mut stream, u8::MAX)).await.unwrap().is_none());
    until(async || (service.counters.grpc.read().cut == 1).then_some(())).await;
    until(async || (service.counters.grpc.read().open == 0).then_some(())).await;
}

#[tokio::test]
async fn a_client_that_does_not_answer_pings_is_closed() {
    let given = [("grpc.keepalive_interval", "50ms"), ("grpc.keepalive_timeout", "50ms")];
    let service = Service::start_with(RULES, &given).await;
    let mut stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    stream.write_all(GREETING).await.unwrap();
    assert!(timeout(PATIENCE, frame(&mut stream, u8::MAX)).await.unwrap().is_none());
}

#[tokio::test]
async fn grpc_connection_too_many_is_closed_at_once_and_counted() {
    let service = Service::start_with(RULES, &[("grpc.max_connections", "2")]).await;
    let (address, counters) = (service.addresses.grpc.to_string(), &service.counters.grpc);
    let first = TcpStream::connect(&address).await.unwrap();
    let _second = TcpStream::connect(&address).await.unwrap();
    until(async || (counters.read().open == 2).then_some(())).await;
    let mut third = TcpStream::connect(&address).await.unwrap();
    assert_eq!(timeout(PATIENCE, third.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    assert_eq!(counters.read().refused_full, 1);
    drop(first);
    until(async || (counters.read().open == 1).then_some(())).await;
    let _fourth = TcpStream::connect(&address).await.unwrap();
    until(async || (counters.read().open == 2).then_some(())).await;
    assert_eq!(counters.read().refused_full, 1);
}

#[tokio::test]
async fn calls_beyond_the_streams_of_a_connection_wait_and_are_answered() {
    let service = Service::start_with(RULES, &[("grpc.max_concurrent_streams", "2")]).await;
    let mut client = service.client().await;
    // With its answer the client has learnt how many streams it may open.
    client.should_rate_limit(one("shop", "user", "x")).await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let mut client = client.clone();
        calls.spawn(async move { client.should_rate_limit(one("shop", "user", "x")).await.is_ok() });
    }
    assert_eq!(timeout(PATIENCE, calls.join_all()).await.unwrap(), [true; 50]);
}

#[tokio::test]
async fn an_idle_channel_connects_anew_after_its_age() {
    let service = Service::start_with(RULES, &[("grpc.max_connection_age", "50ms")]).await;
    let address = format!("http://{}", service.addresses.grpc);
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    until(async || (service.counters.grpc.read().aged == 1).then_some(())).await;
    until(async || (service.counters.grpc.read().open == 0).then_some(())).await;
    let mut client = RateLimitServiceClient::new(channel);
    assert!(client.should_rate_limit(one("shop", "user", "x")).await.is_ok());
}
