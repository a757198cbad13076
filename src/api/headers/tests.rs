//! The times in headers, compared with what requests get that are sent again then.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*};
use prost::Message as _;
use sfv::{List, ListEntry, Parser};
use tollgate_counter::{
    resilience::Caller,
    time::{Clock, Timestamp},
};
use tollgate_limiter::limiter::Limiter;
use tollgate_rules::{ActiveRules, Rules};
use tollgate_store::{Memory, OnFull};

use super::*;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
};

use crate::api::{
    ApiKind,
    call::{Call, Handled, Method, ResetPrecision},
    service::{Api, ApiSettings},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000_123_456_789);
const DESCRIPTORS: &str = "
descriptors:
  - {key: classic, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 5, name: same}}
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: fixed_window, name: same}}
  - {key: debt, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: fixed_window, overdraft: true}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 9, algorithm: fixed_window, calendar: {timezone: UTC}}}
  - {key: sliding, rate_limit: {window: 10s, requests_per_unit: 6, algorithm: sliding_window}}
  - {key: parts, rate_limit: {window: 10s, requests_per_unit: 6, algorithm: sliding_window, sub_windows: 5}}
  - {key: log, rate_limit: {window: 2500ms, requests_per_unit: 5, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: token_bucket, burst: 3}}
  - {key: steps, rate_limit: {algorithm: token_bucket, refill_amount: 2, refill_interval: 3s, burst: 5}}
  - {key: counted, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket, count_denied: true}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 3, algorithm: leaky_queue, burst: 2}}
  - {key: places, rate_limit: {algorithm: concurrency, max_in_flight: 4}}
  - {key: hidden, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket, headers: false}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: quota_a, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: quota_b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9, algorithm: token_bucket}}
  - {key: free, rate_limit: {unlimited: true}}
";
const KEYS: [&str; 19] = [
    "classic", "second", "fixed", "debt", "month", "sliding", "parts", "log", "bucket", "steps", "counted",
    "queue", "places", "hidden", "shadow", "quota_a", "quota_b", "free", "nothing",
];

struct Service {
    api: Api,
    clock: Clock,
    now: Timestamp,
}

impl Service {
    fn new(on_denied: &str, quota_mode: bool, settings: HeaderSettings) -> Self {
        let rules = Rules::parse("test", &format!("domain: d\n{on_denied}{DESCRIPTORS}")).unwrap();
        let memory = Arc::new(Memory::new(1 << 24, OnFull::Deny));
        let clock = Clock::manual(NOW);
        let limiter = Limiter::new(Arc::new(ActiveRules::from_rules(rules, NOW)), memory, clock.clone());
        let limiter = limiter.with_modes(Modes { quota_mode, shadow_mode: false });
        let api = Api { headers: Arc::new(settings), ..Api::new(limiter, ApiSettings::default()) };
        Self { api, clock, now: NOW }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.plus(u64::try_from(time.as_nanos()).unwrap());
        self.clock.set(self.now);
    }

    /// The reply to a request with these keys, each with its hits.
    fn call(&self, keys: &[(&str, u64)]) -> RateLimitResponse {
        let descriptor = |(key, hits): &(&str, u64)| RateLimitDescriptor {
            entries: vec![Entry { key: (*key).into(), value: "x".into() }],
            hits_addend: Some(*hits),
            ..RateLimitDescriptor::default()
        };
        let descriptors = keys.iter().map(descriptor).collect();
        let message = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }.encode_to_vec();
        let method = Method::ShouldRateLimit;
        let precision = ResetPrecision::Nanos;
        let api = ApiKind::Envoy;
        let call = Call { method, message: &message, metadata: None, precision, api };
        let handled = self.api.batch(&Caller::default()).handle(call);
        let Ok(Handled::Ready(reply)) = handled else { panic!("{handled:?}") };
        RateLimitResponse::decode(reply.message()).unwrap()
    }
}

fn passes(response: &RateLimitResponse) -> bool {
    response.overall_code() == Code::Ok
}

fn value<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let header = response.response_headers_to_add.iter().find(|header| header.key == name);
    header.map(|header| &*header.value)
}

fn number(response: &RateLimitResponse, name: &str) -> Option<u64> {
    value(response, name).map(|value| value.parse().unwrap())
}

