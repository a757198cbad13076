//! Connections: listeners, maximum age and maximum number.

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
use tollgate::server::Server;
use tollgate_counter::time::Clock;
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;

use crate::{
    certificates::{Authority, Files, borrowed},
    frames::{GOAWAY, PREFACE, connect, read_until},
    harness::{START, Service, TIMEOUT, request_for, settings, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: once
    rate_limit: {unit: minute, requests_per_unit: 1}
";

async fn run_ask(to: &str, more: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["ask", "--to", to, "shop", "once=x"]).args(more);
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap().status.code()
}

#[tokio::test]
async fn unix_socket_has_its_mode_and_is_removed_at_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    let listen = format!("unix:{}", path.display());
    let overrides = [("grpc.listen", listen.as_str()), ("grpc.socket_mode", "0600")];
    let service = Service::start_with(RULES, &overrides).await;
    assert_eq!(service.addresses.grpc.to_string(), listen);
    let file = std::fs::metadata(&path).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!([run_ask(&listen, &[]).await, run_ask(&listen, &[]).await], [Some(0), Some(2)]);

    let error = Server::bind(settings(&service.rules, &overrides), Clock::manual(START)).await.unwrap_err();
    let expected = format!("grpc.listen: cannot listen on {listen}: another process listens on it");
    assert_eq!(error.to_string(), expected);

    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    assert!(!path.exists());
}

#[tokio::test]
async fn stale_unix_socket_is_replaced_and_regular_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the socket file remains without a listener");
    let listen = format!("unix:{}", path.display());
    let service = Service::start_with(RULES, &[("grpc.listen", &listen)]).await;
    assert_eq!(run_ask(&listen, &[]).await, Some(0));

    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let listen = format!("unix:{}", file.display());
    let settings = settings(&service.rules, &[("grpc.listen", &listen)]);
    let error = Server::bind(settings, Clock::manual(START)).await.unwrap_err().to_string();
    assert!(error.ends_with("the file exists and is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn shutdown_keeps_unix_socket_of_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    let service = Service::start_with(RULES, &[("grpc.listen", &format!("unix:{}", path.display()))]).await;
    std::fs::remove_file(&path).unwrap();
    let _next = UnixListener::bind(&path).unwrap();
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    assert!(path.exists());
}

#[tokio::test]
async fn ask_command_uses_tls_and_client_certificate() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let service = Service::start_with(RULES, &borrowed(&files.mutual("grpc", &ours))).await;
    let client = Files::new(&ours.pair(&["edge"], 2100));
    let to = service.addresses.grpc.to_string();
    let (ca, cert, key) = (files.path("ca.crt"), client.path("tls.crt"), client.path("tls.key"));
    let shown = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    assert_eq!(run_ask(&to, &shown).await, Some(0));
    assert_eq!(run_ask(&to, &shown).await, Some(2));
    assert_eq!(run_ask(&to, &["--tls-ca", &ca]).await, Some(1), "without a certificate");
    assert_eq!(run_ask(&to, &[]).await, Some(1), "without TLS");
    assert_eq!(run_ask(&to, &["--tls-cert", &cert]).await, Some(64), "a certificate without its key");
    let named = [&shown[..], &["--tls-name", "localhost"]].concat();
    assert_eq!(run_ask(&to, &named).await, Some(2));
    assert_eq!(run_ask(&to, &[&shown[..], &["--tls-name", "other"]].concat()).await, Some(1));
}

#[tokio::test]
async fn connections_opened_together_get_goaway_at_different_times() {
    const AGE: Duration = Duration::from_secs(2);
    const CONNECTIONS: usize = 64;
    let service = Service::start_with(RULES, &[("grpc.max_connection_age", "2s")]).await;
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
        #[expect(clippy::disallowed_methods, reason = "what is measured is real time")]
        let start = Instant::now();
        clients.spawn(async move {
            stream.write_all(PREFACE).await.unwrap();
            assert!(read_until(&mut stream, |frame| frame.kind == GOAWAY).await.is_some());
            start.elapsed()
        });
    }
    let mut ages = timeout(TIMEOUT, clients.join_all()).await.unwrap();
    ages.sort();
    assert!(ages[0] >= AGE.mul_f64(0.79), "{ages:?}");
    // A tenth of the age is a quarter of the time in which they close, so a quarter of them is usual.
    let half_closed_in = ages.windows(CONNECTIONS / 2).map(|half| half[half.len() - 1] - half[0]).min();
    assert!(half_closed_in.unwrap() >= AGE.mul_f64(0.1), "{ages:?}");
    assert_eq!(service.counters.grpc.aged.get(), CONNECTIONS as u64);
}

