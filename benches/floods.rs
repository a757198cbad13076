//! The latency of a caller with 200 calls a second on four connections, without and under each flood of other clients,
//! and the memory of the process.
//!
//! The process has the memory limit of deploy/kubernetes, in a control group if this user may create one. Latency counts
//! from the instant at which a call is due. `cargo bench --bench floods`; the target is a p99 of 100 ms.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::{sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

#[path = "../tests/it/floods.rs"]
mod floods;
#[path = "../tests/it/frames.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod frames;
#[path = "../tests/it/harness.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod harness;
#[path = "../tests/it/program.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod program;

use floods::{LIMIT, MemoryGroup, RULES, frame_floods, memory_floods};
use frames::connect;
use harness::request_for;
use program::{PROGRAM, Program};

const RATE: u64 = 200;
const CONNECTIONS: usize = 4;
const SECONDS: u64 = 5;
const ATTACKERS: usize = 30;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    println!("{:<24} {:>8} {:>8} {:>8} {:>10}", "flood", "p50 ms", "p99 ms", "max ms", "peak MiB");
    let floods = memory_floods().into_iter().chain(frame_floods()).map(Some);
    for flood in [None].into_iter().chain(floods) {
        let name = flood.as_ref().map_or("none", |flood| flood.name);
        let group = MemoryGroup::new("tollgate-floods", LIMIT).ok();
        let command = group.as_ref().map_or_else(|| Command::new(PROGRAM), MemoryGroup::command);
        let program = Program::start_command(command, RULES, &[]).await;
        let mut attackers = JoinSet::new();
        let flood = flood.map(Arc::new);
        for flood in flood.iter().cycle().take(ATTACKERS * usize::from(flood.is_some())) {
            let (address, flood) = (program.grpc, flood.clone());
            attackers.spawn(async move {
                // Each begins again for as long as the benchmark lasts, at most ten times a second.
                let mut rounds = interval(Duration::from_millis(100));
                loop {
                    rounds.tick().await;
                    drop(flood.push(connect(address).await).await);
                }
            });
        }
        let latency = ask(&program).await;
        attackers.abort_all();
        let millis = |micros: u64| micros as f64 / 1_000.0;
        let (half, high) = (latency.value_at_quantile(0.5), latency.value_at_quantile(0.99));
        println!(
            "{name:<24} {:>8.2} {:>8.2} {:>8.2} {:>10}",
            millis(half),
            millis(high),
            millis(latency.max()),
            program.peak_bytes() >> 20
        );
    }
}

/// The latency of calls that are due at the rate, in microseconds from when each is due.
async fn ask(program: &Program) -> Histogram<u64> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap());
    }
    let mut calls = JoinSet::new();
    let mut due = interval(Duration::from_micros(1_000_000 / RATE));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..RATE * SECONDS {
        let at = due.tick().await;
        let mut client = clients[number as usize % CONNECTIONS].clone();
        calls.spawn(async move {
            client.should_rate_limit(request_for("shop", "user", "y")).await.unwrap();
            Instant::now() - at
        });
    }
    let mut latency = Histogram::new(3).unwrap();
    while let Some(took) = calls.join_next().await {
        latency.record(u64::try_from(took.unwrap().as_micros()).unwrap()).unwrap();
    }
    latency
}
