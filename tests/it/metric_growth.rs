//! One known event makes the counters of the metrics page grow exactly as documented, and no other counter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use serde_json::json;
use tokio::time::{sleep, timeout};
use tollgate_wire::proto::{
    envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
    tollgate::v1::{
        CancelRequest, PeekRequest, RefundRequest, ReserveRequest, ResetRequest, SettleRequest,
        rate_limiter_client::RateLimiterClient, reserve_request::OnExpiry,
    },
};
use tonic::transport::Channel;

use crate::{
    api_v1::{self, each, stream::Stream},
    docs::{production, text_of},
    harness::{Service, TIMEOUT, http, request, request_for, send, until, with_hits},
    metrics::{page, value, with_override},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window}}
  - {key: many, rate_limit: {unit: day, requests_per_unit: 1000, algorithm: fixed_window}}
  - {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5, algorithm: fixed_window}}
  - {key: tried, rate_limit: {unit: day, requests_per_unit: 9, candidate: {unit: day, requests_per_unit: 1}}}
  - {key: queue, rate_limit: {window: 100ms, requests_per_unit: 1, algorithm: leaky_queue, burst: 9}}
  - key: login
    rate_limit: {unit: day, requests_per_unit: 9, algorithm: fixed_window, penalty: {after: 1, first: 2m}}
";

/// Series that no event here makes grow, by their beginning, each with a test that asserts how they grow.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "tollgate_unanswered_requests_total{reason=\"overloaded\"}",
        "large_calls_of_four_callers_leave_other_limits_exact",
    ),
    (
        "tollgate_unanswered_requests_total{reason=\"owner_unreachable\"}",
        "reservation_without_an_owner_is_unavailable_and_holds_nothing",
    ),
    (
        "tollgate_forward_auth_bad_headers_total{reason=\"not_utf8\"}",
        "check_answers_400_to_bad_header_and_counts_it",
    ),
    (
        "tollgate_counters_evicted_total{reason=\"unexpired\"}",
        "eviction_frees_the_eighth_with_the_lowest_cost",
    ),
    ("tollgate_counters_evicted_total{reason=\"idle\"}", "sweep_evicts_idle_counters_only"),
    (FAILED_CALLS, "failed_calls_are_counted_by_method_and_reason_and_found"),
    (
        "tollgate_penalty_refusals_unrecorded_total",
        "test_penalised_keys_leave_probes_and_the_processor_alone",
    ),
    ("tollgate_counters_refused_total", "arriving_counters_that_refuse_are_cut_and_counted"),
    ("tollgate_own_limit_changes_total", "changes_of_own_limits_are_counted_by_result"),
    ("tollgate_reservations_exhausted_total", "counter_with_too_many_holds_refuses_more_and_holds_nothing"),
    ("tollgate_ids_forgotten_total", "expired_holds_stay_known_while_settled_ones_are_forgotten"),
    ("tollgate_clock_steps_total", "replica_with_corrected_clock_relinks_and_keeps_limits"),
    ("tollgate_certificates_loaded_total", "certificate_swap_under_load_fails_no_call"),
    ("tollgate_certificate_errors_total", "bad_certificates_at_reload_keep_old_and_are_counted_once"),
    (
        "tollgate_connections_closed_total{reason=\"full\"}",
        "grpc_connection_above_limit_is_closed_and_counted",
    ),
    (
        "tollgate_connections_closed_total{reason=\"idle\"}",
        "full_listener_closes_the_longest_idle_connection_for_a_new_one",
    ),
    (
        "tollgate_connections_closed_total{reason=\"handshake\"}",
        "client_certificate_of_configured_authority_is_required",
    ),
    (
        "tollgate_connections_closed_total{reason=\"slow\"}",
        "half_open_handshakes_are_closed_while_others_are_answered",
    ),
    (
        "tollgate_connections_closed_total{reason=\"age\"}",
        "connections_opened_together_get_goaway_at_different_times",
    ),
    ("tollgate_connections_closed_total{reason=\"cut\"}", "connection_is_closed_at_end_of_age_grace"),
    ("tollgate_unfinished_requests_refused_total", "full_budget_rejects_oldest_call"),
    ("tollgate_top_missed_denials_total", "key_counted_during_a_read_is_missed_and_reported"),
    (
        "tollgate_log_lines_dropped_total{reason=\"rate\"}",
        "call_site_is_bounded_and_next_line_reports_left_out",
    ),
    (
        "tollgate_log_lines_dropped_total{reason=\"output\"}",
        "dropped_lines_are_reported_when_the_output_recovers",
    ),
    // A replica that joins takes no connections at first, and how many calls it then refuses is a matter of time.
    (
        "tollgate_unanswered_requests_total{reason=\"joining\"}",
        "joining_replica_refuses_connections_then_is_unavailable",
    ),
    // No test makes the kernel fail to accept a connection: this one sees that nothing else is counted.
    ("tollgate_accept_errors_total", "opening_and_dropping_connections_leaks_nothing"),
];

