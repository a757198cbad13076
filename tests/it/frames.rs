//! A client that writes exactly the HTTP/2 frames of a test.

use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, ToSocketAddrs},
};
use tollgate_wire::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// The path of the method.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The first bytes of a client: the preface and an empty SETTINGS frame.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Frame types.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
/// Flags: HEADERS are complete; the stream ends (HEADERS and DATA).
pub const END_HEADERS: u8 = 4;
pub const END_STREAM: u8 = 1;
/// The flag of a SETTINGS frame that acknowledges one.
pub const ACK: u8 = 1;

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A frame as bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The stream id of a call, numbered from 0.
pub fn stream(call: u32) -> u32 {
    2 * call + 1
}

/// Headers of a request in HPACK, without the dynamic table.
pub fn request_headers(method: &str, path: &str, content_type: &str) -> Vec<u8> {
    // Lengths below 127 take one byte.
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // Literals with names of the static table: method, path, authority and content-type; http is an entry of it.
    [
        &[0x02][..],
        &text(method),
        &[0x86, 0x04],
        &text(path),
        &[0x01],
        &text("x"),
        &[0x0f, 0x10],
        &text(content_type),
    ]
    .concat()
}

/// The HEADERS frame of an ordinary call.
pub fn call_headers(call: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream(call), &request_headers("POST", METHOD, "application/grpc"))
}

/// Calls that are reset at once.
pub fn reset_calls(calls: u32) -> Vec<u8> {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    (0..calls)
        .flat_map(|call| [call_headers(call), frame(RST_STREAM, 0, stream(call), &CANCEL)].concat())
        .collect()
}

/// A message in its gRPC frame.
pub fn framed(message: &RateLimitRequest) -> Vec<u8> {
    let message = message.encode_to_vec();
    partial_message(u32::try_from(message.len()).unwrap(), &message)
}

/// The beginning of a gRPC message with a declared length of `length` bytes.
pub fn partial_message(length: u32, message: &[u8]) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// Connects and sends the preface.
pub async fn connect(address: impl ToSocketAddrs) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream
}

/// The next frame; `None` if the connection ends.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, number @ ..] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes(number), payload })
}

/// Reads until a frame for which `matches` is true; `None` if the connection ends before.
pub async fn read_until(
    stream: &mut (impl AsyncRead + Unpin),
    mut matches: impl FnMut(&Frame) -> bool,
) -> Option<Frame> {
    loop {
        let frame = read_frame(stream).await?;
        if matches(&frame) {
            return Some(frame);
        }
    }
}
