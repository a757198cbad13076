//! Limits of keys at a URL.

use std::time::Duration;

use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use crate::{
    harness::{Service, cluster_view, http, replica_with, request_for, until, until_linked},
    metrics::{page, value},
    remote_rules::server::{Reply, RulesServer},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {algorithm: fixed_window, unit: year, requests_per_unit: 100, own: {from: source}}
";

async fn limit(service: &Service) -> u32 {
    service.status(request_for("shop", "user", "ann/1")).await.current_limit.unwrap().requests_per_unit
}

async fn until_counted(service: &Service, outcome: &str, number: u64) {
    let line = format!("\ntollgate_limit_lookups_total{{outcome=\"{outcome}\"}} {number}\n");
    until(async || {
        let (_, page) = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap();
        page.contains(&line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn limit_at_a_url_decides_until_the_server_has_none() {
    let text = r#"{"requests_per_unit": 2}"#.to_owned();
    let server = RulesServer::start(Reply::Document { etag: "one", text }).await;
    let url = format!("http://{}/of/{{domain}}/{{descriptor}}", server.address);
    let settings = [
        ("limits.source", "url"),
        ("limits.url", url.as_str()),
        ("limits.wait", "1s"),
        ("limits.cache.ttl", "10s"),
        ("limits.cache.absent_ttl", "10s"),
        ("rules.url.timeout", "5s"),
    ];
    let service = Service::start_with(RULES, &settings).await;
    let answered = async || value(&page(&service).await, "tollgate_limit_store_answered_timestamp_seconds");
    assert_eq!(answered().await, 0.0);
    let hits = async || value(&page(&service).await, "tollgate_limit_cache_hits_total");
    assert_eq!((limit(&service).await, hits().await), (2, 0.0), "the call waits");
    assert!(answered().await > 0.0);
    assert!(server.was_asked_with(0, "get /of/shop/user%3dann%2f1 http/1.1\r\n"), "{:?}", server.heads());
    service.advance(Duration::from_secs(10));
    assert_eq!((limit(&service).await, hits().await), (2, 1.0), "an old limit is cached");
    until_counted(&service, "unchanged", 1).await;
    assert!(server.was_asked_with(1, "if-none-match: \"one\"\r\n"));
    for (number, bytes) in [(1, 5_000), (2, 10 << 20)] {
        let large = format!("{{\"requests_per_unit\": 3{}}}", " ".repeat(bytes));
        server.answer(Reply::Document { etag: "large", text: large });
        service.advance(Duration::from_secs(10));
        assert_eq!(limit(&service).await, 2);
        until_counted(&service, "failed", number).await;
        assert_eq!(limit(&service).await, 2);
    }
    server.answer(Reply::Document { etag: "garbage", text: "<html>".to_owned() });
    service.advance(Duration::from_secs(10));
    assert_eq!(limit(&service).await, 2);
    until_counted(&service, "invalid", 1).await;
    assert_eq!(limit(&service).await, 2);
    server.answer(Reply::status("404 Not Found", ""));
    service.advance(Duration::from_secs(10));
    assert_eq!(limit(&service).await, 2);
    until_counted(&service, "absent", 1).await;
    assert_eq!(limit(&service).await, 100);
    let text = r#"{"requests_per_unit": 7}"#.to_owned();
    server.answer(Reply::Document { etag: "two", text });
    service.advance(Duration::from_secs(10));
    limit(&service).await;
    until_counted(&service, "found", 2).await;
    assert_eq!(limit(&service).await, 7);
}

#[tokio::test]
async fn looked_up_limit_holds_over_the_replicas_of_a_cluster() {
    const USERS: usize = 20;
    let text = r#"{"requests_per_unit": 2, "window": "24h"}"#.to_owned();
    let server = RulesServer::start(Reply::Document { etag: "one", text }).await;
    let url = format!("http://{}/{{domain}}/{{descriptor}}", server.address);
    let secret = tempfile::tempdir().unwrap();
    let settings = [("limits.source", "url"), ("limits.url", url.as_str()), ("limits.wait", "1s")];
    let first = replica_with(RULES, &secret, "off", &settings).await;
    let address = cluster_view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = replica_with(RULES, &secret, &address, &settings).await;
    until_linked(&first).await;
    until_linked(&second).await;
    for user in 0..USERS {
        let mut codes = Vec::new();
        for replica in [&first, &second, &first, &second] {
            let answer = replica.call(request_for("shop", "user", &user.to_string())).await.unwrap();
            codes.push(answer.overall_code());
        }
        assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit], "{user}");
    }
}