/// By how much a series grows.
type Growth<'s> = (&'s str, f64);

const FAILED_CALLS: &str = "tollgate_failed_calls_total";
const ANSWERED: Growth<'static> = ("tollgate_request_duration_seconds_count", 1.0);
const ENVOY: Growth<'static> = ("tollgate_requests_total{api=\"envoy\"}", 1.0);
const V1: Growth<'static> = ("tollgate_requests_total{api=\"tollgate.v1\"}", 1.0);
const JSON: Growth<'static> = ("tollgate_requests_total{api=\"json\"}", 1.0);
const FORWARDED: Growth<'static> = ("tollgate_requests_total{api=\"forward_auth\"}", 1.0);
const INVALID: Growth<'static> = ("tollgate_unanswered_requests_total{reason=\"invalid\"}", 1.0);
const GRPC_CONNECTION: Growth<'static> = ("tollgate_connections_accepted_total{listener=\"grpc\"}", 1.0);
const HTTP_CONNECTION: Growth<'static> = ("tollgate_connections_accepted_total{listener=\"http\"}", 1.0);

fn ok(rule: &str) -> String {
    format!("tollgate_decisions_total{{domain=\"shop\",rule=\"shop.{rule}\",code=\"ok\"}}")
}

fn over_limit(rule: &str) -> String {
    ok(rule).replace("\"ok\"", "\"over_limit\"")
}

/// The series of a metric with the labels of a rule.
fn of(metric: &str, rule: &str) -> String {
    format!("tollgate_{metric}_total{{domain=\"shop\",rule=\"shop.{rule}\"}}")
}

/// A service whose counters are compared with what they were before an event.
struct Watched {
    service: Service,
    before: BTreeMap<String, f64>,
    /// The series that an event has made grow.
    grown: BTreeSet<String>,
}

/// The counters of a page, and the number of times of each histogram, by their series.
fn counters(page: &str) -> BTreeMap<String, f64> {
    let kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let kinds: BTreeMap<_, _> = kinds.collect();
    let is_counted = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        let histogram = name.strip_suffix("_count").and_then(|name| kinds.get(name));
        kinds.get(name) == Some(&"counter") && name != "process_cpu_seconds_total"
            || histogram == Some(&"histogram")
    };
    let series = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let counted = series.filter(|(series, _)| is_counted(series));
    counted.map(|(series, number)| (series.to_owned(), number.parse().unwrap())).collect()
}

impl Watched {
    async fn start(rules: &str, settings: &[(&str, &str)]) -> Self {
        Self::new(Service::start_with(rules, settings).await).await
    }

    async fn new(service: Service) -> Self {
        let before = counters(&page(&service).await);
        Self { service, before, grown: BTreeSet::new() }
    }

