//! Tests of a stream without a transport.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, task::noop_waker};
use prost::Message;
use tollgate_counter::{
    resilience::CallerOrigin,
    time::{Clock, SECOND, Timestamp},
};
use tollgate_limiter::limiter::{LimitCache, LimitCacheSettings, Limiter, LookupAnswer};
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull, divider::Dividers};

use super::*;
use tollgate_wire::{
    proto::envoy::{
        service::rate_limit_quota::v3::{
            BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
            rate_limit_quota_response::bucket_action::BucketAction as Sent,
            rate_limit_quota_usage_reports::BucketQuotaUsage,
        },
        r#type::v3::rate_limit_strategy::Strategy,
    },
    protobuf::FRAME_PREFIX_BYTES,
};

mod bounds;

const START: Timestamp = Timestamp::from_nanos(1_790_000_040 * SECOND);

const RULES: &str = "
domain: shop
descriptors:
  - {key: rate, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}}
  - {key: budget, rate_limit: {unit: minute, requests_per_unit: 500, algorithm: fixed_window}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}}
  - {key: open, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log, on_owner_unavailable: allow}}
  - key: zone
    value: '*'
    share_threshold: true
    rate_limit: {unit: second, requests_per_unit: 100, quotas: [{key: zone, value: far, weight: 4, floor: 70}]}
  - key: plan
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20, own: {from: source}}
  - key: a
    descriptors: [{key: b, value: x, rate_limit: {unit: minute, requests_per_unit: 0}}]
";

const SETTINGS: QuotaSettings =
    QuotaSettings { enabled: true, memory: 1 << 20, max_pairs: 4, max_id_bytes: 100 };

const LOOK_UPS: LimitCacheSettings = LimitCacheSettings {
    entries: 100,
    ttl: Duration::from_secs(4),
    absent_ttl: Duration::from_secs(4),
    wait: Duration::from_millis(5),
};

struct World {
    service: Arc<QuotaService>,
    memory: Arc<Memory>,
    active_rules: Arc<ActiveRules>,
    limits: Arc<LimitCache>,
    clock: Clock,
}

/// The action that was sent for a bucket, in short.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Allow(i64),
    Deny,
    Bucket { max: u32, fill: u32, interval: i64 },
    Abandon,
}

impl World {
    fn new() -> Self {
        Self::with(SETTINGS)
    }

    fn with(settings: QuotaSettings) -> Self {
        let clock = Clock::manual(START);
        let active_rules = Arc::new(ActiveRules::default());
        let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
        let limits = Arc::new(LimitCache::new(LOOK_UPS, START));
        let limiter = Limiter::new(active_rules.clone(), memory.clone(), clock.clone());
        let limiter = limiter.with_limits(Some(limits.clone()));
        let dividers = Arc::new(Dividers::new(memory.clone()));
        let service = Arc::new(QuotaService::new(limiter, dividers, clock.clone(), settings));
        let world = Self { service, memory, active_rules, limits, clock };
        world.load(RULES);
        // After it has learnt.
        world.advance(60);
        world
    }

    fn open(&self) -> Result<QuotaStream, tonic::Status> {
        self.open_as(b"one")
    }

    fn open_as(&self, caller: &[u8]) -> Result<QuotaStream, tonic::Status> {
        QuotaStream::open(self.service.clone(), &CallerOrigin::Name(caller.into()), None)
    }

    fn load(&self, rules: &str) {
        self.active_rules.replace(Rules::parse("rules.yaml", rules).unwrap(), self.clock.now());
    }

    /// Answers the look-up of a limit, if there is one.
    fn name_limit(&self, json: Option<&str>) {
        let value = |json: &str| LookupAnswer::Value { json: json.into(), etag: None };
        let answer = json.map_or(LookupAnswer::Absent, value);
        for lookup in self.limits.next_lookups(10).now_or_never().unwrap_or_default() {
            assert_eq!((&*lookup.domain, &*lookup.descriptor), ("shop", "plan=gold"));
            self.limits.answer(lookup, answer.clone(), self.clock.now()).unwrap();
        }
    }

    fn advance(&self, seconds: u64) {
        self.clock.set(self.clock.now().after(Duration::from_secs(seconds)));
        self.service.turn();
    }
}

fn id(pairs: &[(&str, &str)]) -> BucketId {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    BucketId { bucket: pairs.iter().map(pair).collect() }
}

fn usage(pairs: &[(&str, &str)], allowed: u64, denied: u64) -> BucketQuotaUsage {
    BucketQuotaUsage {
        bucket_id: Some(id(pairs)),
        time_elapsed: None,
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    }
}

fn reports(usages: Vec<BucketQuotaUsage>) -> Vec<u8> {
    RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: usages }.encode_to_vec()
}

