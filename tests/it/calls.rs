//! Calls by the gRPC protocol: split frames, flow control and the bound on open calls.

use std::{future::poll_fn, net::SocketAddr, pin::Pin};

use axum::body::Body;
use hyper::{Request, body::Body as _, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::Code;

use crate::{
    frames::{
        DATA, END_STREAM, GOAWAY, HEADERS, METHOD, RST_STREAM, SETTINGS, WINDOW_UPDATE, call_headers,
        connect, frame, framed, partial_message, read_frame, read_until, stream,
    },
    harness::{Service, TIMEOUT, request_for},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";

async fn start() -> (Service, SocketAddr) {
    let service = Service::start(RULES).await;
    let address = service.addresses.grpc.to_string().parse().unwrap();
    (service, address)
}

/// The HTTP status that a request with this body gets, and its gRPC status.
async fn response_status(
    address: SocketAddr,
    method: &str,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> (u16, Option<Code>) {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(format!("http://x{path}"));
    let request = request.header("content-type", content_type).body(Body::from(body)).unwrap();
    let mut response = timeout(TIMEOUT, client.send_request(request)).await.unwrap().unwrap();
    let mut headers = response.headers().clone();
    while let Some(frame) = poll_fn(|cx| Pin::new(response.body_mut()).poll_frame(cx)).await {
        headers.extend(frame.unwrap().into_trailers().unwrap_or_default());
    }
    connection.abort();
    let code = headers.get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
    (response.status().as_u16(), code)
}

#[tokio::test]
async fn request_that_is_not_grpc_gets_405_or_415() {
    let (_service, address) = start().await;
    let message = || framed(&request_for("shop", "user", "x"));
    for path in [METHOD, "/grpc.health.v1.Health/Check", "/elsewhere"] {
        for (method, content_type, status) in [
            ("GET", "application/grpc", 405),
            ("PUT", "application/grpc", 405),
            ("POST", "text/plain", 415),
            ("POST", "application/grpc-web", 415),
        ] {
            let (got, code) = response_status(address, method, path, content_type, message()).await;
            assert_eq!((got, code), (status, None), "{method} {path} {content_type}");
        }
    }
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
        let answered = response_status(address, "POST", METHOD, content_type, message()).await;
        assert_eq!(answered, (200, Some(Code::Ok)), "{content_type}");
    }
}

#[tokio::test]
async fn second_message_of_a_unary_call_is_unimplemented() {
    let (service, address) = start().await;
    let two = framed(&request_for("shop", "user", "x")).repeat(2);
    let answered = response_status(address, "POST", METHOD, "application/grpc", two).await;
    assert_eq!(answered, (200, Some(Code::Unimplemented)));
    let status = service.status(request_for("shop", "user", "x")).await;
    assert_eq!(status.limit_remaining, 999_999, "a refused call charges nothing");
}

#[tokio::test]
async fn burst_of_calls_that_end_in_empty_frames_is_answered() {
    const CALLS: u32 = 990;
    let (_service, address) = start().await;
    let message = framed(&request_for("shop", "user", "x"));
    let call = |call| {
        let (data, end) =
            (frame(DATA, 0, stream(call), &message), frame(DATA, END_STREAM, stream(call), &[]));
        [call_headers(call), data, end].concat()
    };
    let mut client = connect(address).await;
    client.write_all(&(0..CALLS).flat_map(call).collect::<Vec<_>>()).await.unwrap();
    for _ in 0..CALLS {
        let end = read_until(&mut client, |frame| {
            frame.kind == GOAWAY || frame.flags & END_STREAM != 0 && frame.stream != 0
        });
        assert_eq!(timeout(TIMEOUT, end).await.unwrap().unwrap().kind, HEADERS);
    }
}

#[tokio::test]
async fn reset_of_1000_calls_leaves_connection_open() {
    const CALLS: u32 = 999;
    let (_service, address) = start().await;
    let mut client = connect(address).await;
    let reset_call = |call| [call_headers(call), frame(RST_STREAM, 0, stream(call), &[0, 0, 0, 8])].concat();
    client.write_all(&(0..CALLS).flat_map(reset_call).collect::<Vec<_>>()).await.unwrap();
    let data = frame(DATA, END_STREAM, stream(CALLS), &framed(&request_for("shop", "user", "x")));
    client.write_all(&[call_headers(CALLS), data].concat()).await.unwrap();
    let answer = read_until(&mut client, |frame| frame.kind == GOAWAY || frame.stream == stream(CALLS));
    assert_eq!(timeout(TIMEOUT, answer).await.unwrap().unwrap().kind, HEADERS);
}

#[tokio::test]
async fn large_messages_sent_at_once_are_all_answered() {
    const CALLS: u32 = 12;
    const PIECE: usize = 16_384;
    let (_service, address) = start().await;
    let message = framed(&request_for("shop", "user", &"x".repeat(1_000_000)));
    let mut client = connect(address).await;
    let (mut connection, mut streams) = (65_535_i64, vec![65_535_i64; CALLS as usize]);
    let mut sent = vec![0; CALLS as usize];
    client.write_all(&(0..CALLS).flat_map(call_headers).collect::<Vec<_>>()).await.unwrap();
    let mut answered = 0;
    // Sends pieces of all messages in turn, as far as the windows allow.
    while answered < CALLS {
        let mut has_sent = false;
        for call in 0..CALLS {
            let (sent, window) = (&mut sent[call as usize], &mut streams[call as usize]);
            let most = usize::try_from((*window).min(connection)).unwrap_or(0).min(PIECE);
            let piece = &message[*sent..(*sent + most).min(message.len())];
            if piece.is_empty() {
                continue;
            }
            *sent += piece.len();
            *window -= piece.len() as i64;
            connection -= piece.len() as i64;
            let end = if *sent == message.len() { END_STREAM } else { 0 };
            client.write_all(&frame(DATA, end, stream(call), piece)).await.unwrap();
            has_sent = true;
        }
        if has_sent {
            continue;
        }
        let frame = timeout(TIMEOUT, read_frame(&mut client)).await.unwrap().unwrap();
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == WINDOW_UPDATE {
            let more = i64::from(u32::from_be_bytes(frame.payload.try_into().unwrap()));
            match frame.stream {
                0 => connection += more,
                number => streams[((number - 1) / 2) as usize] += more,
            }
        } else if frame.stream != 0 && frame.flags & END_STREAM != 0 {
            assert_eq!(frame.kind, HEADERS);
            answered += 1;
        }
    }
}

#[tokio::test]
async fn replies_blocked_by_flow_control_are_sent_when_window_opens() {
    const CALLS: u32 = 1_000;
    let (service, address) = start().await;
    let mut client = connect(address).await;
    // Each stream has a window of 0 until the test opens it.
    client.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    let message = framed(&request_for("shop", "user", &"x".repeat(4_000)));
    let call = |call| [call_headers(call), frame(DATA, END_STREAM, stream(call), &message)].concat();
    let mut window = 65_535_i64 - i64::try_from(message.len()).unwrap();
    for number in 0..CALLS {
        // The server controls the connection window.
        while window < i64::try_from(message.len()).unwrap() {
            let more = read_until(&mut client, |frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
            let more = timeout(TIMEOUT, more).await.unwrap().unwrap();
            window += i64::from(u32::from_be_bytes(more.payload.try_into().unwrap()));
        }
        window -= i64::try_from(message.len()).unwrap();
        client.write_all(&call(number)).await.unwrap();
    }
    assert!(
        service.call(request_for("shop", "user", "y")).await.is_ok(),
        "other callers are answered meanwhile"
    );
    client.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])).await.unwrap();
    client.write_all(&frame(WINDOW_UPDATE, 0, 0, &1_000_000_u32.to_be_bytes())).await.unwrap();
    for _ in 0..CALLS {
        let end = read_until(&mut client, |frame| frame.stream != 0 && frame.flags & END_STREAM != 0);
        assert!(timeout(TIMEOUT, end).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn idle_client_that_ignores_goaway_does_not_delay_shutdown() {
    let (service, address) = start().await;
    let mut client = connect(address).await;
    let data = frame(DATA, END_STREAM, 1, &framed(&request_for("shop", "user", "x")));
    client.write_all(&[call_headers(0), data].concat()).await.unwrap();
    let answer = read_until(&mut client, |frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
    assert!(timeout(TIMEOUT, answer).await.unwrap().is_some());
    service.terminate().await;
    // A full drain would take 25 s.
    timeout(TIMEOUT, service.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn unfinished_calls_are_refused_oldest_first() {
    let service = Service::start_with(RULES, &[("memory.requests", "8MiB")]).await;
    let address: SocketAddr = service.addresses.grpc.to_string().parse().unwrap();
    let mut clients = Vec::new();
    // Each call takes more than 2 KiB, so that 8 MiB are used up before all have started.
    for _ in 0..5 {
        let mut client = connect(address).await;
        let call = |call| {
            [call_headers(call), frame(DATA, 0, stream(call), &partial_message(4_000_000, b"0123456789"))]
                .concat()
        };
        client.write_all(&(0..900).flat_map(call).collect::<Vec<_>>()).await.unwrap();
        clients.push(client);
    }
    let refused = read_until(&mut clients[0], |frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
    let refused = timeout(TIMEOUT, refused).await.unwrap().unwrap();
    // The headers end the stream, so there is no reply.
    assert_eq!(refused.kind, HEADERS);
    // A call in two pieces that starts later is answered.
    let mut client = connect(address).await;
    let message = framed(&request_for("shop", "user", "x"));
    let (begin, end) = message.split_at(7);
    client.write_all(&[call_headers(0), frame(DATA, 0, 1, begin)].concat()).await.unwrap();
    client.write_all(&frame(DATA, END_STREAM, 1, end)).await.unwrap();
    let answer = read_until(&mut client, |frame| frame.stream == 1 && frame.kind == DATA);
    assert!(timeout(TIMEOUT, answer).await.unwrap().is_some());
}