    /// Waits until exactly these series have grown by these numbers since the last call.
    async fn grew(&mut self, event: &str, expected: &[Growth<'_>]) {
        const SCRAPED: &str = "tollgate_connections_accepted_total{listener=\"metrics\"}";
        let expected = expected.iter().map(|(name, by)| ((*name).to_owned(), *by));
        let mut expected: BTreeMap<_, _> = expected.collect();
        let (mut growth, mut scrapes) = (BTreeMap::new(), 0.0);
        let (service, before) = (&self.service, &self.before);
        let exact = timeout(TIMEOUT, async {
            loop {
                let now = counters(&page(service).await);
                scrapes += 1.0;
                expected.insert(SCRAPED.to_owned(), scrapes);
                // `failed_calls_are_counted_by_method_and_reason_and_found` counts these.
                let is_watched = |(name, _): &(&String, &f64)| !name.starts_with(FAILED_CALLS);
                let by = |(name, number): (&String, &f64)| {
                    let by = number - before.get(name).copied().unwrap_or_default();
                    (by != 0.0).then(|| (name.clone(), by))
                };
                growth = now.iter().filter(is_watched).filter_map(by).collect();
                if growth == expected {
                    return now;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        let now = exact.await;
        assert_eq!(growth, expected, "after {event}");
        self.before = now.unwrap();
        self.grown.extend(growth.into_keys());
    }

    /// Sends a request, and compares as [`Watched::grew`] does.
    async fn asked(&mut self, event: &str, request: RateLimitRequest, expected: &[Growth<'_>]) {
        let mut client = RateLimitServiceClient::new(self.service.channel().await);
        let invalid = client.should_rate_limit(request).await.is_err();
        assert_eq!(invalid, expected.contains(&INVALID));
        self.grew(event, &[&[ENVOY, ANSWERED, GRPC_CONNECTION][..], expected].concat()).await;
    }

    async fn v1(&mut self) -> RateLimiterClient<Channel> {
        let client = RateLimiterClient::new(self.service.channel().await);
        self.grew("a connection", &[GRPC_CONNECTION]).await;
        client
    }
}

async fn charges_peeks_and_refunds(watched: &mut Watched) {
    let user = |hits| with_hits(request_for("shop", "user", "ann"), hits);
    let (ok, over_limit, hits) = (ok("user"), over_limit("user"), of("hits", "user"));
    watched.asked("a charge", user(3), &[(&ok, 1.0), (&hits, 3.0)]).await;
    let near = of("near_limit_hits", "user");
    watched.asked("a charge to the limit", user(7), &[(&ok, 1.0), (&hits, 7.0), (&near, 2.0)]).await;
    watched.asked("a refusal", user(1), &[(&over_limit, 1.0)]).await;
    watched.asked("a peek that is refused", user(0), &[(&over_limit, 1.0)]).await;
    let mut refund = user(4);
    refund.descriptors[0].is_negative_hits = true;
    watched.asked("a refund", refund, &[(&ok, 1.0)]).await;
    watched.asked("a peek", user(0), &[(&ok, 1.0)]).await;

    let own = |hits| with_override(with_hits(request_for("shop", "own", "ann"), hits), 5);
    let [ok, over_limit] =
        ["ok", "over_limit"].map(|code| format!("tollgate_override_decisions_total{{code=\"{code}\"}}"));
    let charged = [(&*ok, 1.0), ("tollgate_override_hits_total", 5.0)];
    watched.asked("a charge of a limit in the request", own(5), &charged).await;
    let refused = [(&*over_limit, 1.0), ("tollgate_override_hits_total", 5.0)];
    watched.asked("a refusal by a classic limit, which counts", own(5), &refused).await;
}

async fn shadows_candidates_and_penalties(watched: &mut Watched) {
    let seen = |hits| with_hits(request_for("shop", "seen", "ann"), hits);
    let shadow = of("shadow_denials", "seen");
    watched
        .asked("a charge in shadow mode", seen(2), &[(&ok("seen"), 1.0), (&of("hits", "seen"), 2.0)])
        .await;
    watched.asked("a refusal in shadow mode", seen(9), &[(&ok("seen"), 1.0), (&shadow, 1.0)]).await;

    let tried = || request_for("shop", "tried", "ann");
    let (ok_tried, hits, candidate) = (ok("tried"), of("hits", "tried"), of("candidate_denials", "tried"));
    let charged = [(&*ok_tried, 1.0), (&*hits, 1.0)];
    watched.asked("a charge beside a candidate", tried(), &charged).await;
    watched.asked("a refusal by a candidate", tried(), &[charged[0], charged[1], (&candidate, 1.0)]).await;

    let login = |hits| with_hits(request_for("shop", "login", "eve"), hits);
    watched
        .asked("a charge with a penalty", login(1), &[(&ok("login"), 1.0), (&of("hits", "login"), 1.0)])
        .await;
    let begins = [(&*over_limit("login"), 1.0), ("tollgate_penalties_total", 1.0)];
    watched.asked("a refusal with which a penalty begins", login(9), &begins).await;
    watched.asked("a refusal during a penalty", login(1), &begins[..1]).await;

    let (ok, hits) = (ok("queue"), of("hits", "queue"));
    let passed = [(&*ok, 1.0), (&*hits, 1.0)];
    let delayed = [passed[0], passed[1], ("tollgate_queue_delay_seconds_count", 1.0)];
    watched.asked("the first of a queue", request_for("shop", "queue", "a"), &passed).await;
    watched.asked("the second of a queue", request_for("shop", "queue", "a"), &delayed).await;
}

async fn requests_without_a_limit(watched: &mut Watched) {
    let unmatched = [("tollgate_unmatched_descriptors_total", 1.0)];
    watched.asked("no rule", request_for("shop", "no rule", "ann"), &unmatched).await;
    let unknown = [("tollgate_unknown_domain_requests_total", 1.0)];
    watched.asked("no domain", request_for("elsewhere", "user", "ann"), &unknown).await;
    watched.asked("an invalid request", request("shop", Vec::new()), &[INVALID]).await;
}

async fn other_doors(watched: &mut Watched) {
    let (ok, hits) = (ok("many"), of("hits", "many"));
    let requests = || vec![api_v1::request("many", "ann"), api_v1::request("many", "bob")];
    let two = [ANSWERED, (&*ok, 2.0), (&*hits, 2.0)];
    let mut v1 = watched.v1().await;
    v1.check(each(requests())).await.unwrap();
    watched.grew("a check of two requests", &[&two[..], &[V1]].concat()).await;
    v1.peek(PeekRequest { requests: requests() }).await.unwrap();
    watched.grew("a peek of two requests", &[ANSWERED, V1, (&ok, 2.0)]).await;
    v1.refund(RefundRequest { requests: requests() }).await.unwrap();
    watched.grew("a refund of two requests", &[ANSWERED, V1, (&ok, 2.0)]).await;
    let mut stream = Stream::open(&watched.service).await;
    stream.ask(1, each(requests())).await;
    stream.answer().await;
    watched.grew("a question of a stream", &[&two[..], &[V1, GRPC_CONNECTION]].concat()).await;

    let one = [ANSWERED, HTTP_CONNECTION, (&*ok, 1.0), (&*hits, 1.0)];
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "many", "value": "ann"}]}]});
    let in_call = json!({"requests": [body]});
    for (path, body) in [("/json", body), ("/v1/check", in_call)] {
        assert_eq!(watched.service.http("POST", path, &body.to_string()).await.0, 200);
        watched.grew(path, &[&one[..], &[JSON]].concat()).await;
    }
    for (path, body) in [("/json", "{}"), ("/v1/check", "{}")] {
        assert_eq!(watched.service.http("POST", path, body).await.0, 400);
        watched.grew("an invalid request as JSON", &[ANSWERED, JSON, HTTP_CONNECTION, INVALID]).await;
        assert_eq!(watched.service.http("POST", path, "{").await.0, 400);
        watched.grew("malformed JSON", &[HTTP_CONNECTION, INVALID]).await;
    }
    let listener = watched.service.addresses.http;
    let large = " ".repeat((4 << 20) + 1);
    // The service may close the connection while the body is sent.
    let _ = http(listener, "POST", "/json", &large).await;
    watched.grew("a body that is too large", &[HTTP_CONNECTION, INVALID]).await;
    let by_header =
        async |line: &str| send(listener, &format!("host: x\r\n{line}"), "GET", "/check", "").await.0;
    assert_eq!(by_header("x-user: ann\r\n").await, 200);
    watched.grew("a request by headers", &[&one[..], &[FORWARDED]].concat()).await;
    let bad = "tollgate_forward_auth_bad_headers_total{reason=\"missing\"}";
    // A header that no browser sends by itself.
    assert_eq!(by_header("x-real-ip: 10.0.0.1\r\n").await, 400);
    watched.grew("a missing header", &[HTTP_CONNECTION, (bad, 1.0)]).await;
}

