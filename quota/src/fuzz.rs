//! Fuzz target of streams of quotas.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use prost::Message as _;
use tollgate_counter::{
    resilience::CallerOrigin,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull, divider::Dividers};
use tollgate_wire::{
    proto::envoy::{
        service::rate_limit_quota::v3::{
            RateLimitQuotaResponse, RateLimitQuotaUsageReports,
            rate_limit_quota_response::bucket_action::BucketAction,
        },
        r#type::v3::rate_limit_strategy::Strategy,
    },
    protobuf::FRAME_PREFIX_BYTES,
};

use crate::{
    decode::BucketReports, encode::ACTIONS_MAX, service::QuotaService, settings::QuotaSettings,
    stream::QuotaStream,
};

/// The time of all calls.
const NOW: Timestamp = Timestamp::from_nanos(1_790_000_040_123_456_789);

const RULES: &str = "
domain: d
descriptors:
  - {key: rate, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}}
  - {key: budget, rate_limit: {unit: minute, requests_per_unit: 500, algorithm: fixed_window}}
  - {key: slow, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: leaky_bucket}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}}
  - key: zone
    value: '*'
    share_threshold: true
    rate_limit:
      unit: second
      requests_per_unit: 50
      quotas: [{key: zone, value: a, weight: 3}, {key: zone, value: b, floor: 20}]
";

const SETTINGS: QuotaSettings =
    QuotaSettings { enabled: true, memory: 1 << 20, max_pairs: 4, max_id_bytes: 64 };

/// Messages of one stream, each after its length in a byte and the seconds until it comes in another one. What `prost`
/// reads is read alike; an answer has actions that Envoy takes, only for buckets that were reported.
pub fn rlqs(bytes: &[u8]) {
    let clock = Clock::manual(NOW);
    let active_rules =
        Arc::new(ActiveRules::from_rules(Rules::parse("fuzz", RULES).expect("the rules are valid"), NOW));
    let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny).with_slots(16));
    let limiter = Limiter::new(active_rules, memory.clone(), clock.clone());
    let dividers = Arc::new(Dividers::new(memory.clone()).after_restart(NOW));
    let service = Arc::new(QuotaService::new(limiter, dividers, clock.clone(), SETTINGS));
    let mut stream = QuotaStream::open(service.clone(), &CallerOrigin::Network(None), None)
        .expect("it is the first stream");
    let mut reported = Vec::new();
    let mut rest = bytes;
    while let [length, seconds, after @ ..] = rest {
        let (message, next) = after.split_at(usize::from(*length).min(after.len()));
        rest = next;
        clock.set(clock.now().after(Duration::from_secs(u64::from(*seconds))));
        service.turn();
        take_responses(&mut stream, &reported);
        reported.extend(same_as_prost(message));
        let received = stream.receive(message);
        take_responses(&mut stream, &reported);
        if received.is_err() {
            break;
        }
    }
    drop(stream);
    assert_eq!(service.stats.buckets.load(Ordering::Relaxed), 0, "an ended stream has no buckets");
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The buckets of a message. Also those that `prost` refuses, as with values that are not UTF-8.
fn same_as_prost(message: &[u8]) -> Vec<Pairs> {
    let pairs = |reports: BucketReports<'_>| -> Vec<(Pairs, u64, u64)> {
        let each = reports.map(|report| {
            let pairs = report.pairs.iter().map(|pair| (pair.key.to_vec(), pair.value.to_vec()));
            (pairs.collect(), report.usage.allowed, report.usage.denied)
        });
        each.collect()
    };
    let read = BucketReports::examine(message).map(|_| pairs(BucketReports::from(message, 0, usize::MAX)));
    if let Ok(expected) = RateLimitQuotaUsageReports::decode(message) {
        let expected: Vec<_> = expected
            .bucket_quota_usages
            .into_iter()
            .map(|usage| {
                let pairs = usage.bucket_id.unwrap_or_default().bucket.into_iter();
                let pairs = pairs.map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
                (pairs, usage.num_requests_allowed, usage.num_requests_denied)
            })
            .collect();
        assert_eq!(read.as_ref().ok(), Some(&expected));
    }
    read.unwrap_or_default().into_iter().map(|(pairs, _, _)| pairs).collect()
}

fn take_responses(stream: &mut QuotaStream, reported: &[Pairs]) {
    while let Poll::Ready(frame) = stream.poll_frame(&mut Context::from_waker(Waker::noop())) {
        let response =
            RateLimitQuotaResponse::decode(&frame[FRAME_PREFIX_BYTES..]).expect("a response is valid");
        assert!((1..=ACTIONS_MAX).contains(&response.bucket_action.len()));
        for action in response.bucket_action {
            let id = action.bucket_id.expect("an action names its bucket").bucket.into_iter();
            let pairs: Pairs = id.map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
            assert!(!pairs.is_empty() && reported.contains(&pairs), "{pairs:?}");
            match action.bucket_action.expect("an action says what to do") {
                BucketAction::AbandonAction(_) => {}
                BucketAction::QuotaAssignmentAction(assigned) => {
                    let time = assigned.assignment_time_to_live.expect("an assignment has an end");
                    assert!(time.seconds >= 11 && time.nanos == 0);
                    match assigned.rate_limit_strategy.and_then(|strategy| strategy.strategy) {
                        Some(Strategy::BlanketRule(0 | 1)) => {}
                        Some(Strategy::TokenBucket(bucket)) => {
                            let fill = bucket.fill_interval.expect("a bucket has an interval");
                            assert!(
                                bucket.max_tokens > 0 && bucket.tokens_per_fill.is_some_and(|fill| fill > 0)
                            );
                            assert!(fill.seconds > 0 && fill.nanos == 0);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}
