//! What calls and connections keep after a large message, by the resident memory of the process.

use std::{future::poll_fn, net::SocketAddr, time::Duration};

use axum::http::Request;
use h2::{
    SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use hyper::body::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    ONE_AT_A_TIME,
    frames::METHOD,
    harness::{TIMEOUT, http},
    program::Program,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: wait, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: leaky_queue, burst: 1000}}
  - {key: rate, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}}
";

/// The size of each large message, and how many there are. If each were kept, they would take 93 MiB, which is more than
/// three times [`KEPT_MAX`].
const LARGE: usize = 3_900_000;
const CALLS: usize = 25;
/// What the process may have more than before.
const KEPT_MAX: u64 = 30_000_000;

/// A call that stays open.
struct Open {
    _stream: SendStream<Bytes>,
    _response: ResponseFuture,
}

/// A field of a Protocol Buffers message: of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut length = bytes.len();
    let mut field = vec![number << 3 | 2];
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    [&*field, bytes].concat()
}

/// A gRPC frame of this message with a large field that no message has.
fn large(message: &[u8]) -> Bytes {
    let message = [message, &field(15, &vec![0; LARGE])].concat();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

/// A request of Envoy for the descriptor `key=a`.
fn request(key: &str) -> Vec<u8> {
    let entry = [field(1, key.as_bytes()), field(2, b"a")].concat();
    [field(1, b"shop"), field(2, &field(1, &entry))].concat()
}

/// Reports of the bucket `rate=a`.
fn reports() -> Vec<u8> {
    let pair = [field(1, b"rate"), field(2, b"a")].concat();
    [field(1, b"shop"), field(2, &field(1, &field(1, &pair)))].concat()
}

async fn connected(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    // Otherwise the end of each window waits for the delayed acknowledgement of the server's kernel.
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Begins a call, and sends it a frame as the server takes it.
async fn begin(sender: &mut SendRequest<Bytes>, path: &str, mut frame: Bytes, is_unary: bool) -> Open {
    let request = Request::post(format!("http://x{path}")).header("content-type", "application/grpc");
    let mut ready = sender.clone().ready().await.unwrap();
    let (response, mut stream) = ready.send_request(request.body(()).unwrap(), false).unwrap();
    while !frame.is_empty() {
        stream.reserve_capacity(frame.len());
        let capacity = timeout(TIMEOUT, poll_fn(|cx| stream.poll_capacity(cx))).await.unwrap();
        let part = frame.split_to(capacity.unwrap().unwrap().min(frame.len()));
        stream.send_data(part, is_unary && frame.is_empty()).unwrap();
    }
    Open { _stream: stream, _response: response }
}

/// Opens calls with a large message each, and waits until the process keeps little of them while they are open.
async fn calls_keep_little(path: &str, message: &[u8], is_unary: bool) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let program = Program::start(RULES, &["--rlqs-enabled", "true"]).await;
    let mut sender = connected(program.grpc).await;
    let frame = large(message);
    // What the process keeps after its first message is no cost of the others.
    let mut open = vec![begin(&mut sender, path, frame.clone(), is_unary).await];
    let before = program.resident_bytes();
    for _ in 0..CALLS {
        open.push(begin(&mut sender, path, frame.clone(), is_unary).await);
    }
    keeps_little(&program, before).await;
    drop(open);
}

/// Waits until the process has little more resident memory than before.
async fn keeps_little(program: &Program, before: u64) {
    let fell = async {
        while program.resident_bytes() > before + KEPT_MAX {
            // An allocator gives memory back when it is used.
            http(program.http, "GET", "/livez", "").await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    };
    let kept = timeout(TIMEOUT, fell).await;
    assert!(kept.is_ok(), "{} MiB more", program.resident_bytes().saturating_sub(before) >> 20);
}

#[tokio::test]
async fn idle_check_streams_keep_no_large_message() {
    calls_keep_little("/tollgate.v1.RateLimiter/CheckStream", &[8, 1], false).await;
}

#[tokio::test]
async fn idle_quota_streams_keep_no_large_message() {
    let path = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
    calls_keep_little(path, &reports(), false).await;
}

#[tokio::test]
async fn idle_health_watches_keep_no_large_message() {
    calls_keep_little("/grpc.health.v1.Health/Watch", &[], true).await;
}

#[tokio::test]
async fn delayed_envoy_calls_keep_no_large_message() {
    calls_keep_little(METHOD, &request("wait"), true).await;
}

#[tokio::test]
async fn delayed_own_calls_keep_no_large_message() {
    let entry = [field(1, b"wait"), field(2, b"a")].concat();
    let check = [field(1, b"shop"), field(2, &field(1, &entry))].concat();
    calls_keep_little("/tollgate.v1.RateLimiter/Check", &check, true).await;
}

#[tokio::test]
async fn idle_http_connections_keep_no_large_body() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let program = Program::start(RULES, &[]).await;
    let body = format!(r#"{{"domain":"shop","descriptors":[],"x":"{}"}}"#, "x".repeat(LARGE));
    let head = format!("POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    let ask = async || {
        let mut connection = TcpStream::connect(program.http).await.unwrap();
        connection.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
        let answered = timeout(TIMEOUT, connection.read(&mut [0; 1_000])).await.unwrap().unwrap();
        assert!(answered > 0, "the connection stays open");
        connection
    };
    let mut open = vec![ask().await];
    let before = program.resident_bytes();
    for _ in 0..CALLS {
        open.push(ask().await);
    }
    keeps_little(&program, before).await;
    drop(open);
}
