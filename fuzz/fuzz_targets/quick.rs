//! A call that is answered from its bytes is answered as the generated message would be, whatever the bytes.
//!
//! `cargo +nightly fuzz run quick`

#![no_main]

use std::sync::Arc;

use axum::http::HeaderMap;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use tokio::runtime::Builder;
use tollgate::{
    api::{
        Api, Framed, Settings,
        envoy::Resets,
        proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
    cluster::OpenForwards,
    descriptor::Secret,
    limiter::Limiter,
    rules::{ActiveRules, Rules},
    store::{Memory, OnFull},
    time::{Clock, Timestamp},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_040_123_456_789);

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {name: each, unit: hour, requests_per_unit: 3}}
  - {key: b, value: x*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}}
";

fn api() -> Api {
    let active_rules = Arc::new(ActiveRules::of(Rules::parse("fuzz", RULES).expect("they are right"), NOW));
    let memory = Arc::new(Memory::new(1 << 20, OnFull::Deny));
    let limiter = Limiter::new(active_rules, memory, Clock::manual(NOW), Secret::from_bytes([7; 16]));
    Api::new(limiter, Settings::default())
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fuzz_target!(|message: &[u8]| {
    // Each has counters of its own, none of which has seen anything yet.
    let (quick, general) = (api(), api());
    let Framed::Answered(reply) = quick.turn().answer_framed(&framed(message), &HeaderMap::new()) else { return };
    let request = RateLimitRequest::decode(message).expect("what is answered can be decoded");
    let runtime = Builder::new_current_thread().enable_time().build().expect("it takes nothing");
    let answer = runtime.block_on(general.answer(&request, None, Resets::WholeSeconds, &OpenForwards::default()));
    let told = RateLimitResponse::decode(&reply.frame[5..]).expect("it is what clients decode");
    assert_eq!(told, answer.expect("what is answered here is answered there"));
});
