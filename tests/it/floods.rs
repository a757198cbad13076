//! Floods: what hostile clients send, and a process with the memory limit of deploy/kubernetes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, process::Command, time::timeout};

use crate::{
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, METHOD, SETTINGS, call_headers, frame, framed,
        partial_message, request_headers, reset_calls, stream,
    },
    harness::{TIMEOUT, request_for},
    program::PROGRAM,
};

pub const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";
/// The memory limit of deploy/kubernetes.
pub const LIMIT: u64 = 256 << 20;
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// Frame types.
const PING: u8 = 6;
const CONTINUATION: u8 = 9;

/// A control group with a memory limit, removed on drop.
pub struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    /// A new group, in either version of control groups; an error if this user may not create one.
    pub fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let groups = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let (mount, file) = groups[usize::from(Path::new(groups[1].0).join(groups[1].1).exists())];
        let group = Self { path: Path::new(mount).join(format!("{name}-{}", std::process::id())) };
        fs::create_dir_all(&group.path)?;
        fs::write(group.path.join(file), bytes.to_string())?;
        Ok(group)
    }

    /// A command that enters the group and then executes the program.
    pub fn command(&self) -> Command {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.path.join("cgroup.procs"))
            .arg(PROGRAM);
        shell
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group remains if the process has not ended yet.
        let _ = fs::remove_dir(&self.path);
    }
}

/// What a hostile client sends after the preface. It reads nothing.
#[derive(Clone, Debug)]
pub struct Flood {
    pub name: &'static str,
    frames: Vec<u8>,
    /// Bytes of one write to the socket.
    write_bytes: usize,
}

impl Flood {
    /// Sends the frames as long as the server accepts them, at most for the timeout, and keeps the connection.
    pub async fn push(&self, mut client: TcpStream) -> TcpStream {
        client.set_nodelay(true).unwrap();
        let writes = async {
            for bytes in self.frames.chunks(self.write_bytes) {
                client.write_all(bytes).await?;
            }
            io::Result::Ok(())
        };
        // The server may close the connection.
        let _ = timeout(TIMEOUT, writes).await;
        client
    }
}

/// Calls that take as much memory of the server as they can.
pub fn memory_floods() -> [Flood; 4] {
    [
        flood("declared calls", declared_calls(900)),
        flood("unfinished calls", unfinished_calls(200)),
        flood("calls without window", calls_without_window(900)),
        flood("calls with large headers", calls_with_large_headers(300)),
    ]
}

/// Frames that cost the server more than the client, or would if it accepted all of them.
pub fn frame_floods() -> [Flood; 9] {
    let calls = (0..2_000).flat_map(complete_call).collect();
    [
        flood("resets", reset_calls(20_000)),
        flood("continuations", continuations(&[b'x'; 16_000], 500)),
        flood("empty continuations", continuations(&[], 100_000)),
        flood("settings", frame(SETTINGS, 0, 0, &[]).repeat(100_000)),
        flood("pings", frame(PING, 0, 0, b"12345678").repeat(100_000)),
        flood("empty data", [call_headers(0), frame(DATA, 0, stream(0), &[]).repeat(100_000)].concat()),
        flood("header table", growing_headers(200)),
        flood("bytes as frames", bytes_as_frames(100)),
        Flood { name: "bytes as writes", frames: calls, write_bytes: 1 },
    ]
}

fn flood(name: &'static str, frames: Vec<u8>) -> Flood {
    Flood { name, frames, write_bytes: usize::MAX }
}

/// Calls that declare a message of 4 MiB and send 10 bytes of it.
fn declared_calls(calls: u32) -> Vec<u8> {
    let partial = partial_message(MESSAGE_BYTES_MAX, b"0123456789");
    let call = |call| [call_headers(call), frame(DATA, 0, stream(call), &partial)].concat();
    (0..calls).flat_map(call).collect()
}

/// Calls that send as much of a message as the stream windows allow, without an end.
fn unfinished_calls(calls: u32) -> Vec<u8> {
    let begin = partial_message(MESSAGE_BYTES_MAX, &[b'x'; 16_000]);
    let call = |call| {
        let (more, number) = ([b'x'; 16_000], stream(call));
        [
            call_headers(call),
            frame(DATA, 0, number, &begin),
            frame(DATA, 0, number, &more),
            frame(DATA, 0, number, &more),
        ]
        .concat()
    };
    (0..calls).flat_map(call).collect()
}

/// Calls whose replies are blocked by flow control.
fn calls_without_window(calls: u32) -> Vec<u8> {
    [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), (0..calls).flat_map(complete_call).collect()].concat()
}

/// Calls with as many headers as they may have, without a message.
fn calls_with_large_headers(calls: u32) -> Vec<u8> {
    // A literal with a value of 15,000 bytes.
    let literal = [&[0, 1, b'a', 0x7f, 0x99, 0x74][..], &[b'x'; 15_000]].concat();
    let head = [request_headers("POST", METHOD, "application/grpc"), literal.clone()].concat();
    let call = |call| {
        let more = frame(CONTINUATION, 0, stream(call), &literal);
        let last = frame(CONTINUATION, END_HEADERS, stream(call), &literal);
        [frame(HEADERS, 0, stream(call), &head), more.repeat(2), last].concat()
    };
    (0..calls).flat_map(call).collect()
}

fn complete_call(call: u32) -> Vec<u8> {
    let message = framed(&request_for("shop", "user", "x"));
    [call_headers(call), frame(DATA, END_STREAM, stream(call), &message)].concat()
}

/// Headers of one call that never end.
fn continuations(part: &[u8], parts: usize) -> Vec<u8> {
    // A literal whose value has 2^28 bytes and more.
    const LARGE_LITERAL: [u8; 8] = [0, 1, b'a', 0x7f, 0xff, 0xff, 0xff, 0x7f];
    let head = [request_headers("POST", METHOD, "application/grpc"), LARGE_LITERAL.into()].concat();
    let more = frame(CONTINUATION, 0, stream(0), part).repeat(parts);
    [frame(HEADERS, 0, stream(0), &head), more].concat()
}

/// Calls whose headers are 12,000 references to a large entry of the header table.
fn growing_headers(calls: u32) -> Vec<u8> {
    // A literal with a value of 4,000 bytes, which becomes the first entry of the dynamic table.
    let entry = [&[0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'x'; 4_000]].concat();
    let head = request_headers("POST", METHOD, "application/grpc");
    let block = [head, entry, vec![0xbe; 12_000]].concat();
    (0..calls).flat_map(|call| frame(HEADERS, END_HEADERS, stream(call), &block)).collect()
}

/// Calls whose message arrives with one byte in each frame, and does not end.
fn bytes_as_frames(calls: u32) -> Vec<u8> {
    let message = partial_message(MESSAGE_BYTES_MAX, &[b'x'; 1_000]);
    let call = |call| {
        let bytes = message.iter().flat_map(move |byte| frame(DATA, 0, stream(call), &[*byte]));
        call_headers(call).into_iter().chain(bytes)
    };
    (0..calls).flat_map(call).collect()
}
