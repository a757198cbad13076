//! Calls that are malformed, in pieces, unfinished or too large.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::body::{Body, Bytes};
use hyper::{Request, body::Body as _, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;

use crate::{
    frames::{METHOD, framed, partial_message},
    harness::{Answer, Service, TIMEOUT},
    hostile_clients::{RULES, sample_request},
};

/// The bytes of a call, and whether the stream ends with them.
pub enum CallBody {
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
pub async fn status_of(service: &Service, path: &str, encoding: &str, sent: CallBody) -> Code {
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
    large.metadata_mut().insert("x-large", "x".repeat(70_000).parse().unwrap());
    let mut client = service.client().await;
    let refused = timeout(Duration::from_secs(20), client.should_rate_limit(large)).await.unwrap();
    assert!(refused.is_err());
    assert!(service.call(sample_request()).await.is_ok());
}
