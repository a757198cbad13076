//! The cost of a call in allocations, which are the same on every machine. It is a separate test program, so that no
//! other test allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::{alloc::System, fs, time::Duration};

use prost::Message;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::{sync::mpsc, time::timeout};
use tollgate::{
    server::{ListenerAddresses, Server},
    settings::{Setting, Settings, SettingsSources},
};
use tollgate_counter::time::Clock;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

mod wire;

use wire::Client;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RULES: &str = "
domain: shop
descriptors:
  - key: remote_address
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 1000000}}
";
/// Concurrent calls.
const CALLS: usize = 100;
/// Rounds of calls until every growing buffer has its final size.
const WARM: usize = 20;
const ROUNDS: usize = 50;
/// Longer than any step here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn settings(rules: &str) -> Settings {
    let overrides = [
        ("rules.path", rules),
        ("grpc.listen", "127.0.0.1:0"),
        ("http.listen", "127.0.0.1:0"),
        ("admin.listen", "127.0.0.1:0"),
        ("metrics.listen", "127.0.0.1:0"),
        ("drain.delay", "0s"),
    ];
    let flags = overrides.map(|(name, value)| {
        let setting = Setting::named(name).unwrap();
        (setting, value.to_owned())
    });
    SettingsSources { flags: flags.into(), ..SettingsSources::default() }.load().unwrap()
}

fn encoded_request() -> Vec<u8> {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let entries = vec![entry("remote_address", "203.0.113.195"), entry("path", "/api/v1/orders")];
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 0 }.encode_to_vec()
}

/// Repeats a call until the server has its rules.
async fn until_answered(addresses: &ListenerAddresses) -> Client {
    loop {
        // The port refuses connections until calls are taken.
        if let Ok(mut client) = Client::connect(&addresses.grpc.to_string()).await
            && client.call(&encoded_request(), 1).await.is_some_and(|answer| !answer.is_empty())
        {
            return client;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn call_takes_at_most_20_allocations() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, RULES).unwrap();
    let server = Server::bind(settings(file.to_str().unwrap()), Clock::system()).await.unwrap();
    let addresses = server.addresses().unwrap();
    let (shutdown, shutdown_signal) = mpsc::channel(1);
    let task = tokio::spawn(server.run(shutdown_signal));

    let mut client = timeout(TIMEOUT, until_answered(&addresses)).await.unwrap();
    let message = encoded_request();
    for _ in 0..WARM {
        client.call(&message, CALLS).await.unwrap();
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..ROUNDS {
        client.call(&message, CALLS).await.unwrap();
    }
    let change = region.change();
    let each = |number: usize| number as f64 / (ROUNDS * CALLS) as f64;
    let (allocations, kept) = (
        each(change.allocations + change.reallocations),
        change.bytes_allocated as isize - change.bytes_deallocated as isize,
    );
    println!("{allocations:.2} allocations a call; {kept} bytes retained after {}", ROUNDS * CALLS);
    assert!(allocations <= 20.0, "{allocations} allocations a call");
    assert!(kept.unsigned_abs() < 64 * CALLS * ROUNDS / 10, "{kept} bytes retained");

    let answer = RateLimitResponse::decode(&*client.call(&message, 1).await.unwrap()).unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    let charged = 1 + ((WARM + ROUNDS) * CALLS) as u32 + 1;
    assert_eq!(answer.statuses[0].limit_remaining, 1_000_000 - charged, "every call is charged once");

    drop(client);
    shutdown.send(tollgate::server::StopSignal::Terminate).await.unwrap();
    task.await.unwrap().unwrap();
}
