//! A process with a limit of memory outlives callers that take all they can, and answers the others meanwhile.
//!
//! It is a program of its own, so that no other test takes the cores from the deadlines.

#![allow(clippy::unwrap_used, reason = "what a test unwraps, it asserts")]

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
    frames::{DATA, END_STREAM, SETTINGS, announcing, call_head, connect, frame, framed, stream},
    harness::{PATIENCE, http, one},
    program::{PROGRAM, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";
/// What deploy/kubernetes gives the process.
const LIMIT: u64 = 256 << 20;
/// The deadline of the other caller.
const DEADLINE: Duration = Duration::from_secs(1);
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// A control group of this machine with a limit of memory, removed with this.
struct MemoryGroup {
    path: PathBuf,
}

impl MemoryGroup {
    /// A new group, in either version of control groups; an error where this user may make none.
    fn new(name: &str, bytes: u64) -> io::Result<Self> {
        let groups = [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
        let (mount, file) = groups[usize::from(Path::new(groups[1].0).join(groups[1].1).exists())];
        let group = Self { path: Path::new(mount).join(format!("{name}-{}", std::process::id())) };
        fs::create_dir_all(&group.path)?;
        fs::write(group.path.join(file), bytes.to_string())?;
        Ok(group)
    }

    /// A command that enters the group and then is the program.
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
        // It stays where the process has not ended yet.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Sends `bytes` for as long as the server takes them, at most until `PATIENCE`, and keeps the connection.
async fn push(mut client: TcpStream, bytes: &[u8]) -> TcpStream {
    let _ = timeout(PATIENCE, client.write_all(bytes)).await;
    client
}

/// Calls that announce a message of 4 MiB and send 10 bytes of it.
fn announced_calls(calls: u32) -> Vec<u8> {
    let begun = announcing(MESSAGE_BYTES_MAX, b"0123456789");
    let call = |call| [call_head(call), frame(DATA, 0, stream(call), &begun)].concat();
    (0..calls).flat_map(call).collect()
}

/// Calls that send as much of a message as the windows of streams allow, without an end.
fn unfinished_calls(calls: u32) -> Vec<u8> {
    let begin = announcing(MESSAGE_BYTES_MAX, &[b'x'; 16_000]);
    let call = |call| {
        let (more, number) = ([b'x'; 16_000], stream(call));
        [
            call_head(call),
            frame(DATA, 0, number, &begin),
            frame(DATA, 0, number, &more),
            frame(DATA, 0, number, &more),
        ]
        .concat()
    };
    (0..calls).flat_map(call).collect()
}

/// Calls whose replies have no window.
fn calls_without_window(calls: u32) -> Vec<u8> {
    let message = framed(&one("shop", "user", "x"));
    let call = |call| [call_head(call), frame(DATA, END_STREAM, stream(call), &message)].concat();
    [frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), (0..calls).flat_map(call).collect()].concat()
}

async fn answer_in_time(caller: &mut RateLimitServiceClient<Channel>) {
    let answering = caller.should_rate_limit(one("shop", "user", "y"));
    let answered = timeout(DEADLINE, answering).await.expect("other callers are answered within a second");
    answered.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_at_its_memory_limit_answers_other_callers() {
    const CONNECTIONS: usize = 600;
    const ATTACKERS: usize = 45;
    let group = MemoryGroup::new("tollgate-test", LIMIT);
    // Without a group its parts of the limit are given as settings, and the resident memory is what is measured.
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
    let program = Program::start_by(command, RULES, flags).await;
    let mut other = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();

    let mut idle = JoinSet::new();
    for _ in 0..CONNECTIONS - ATTACKERS - 1 {
        idle.spawn(connect(program.grpc));
    }
    let _idle = idle.join_all().await;
    let mut attackers = JoinSet::new();
    let attacks = [announced_calls(900), unfinished_calls(200), calls_without_window(900)].map(Arc::new);
    for attack in attacks.iter().cycle().take(ATTACKERS) {
        let (address, frames) = (program.grpc, attack.clone());
        attackers.spawn(async move { push(connect(address).await, &frames).await });
    }
    for _ in 0..4 {
        let (address, body) = (program.http, format!("{{\"domain\":\"{}\"}}", "x".repeat(4_000_000)));
        attackers.spawn(async move {
            // It may be told to come again.
            let _ = timeout(PATIENCE, http(address, "POST", "/json", &body)).await;
            TcpStream::connect(address).await.unwrap()
        });
    }
    let mut attacked = Vec::new();
    while !attackers.is_empty() {
        answer_in_time(&mut other).await;
        while let Some(client) = attackers.try_join_next() {
            attacked.push(client.unwrap());
        }
    }
    for _ in 0..100 {
        answer_in_time(&mut other).await;
    }
    assert!(program.peak_bytes() < LIMIT, "{} MiB", program.peak_bytes() >> 20);
    drop(attacked);
    drop(program);
}
