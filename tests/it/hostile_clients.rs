//! Slow and hostile clients do not affect other clients.

use std::{
    convert::Infallible,
    fs,
    pin::{Pin, pin},
    time::Duration,
};

use axum::body::{Body, Bytes};
use hyper::{Request, body::Body as _, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    task::JoinSet,
    time::timeout,
};
use tollgate::api::proto::{
    envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
    tollgate::v1::{
        self, ReserveRequest, SettleRequest, answer::Verdict, rate_limiter_client::RateLimiterClient,
    },
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    api_v1::{check, client, descriptor, each, reason_of, request},
    certificates::{Authority, Files, borrowed, connect},
    frames::{
        self, METHOD, PREFACE, RST_STREAM, call_headers, framed, partial_message, read_until, reset_calls,
        stream,
    },
    harness::{Answer, Service, TIMEOUT, request_for, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

fn sample_request() -> RateLimitRequest {
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
    let files = Files::of(&ours.server());
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
async fn opening_and_dropping_100k_connections_leaks_nothing() {
    const CONNECTIONS: u64 = 100_000;
    const AT_A_TIME: u64 = 50;
    let service = Service::start(RULES).await;
    let address: std::net::SocketAddr = service.addresses.grpc.to_string().parse().unwrap();
    assert!(service.call(sample_request()).await.is_ok());
    until(async || (service.counters.grpc.open() == 0).then_some(())).await;
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut clients = JoinSet::new();
    for client in 0..AT_A_TIME {
        clients.spawn(async move {
            for number in 0..CONNECTIONS / AT_A_TIME {
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
    assert!(figures.accepted.get() > CONNECTIONS / 2, "{figures:?}");
    assert_eq!((figures.refused_full.get(), figures.accept_errors.get()), (0, 0));
    until(async || (sockets(address.port()) == 0).then_some(())).await;
    until(async || (Handle::current().metrics().num_alive_tasks() <= tasks).then_some(())).await;
}

/// The bytes of a call, and whether the stream ends with them.
enum CallBody {
    Whole(Vec<u8>),
    /// Each piece in its own frame; the last DATA frame does not have END_STREAM.
    Pieces(Vec<Vec<u8>>),
    Unfinished(Vec<u8>),
}

/// A message with this flag, which says whether it is compressed.
fn with_flag(flag: u8, length: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = partial_message(length, message);
    bytes[0] = flag;
    bytes
}

/// The gRPC status of the reply to a call.
async fn status(service: &Service, sent: CallBody) -> Code {
    status_of(service, METHOD, "identity", sent).await
}

/// The gRPC status of the reply to a call of the method at `path` with this `grpc-encoding`.
async fn status_of(service: &Service, path: &str, encoding: &str, sent: CallBody) -> Code {
    let stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    let (mut client, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let body = match sent {
        CallBody::Whole(bytes) => Body::from(bytes),
        CallBody::Pieces(pieces) => Body::from_stream(tokio_stream::iter(
            pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece))),
        )),
        CallBody::Unfinished(bytes) => {
            let first = tokio_stream::once(Ok::<_, Infallible>(Bytes::from(bytes)));
            Body::from_stream(tokio_stream::StreamExt::chain(first, tokio_stream::pending()))
        }
    };
    let request = Request::post(format!("http://x{path}"))
        .header("content-type", "application/grpc")
        .header("grpc-encoding", encoding)
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
async fn malformed_messages_are_answered_with_errors() {
    const MAX: u32 = 4 * 1024 * 1024;
    let service = Service::start(RULES).await;
    let exact = |message: &[u8]| partial_message(message.len() as u32, message);
    let cases = [
        ("declared length above the sent bytes", partial_message(100, b"\n\x04shop"), Code::InvalidArgument),
        ("declared length below the sent bytes", partial_message(3, b"\n\x04shop"), Code::Unimplemented),
        ("above the size limit", partial_message(MAX + 1, b"\n\x04shop"), Code::ResourceExhausted),
        ("the largest length", partial_message(u32::MAX, b""), Code::ResourceExhausted),
        ("compressed without an encoding", with_flag(1, 6, b"\n\x04shop"), Code::Internal),
        ("an unknown flag", with_flag(7, 6, b"\n\x04shop"), Code::Internal),
        ("no message", Vec::new(), Code::Unimplemented),
        ("half a prefix", vec![0, 0], Code::InvalidArgument),
        ("invalid UTF-8", exact(b"\n\x04\xff\xfe\xff\xfe"), Code::InvalidArgument),
        ("a field longer than the message", exact(b"\n\x7fshop"), Code::InvalidArgument),
        ("an unterminated varint", exact(&[0xff; 20]), Code::InvalidArgument),
        ("nested groups", exact(&[0x7b; 100_000]), Code::InvalidArgument),
        ("an empty message", exact(b""), Code::InvalidArgument),
    ];
    for (what, bytes, expected) in cases {
        let code = timeout(TIMEOUT, status(&service, CallBody::Whole(bytes))).await.expect(what);
        assert_eq!(code, expected, "{what}");
    }
    assert!(service.call(sample_request()).await.is_ok());
}

#[tokio::test]
async fn invalid_message_is_callers_error_in_every_service() {
    const SIZE_MAX: u32 = 4 * 1024 * 1024;
    let service = Service::start(RULES).await;
    for path in [METHOD, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"] {
        for (what, encoding, bytes, expected) in [
            ("not protobuf", "identity", partial_message(20, &[0xff; 20]), Code::InvalidArgument),
            ("invalid UTF-8", "identity", partial_message(4, b"\n\x02\xff\xfe"), Code::InvalidArgument),
            ("truncated field", "identity", partial_message(3, b"\n\x09x"), Code::InvalidArgument),
            ("truncated message", "identity", partial_message(9, b"\n\x01x"), Code::InvalidArgument),
            ("trailing bytes", "identity", partial_message(3, b"\n\x01x??"), Code::Unimplemented),
            ("too large", "identity", partial_message(SIZE_MAX + 1, b""), Code::ResourceExhausted),
            ("compressed", "gzip", with_flag(1, 3, b"\n\x01x"), Code::Unimplemented),
            ("not compressed as declared", "gzip", partial_message(3, b"\n\x01x"), Code::Unimplemented),
        ] {
            let answering = status_of(&service, path, encoding, CallBody::Whole(bytes));
            assert_eq!(timeout(TIMEOUT, answering).await.unwrap(), expected, "{path}: {what}");
        }
    }
}

#[tokio::test]
async fn message_split_at_any_byte_is_answered() {
    let service = Service::start(RULES).await;
    let whole = framed(&sample_request());
    for cut in 0..=whole.len() {
        let (head, tail) = whole.split_at(cut);
        let code = timeout(TIMEOUT, status(&service, CallBody::Pieces(vec![head.into(), tail.into()]))).await;
        assert_eq!(code.unwrap(), Code::Ok, "cut after {cut} bytes");
    }
    let each = whole.iter().map(|byte| vec![*byte]).collect();
    assert_eq!(status(&service, CallBody::Pieces(each)).await, Code::Ok);
    assert_eq!(status(&service, CallBody::Pieces(vec![whole.clone()])).await, Code::Ok);
    assert_ne!(
        status(&service, CallBody::Pieces(vec![whole.clone(), vec![0]])).await,
        Code::Ok,
        "a trailing byte"
    );
}

#[tokio::test]
async fn incomplete_message_times_out_and_blocks_no_other_call() {
    let service = Service::start_on_this_thread(RULES, &[]).await;
    let incomplete = status(&service, CallBody::Unfinished(partial_message(1000, b"\n\x04shop")));
    let above = status(&service, CallBody::Unfinished(partial_message(u32::MAX, b"\n\x04shop")));
    assert_eq!(
        timeout(TIMEOUT, above).await.unwrap(),
        Code::ResourceExhausted,
        "the prefix already exceeds the limit"
    );
    let (code, ()) = tokio::join!(incomplete, async {
        assert!(service.call(sample_request()).await.is_ok());
        // From here on, time advances when the runtime is idle.
        tokio::time::pause();
    });
    assert_eq!(code, Code::DeadlineExceeded);
}

#[tokio::test]
async fn slow_http_body_times_out() {
    let service = Service::start_on_this_thread(RULES, &[]).await;
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    stream.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    assert_eq!(service.http("GET", "/livez", "").await.0, 200);
    tokio::time::pause();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn deeply_nested_json_and_large_headers_are_refused() {
    let service = Service::start(RULES).await;
    let (code, _) = service.http("POST", "/json", &"[".repeat(1_000_000)).await;
    assert_eq!(code, 400);
    let deep = format!(r#"{{"domain": {}"#, r#"{"a":"#.repeat(100_000));
    assert_eq!(service.http("POST", "/json", &deep).await.0, 400);

    let large = format!("host: x\r\nx-large: {}\r\n", "x".repeat(20_000));
    let refused = timeout(TIMEOUT, Answer::get(service.addresses.http, &large, "/livez"));
    assert_eq!(refused.await.unwrap().code, 431);

    let mut large = tonic::Request::new(sample_request());
    large.metadata_mut().insert("x-large", "x".repeat(20_000).parse().unwrap());
    let mut client = service.client().await;
    let refused = timeout(Duration::from_secs(20), client.should_rate_limit(large)).await.unwrap();
    assert!(refused.is_err());
    assert!(service.call(sample_request()).await.is_ok());
}

fn reserve(user: usize, id: &str) -> ReserveRequest {
    ReserveRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", &user.to_string())],
        amount: 1,
        reservation_id: id.into(),
        ..ReserveRequest::default()
    }
}

/// A client whose connection comes from this address.
async fn client_from(address: [u8; 4], service: &Service) -> RateLimiterClient<Channel> {
    let server = Endpoint::from_shared(format!("http://{}", service.addresses.grpc)).unwrap();
    RateLimiterClient::new(server.local_address(Some(address.into())).connect().await.unwrap())
}

/// Reserves for one user after the other until there is no more room for ids of this client.
async fn take_share(client: &mut RateLimiterClient<Channel>) {
    for user in 0.. {
        if let Err(error) = client.reserve(reserve(user, "a")).await {
            assert_eq!(reason_of(&error), "TOO_MANY_RESERVATIONS");
            return;
        }
    }
}

/// Charges once for each of many ids, in calls under way at the same time on one connection. Returns how many were
/// refused.
async fn flood_with_ids(client: RateLimiterClient<Channel>, ids: usize) -> usize {
    const EACH: usize = 256;
    let mut calls = JoinSet::new();
    let mut refused = 0;
    let mut count = |answered: Result<tonic::Response<v1::CheckResponse>, Status>| match answered {
        Ok(answered) => {
            let answers = answered.into_inner().answers;
            refused += answers.iter().filter(|answer| answer.verdict() != Verdict::Allowed).count();
        }
        Err(error) => {
            assert_eq!(reason_of(&error), "TOO_MANY_RESERVATIONS");
            refused += EACH;
        }
    };
    for call in 0..ids / EACH {
        let once = |id: usize| v1::Request {
            request_id: (call * EACH + id).to_string(),
            ..request("user", &(call * EACH + id).to_string())
        };
        let (requests, mut client) = (each((0..EACH).map(once).collect()), client.clone());
        calls.spawn(async move { client.check(requests).await });
        if calls.len() >= 100 {
            count(calls.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(answered) = calls.join_next().await {
        count(answered.unwrap());
    }
    refused
}

/// Others are answered while a flood of ids is under way, and afterwards.
async fn others_succeed_during_flood_of_ids(ids: usize, overrides: &[(&str, &str)]) -> usize {
    let service = Service::start_with(RULES, overrides).await;
    let mut other = client_from([127, 0, 0, 2], &service).await;
    let mut flood = pin!(flood_with_ids(client_from([127, 0, 0, 3], &service).await, ids));
    let mut refused = None;
    for round in 0.. {
        let held = other.reserve(reserve(round, &format!("b{round}"))).await;
        assert!(held.is_ok(), "{round}: {held:?}");
        let once = v1::Request { request_id: format!("c{round}"), ..request("user", &round.to_string()) };
        let answers = other.check(each(vec![once])).await.unwrap().into_inner().answers;
        assert_eq!(answers[0].verdict(), Verdict::Allowed, "{round}");
        if refused.is_some() {
            break;
        }
        // A poll of the flood between two calls of the other.
        refused = timeout(Duration::from_millis(20), &mut flood).await.ok();
        assert!(refused.is_none() || round >= 10, "{round} rounds during the flood");
    }
    refused.unwrap()
}

#[tokio::test]
async fn others_reserve_while_one_connection_sends_100_000_ids() {
    others_succeed_during_flood_of_ids(102_400, &[]).await;
    let refused = others_succeed_during_flood_of_ids(25_600, &[("store.memory_limit", "16MiB")]).await;
    assert!(refused > 10_000, "{refused}: there is room for a part of these ids");
}

#[tokio::test]
async fn caller_that_reconnects_keeps_the_account_of_its_ids() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let mut hostile = client_from([127, 0, 0, 3], &service).await;
    take_share(&mut hostile).await;
    drop(hostile);
    let mut again = client_from([127, 0, 0, 3], &service).await;
    // The server learns of the end of a connection a little later.
    until(async || {
        let held = again.reserve(reserve(5_000, &rand::random::<u64>().to_string())).await;
        held.is_err_and(|error| reason_of(&error) == "TOO_MANY_RESERVATIONS").then_some(())
    })
    .await;
    assert!(again.reserve(reserve(0, "a")).await.is_ok(), "a known id is answered as the first time");
    let mut other = client_from([127, 0, 0, 2], &service).await;
    assert!(other.reserve(reserve(5_000, "b")).await.is_ok());
    service.advance(Duration::from_secs(10 * 60));
    assert!(again.reserve(reserve(5_000, "c")).await.is_ok(), "counters have forgotten the ids");
}

#[tokio::test]
async fn connections_with_one_certificate_name_share_their_ids() {
    let ours = Authority::new("ours");
    let files = Files::of(&ours.server());
    let mut settings = files.mutual("grpc", &ours);
    settings.push(("store.memory_limit".to_owned(), "1MiB".to_owned()));
    let service = Service::start_with(RULES, &borrowed(&settings)).await;
    let client = async |names: &[&str]| {
        let identity = ours.pair(names, 2100);
        RateLimiterClient::new(connect(&service.addresses.grpc, &ours, Some(&identity)).await.unwrap())
    };
    let (mut hostile, mut beside) = (client(&["edge.shop"]).await, client(&["EDGE.shop"]).await);
    take_share(&mut hostile).await;
    let refused = beside.reserve(reserve(5_000, "b")).await.unwrap_err();
    assert_eq!(reason_of(&refused), "TOO_MANY_RESERVATIONS");
    assert!(client(&["spiffe://shop/other"]).await.reserve(reserve(5_000, "b")).await.is_ok());
}

#[tokio::test]
async fn caller_with_many_ids_leaves_room_for_those_of_others() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let (mut hostile, mut other) = (client(&service).await, client(&service).await);
    let settle = |user: usize| SettleRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", &user.to_string())],
        reservation_id: "unknown".into(),
        actual: 1,
    };
    let mut refused = 0;
    for user in 0..1_000 {
        let held = hostile.reserve(reserve(user, "a")).await;
        refused += usize::from(held.is_err_and(|error| reason_of(&error) == "TOO_MANY_RESERVATIONS"));
        hostile.settle(settle(user)).await.unwrap();
    }
    assert!(refused > 0, "there is room for a part of these ids");
    for user in 0..10 {
        assert_eq!(other.reserve(reserve(user, "b")).await.unwrap().into_inner().reservation_id, "b");
        let once = v1::Request { request_id: "c".into(), ..request("user", &user.to_string()) };
        assert_eq!(check(&service, each(vec![once])).await[0].verdict(), Verdict::Allowed);
    }
    let repeated = hostile.reserve(reserve(0, "a")).await.unwrap().into_inner();
    assert_eq!(repeated.reservation_id, "a", "a known id is answered as the first time");
}