/// All that is sent now, by the value of the only pair of a bucket or by its first key.
fn told(stream: &mut QuotaStream) -> Vec<(String, Told)> {
    let waker = noop_waker();
    let mut all = Vec::new();
    while stream.apply_rules() {}
    while let Poll::Ready(frame) = stream.poll_frame(&mut Context::from_waker(&waker)) {
        let response = RateLimitQuotaResponse::decode(&frame[FRAME_PREFIX_BYTES..]).unwrap();
        assert!((1..=100).contains(&response.bucket_action.len()));
        for action in response.bucket_action {
            let pairs: BTreeMap<_, _> = action.bucket_id.unwrap().bucket.into_iter().collect();
            let name =
                pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
            let told = match action.bucket_action.unwrap() {
                Sent::AbandonAction(_) => Told::Abandon,
                Sent::QuotaAssignmentAction(assigned) => {
                    let time = assigned.assignment_time_to_live.unwrap().seconds;
                    assert!(time >= 11);
                    match assigned.rate_limit_strategy.unwrap().strategy.unwrap() {
                        Strategy::BlanketRule(0) => Told::Allow(time),
                        Strategy::BlanketRule(1) => Told::Deny,
                        Strategy::TokenBucket(bucket) => Told::Bucket {
                            max: bucket.max_tokens,
                            fill: bucket.tokens_per_fill.unwrap(),
                            interval: bucket.fill_interval.unwrap().seconds,
                        },
                        other => panic!("{other:?}"),
                    }
                }
            };
            all.push((name, told));
        }
    }
    all
}

fn answer(world: &World, pairs: &[(&str, &str)]) -> Vec<Told> {
    let mut stream = world.open().unwrap();
    stream.receive(&reports(vec![usage(pairs, 1, 0)])).unwrap();
    told(&mut stream).into_iter().map(|(_, told)| told).collect()
}

#[test]
fn bucket_is_answered_as_its_rule_says() {
    let world = World::new();
    for (pairs, expected) in [
        (&[("rate", "a")][..], vec![Told::Bucket { max: 10, fill: 50, interval: 1 }]),
        (&[("budget", "a")], vec![Told::Deny, Told::Bucket { max: 20, fill: 1, interval: 86_400 }]),
        (&[("free", "a")], vec![Told::Allow(600)]),
        (&[("none", "a")], vec![Told::Allow(600)]),
        (&[("trial", "a")], vec![Told::Allow(600)]),
        (&[("banned", "a")], vec![Told::Deny]),
        (&[("log", "a")], vec![Told::Deny]),
        (&[("open", "a")], vec![Told::Allow(600)]),
        // Pairs are looked up in the order of their keys.
        (&[("b", "x"), ("a", "y")], vec![Told::Deny]),
    ] {
        assert_eq!(answer(&world, pairs), expected, "{pairs:?}");
    }
}

#[test]
fn buckets_that_share_a_counter_have_the_terms_of_their_values() {
    let world = World::new();
    let (mut near, mut far) = (world.open().unwrap(), world.open().unwrap());
    near.receive(&reports(vec![usage(&[("zone", "near")], 0, 1)])).unwrap();
    far.receive(&reports(vec![usage(&[("zone", "far")], 0, 1)])).unwrap();
    let fill = |told: Vec<(String, Told)>| match told.last() {
        Some((_, Told::Bucket { fill, .. })) => *fill,
        other => panic!("{other:?}"),
    };
    assert_eq!(fill(told(&mut near)), 30, "the share of a newcomer, less the floor of the other");
    // The cut share is in force after half a second. Then the larger one begins, once it has brought its burst.
    world.advance(1);
    world.advance(1);
    assert_eq!(fill(told(&mut far)), 70);
}

#[test]
fn implausible_reports_are_cut_and_metrics_never_fall() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    let (mut allowed, mut denied) = (0, 0);
    for _ in 0..3 {
        stream.receive(&reports(vec![usage(&[("budget", "a")], u64::MAX, u64::MAX)])).unwrap();
        let stats = &world.service.stats;
        assert!(stats.allowed.get() > allowed && stats.denied.get() > denied);
        (allowed, denied) = (stats.allowed.get(), stats.denied.get());
        assert!(allowed < 1 << 34 && denied < 1 << 34);
        world.advance(1);
    }
    assert_eq!(world.service.stats.implausible.get(), 6);
}

#[test]
fn invalid_bucket_is_not_named_and_others_are_answered() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    let mut wrong = reports(vec![usage(&[("rate", "??")], 1, 0)]);
    let at = wrong.windows(2).position(|two| two == b"??").unwrap();
    wrong[at..at + 2].copy_from_slice(&[0xff, 0xfe]);
    let long = "x".repeat(100_000);
    wrong.extend(reports(vec![
        usage(&[], 1, 0),
        usage(&[("rate", "")], 1, 0),
        usage(&[("rate", &long)], 1, 0),
        usage(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")], 1, 0),
        usage(&[("free", "a")], 1, 0),
    ]));
    stream.receive(&wrong).unwrap();
    assert_eq!(told(&mut stream), [("free=a".to_owned(), Told::Allow(600))]);
    assert_eq!((world.service.stats.invalid.get(), world.service.stats.unassigned.get()), (2, 3));
    assert!(stream.id.capacity() < 1_000, "a long id leaves no room behind");
}

