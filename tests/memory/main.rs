//! A process at its memory limit survives callers that use all they can, and still answers the others.
//!
//! It is a separate test program, so that no other test competes for CPU with the deadlines.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{io::AsyncWriteExt, net::TcpStream, process::Command, task::JoinSet, time::timeout};
use tollgate::api::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use tonic::transport::Channel;

#[path = "../it/frames.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod frames;
#[path = "../it/harness.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod harness;
#[path = "../it/program.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use crate::{
    frames::{DATA, END_STREAM, SETTINGS, call_headers, connect, frame, framed, partial_message, stream},
    harness::{TIMEOUT, http, request_for},
    program::{PROGRAM, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";
/// The memory limit of deploy/kubernetes.
const LIMIT: u64 = 256 << 20;
/// The deadline of the well-behaved caller.
const DEADLINE: Duration = Duration::from_secs(1);
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// A control group with a memory limit, removed on drop.
struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    /// A new group, in either version of control groups; an error if this user may not create one.
    fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let groups = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let (mount, file) = groups[usize::from(Path::new(groups[1].0).join(groups[1].1).exists())];
        let group = Self { path: Path::new(mount).join(format!("{name}-{}", std::process::id())) };
        fs::create_dir_all(&group.path)?;
        fs::write(group.path.join(file), bytes.to_string())?;
        Ok(group)
    }

    /// A command that enters the group and then executes the program.
    fn command(&self) -> Command {
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
async fn push(mut client: TcpStream, bytes: &[u8]) -> TcpStream {
    let _ = timeout(TIMEOUT, client.write_all(bytes)).await;
    client
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
    let message = framed(&request_for("shop", "user", "x"));
    let call = |call| [call_headers(call), frame(DATA, END_STREAM, stream(call), &message)].concat();
    [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), (0..calls).flat_map(call).collect()].concat()
}

async fn expect_timely_reply(caller: &mut RateLimitServiceClient<Channel>) {
    let answering = caller.should_rate_limit(request_for("shop", "user", "y"));
    let answered = timeout(DEADLINE, answering).await.expect("other callers are answered within a second");
    answered.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_at_its_memory_limit_answers_other_callers() {
    const CONNECTIONS: usize = 600;
    const ATTACKERS: usize = 45;
    let group = MemoryGroup::new("tollgate-test", LIMIT);
    // Without a group, settings give the parts of the limit, and the test measures resident memory.
    let parts = [
        "--store-memory-limit",
        "128MiB",
        "--memory-requests",
        "25MiB",
        "--memory-replies",
        "25MiB",
        "--grpc-max-connections",
        "655",
    ];
    let flags: &[&str] = if group.is_ok() { &[] } else { &parts };
    let command = group.as_ref().map_or_else(|_| Command::new(PROGRAM), MemoryGroup::command);
    let program = Program::start_command(command, RULES, flags).await;
    let mut well_behaved = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();

    let mut idle = JoinSet::new();
    for _ in 0..CONNECTIONS - ATTACKERS - 1 {
        idle.spawn(connect(program.grpc));
    }
    let _idle = idle.join_all().await;
    let mut attackers = JoinSet::new();
    let attacks = [declared_calls(900), unfinished_calls(200), calls_without_window(900)].map(Arc::new);
    for attack in attacks.iter().cycle().take(ATTACKERS) {
        let (address, frames) = (program.grpc, attack.clone());
        attackers.spawn(async move { push(connect(address).await, &frames).await });
    }
    for _ in 0..4 {
        let (address, body) = (program.http, format!("{{\"domain\":\"{}\"}}", "x".repeat(4_000_000)));
        attackers.spawn(async move {
            // The server may refuse it with a retry.
            let _ = timeout(TIMEOUT, http(address, "POST", "/json", &body)).await;
            TcpStream::connect(address).await.unwrap()
        });
    }
    let mut attacked = Vec::new();
    while !attackers.is_empty() {
        expect_timely_reply(&mut well_behaved).await;
        while let Some(client) = attackers.try_join_next() {
            attacked.push(client.unwrap());
        }
    }
    for _ in 0..100 {
        expect_timely_reply(&mut well_behaved).await;
    }
    assert!(program.peak_bytes() < LIMIT, "{} MiB", program.peak_bytes() >> 20);
    drop(attacked);
    drop(program);
}