#[tokio::test]
async fn open_call_is_finished_when_connection_reaches_max_age() {
    let queue = "
domain: shop
descriptors:
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 1}
";
    let service = Service::start_with(queue, &[("grpc.max_connection_age", "100ms")]).await;
    let mut client = service.client().await;
    client.should_rate_limit(request_for("shop", "queue", "x")).await.unwrap();
    // This call is delayed by half a second.
    assert!(client.should_rate_limit(request_for("shop", "queue", "x")).await.is_ok());
    assert_eq!(service.counters.grpc.aged.get(), 1);
}

#[tokio::test]
async fn connection_is_closed_at_end_of_age_grace() {
    let overrides = [("grpc.max_connection_age", "50ms"), ("grpc.max_connection_age_grace", "50ms")];
    let service = Service::start_with(RULES, &overrides).await;
    // This client ignores GOAWAY.
    let mut stream = connect(service.addresses.grpc.to_string()).await;
    assert!(timeout(TIMEOUT, read_until(&mut stream, |_| false)).await.unwrap().is_none());
    until(async || (service.counters.grpc.cut.get() == 1).then_some(())).await;
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn connection_without_ping_ack_is_closed() {
    let overrides = [("grpc.keepalive_interval", "50ms"), ("grpc.keepalive_timeout", "50ms")];
    let service = Service::start_with(RULES, &overrides).await;
    let mut stream = connect(service.addresses.grpc.to_string()).await;
    assert!(timeout(TIMEOUT, read_until(&mut stream, |_| false)).await.unwrap().is_none());
}

#[tokio::test]
async fn grpc_connection_above_limit_is_closed_and_counted() {
    let service = Service::start_with(RULES, &[("grpc.max_connections", "2")]).await;
    let (address, counters) = (service.addresses.grpc.to_string(), &service.counters.grpc);
    let first = TcpStream::connect(&address).await.unwrap();
    let _second = TcpStream::connect(&address).await.unwrap();
    until(async || (counters.open() == 2).then_some(())).await;
    let mut third = TcpStream::connect(&address).await.unwrap();
    assert_eq!(timeout(TIMEOUT, third.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    assert_eq!(counters.refused_full.get(), 1);
    drop(first);
    until(async || (counters.open() == 1).then_some(())).await;
    let _fourth = TcpStream::connect(&address).await.unwrap();
    until(async || (counters.open() == 2).then_some(())).await;
    assert_eq!(counters.refused_full.get(), 1);
}

#[tokio::test]
async fn calls_above_stream_limit_wait_and_are_answered() {
    let service = Service::start_with(RULES, &[("grpc.max_concurrent_streams", "2")]).await;
    let mut client = service.client().await;
    // With the reply the client knows the limit of concurrent streams.
    client.should_rate_limit(request_for("shop", "user", "x")).await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let mut client = client.clone();
        calls.spawn(async move { client.should_rate_limit(request_for("shop", "user", "x")).await.is_ok() });
    }
    assert_eq!(timeout(TIMEOUT, calls.join_all()).await.unwrap(), [true; 50]);
}

#[tokio::test]
async fn idle_channel_reconnects_after_max_age() {
    let service = Service::start_with(RULES, &[("grpc.max_connection_age", "50ms")]).await;
    let address = format!("http://{}", service.addresses.grpc);
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    until(async || (service.counters.grpc.aged.get() == 1).then_some(())).await;
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
    let mut client = RateLimitServiceClient::new(channel);
    assert!(client.should_rate_limit(request_for("shop", "user", "x")).await.is_ok());
}