fn hold(id: &str) -> ReserveRequest {
    ReserveRequest {
        domain: "shop".into(),
        descriptors: vec![api_v1::descriptor("many", "ann")],
        amount: 30,
        reservation_id: id.into(),
        ..ReserveRequest::default()
    }
}

async fn reservations(watched: &mut Watched) {
    let mut v1 = watched.v1().await;
    let held = [ANSWERED, V1, (&*ok("many"), 1.0), (&*of("hits", "many"), 30.0)];
    let ReserveRequest { domain, descriptors, .. } = hold("a");
    v1.reserve(hold("a")).await.unwrap();
    watched.grew("a reservation", &held).await;
    let settle = SettleRequest { domain, descriptors, reservation_id: "a".into(), actual: 10 };
    for event in ["a settlement", "a repeated settlement"] {
        v1.settle(settle.clone()).await.unwrap();
        watched.grew(event, &[ANSWERED, V1]).await;
    }
    let SettleRequest { domain, descriptors, .. } = settle;
    v1.reserve(hold("b")).await.unwrap();
    watched.grew("another reservation", &held).await;
    let (reservation_id, ended) = ("b".to_owned(), (domain.clone(), descriptors.clone()));
    v1.cancel(CancelRequest { domain: ended.0, descriptors: ended.1, reservation_id }).await.unwrap();
    watched.grew("a cancellation", &[ANSWERED, V1]).await;
    v1.reset(ResetRequest { domain, descriptors }).await.unwrap_err();
    let refused = ("tollgate_unanswered_requests_total{reason=\"wrong_token\"}", 1.0);
    watched.grew("a reset without the token", &[ANSWERED, V1, refused]).await;
}

