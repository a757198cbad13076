//! Slow and hostile clients cost only themselves.

use std::{convert::Infallible, fs, pin::Pin, time::Duration};

use axum::body::{Body, Bytes};
use hyper::{Request, body::Body as _, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    task::JoinSet,
    time::timeout,
};
use tollgate::api::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::Code;

use crate::{
    certificates::{Authority, Files, connect, given},
    connections::GREETING,
    harness::{PATIENCE, Service, one, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn question() -> RateLimitRequest {
    one("shop", "user", "x")
}

/// Opens so many connections and says the same on each.
async fn crowd(address: &str, number: usize, says: &[u8]) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..number {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(says).await.unwrap();
        crowd.push(stream);
    }
    crowd
}

/// Waits until each of them is closed by the server.
async fn are_closed(crowd: Vec<TcpStream>) {
    for mut stream in crowd {
        // A reset is as good an end as any.
        timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap().ok();
    }
}

#[tokio::test]
async fn slow_heads_over_http_are_closed_and_others_are_answered_meanwhile() {
    let service = Service::start_with(RULES, &[("http.header_timeout", "1s")]).await;
    for address in [service.addresses.http, service.addresses.admin] {
        let slow = crowd(&address.to_string(), 100, b"GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
        for _ in 0..10 {
            assert_eq!(service.http("GET", "/livez", "").await.0, 200);
        }
        are_closed(slow).await;
    }
    until(async || (service.counters.http.read().open == 0).then_some(())).await;
}

#[tokio::test]
async fn half_open_handshakes_are_closed_and_others_are_answered_meanwhile() {
    let ours = Authority::new("ours");
    let files = Files::of(&ours.server());
    let mut settings = files.settings("grpc");
    settings.push(("grpc.handshake_timeout".to_owned(), "1s".to_owned()));
    let service = Service::start_with(RULES, &given(&settings)).await;
    let address = service.addresses.grpc.to_string();
    // Nothing at all, and the first bytes of a hello.
    let silent = crowd(&address, 50, b"").await;
    let slow = crowd(&address, 50, &[22, 3, 1, 2, 0, 1]).await;
    for _ in 0..10 {
        let channel = connect(&address, &ours, None).await.unwrap();
        let mut client = RateLimitServiceClient::new(channel);
        assert!(client.should_rate_limit(question()).await.is_ok());
    }
    are_closed(silent).await;
    are_closed(slow).await;
    until(async || (service.counters.grpc.read().handshakes_slow == 100).then_some(())).await;
}

#[tokio::test]
async fn connections_that_never_begin_are_closed_and_counted() {
    let service = Service::start_with(RULES, &[("grpc.handshake_timeout", "300ms")]).await;
    let address = service.addresses.grpc.to_string();
    let silent = crowd(&address, 20, b"").await;
    let slow = crowd(&address, 20, &GREETING[..10]).await;
    assert!(service.ask(question()).await.is_ok());
    are_closed(silent).await;
    are_closed(slow).await;
    until(async || (service.counters.grpc.read().handshakes_slow == 40).then_some(())).await;
}

/// The frames of `number` calls, each of which is reset at once.
fn resets(number: u32) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    // POST, http, then path, authority and content type as text: indices into the table that HPACK begins with.
    let head = [
        &[0x83, 0x86, 0x04][..],
        &text(METHOD),
        &[0x01],
        &text("x"),
        &[0x0f, 0x10],
        &text("application/grpc"),
    ]
    .concat();
    let mut frames = Vec::new();
    for call in 0..number {
        let stream = (2 * call + 1).to_be_bytes();
        frames.extend_from_slice(&[&[0, 0, head.len() as u8, 1, 4][..], &stream, &head].concat());
        frames.extend_from_slice(&[&[0, 0, 4, 3, 0][..], &stream, &[0, 0, 0, 8]].concat());
    }
    frames
}

#[tokio::test]
async fn rapid_resets_leave_other_callers_answered() {
    let service = Service::start(RULES).await;
    let mut other = service.client().await;
    let mut offenders = JoinSet::new();
    for _ in 0..10 {
        let address = service.addresses.grpc.to_string();
        offenders.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(GREETING).await.unwrap();
            // The server may close before all of it is written.
            stream.write_all(&resets(10_000)).await.ok();
            stream
        });
    }
    while !offenders.is_empty() {
        assert!(timeout(PATIENCE, other.should_rate_limit(question())).await.unwrap().is_ok());
        while offenders.try_join_next().is_some() {}
    }
    until(async || (service.counters.grpc.read().open == 1).then_some(())).await;
}