#[test]
fn bucket_that_cannot_be_named_is_charged_and_never_assigned() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    for (wrong, value) in [(&b"\xff\xfe"[..], "??"), (b"", ""), (&[b'x'; 5_000], "")] {
        let text = String::from_utf8_lossy(wrong).into_owned();
        let sent = if value.is_empty() { text.as_str() } else { value };
        let mut message = reports(vec![usage(&[("budget", sent)], 4, 9)]);
        if let Some(at) = message.windows(2).position(|two| two == b"??") {
            message[at..at + 2].copy_from_slice(wrong);
        }
        for _ in 0..20 {
            stream.receive(&message).unwrap();
            assert_eq!(told(&mut stream), []);
        }
        let view = world.service.limiter.view();
        let entries = [tollgate_counter::descriptor::Entry::new("budget", wrong)];
        let counter = at_once(view.counter_ref("shop", &entries)).unwrap();
        let state = world.memory.peek(counter.key, &counter.limit, world.clock.now());
        assert_eq!(state.peek.remaining, 500 - 20 * 4);
        world.advance(60);
        assert_eq!(told(&mut stream), []);
    }
    assert_eq!(world.service.stats.buckets.load(Ordering::Relaxed), 0, "nothing is kept");
}

#[test]
fn stream_has_one_domain() {
    let world = World::new();
    let invalid = |stream: &mut QuotaStream, message: &[u8]| {
        assert_eq!(stream.receive(message).unwrap_err().code(), tonic::Code::InvalidArgument);
    };
    let of = |domain: &str| {
        RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: vec![] }.encode_to_vec()
    };
    let mut stream = world.open().unwrap();
    invalid(&mut stream, &of(""));
    invalid(&mut stream, b"\xff\xff");
    for domain in ["shop", "", "shop"] {
        stream.receive(&of(domain)).unwrap();
    }
    invalid(&mut stream, &of("other"));
}

#[test]
fn idle_bucket_is_abandoned_unless_it_may_deny() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    let each = |hits| ["free", "rate", "budget", "banned"].map(|key| usage(&[(key, "a")], hits, 0)).to_vec();
    stream.receive(&reports(each(1))).unwrap();
    told(&mut stream);
    let mut abandoned = Vec::new();
    for _ in 0..12 {
        world.advance(5);
        stream.receive(&reports(each(0))).unwrap();
        abandoned.extend(told(&mut stream).into_iter().filter(|(_, told)| *told == Told::Abandon));
    }
    let names: Vec<&str> = abandoned.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["free=a", "rate=a"]);
}

#[test]
fn new_rules_reach_buckets_at_once() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    stream.receive(&reports(vec![usage(&[("rate", "a")], 1, 0), usage(&[("free", "a")], 1, 0)])).unwrap();
    told(&mut stream);
    world.load(
        &RULES
            .replace("requests_per_unit: 100", "requests_per_unit: 20")
            .replace("unlimited: true", "unit: minute, requests_per_unit: 0"),
    );
    stream.outbox.announce_rules();
    let told: BTreeMap<_, _> = told(&mut stream).into_iter().collect();
    assert_eq!(told["free=a"], Told::Deny);
    assert!(matches!(told["rate=a"], Told::Bucket { fill: ..=20, .. }), "{told:?}");
}

#[test]
fn limit_that_a_store_names_is_divided_from_the_next_report_on() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    let mut report = |named: Option<&str>| {
        stream.receive(&reports(vec![usage(&[("plan", "gold")], 40, 1)])).unwrap();
        let told = told(&mut stream);
        world.name_limit(named);
        world.advance(5);
        told.into_iter().map(|(_, told)| told).next_back().unwrap()
    };
    let fill = |told: &Told| if let Told::Bucket { fill, .. } = told { *fill } else { 0 };
    // Not known yet: half of the limit of the rule.
    assert_eq!(fill(&report(Some(r#"{"requests_per_unit": 10, "burst": 5}"#))), 50);
    assert!((1..=10).contains(&fill(&report(Some(r#"{"requests_per_unit": 0}"#)))));
    assert_eq!(report(None), Told::Deny);
    // Its part of the burst may have to come back first.
    assert!((0..4).any(|_| fill(&report(None)) > 10));
}

#[test]
fn shadow_rule_counts_what_passes() {
    let world = World::new();
    let mut stream = world.open().unwrap();
    stream.receive(&reports(vec![usage(&[("trial", "a")], 4, 0)])).unwrap();
    let view = world.service.limiter.view();
    let entries = [tollgate_counter::descriptor::Entry::new("trial", "a")];
    let counter = at_once(view.counter_ref("shop", &entries)).unwrap();
    let state = world.memory.peek(counter.key, &counter.limit, world.clock.now());
    assert_eq!(state.peek.remaining, 1);
}

/// The result of what waits for nothing.
fn at_once<T>(call: impl Future<Output = T>) -> T {
    match std::pin::pin!(call).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("it waits for nothing"),
    }
}
