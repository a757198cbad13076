//! Floods: what hostile clients send, and a process with the memory limit of deploy/kubernetes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tokio::{io::AsyncWriteExt, net::TcpStream, process::Command, time::timeout};

use crate::{
    frames::{DATA, END_STREAM, SETTINGS, call_headers, frame, framed, partial_message, stream},
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

/// Sends `bytes` as long as the server accepts them, at most for the timeout, and keeps the connection.
pub async fn push(mut client: TcpStream, bytes: &[u8]) -> TcpStream {
    let _ = timeout(TIMEOUT, client.write_all(bytes)).await;
    client
}

/// Calls that declare a message of 4 MiB and send 10 bytes of it.
pub fn declared_calls(calls: u32) -> Vec<u8> {
    let partial = partial_message(MESSAGE_BYTES_MAX, b"0123456789");
    let call = |call| [call_headers(call), frame(DATA, 0, stream(call), &partial)].concat();
    (0..calls).flat_map(call).collect()
}

/// Calls that send as much of a message as the stream windows allow, without an end.
pub fn unfinished_calls(calls: u32) -> Vec<u8> {
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
pub fn calls_without_window(calls: u32) -> Vec<u8> {
    let message = framed(&request_for("shop", "user", "x"));
    let call = |call| [call_headers(call), frame(DATA, END_STREAM, stream(call), &message)].concat();
    [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), (0..calls).flat_map(call).collect()].concat()
}