/// How many sockets of this machine still belong to a connection of `port`.
fn sockets(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Established or only closed by the client, and still held by somebody.
    lines
        .filter(|line| line[1].ends_with(&local) && ["01", "08"].contains(&line[3]) && line[9] != "0")
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_connections_opened_and_dropped_leave_nothing_behind() {
    const CONNECTIONS: u64 = 100_000;
    const AT_A_TIME: u64 = 50;
    let service = Service::start(RULES).await;
    let address: std::net::SocketAddr = service.addresses.grpc.to_string().parse().unwrap();
    assert!(service.ask(question()).await.is_ok());
    until(async || (service.counters.grpc.read().open == 0).then_some(())).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut clients = JoinSet::new();
    for client in 0..AT_A_TIME {
        clients.spawn(async move {
            for number in 0..CONNECTIONS / AT_A_TIME {
                let mut stream = TcpStream::connect(address).await.unwrap();
                // A part of them begin to speak.
                if (client + number) % 4 == 0 {
                    stream.write_all(GREETING).await.ok();
                }
                // Reset at once: the other way there are not ports enough.
                stream.set_zero_linger().unwrap();
            }
        });
    }
    timeout(6 * PATIENCE, clients.join_all()).await.unwrap();
    assert!(service.ask(question()).await.is_ok());
    // Some were gone again before they could be accepted.
    until(async || (service.counters.grpc.read().open == 0).then_some(())).await;
    let figures = service.counters.grpc.read();
    assert!(CONNECTIONS / 2 < figures.accepted, "{figures:?}");
    assert_eq!((figures.refused_full, figures.accept_errors), (0, 0));
    until(async || (sockets(address.port()) == 0).then_some(())).await;
    until(async || (Handle::current().metrics().num_alive_tasks() <= tasks).then_some(())).await;
}

/// What is sent as a call, byte for byte, and whether it ends there.
enum Sent {
    Whole(Vec<u8>),
    /// Each in a frame of its own, the last of which does not say that it is the last.
    Pieces(Vec<Vec<u8>>),
    Unended(Vec<u8>),
}

/// A message as gRPC frames it, claiming to be `length` bytes long.
fn claiming(length: u32, flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes(), message].concat()
}

