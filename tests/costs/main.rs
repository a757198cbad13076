//! The cost of a call in allocations, which are the same on every machine. It is a separate test program, so that no
//! other test allocates meanwhile.

#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

use std::alloc::System;

use prost::Message;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate_wire::proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code};

#[path = "../it/harness.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod harness;
mod wire;

use crate::{
    harness::{Service, descriptor, request, until},
    wire::Client,
};

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

#[tokio::test]
async fn call_takes_at_most_20_allocations() {
    // No look at the rules allocates meanwhile.
    let service = Service::start_on_this_thread(RULES, &[("rules.poll_interval", "1h")]).await;
    let address = service.addresses.grpc.to_string();
    // The port refuses connections until calls are taken.
    let mut client = until(async || Client::connect(&address).await.ok()).await;
    let entries = [("remote_address", "203.0.113.195"), ("path", "/api/v1/orders")];
    let message = request("shop", vec![descriptor(&entries)]).encode_to_vec();
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
    let charged = ((WARM + ROUNDS) * CALLS) as u32 + 1;
    assert_eq!(answer.statuses[0].limit_remaining, 1_000_000 - charged, "every call is charged once");

    drop(client);
    service.terminate().await;
    service.task.await.unwrap().unwrap();
}