async fn operators(watched: &mut Watched) {
    let look = http(watched.service.addresses.admin, "GET", "/rules", "").await.unwrap();
    assert_eq!(look.0, 401, "the token is missing");
    watched
        .grew("a request of an operator", &[("tollgate_connections_accepted_total{listener=\"admin\"}", 1.0)])
        .await;
    fs::write(watched.service.rules.path().join("rules.yaml"), "domain: [").unwrap();
    watched.grew("a broken rule file", &[("tollgate_rules_load_errors_total", 1.0)]).await;
}

/// What expires is counted when the counter is next asked.
async fn expiries() -> BTreeSet<String> {
    let mut watched = Watched::start(RULES, &[]).await;
    let mut v1 = watched.v1().await;
    let (ok, hits) = (ok("many"), of("hits", "many"));
    for (on_expiry, outcome) in [(OnExpiry::Release, "released"), (OnExpiry::Charge, "charged")] {
        let reserve = ReserveRequest { on_expiry: on_expiry.into(), ..hold(outcome) };
        v1.reserve(reserve).await.unwrap();
        watched.grew("a reservation", &[ANSWERED, V1, (&ok, 1.0), (&hits, 30.0)]).await;
        watched.service.advance(Duration::from_secs(61));
        v1.check(each(vec![api_v1::request("many", "ann")])).await.unwrap();
        let expired = format!("tollgate_reservations_expired_total{{outcome=\"{outcome}\"}}");
        watched.grew("an expiry", &[ANSWERED, V1, (&ok, 1.0), (&hits, 1.0), (&expired, 1.0)]).await;
    }
    watched.grown
}

