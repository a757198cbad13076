//! Tests against `prost`: the decoder must read the same requests, and the encoder must write the same replies.

use std::sync::Arc;

use proptest::{collection::vec, option, prelude::*, sample::Index};
use prost::Message;
use tollgate_counter::{
    resilience::Caller,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::{Limiter, RequestBounds};
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull};

use super::*;
use tollgate_wire::{
    proto::envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    },
    protobuf::FRAME_PREFIX_BYTES,
};

use crate::api::{
    ApiKind,
    call::{Handled, Method, ResetPrecision},
    service::ApiSettings,
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_040_123_456_789);

const RULES: &str = "
domain: shop
denial_body: problem
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: user, value: vip, rate_limit: {unlimited: true}}
  - key: path
    rate_limit: {name: paths, unit: day, requests_per_unit: 5, algorithm: token_bucket, denial_body: {text: 'Wait {retry_after} s'}}
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 5000000000, algorithm: sliding_window}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 3}}
  - {key: zone, value: eu*, share_threshold: true, rate_limit: {unit: week, requests_per_unit: 4}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

fn api(dynamic_metadata: bool) -> Api {
    let active_rules = Arc::new(ActiveRules::from_rules(Rules::parse("test", RULES).unwrap(), NOW));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
    let limiter = Limiter::new(active_rules, memory, Clock::manual(NOW));
    let headers = crate::api::headers::HeaderSettings {
        x_ratelimit: true,
        retry_after: true,
        ..crate::api::headers::HeaderSettings::default()
    };
    let settings = ApiSettings { exact_reset: true, dynamic_metadata, ..ApiSettings::default() };
    Api { headers: Arc::new(headers), ..Api::new(limiter, settings) }
}

/// The decoded request as a `prost` message.
fn read(message: &[u8], bounds: RequestBounds) -> Result<RateLimitRequest, Error> {
    let request = decode(message, bounds)?;
    let descriptors = request.descriptors.views().map(|(entries, view)| RateLimitDescriptor {
        entries: entries
            .iter()
            .map(|entry| Entry { key: entry.key.into(), value: entry.value.into() })
            .collect(),
        limit: view
            .limit
            .map(|limit| RateLimitOverride { requests_per_unit: limit.requests_per_unit, unit: limit.unit }),
        hits_addend: view.hits,
        is_negative_hits: view.is_negative_hits,
    });
    let descriptors = descriptors.collect();
    Ok(RateLimitRequest {
        domain: request.descriptors.domain.into(),
        descriptors,
        hits_addend: request.hits_addend,
    })
}

/// The decoded request within the default bounds, without the error.
fn decoded(message: &[u8]) -> Option<RateLimitRequest> {
    read(message, ApiSettings::default().bounds()).ok()
}

fn request() -> impl Strategy<Value = RateLimitRequest> {
    let part = |usual: &'static str| {
        let text = prop_oneof![4 => usual, 1 => any::<String>()].prop_map(String::into_bytes);
        prop_oneof![4 => text, 1 => vec(any::<u8>(), 0..4)]
    };
    let key = part("user|path|queue|zone|shadow");
    let value = part("|vip|a|b|eu-1");
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

/// A message of known and unknown fields with valid and invalid values, nested up to `depth`.
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

proptest! {
    #[test]
    fn message_beyond_bounds_is_rejected(message in fields(3), most in (0..3_usize, 0..3_usize)) {
        let bounds = RequestBounds { descriptors: most.0, entries: most.1, ..ApiSettings::default().bounds() };
        if let Ok(request) = RateLimitRequest::decode(&*message) {
            let fits = request.descriptors.len() <= most.0
                && request.descriptors.iter().all(|descriptor| descriptor.entries.len() <= most.1);
            prop_assert_eq!(read(&message, bounds).is_ok(), fits);
        }
    }

    #[test]
    fn encoded_request_decodes_to_same_request(request in request()) {
        prop_assert_eq!(decoded(&request.encode_to_vec()), Some(request));
    }

    #[test]
    fn any_fields_are_decoded_as_by_prost(message in fields(3)) {
        prop_assert_eq!(decoded(&message), RateLimitRequest::decode(&*message).ok());
    }

    #[test]
    fn damaged_message_is_decoded_as_by_prost(
        request in request(),
        other in request(),
        damage in vec((any::<Index>(), any::<u8>()), 0..4),
        cut in option::of(any::<Index>()),
    ) {
        // Two concatenated messages have some fields twice.
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
        prop_assert_eq!(decoded(&message), RateLimitRequest::decode(&*message).ok());
    }

    #[test]
    fn any_bytes_are_decoded_as_by_prost(message in vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(decoded(&message), RateLimitRequest::decode(&*message).ok());
    }

    #[test]
    fn reply_is_encoded_as_by_prost(requests in vec(request(), 1..12), metadata: bool) {
        let api = api(metadata);
        for request in requests {
            let message = request.encode_to_vec();
            let precision = api.precision();
            if let Ok(Handled::Ready(reply)) = api.batch(&Caller::default()).handle(Call { method: Method::ShouldRateLimit, message: &message, metadata: None, precision, api: ApiKind::Envoy }) {
                let (prefix, message) = reply.frame.split_at(FRAME_PREFIX_BYTES);
                prop_assert_eq!(prefix, [&[0][..], &(message.len() as u32).to_be_bytes()].concat());
                let response = RateLimitResponse::decode(message).unwrap();
                prop_assert_eq!(Some(response.overall_code() == Code::Ok), reply.passes);
                prop_assert_eq!(response.statuses.len(), request.descriptors.len());
                prop_assert_eq!(response.dynamic_metadata.is_some(), metadata);
                prop_assert_eq!(response.raw_body.is_empty(), response.overall_code() == Code::Ok);
                prop_assert_eq!(response.encode_to_vec(), message);
            }
        }
    }

    #[test]
    fn call_has_same_reply_in_batch_and_alone(requests in vec(request(), 1..12)) {
        let batched = api(false);
        let alone = api(false);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for request in requests {
            let message = request.encode_to_vec();
            let call = Call { method: Method::ShouldRateLimit, message: &message, metadata: None, precision: ResetPrecision::Nanos, api: ApiKind::Envoy };
            let in_batch = batched.batch(&Caller::default()).handle(call).map(|handled| match handled {
                Handled::Ready(reply) => reply,
                Handled::Waiting(_) => panic!("all counters are local"),
            });
            let handled = runtime.block_on(alone.handle(call, &Caller::default()));
            let text = |error: Error| error.to_string();
            prop_assert_eq!(in_batch.map_err(text), handled.map_err(text));
        }
    }
}

#[test]
fn nested_groups_are_skipped_as_by_prost() {
    let request = RateLimitRequest { domain: "shop".into(), ..RateLimitRequest::default() };
    for (groups, is_valid) in [(vec![0x7b, 0x7c], true), (vec![0x7b], false), (vec![0x7b; 1_000], false)] {
        let message = [request.encode_to_vec(), groups].concat();
        assert_eq!(decoded(&message).is_some(), is_valid);
        assert_eq!(decoded(&message), RateLimitRequest::decode(&*message).ok());
    }
}
