//! A process at its memory limit survives callers that use all they can, and still answers the others.
//!
//! It is a separate test program, so that no other test competes for CPU with the deadlines.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::{
    io::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    process::Command,
    sync::Mutex,
    task::JoinSet,
    time::{interval, timeout},
};
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use tonic::transport::Channel;

#[path = "../it/floods.rs"]
mod floods;
#[path = "../it/frames.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod frames;
#[path = "../it/harness.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod harness;
mod idle;
#[path = "../it/program.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod program;

use crate::{
    floods::{LIMIT, MemoryGroup, RULES, frame_floods, memory_floods},
    frames::connect,
    harness::{TIMEOUT, http, request_for, until},
    program::{PROGRAM, Program},
};

/// The deadline of the well-behaved caller. On idle cores it waits at most for about 0.3 s of work for the attackers,
/// which is the time of code without optimization.
const DEADLINE: Duration = Duration::from_secs(1);

/// Each test needs the CPU for its deadlines.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A program with the memory limit, and the control group that enforces it, if this user may create one.
async fn start_with_limit() -> (Option<MemoryGroup>, Program) {
    let group = MemoryGroup::new("tollgate-test", LIMIT).ok();
    if group.is_none() {
        // Written past the capture of a test's output, so that it is shown although the test passes.
        io::stderr().write_all(b"\nSKIPPED: memory control group\n").unwrap();
    }
    // Without a group, settings give the parts of the limit, and the tests measure resident memory.
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
    let flags: &[&str] = if group.is_some() { &[] } else { &parts };
    let command = group.as_ref().map_or_else(|| Command::new(PROGRAM), MemoryGroup::command);
    let program = Program::start_command(command, RULES, flags).await;
    (group, program)
}

async fn expect_timely_reply(caller: &mut RateLimitServiceClient<Channel>) {
    let answering = caller.should_rate_limit(request_for("shop", "user", "y"));
    let answered =
        timeout(DEADLINE, answering).await.expect("other callers are answered within their deadline");
    answered.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_at_its_memory_limit_answers_other_callers() {
    const CONNECTIONS: usize = 600;
    const ATTACKERS: usize = 45;
    let _alone = ONE_AT_A_TIME.lock().await;
    let (_group, program) = start_with_limit().await;
    let mut well_behaved = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();

    let mut idle = JoinSet::new();
    for _ in 0..CONNECTIONS - ATTACKERS - 1 {
        idle.spawn(connect(program.grpc));
    }
    let _idle = idle.join_all().await;
    let mut attackers = JoinSet::new();
    let floods = memory_floods().map(Arc::new);
    for flood in floods.iter().cycle().take(ATTACKERS) {
        let (address, flood) = (program.grpc, flood.clone());
        attackers.spawn(async move { flood.push(connect(address).await).await });
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_callers_are_answered_under_each_flood_of_frames() {
    const ATTACKERS: usize = 10;
    const CALLS: usize = 20;
    // More connections would reach the bound on their number.
    const FLOOD_INTERVAL: Duration = Duration::from_millis(100);
    let _alone = ONE_AT_A_TIME.lock().await;
    let (_group, program) = start_with_limit().await;
    let mut caller = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();
    for flood in frame_floods().map(Arc::new) {
        let (begun, address) = (Arc::new(AtomicUsize::new(0)), program.grpc);
        let mut attackers = JoinSet::new();
        for _ in 0..ATTACKERS {
            let (flood, begun) = (flood.clone(), begun.clone());
            attackers.spawn(async move {
                let mut floods = interval(FLOOD_INTERVAL);
                loop {
                    floods.tick().await;
                    let client = connect(address).await;
                    begun.fetch_add(1, Relaxed);
                    flood.push(client).await;
                }
            });
        }
        until(async || (begun.load(Relaxed) >= ATTACKERS).then_some(())).await;
        for _ in 0..CALLS {
            let answering = caller.should_rate_limit(request_for("shop", "user", "y"));
            let answered = timeout(TIMEOUT, answering).await;
            assert!(matches!(answered, Ok(Ok(_))), "{}: {answered:?}", flood.name);
        }
        assert!(program.peak_bytes() < LIMIT, "{}: {} MiB", flood.name, program.peak_bytes() >> 20);
    }
    drop(program);
}
