//! The bytes of a request mean to the decoder what they mean to `prost`, and `prost` reads the reply.
//!
//! `cargo +nightly fuzz run rls`

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tollgate::{
    api::{
        Api, Call, Handled, ResetPrecision, Settings,
        proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
    descriptor::Secret,
    limiter::Limiter,
    rules::{Book, Rules},
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
    let book = Arc::new(Book::of(Rules::parse("fuzz", RULES).expect("the rules are valid"), NOW));
    let memory = Arc::new(Memory::new(1 << 20, OnFull::Deny));
    let limiter = Limiter::new(book, memory, Clock::manual(NOW), Secret::from_bytes([7; 16]));
    Api::new(limiter, Settings { dynamic_metadata: true, ..Settings::default() })
}

fuzz_target!(|message: &[u8]| {
    let call = Call { message, metadata: None, precision: ResetPrecision::Seconds };
    let Ok(Handled::Ready(reply)) = api().batch().handle(call) else { return };
    let request = RateLimitRequest::decode(message).expect("a decided request is valid");
    let response = RateLimitResponse::decode(reply.message()).expect("a reply is valid");
    assert_eq!(response.statuses.len(), request.descriptors.len());
    assert_eq!(response.encode_to_vec(), reply.message());
});
