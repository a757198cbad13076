//! The metrics page, scraped over a real socket.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::json;
use tollgate::server::{Server, all_metrics};
use tollgate_counter::time::Clock;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::RateLimitRequest,
};

use crate::{
    api_v1::{self, each, stream::Stream},
    harness::{Service, descriptor, http, request, request_for, settings, until, with_hits},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}
  - key: seen
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: fixed_window}
  - key: plan
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: free
    rate_limit: {unlimited: true}
  - key: tried
    rate_limit: {unit: hour, requests_per_unit: 9, candidate: {unit: hour, requests_per_unit: 1}}
";

/// The metrics page.
pub async fn page(service: &Service) -> String {
    let (code, page) = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap();
    assert_eq!(code, 200);
    page
}

/// The value of a series, given as text.
pub fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

fn series(page: &str) -> impl Iterator<Item = &str> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0)
}

/// The sum of the hits that all rules and overrides have charged.
fn charged(page: &str) -> f64 {
    let hits =
        |line: &&str| line.starts_with("tollgate_hits_total{") || line.starts_with("tollgate_override_hits");
    page.lines().filter(hits).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

pub fn with_override(mut request: RateLimitRequest, requests_per_unit: u32) -> RateLimitRequest {
    for descriptor in &mut request.descriptors {
        descriptor.limit = Some(RateLimitOverride { requests_per_unit, unit: 3 });
    }
    request
}

#[tokio::test]
async fn all_series_exist_at_zero_after_start() {
    let service = Service::start(RULES).await;
    let page = page(&service).await;
    for zero in [
        r#"tollgate_decisions_total{domain="shop",rule="shop.user",code="ok"}"#,
        r#"tollgate_decisions_total{domain="shop",rule="shop.user",code="over_limit"}"#,
        r#"tollgate_hits_total{domain="shop",rule="shop.user"}"#,
        "tollgate_rules_load_errors_total",
        "tollgate_rules_stale",
        r#"tollgate_unanswered_requests_total{reason="no_rules"}"#,
        r#"tollgate_unanswered_requests_total{reason="joining"}"#,
        r#"tollgate_unanswered_requests_total{reason="invalid"}"#,
        r#"tollgate_unanswered_requests_total{reason="wrong_token"}"#,
        "tollgate_unknown_domain_requests_total",
        r#"tollgate_counters_evicted_total{reason="unexpired"}"#,
        "tollgate_counters_refused_total",
        r#"tollgate_request_duration_seconds_bucket{le="+Inf"}"#,
        "tollgate_queue_waiting_requests",
        "tollgate_counters",
    ] {
        assert_eq!(value(&page, zero), 0.0, "{zero}");
    }
    assert_eq!((value(&page, "tollgate_rules"), value(&page, "tollgate_rules_generation")), (5.0, 1.0));
    assert_eq!(value(&page, "tollgate_rules_loaded_timestamp_seconds"), 1_790_000_064.0);
    assert!(value(&page, "process_resident_memory_bytes") > 1e6);
}

#[tokio::test]
async fn cluster_replica_exports_cluster_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "a secret that replicas share").unwrap();
    let overrides = [("cluster.listen", "127.0.0.1:0"), ("cluster.secret_file", secret.to_str().unwrap())];
    let service = Service::start_with(RULES, &overrides).await;
    let page = page(&service).await;
    for metric in all_metrics().filter(|metric| metric.name.starts_with("tollgate_cluster_")) {
        assert!(page.contains(&format!("\n# TYPE {} ", metric.name)), "{}", metric.name);
    }
    for (series, expected) in [
        (r#"tollgate_cluster_state{state="serving"}"#, 1.0),
        ("tollgate_cluster_members", 1.0),
        ("tollgate_cluster_slots", 4_096.0),
        ("tollgate_cluster_slots_moving", 0.0),
        ("tollgate_cluster_degraded_checks_total", 0.0),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
}

#[tokio::test]
async fn load_errors_are_counted_before_first_valid_rules() {
    let service = Service::start_unready("domain: [", &[]).await;
    assert!(page(&service).await.contains("\ntollgate_rules_generation 0\n"));
    until(async || (value(&page(&service).await, "tollgate_rules_load_errors_total") == 1.0).then_some(()))
        .await;
    assert_eq!(value(&page(&service).await, "tollgate_rules_stale"), 1.0);
    assert!(service.call(request_for("shop", "user", "ann")).await.is_err());
    assert_eq!(value(&page(&service).await, r#"tollgate_unanswered_requests_total{reason="no_rules"}"#), 1.0);
    fs::write(service.rules.path().join("rules.yaml"), RULES).unwrap();
    service.until_http("/readyz", 200).await;
    let repaired = page(&service).await;
    assert_eq!(value(&repaired, "tollgate_rules_load_errors_total"), 1.0);
    assert_eq!(value(&repaired, "tollgate_rules_stale"), 0.0);
}

#[tokio::test]
async fn decisions_are_counted_by_rule_and_code() {
    let service = Service::start(RULES).await;
    for _ in 0..3 {
        service.call(with_hits(request_for("shop", "user", "ann"), 3)).await.unwrap();
    }
    service.call(with_hits(request_for("shop", "user", "ann"), 2)).await.unwrap();
    for _ in 0..3 {
        service.call(request_for("shop", "seen", "ann")).await.unwrap();
    }
    service.call(request_for("shop", "free", "ann")).await.unwrap();
    for _ in 0..3 {
        service.call(request_for("shop", "tried", "ann")).await.unwrap();
    }
    service.call(request_for("shop", "unmatched", "ann")).await.unwrap();
    service.call(request_for("elsewhere", "user", "ann")).await.unwrap();
    service.call(request("shop", Vec::new())).await.unwrap_err();
    let page = page(&service).await;
    for (series, expected) in [
        (r#"tollgate_decisions_total{domain="shop",rule="shop.user",code="ok"}"#, 3.0),
        (r#"tollgate_decisions_total{domain="shop",rule="shop.user",code="over_limit"}"#, 1.0),
        (r#"tollgate_hits_total{domain="shop",rule="shop.user"}"#, 9.0),
        (r#"tollgate_near_limit_hits_total{domain="shop",rule="shop.user"}"#, 1.0),
        (r#"tollgate_decisions_total{domain="shop",rule="shop.seen",code="ok"}"#, 3.0),
        (r#"tollgate_shadow_denials_total{domain="shop",rule="shop.seen"}"#, 2.0),
        (r#"tollgate_decisions_total{domain="shop",rule="shop.free",code="ok"}"#, 1.0),
        (r#"tollgate_candidate_denials_total{domain="shop",rule="shop.tried"}"#, 2.0),
        (r#"tollgate_hits_total{domain="shop",rule="shop.tried"}"#, 3.0),
        ("tollgate_unmatched_descriptors_total", 1.0),
        ("tollgate_unknown_domain_requests_total", 1.0),
        (r#"tollgate_unanswered_requests_total{reason="invalid"}"#, 1.0),
        ("tollgate_request_duration_seconds_count", 14.0),
        ("tollgate_counters", if crate::harness::is_store_in_memory() { 4.0 } else { 0.0 }),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
    assert!(!page.contains("elsewhere"), "a domain without rules has no series");
}

#[tokio::test]
async fn requests_are_counted_by_their_api() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user=ann")];
    let service = Service::start_with(RULES, &check).await;
    let count =
        async |api| value(&page(&service).await, &format!(r#"tollgate_requests_total{{api="{api}"}}"#));
    for api in ["envoy", "tollgate.v1", "json", "forward_auth"] {
        assert_eq!(count(api).await, 0.0, "{api}");
    }
    for _ in 0..4 {
        service.call(request_for("shop", "user", "ann")).await.unwrap();
    }
    service.call(request("shop", Vec::new())).await.unwrap_err();
    // One call with two requests, and two questions.
    let pair = || each(vec![api_v1::request("user", "ann"), api_v1::request("user", "bob")]);
    api_v1::check(&service, pair()).await;
    let mut stream = Stream::open(&service).await;
    for number in 1..=2 {
        stream.ask(number, pair()).await;
        stream.answer().await;
    }
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
    assert_eq!(service.http("POST", "/json", &body.to_string()).await.0, 200);
    let body = json!({"requests": [body]});
    assert_eq!(service.http("POST", "/v1/check", &body.to_string()).await.0, 200);
    assert_eq!(service.http("POST", "/check", "").await.0, 200);
    let expected = [("envoy", 5.0), ("tollgate.v1", 3.0), ("json", 2.0), ("forward_auth", 1.0)];
    for (api, number) in expected {
        assert_eq!(count(api).await, number, "{api}");
    }
    let all = value(&page(&service).await, "tollgate_request_duration_seconds_count");
    assert_eq!(all, expected.iter().map(|(_, number)| number).sum::<f64>());
}

#[tokio::test]
async fn hits_metric_equals_hits_charged_to_counters() {
    let service = Service::start(
        "
domain: shop
on_denied: charge_none
descriptors:
  - {key: few, rate_limit: {unit: hour, requests_per_unit: 3, algorithm: sliding_log}}
  - {key: many, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}}
  - {key: hard, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: fixed_window, count_denied: true}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1000}}
",
    )
    .await;
    let (few, many) = (descriptor(&[("few", "x")]), descriptor(&[("many", "x")]));
    for _ in 0..7 {
        // Four of these calls are refused, and charge nothing to either counter.
        service.call(request("shop", vec![few.clone(), many.clone()])).await.unwrap();
        service.call(with_hits(request_for("shop", "hard", "x"), 1)).await.unwrap();
        service.call(with_hits(request_for("shop", "plain", "x"), 5)).await.unwrap();
        service.call(with_hits(request_for("shop", "plain", "x"), 0)).await.unwrap();
        service.call(with_override(request_for("shop", "own", "x"), 100)).await.unwrap();
    }
    // 3 and 3; all 7, because refused hits count; 35; 7.
    assert_eq!(charged(&page(&service).await), 3.0 + 3.0 + 7.0 + 35.0 + 7.0);
    let left =
        async |key: &str| service.status(with_hits(request_for("shop", key, "x"), 0)).await.limit_remaining;
    assert_eq!((left("few").await, left("many").await, left("plain").await), (0, 97, 965));
    let own = service.status(with_hits(with_override(request_for("shop", "own", "x"), 100), 0)).await;
    assert_eq!(own.limit_remaining, 93);
}

#[tokio::test]
async fn many_values_and_overrides_do_not_add_series() {
    // A million overrides, each with a limit and a value of its own.
    const ROUNDS: u32 = 20;
    const OVERRIDES: u32 = 50_000;
    let service = Service::start_with(RULES, &[("metrics.names_per_rule", "5")]).await;
    let mut client = service.client().await;
    let mut numbers = BTreeSet::new();
    for round in 0..ROUNDS {
        let overrides = (0..OVERRIDES).flat_map(|number| {
            let limit = round * OVERRIDES + number + 1;
            with_override(request_for("shop", "user", &limit.to_string()), limit).descriptors
        });
        let values = (0..1_000).flat_map(|number| {
            let value = format!("{round}-{number}");
            [descriptor(&[("plan", &value)]), descriptor(&[("user", &value)])]
        });
        let mut descriptors = overrides.chain(values).peekable();
        while descriptors.peek().is_some() {
            let some = descriptors.by_ref().take(250).collect();
            client.should_rate_limit(request("shop", some)).await.unwrap();
        }
        client.should_rate_limit(request_for(&format!("domain-{round}"), "user", "x")).await.unwrap();
        numbers.insert(series(&page(&service).await).count());
    }
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    let page = page(&service).await;
    assert_eq!(value(&page, r#"tollgate_hits_total{domain="shop",rule="shop.plan:other"}"#), 19_995.0);
    assert_eq!(value(&page, "tollgate_override_hits_total"), f64::from(ROUNDS * OVERRIDES));
    let all: Vec<_> = series(&page).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "each series exists once");
}

#[tokio::test]
async fn reload_keeps_metrics_of_remaining_rules() {
    let service = Service::start(RULES).await;
    service.call(request_for("shop", "user", "ann")).await.unwrap();
    service.call(request_for("shop", "seen", "ann")).await.unwrap();
    let fewer = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 20, algorithm: fixed_window}}
";
    fs::write(service.rules.path().join("rules.yaml"), fewer).unwrap();
    until(async || (value(&page(&service).await, "tollgate_rules_generation") == 2.0).then_some(())).await;
    service.call(request_for("shop", "user", "ann")).await.unwrap();
    let page = page(&service).await;
    assert_eq!(value(&page, r#"tollgate_hits_total{domain="shop",rule="shop.user"}"#), 2.0);
    assert!(!page.contains("shop.seen"), "a removed rule has no series");
}

#[tokio::test]
async fn queued_request_is_counted_as_waiting_with_its_delay() {
    let queue = "
domain: shop
descriptors:
  - {key: queue, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: leaky_queue, burst: 5}}
";
    let service = Service::start(queue).await;
    service.call(request_for("shop", "queue", "x")).await.unwrap();
    let mut client = service.client().await;
    let waiting =
        tokio::spawn(async move { client.should_rate_limit(request_for("shop", "queue", "x")).await });
    until(async || (value(&page(&service).await, "tollgate_queue_waiting_requests") == 1.0).then_some(()))
        .await;
    assert_eq!(value(&page(&service).await, "tollgate_queue_delay_seconds_sum"), 3_600.0);
    waiting.abort();
    until(async || (value(&page(&service).await, "tollgate_queue_waiting_requests") == 0.0).then_some(()))
        .await;
}

#[tokio::test]
async fn metrics_listener_serves_only_get_metrics() {
    let service = Service::start(RULES).await;
    for (method, path, expected) in
        [("GET", "/", 404), ("GET", "/rules", 404), ("GET", "/top", 404), ("POST", "/metrics", 405)]
    {
        let (code, _) = http(service.addresses.metrics, method, path, "").await.unwrap();
        assert_eq!(code, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn metrics_address_in_use_is_an_error_naming_the_listener() {
    let service = Service::start(RULES).await;
    let address = service.addresses.metrics.to_string();
    let settings = settings(&service.rules, &[("metrics.listen", &address)]);
    let error = Server::bind(settings, Clock::system()).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("metrics.listen: cannot listen on {address}: ")),
        "{error}"
    );
}

#[tokio::test]
async fn metrics_of_docs_code_and_page_are_the_same() {
    let service = Service::start(RULES).await;
    service.advance(Duration::from_secs(1));
    let scraped = page(&service).await;
    let types = scraped.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let known = all_metrics().map(|metric| metric.name);
    let known: Vec<_> = known.take_while(|name| !name.starts_with("tollgate_cluster_")).collect();
    if crate::harness::is_store_in_memory() {
        assert_eq!(types.collect::<Vec<_>>(), known, "no metrics of a cluster or a shared store");
    }

    let manual = include_str!("../../docs/metrics.md");
    for metric in all_metrics() {
        let (name, kind) = (metric.name, metric.kind.name());
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        let labels = metric.labels.join(", ");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let kind = if kind == "histogram" { "Histogram. " } else { "" };
        let row = format!("| `{name}{labels}` | {kind}{} |", metric.help);
        assert!(manual.contains(&row), "docs/metrics.md lacks this row:\n{row}");
    }
    let rows =
        manual.lines().filter(|line| line.starts_with("| `tollgate_") || line.starts_with("| `process_"));
    assert_eq!(rows.count(), all_metrics().count(), "every row is a metric");
}