/// In shadow mode, and before rules are loaded.
async fn other_states() -> BTreeSet<String> {
    let mut shadow = Watched::start(RULES, &[("limiter.shadow_mode", "true")]).await;
    let refused = [(&*over_limit("user"), 1.0), ("tollgate_shadow_passed_requests_total", 1.0)];
    let large = with_hits(request_for("shop", "user", "ann"), 11);
    shadow.asked("a refusal in shadow mode of all rules", large.clone(), &refused).await;

    let service = Service::start_unready("domain: [", &[]).await;
    let load_errors = async || value(&page(&service).await, "tollgate_rules_load_errors_total");
    until(async || (load_errors().await == 1.0).then_some(())).await;
    let mut unready = Watched::new(service).await;
    unready.service.call(large).await.unwrap_err();
    let no_rules = ("tollgate_unanswered_requests_total{reason=\"no_rules\"}", 1.0);
    unready.grew("a request without rules", &[ENVOY, ANSWERED, GRPC_CONNECTION, no_rules]).await;
    shadow.grown.into_iter().chain(unready.grown).collect()
}

#[tokio::test]
async fn counters_grow_by_one_event_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "secret\n").unwrap();
    let settings = [
        ("check.domain", "shop"),
        ("check.descriptors", "many={x-user}"),
        ("admin.token_file", token.to_str().unwrap()),
    ];
    let mut watched = Watched::start(RULES, &settings).await;
    charges_peeks_and_refunds(&mut watched).await;
    shadows_candidates_and_penalties(&mut watched).await;
    requests_without_a_limit(&mut watched).await;
    other_doors(&mut watched).await;
    reservations(&mut watched).await;
    operators(&mut watched).await;

    let mut grown = watched.grown;
    grown.extend(expiries().await);
    grown.extend(other_states().await);
    let tests = production() + &text_of("tests") + &external_tests();
    let grown: BTreeSet<_> = grown.iter().map(|series| without_place(series)).collect();
    let is_proven = |series: &String| {
        let elsewhere = ELSEWHERE.iter().find(|(begin, _)| series.starts_with(begin));
        grown.contains(series) || elsewhere.is_some_and(|(_, test)| tests.contains(&format!("{test}(")))
    };
    let all: BTreeSet<_> = watched.before.keys().map(|series| without_place(series)).collect();
    let unproven: Vec<_> = all.iter().filter(|series| !is_proven(series)).collect();
    assert!(
        unproven.is_empty(),
        "neither an event nor a test of `ELSEWHERE` makes these grow: {unproven:#?}"
    );
}

/// A series without the labels of its rule or listener, whose counters are counted alike.
fn without_place(series: &str) -> String {
    let Some((name, labels)) = series.trim_end_matches('}').split_once('{') else { return series.to_owned() };
    let is_place =
        |label: &&str| ["domain=", "rule=", "listener="].iter().any(|place| label.starts_with(place));
    let labels: Vec<_> = labels.split(',').filter(|label| !is_place(label)).collect();
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}

/// The sources of the tests from outside.
fn external_tests() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let tests = files.filter(|path| path.extension().is_some_and(|end| end == "py"));
    tests.map(|path| fs::read_to_string(path).unwrap()).collect()
}
