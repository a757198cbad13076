//! A client that writes HTTP/2 frames as the test says, and nothing by itself.

use std::net::SocketAddr;

use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollgate::api::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// The method that nearly all calls are of.
pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// What a client sends first: the preface and its settings, of which there are none.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
/// Flags: of HEADERS, that they are complete; of HEADERS and DATA, that the stream ends.
pub const END_HEADERS: u8 = 4;
pub const END_STREAM: u8 = 1;

/// A frame that was read.
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

/// The stream of the call with this number, from 0.
pub fn stream(call: u32) -> u32 {
    2 * call + 1
}

/// Headers of a request, as HPACK writes them without its tables.
pub fn head(method: &str, path: &str, content_type: &str) -> Vec<u8> {
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

/// The HEADERS frame of a usual call.
pub fn call_head(call: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream(call), &head("POST", METHOD, "application/grpc"))
}

/// A message in its gRPC frame.
pub fn framed(message: &RateLimitRequest) -> Vec<u8> {
    let message = message.encode_to_vec();
    announcing(u32::try_from(message.len()).unwrap(), &message)
}

/// The beginning of a message that is announced to have `length` bytes.
pub fn announcing(length: u32, message: &[u8]) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// Connects and sends the preface.
pub async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(PREFACE).await.unwrap();
    stream
}

/// The next frame; `None` where the connection ends.
pub async fn read(stream: &mut TcpStream) -> Option<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, flags, number @ ..] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes(number), payload })
}

/// Reads until a frame that `is_it`; `None` where the connection ends before.
pub async fn until(stream: &mut TcpStream, mut is_it: impl FnMut(&Frame) -> bool) -> Option<Frame> {
    loop {
        let frame = read(stream).await?;
        if is_it(&frame) {
            return Some(frame);
        }
    }
}