/// The status that a call is answered with.
async fn status(service: &Service, sent: Sent) -> Code {
    let stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let body = match sent {
        Sent::Whole(bytes) => Body::from(bytes),
        Sent::Pieces(pieces) => Body::from_stream(tokio_stream::iter(
            pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece))),
        )),
        Sent::Unended(bytes) => {
            let first = tokio_stream::once(Ok::<_, Infallible>(Bytes::from(bytes)));
            Body::from_stream(tokio_stream::StreamExt::chain(first, tokio_stream::pending()))
        }
    };
    let request = Request::post(format!("http://x{METHOD}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let mut response = client.send_request(request).await.unwrap();
    let mut headers = response.headers().clone();
    while let Some(frame) =
        std::future::poll_fn(|cx| Pin::new(response.body_mut()).poll_frame(cx)).await.transpose().unwrap()
    {
        headers.extend(frame.into_trailers().unwrap_or_default());
    }
    connection.abort();
    Code::from_bytes(headers["grpc-status"].as_bytes())
}

#[tokio::test]
async fn messages_that_lie_are_answered_with_an_error_and_never_let_pass() {
    const MAX: u32 = 4 * 1024 * 1024;
    let service = Service::start(RULES).await;
    let exact = |message: &[u8]| claiming(message.len() as u32, 0, message);
    let cases = [
        ("longer than sent", claiming(100, 0, b"\n\x04shop"), Code::InvalidArgument),
        ("shorter than sent", claiming(3, 0, b"\n\x04shop"), Code::Unimplemented),
        ("above the limit", claiming(MAX + 1, 0, b"\n\x04shop"), Code::ResourceExhausted),
        ("the largest there is", claiming(u32::MAX, 0, b""), Code::ResourceExhausted),
        ("compressed by nothing", claiming(6, 1, b"\n\x04shop"), Code::Internal),
        ("a flag that is none", claiming(6, 7, b"\n\x04shop"), Code::Internal),
        ("no message", Vec::new(), Code::Unimplemented),
        ("half a prefix", vec![0, 0], Code::InvalidArgument),
        ("invalid UTF-8", exact(b"\n\x04\xff\xfe\xff\xfe"), Code::InvalidArgument),
        ("a field longer than the message", exact(b"\n\x7fshop"), Code::InvalidArgument),
        ("a number without an end", exact(&[0xff; 20]), Code::InvalidArgument),
        ("groups in groups", exact(&[0x7b; 100_000]), Code::InvalidArgument),
        ("nothing in it", exact(b""), Code::InvalidArgument),
    ];
    for (what, bytes, expected) in cases {
        let code = timeout(PATIENCE, status(&service, Sent::Whole(bytes))).await.expect(what);
        assert_eq!(code, expected, "{what}");
    }
    assert!(service.ask(question()).await.is_ok());
}

#[tokio::test]
async fn a_message_is_answered_however_it_is_cut_into_pieces() {
    let service = Service::start(RULES).await;
    let message = question().encode_to_vec();
    let whole = claiming(message.len() as u32, 0, &message);
    for cut in 0..=whole.len() {
        let (head, tail) = whole.split_at(cut);
        let code = timeout(PATIENCE, status(&service, Sent::Pieces(vec![head.into(), tail.into()]))).await;
        assert_eq!(code.unwrap(), Code::Ok, "cut after {cut} bytes");
    }
    let each = whole.iter().map(|byte| vec![*byte]).collect();
    assert_eq!(status(&service, Sent::Pieces(each)).await, Code::Ok);
    assert_eq!(status(&service, Sent::Pieces(vec![whole.clone()])).await, Code::Ok);
    assert_ne!(status(&service, Sent::Pieces(vec![whole.clone(), vec![0]])).await, Code::Ok, "more than it");
}

#[tokio::test]
async fn a_message_whose_rest_never_comes_is_given_up_and_holds_up_nobody() {
    let service = Service::start_here(RULES, &[]).await;
    let lie = status(&service, Sent::Unended(claiming(1000, 0, b"\n\x04shop")));
    let above = status(&service, Sent::Unended(claiming(u32::MAX, 0, b"\n\x04shop")));
    assert_eq!(timeout(PATIENCE, above).await.unwrap(), Code::ResourceExhausted, "known from its head");
    let (code, ()) = tokio::join!(lie, async {
        assert!(service.ask(question()).await.is_ok());
        // From here on time passes whenever nothing else happens.
        tokio::time::pause();
    });
    assert_eq!(code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn a_slow_body_over_http_is_given_up() {
    let service = Service::start_here(RULES, &[]).await;
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    stream.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    assert_eq!(service.http("GET", "/livez", "").await.0, 200);
    tokio::time::pause();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok();
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn deeply_nested_json_and_large_heads_are_refused() {
    let service = Service::start(RULES).await;
    let (code, _) = service.http("POST", "/json", &"[".repeat(1_000_000)).await;
    assert_eq!(code, 400);
    let deep = format!(r#"{{"domain": {}"#, r#"{"a":"#.repeat(100_000));
    assert_eq!(service.http("POST", "/json", &deep).await.0, 400);

    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    let head = format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-large: {}\r\n\r\n", "x".repeat(20_000));
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().ok();
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");

    let mut large = tonic::Request::new(question());
    large.metadata_mut().insert("x-large", "x".repeat(20_000).parse().unwrap());
    let mut client = service.client().await;
    let refused = timeout(Duration::from_secs(20), client.should_rate_limit(large)).await.unwrap();
    assert!(refused.is_err());
    assert!(service.ask(question()).await.is_ok());
}
