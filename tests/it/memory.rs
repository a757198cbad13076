//! A process with a limit of memory outlives callers that take all they can, and answers the others meanwhile.

use std::{net::SocketAddr, time::Duration};

use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};
use tollgate::api::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    frames::{DATA, END_STREAM, SETTINGS, announcing, call_head, connect, frame, framed, stream},
    harness::{PATIENCE, http, one},
    program::{MemoryGroup, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";
/// What deploy/kubernetes gives the process.
const LIMIT: u64 = 256 << 20;
const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// Sends `bytes` for as long as the server takes them, at most until `PATIENCE`, and keeps the connection.
async fn push(mut client: TcpStream, bytes: Vec<u8>) -> TcpStream {
    let _ = timeout(PATIENCE, client.write_all(&bytes)).await;
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

async fn attack(address: SocketAddr, kind: usize) -> TcpStream {
    let client = connect(address).await;
    let bytes = match kind % 3 {
        0 => announced_calls(900),
        1 => unfinished_calls(200),
        _ => calls_without_window(900),
    };
    push(client, bytes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_at_its_memory_limit_answers_other_callers() {
    const CONNECTIONS: usize = 600;
    const ATTACKERS: usize = 90;
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
    let mut program = Program::start_in(group.as_ref().ok(), RULES, flags).await;
    let mut other = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();

    let mut idle = JoinSet::new();
    for _ in 0..CONNECTIONS - ATTACKERS - 1 {
        idle.spawn(connect(program.grpc));
    }
    let _idle = idle.join_all().await;
    let mut attackers = JoinSet::new();
    for kind in 0..ATTACKERS {
        attackers.spawn(attack(program.grpc, kind));
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
        let answered =
            timeout(Duration::from_secs(1), other.should_rate_limit(one("shop", "user", "y"))).await;
        assert!(
            answered.is_ok_and(|answered| answered.is_ok()),
            "another caller is answered within a second"
        );
        while let Some(client) = attackers.try_join_next() {
            attacked.push(client.unwrap());
        }
    }
    for _ in 0..100 {
        let answered =
            timeout(Duration::from_secs(1), other.should_rate_limit(one("shop", "user", "y"))).await;
        assert!(answered.is_ok_and(|answered| answered.is_ok()));
    }
    assert!(program.lives());
    assert!(program.peak_bytes() < LIMIT, "{} MiB", program.peak_bytes() >> 20);
    eprintln!("group: {}, peak: {} MiB", group.is_ok(), program.peak_bytes() >> 20);
    drop(attacked);
    drop(program);
}