/// The items of a header: the name, and the value of an integer parameter.
fn items(response: &RateLimitResponse, header: &str, parameter: &str) -> Vec<(String, Option<i64>)> {
    let Some(text) = value(response, header) else { return Vec::new() };
    let list: List = Parser::new(text).parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let item = |entry: &ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{text} has an inner list") };
        let name = item.bare_item.as_string().unwrap().as_str().to_owned();
        let number = item.params.get(parameter).map(|value| value.as_integer().unwrap().into());
        (name, number)
    };
    list.iter().map(item).collect()
}

fn settings() -> HeaderSettings {
    HeaderSettings {
        ietf: Some(Listed::All),
        window_max: Duration::from_secs(366 * 86_400),
        retry_after: true,
        ai_retry: true,
        ai_retry_max: Duration::from_secs(60),
        ..HeaderSettings::default()
    }
}

fn steps() -> impl Strategy<Value = Vec<(Vec<(&'static str, u64)>, u64)>> {
    // The first key may be there twice.
    let keys = (prop::sample::subsequence(&KEYS[..], 1..5), 0..2_usize);
    let keys = keys.prop_map(|(keys, more)| [&keys[..], &keys[..more]].concat());
    let call = keys.prop_flat_map(|keys| {
        let count = keys.len();
        vec(0..4_u64, count).prop_map(move |hits| keys.iter().copied().zip(hits).collect())
    });
    vec((call, 0..4_000_u64), 1..60)
}

proptest! {
    #[test]
    fn refused_request_passes_at_retry_after(
        on_denied in prop::sample::select(vec!["", "on_denied: charge_all", "on_denied: charge_none"]),
        quota_mode: bool,
        jitter in prop::sample::select(vec![0, 5]),
        steps in steps(),
    ) {
        let retry_jitter = Duration::from_secs(jitter);
        let mut service = Service::new(on_denied, quota_mode, HeaderSettings { retry_jitter, ..settings() });
        for (keys, pause) in steps {
            service.pass(Duration::from_millis(pause));
            let response = service.call(&keys);
            let seconds = number(&response, "Retry-After");
            prop_assert!(!passes(&response) || seconds.is_none());
            let Some(wait) = number(&response, "retry-after-ms") else { continue };
            prop_assert!(seconds.is_some_and(|seconds| wait <= seconds * 1_000 && seconds * 1_000 < wait + 1_000));
            for (name, reset) in items(&response, "RateLimit", "t") {
                prop_assert!(reset.is_none_or(|reset| reset as u64 <= seconds.unwrap()), "{name} {reset:?}");
            }
            service.pass(Duration::from_millis(wait));
            let again = service.call(&keys);
            prop_assert!(passes(&again), "{response:?} then {again:?}");
        }
    }

    #[test]
    fn request_passes_again_after_every_reset(
        on_denied in prop::sample::select(vec!["", "on_denied: charge_all", "on_denied: charge_none"]),
        quota_mode: bool,
        steps in steps(),
    ) {
        let mut service = Service::new(on_denied, quota_mode, settings());
        for (keys, pause) in steps {
            service.pass(Duration::from_millis(pause));
            let response = service.call(&keys);
            let names = |header| items(&response, header, "t").into_iter().map(|(name, _)| name);
            let mut listed: Vec<_> = names("RateLimit").collect();
            prop_assert!(names("RateLimit-Policy").eq(listed.clone()), "both list the same limits");
            let count = listed.len();
            listed.sort_unstable();
            listed.dedup();
            prop_assert!(listed.len() == count && !listed.iter().any(|name| name == "d.hidden"), "{listed:?}");
            let resets = items(&response, "RateLimit", "t").into_iter().filter_map(|(_, reset)| reset);
            if let Some(reset) = resets.min() {
                service.pass(Duration::from_secs(reset as u64));
                let again = service.call(&keys);
                prop_assert!(passes(&again), "{response:?} then {again:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn string_keeps_its_text(text in "[ -$&-~]{0,40}") {
        let string = string(&text).unwrap();
        prop_assert_eq!(string.as_str(), text);
    }

    #[test]
    fn any_text_is_a_string_of_its_own(one in ".{0,8}", other in ".{0,8}") {
        let strings = [&one, &other].map(|text| string(text).unwrap());
        prop_assert_eq!(strings[0] == strings[1], one == other);
    }

    #[test]
    fn integer_has_at_most_15_digits(number: u64) {
        prop_assert!(i64::from(integer(number)).to_string().len() <= 15);
    }
}

#[test]
fn characters_beyond_ascii_are_written_as_bytes() {
    assert_eq!(string("é 50%\n").unwrap().as_str(), "%C3%A9 50%25%0A");
}
