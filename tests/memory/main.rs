//! A process at its memory limit survives callers that use all they can, and still answers the others.
//!
//! It is a separate test program, so that no other test competes for CPU with the deadlines.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpStream, process::Command, task::JoinSet, time::timeout};
use tollgate::api::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use tonic::transport::Channel;

#[path = "../it/floods.rs"]
mod floods;
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
    floods::{LIMIT, MemoryGroup, RULES, calls_without_window, declared_calls, push, unfinished_calls},
    frames::connect,
    harness::{TIMEOUT, http, request_for},
    program::{PROGRAM, Program},
};

/// The deadline of the well-behaved caller.
const DEADLINE: Duration = Duration::from_secs(1);
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
