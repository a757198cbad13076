//! Calls as gRPC defines them, however their frames are cut, and how many of them may be open.

use std::{future::poll_fn, net::SocketAddr, pin::Pin};

use axum::body::Body;
use hyper::{Request, body::Body as _, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::Code;

use crate::{
    frames::{
        DATA, END_STREAM, GOAWAY, HEADERS, METHOD, RST_STREAM, SETTINGS, WINDOW_UPDATE, announcing,
        call_head, connect, frame, framed, read, stream, until,
    },
    harness::{PATIENCE, Service, one},
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
async fn answered(
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
    let mut response = timeout(PATIENCE, client.send_request(request)).await.unwrap().unwrap();
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
    let message = || framed(&one("shop", "user", "x"));
    for path in [METHOD, "/grpc.health.v1.Health/Check", "/elsewhere"] {
        for (method, content_type, status) in [
            ("GET", "application/grpc", 405),
            ("PUT", "application/grpc", 405),
            ("POST", "text/plain", 415),
            ("POST", "application/grpc-web", 415),
        ] {
            let (got, code) = answered(address, method, path, content_type, message()).await;
            assert_eq!((got, code), (status, None), "{method} {path} {content_type}");
        }
    }
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc;x=y"] {
        let answered = answered(address, "POST", METHOD, content_type, message()).await;
        assert_eq!(answered, (200, Some(Code::Ok)), "{content_type}");
    }
}

#[tokio::test]
async fn second_message_of_a_unary_call_is_unimplemented() {
    let (service, address) = start().await;
    let two = framed(&one("shop", "user", "x")).repeat(2);
    let answered = answered(address, "POST", METHOD, "application/grpc", two).await;
    assert_eq!(answered, (200, Some(Code::Unimplemented)));
    let status = service.status(one("shop", "user", "x")).await;
    assert_eq!(status.limit_remaining, 999_999, "the refused call charged nothing");
}

#[tokio::test]
async fn burst_of_calls_that_end_in_empty_frames_is_answered() {
    const CALLS: u32 = 990;
    let (_service, address) = start().await;
    let message = framed(&one("shop", "user", "x"));
    let call = |call| {
        let (data, end) =
            (frame(DATA, 0, stream(call), &message), frame(DATA, END_STREAM, stream(call), &[]));
        [call_head(call), data, end].concat()
    };
    let mut client = connect(address).await;
    client.write_all(&(0..CALLS).flat_map(call).collect::<Vec<_>>()).await.unwrap();
    for _ in 0..CALLS {
        let end = until(&mut client, |frame| {
            frame.kind == GOAWAY || frame.flags & END_STREAM != 0 && frame.stream != 0
        });
        assert_eq!(timeout(PATIENCE, end).await.unwrap().unwrap().kind, HEADERS);
    }
}

#[tokio::test]
async fn thousand_calls_taken_back_at_once_leave_the_connection_open() {
    const CALLS: u32 = 999;
    let (_service, address) = start().await;
    let mut client = connect(address).await;
    let back = |call| [call_head(call), frame(RST_STREAM, 0, stream(call), &[0, 0, 0, 8])].concat();
    client.write_all(&(0..CALLS).flat_map(back).collect::<Vec<_>>()).await.unwrap();
    let data = frame(DATA, END_STREAM, stream(CALLS), &framed(&one("shop", "user", "x")));
    client.write_all(&[call_head(CALLS), data].concat()).await.unwrap();
    let answer = until(&mut client, |frame| frame.kind == GOAWAY || frame.stream == stream(CALLS));
    assert_eq!(timeout(PATIENCE, answer).await.unwrap().unwrap().kind, HEADERS);
}

#[tokio::test]
async fn large_messages_sent_at_once_are_all_answered() {
    const CALLS: u32 = 12;
    const PIECE: usize = 16_384;
    let (_service, address) = start().await;
    let message = framed(&one("shop", "user", &"x".repeat(1_000_000)));
    let mut client = connect(address).await;
    let (mut connection, mut streams) = (65_535_i64, vec![65_535_i64; CALLS as usize]);
    let mut sent = vec![0; CALLS as usize];
    client.write_all(&(0..CALLS).flat_map(call_head).collect::<Vec<_>>()).await.unwrap();
    let mut answered = 0;
    // Pieces of all messages by turns, as far as the windows allow.
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
        let frame = timeout(PATIENCE, read(&mut client)).await.unwrap().unwrap();
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
async fn calls_whose_replies_are_not_taken_are_answered_when_they_are() {
    const CALLS: u32 = 1_000;
    let (service, address) = start().await;
    let mut client = connect(address).await;
    // A window of 0 for each stream, until the test gives more.
    client.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    let message = framed(&one("shop", "user", &"x".repeat(4_000)));
    let call = |call| [call_head(call), frame(DATA, END_STREAM, stream(call), &message)].concat();
    let mut window = 65_535_i64 - i64::try_from(message.len()).unwrap();
    for number in 0..CALLS {
        // The connection's window is the server's for us.
        while window < i64::try_from(message.len()).unwrap() {
            let more = until(&mut client, |frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
            let more = timeout(PATIENCE, more).await.unwrap().unwrap();
            window += i64::from(u32::from_be_bytes(more.payload.try_into().unwrap()));
        }
        window -= i64::try_from(message.len()).unwrap();
        client.write_all(&call(number)).await.unwrap();
    }
    assert!(service.ask(one("shop", "user", "y")).await.is_ok(), "others are answered meanwhile");
    client.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255])).await.unwrap();
    client.write_all(&frame(WINDOW_UPDATE, 0, 0, &1_000_000_u32.to_be_bytes())).await.unwrap();
    for _ in 0..CALLS {
        let end = until(&mut client, |frame| frame.stream != 0 && frame.flags & END_STREAM != 0);
        assert!(timeout(PATIENCE, end).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn idle_client_that_ignores_the_end_does_not_delay_it() {
    let (service, address) = start().await;
    let mut client = connect(address).await;
    let data = frame(DATA, END_STREAM, 1, &framed(&one("shop", "user", "x")));
    client.write_all(&[call_head(0), data].concat()).await.unwrap();
    let answer = until(&mut client, |frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
    assert!(timeout(PATIENCE, answer).await.unwrap().is_some());
    service.leave.send(()).await.unwrap();
    // The drain would take 25 s.
    timeout(PATIENCE, service.ended).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn unfinished_calls_are_refused_oldest_first() {
    let service = Service::start_with(RULES, &[("memory.requests", "8MiB")]).await;
    let address = service.addresses.grpc.to_string().parse().unwrap();
    let mut clients = Vec::new();
    // Each call takes more than 2 KiB, so that 8 MiB are used up before all are begun.
    for _ in 0..5 {
        let mut client = connect(address).await;
        let call = |call| {
            [call_head(call), frame(DATA, 0, stream(call), &announcing(4_000_000, b"0123456789"))].concat()
        };
        client.write_all(&(0..900).flat_map(call).collect::<Vec<_>>()).await.unwrap();
        clients.push(client);
    }
    let refused = until(&mut clients[0], |frame| frame.stream == 1 && frame.flags & END_STREAM != 0);
    let refused = timeout(PATIENCE, refused).await.unwrap().unwrap();
    // Its end comes with its headers, so there is no reply.
    assert_eq!(refused.kind, HEADERS);
    // A call that arrives in two pieces is younger than they are.
    let mut client = connect(address).await;
    let message = framed(&one("shop", "user", "x"));
    let (begin, end) = message.split_at(7);
    client.write_all(&[call_head(0), frame(DATA, 0, 1, begin)].concat()).await.unwrap();
    client.write_all(&frame(DATA, END_STREAM, 1, end)).await.unwrap();
    let answer = until(&mut client, |frame| frame.stream == 1 && frame.kind == DATA);
    assert!(timeout(PATIENCE, answer).await.unwrap().is_some());
}
