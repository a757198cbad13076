//! What is read here means what it means to `prost`, and what is answered here is what is answered there.

use std::sync::Arc;

use proptest::{collection::vec, option, prelude::*, sample::Index};
use prost::Message;

use super::*;
use crate::{
    api::{
        Settings, headers, message,
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor,
                rate_limit_descriptor::{Entry, RateLimitOverride},
            },
            service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
        },
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
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: user, value: vip, rate_limit: {unlimited: true}}
  - key: path
    rate_limit: {name: paths, unit: day, requests_per_unit: 5, algorithm: token_bucket}
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 5000000000, algorithm: sliding_window}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 3}}
  - {key: zone, value: eu*, share_threshold: true, rate_limit: {unit: week, requests_per_unit: 4}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// Of any two of these, one answers as the other does.
fn api() -> Api {
    let active_rules = Arc::new(ActiveRules::of(Rules::parse("test", RULES).unwrap(), NOW));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    let limiter = Limiter::new(active_rules, memory, Clock::manual(NOW), Secret::from_bytes([7; 16]));
    let headers = headers::Settings { x_ratelimit: true, retry_after: true, ..headers::Settings::default() };
    Api::new(limiter, Settings { exact_reset: true, ..Settings::default() }).with_headers(headers)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = frame::begin(message.len());
    frame.extend_from_slice(message);
    frame
}

/// What was read, as the message that it was.
fn read(message: &[u8]) -> Option<RateLimitRequest> {
    let mut asked = Asked::default();
    asked.read(message, Settings::default().bounds())?;
    let mut begin = 0;
    let descriptors = asked.descriptors.iter().map(|described| {
        let entries = asked.entries[begin..described.end].iter();
        begin = described.end;
        RateLimitDescriptor {
            entries: entries
                .map(|entry| Entry { key: entry.key.into(), value: entry.value.into() })
                .collect(),
            limit: described.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            hits_addend: described.hits.own,
            is_negative_hits: described.hits.are_given_back,
        }
    });
    let descriptors = descriptors.collect();
    Some(RateLimitRequest { domain: asked.domain.into(), descriptors, hits_addend: asked.hits_addend })
}

fn request() -> impl Strategy<Value = RateLimitRequest> {
    let key = prop_oneof![4 => "user|path|queue|zone|shadow", 1 => any::<String>()];
    let value = prop_oneof![4 => "|vip|a|b|eu-1", 1 => any::<String>()];
    let entry = (key, value).prop_map(|(key, value)| Entry { key, value });
    let limit = (0..4_u32, -1..9_i32)
        .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    let hits = prop_oneof![4 => 0..4_u64, 1 => any::<u64>()];
    let descriptor = (vec(entry, 0..4), option::weighted(0.1, limit), option::of(hits), any::<bool>());
    let descriptor = descriptor.prop_map(|(entries, limit, hits_addend, is_negative_hits)| {
        RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
    });
    let domain = prop_oneof![8 => "shop", 1 => "other|", 1 => any::<String>()];
    (domain, vec(descriptor, 0..4), prop_oneof![4 => 0..4_u32, 1 => any::<u32>()])
        .prop_map(|(domain, descriptors, hits_addend)| RateLimitRequest { domain, descriptors, hits_addend })
}

/// A message of fields that may be ours or not, with values that may be right or not, down to a depth.
fn fields(depth: u32) -> BoxedStrategy<Vec<u8>> {
    let number = prop_oneof![0..4_u64, any::<u64>()].prop_map(|number| (0, varint(number)));
    let fixed = prop_oneof![Just((1, vec![7; 8])), Just((5, vec![7; 4]))];
    let text = prop_oneof![4 => "user|shop|a", 1 => any::<String>()].prop_map(String::into_bytes);
    let bytes = prop_oneof![8 => text, 1 => vec(any::<u8>(), 0..6)];
    let bytes =
        if depth == 0 { bytes.boxed() } else { prop_oneof![1 => bytes, 3 => fields(depth - 1)].boxed() };
    let bytes = bytes.prop_map(|bytes| (2, [varint(bytes.len() as u64), bytes].concat()));
    let field = prop_oneof![8 => 1..5_u64, 1 => 5..20_u64, 1 => 0..1_u64 << 40];
    let one = (field, prop_oneof![3 => number, 1 => fixed, 8 => bytes])
        .prop_map(|(field, (kind, value))| [varint(field << 3 | kind), value].concat());
    vec(one, 0..5).prop_map(|fields| fields.concat()).boxed()
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}

/// Asks both ways, each of its own counters, which saw the same until now.
fn ask_both(quick: &Api, general: &Api, message: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let replied = quick.turn().answer_framed(&framed(message), &HeaderMap::new());
    let Ok(request) = RateLimitRequest::decode(message) else {
        return assert_eq!(replied, Framed::Unusual, "what is broken is not answered");
    };
    let resets = general.resets();
    let answered =
        runtime.unwrap().block_on(general.answer(&request, None, resets, &OpenForwards::default()));
    match (replied, answered) {
        (Framed::Answered(reply), Ok(answer)) => {
            let told = RateLimitResponse::decode(frame::message_in(&reply.frame).unwrap()).unwrap();
            assert_eq!(told, answer);
            assert_eq!(frame::message_in(&reply.frame).unwrap(), answer.encode_to_vec());
        }
        (Framed::Unusual, Err(_)) => {}
        (replied, answered) => panic!("{request:?} is answered {replied:?} and {answered:?}"),
    }
}

proptest! {
    #[test]
    fn message_is_refused_exactly_beyond_its_bounds(message in fields(3), most in (0..3_usize, 0..3_usize)) {
        let bounds = Bounds { descriptors: most.0, entries: most.1 };
        let decoded = message::decode(&message, bounds);
        if let Ok(request) = RateLimitRequest::decode(&*message) {
            let fits = request.descriptors.len() <= most.0
                && request.descriptors.iter().all(|descriptor| descriptor.entries.len() <= most.1);
            prop_assert_eq!(decoded.is_ok(), fits);
            prop_assert_eq!(Asked::default().read(&message, bounds).is_some(), fits);
        }
    }

    #[test]
    fn what_prost_writes_is_read_as_it_was(request in request()) {
        prop_assert_eq!(read(&request.encode_to_vec()), Some(request));
    }

    #[test]
    fn any_fields_but_groups_are_read_as_prost_reads_them(message in fields(3)) {
        prop_assert_eq!(read(&message), RateLimitRequest::decode(&*message).ok());
    }

    #[test]
    fn what_is_read_of_damaged_messages_is_what_prost_reads(
        request in request(),
        other in request(),
        damage in vec((any::<Index>(), any::<u8>()), 0..4),
        cut in option::of(any::<Index>()),
    ) {
        // One message after the other is one that says some things twice.
        let mut message = [request.encode_to_vec(), other.encode_to_vec()].concat();
        if let (Some(cut), false) = (cut, message.is_empty()) {
            message.truncate(cut.index(message.len()));
        }
        for (place, byte) in damage {
            if !message.is_empty() {
                let place = place.index(message.len());
                message[place] = byte;
            }
        }
        if let Some(read) = read(&message) {
            prop_assert_eq!(Ok(read), RateLimitRequest::decode(&*message));
        }
    }

    #[test]
    fn what_is_read_of_any_bytes_is_what_prost_reads(message in vec(any::<u8>(), 0..64)) {
        if let Some(read) = read(&message) {
            prop_assert_eq!(Ok(read), RateLimitRequest::decode(&*message));
        }
    }

    #[test]
    fn a_history_of_requests_is_answered_alike_both_ways(requests in vec(request(), 1..12)) {
        let (quick, general) = (api(), api());
        for request in requests {
            ask_both(&quick, &general, &request.encode_to_vec());
        }
    }

    #[test]
    fn a_history_of_odd_messages_is_answered_alike_both_ways(messages in vec(fields(3), 1..12)) {
        let (quick, general) = (api(), api());
        for message in messages {
            ask_both(&quick, &general, &message);
        }
    }
}

#[test]
fn groups_are_left_to_prost() {
    let request = RateLimitRequest { domain: "shop".into(), ..RateLimitRequest::default() };
    let message = [request.encode_to_vec(), vec![0x7b, 0x7c]].concat();
    assert_eq!(RateLimitRequest::decode(&*message), Ok(request));
    assert_eq!(read(&message), None);
}

#[test]
fn what_is_no_whole_frame_is_left_alone() {
    let api = api();
    let request = RateLimitRequest {
        domain: "shop".into(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: "user".into(), value: "a".into() }],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 3,
    };
    let frame = framed(&request.encode_to_vec());
    let headers = HeaderMap::new();
    let compressed = [&[1], &frame[1..]].concat();
    for bytes in [&frame[..frame.len() - 1], &frame[..3], &[], &frame.repeat(2), &compressed] {
        assert_eq!(api.turn().answer_framed(bytes, &headers), Framed::Unusual);
    }
    let Framed::Answered(reply) = api.turn().answer_framed(&frame, &headers) else {
        panic!("a usual call is answered")
    };
    let told = RateLimitResponse::decode(frame::message_in(&reply.frame).unwrap()).unwrap();
    assert_eq!(told.statuses[0].limit_remaining, 0);
}
