//! Limits of keys that a real server names.

use std::time::{Duration, Instant};

use serde_json::json;
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit::Unit};

use crate::{
    clusters::{Cluster, Watched},
    harness::{Service, http, request_for, send, until},
    replica::until_ok,
    server::{PATIENCE, Server},
    tls::start_with_tls,
};

const RULES: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {name: per_user, unit: minute, requests_per_unit: 100, own: {from: source}}
  - key: both
    rate_limit:
      algorithm: fixed_window
      unit: minute
      requests_per_unit: 100
      own: {from: source, requests_per_unit: {max: 1000}}
  - key: plan
    rate_limit:
      {algorithm: token_bucket, unit: minute, requests_per_unit: 3, own: {from: source, burst: {max: 50}}}
";

/// A value that a new master has.
const NEXT: &str = r#"{"requests_per_unit":4}"#;

/// A service with counters in memory that looks up limits in this server, and waits for them.
async fn start(server: &Server, more: &[(&str, &str)]) -> Service {
    start_at(&server.url(), more).await
}

async fn start_at(urls: &str, more: &[(&str, &str)]) -> Service {
    let settings = [
        ("limits.source", "redis"),
        ("store.redis.urls", urls),
        ("limits.wait", "1s"),
        ("api.dynamic_metadata", "true"),
    ];
    Service::start_with(RULES, &[&settings, more].concat()).await
}

fn set(server: &Server, key: &str, json: &str) {
    // Without spaces, at which `run` splits.
    server.run::<()>(&format!("SET limits:api:{key} {json}"));
}

/// How many of the calls pass.
async fn passed(service: &Service, key: &str, value: &str, calls: usize) -> usize {
    let mut client = service.client().await;
    let mut passed = 0;
    for _ in 0..calls {
        let answer = client.should_rate_limit(request_for("api", key, value)).await.unwrap().into_inner();
        passed += usize::from(answer.overall_code() == Code::Ok);
    }
    passed
}

async fn metrics(service: &Service) -> String {
    http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().1
}

async fn until_metric(service: &Service, line: &str) {
    until(async || metrics(service).await.contains(&format!("\n{line}\n")).then_some(())).await;
}

#[tokio::test]
async fn user_of_the_design_note_gets_five_in_each_second() {
    let server = Server::start(&[]);
    set(&server, "user=241531", r#"{"window":"1s","requests_per_unit":5}"#);
    let service = start(&server, &[]).await;
    assert_eq!(passed(&service, "user", "241531", 8).await, 5);
    let status = service.status(request_for("api", "user", "241531")).await;
    let limit = status.current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (5, Unit::Second, "per_user"));
    service.advance(Duration::from_secs(1));
    assert_eq!(passed(&service, "user", "241531", 8).await, 5);
    assert_eq!(passed(&service, "user", "other", 105).await, 100);
    service.advance(Duration::from_secs(1));
    assert_eq!(passed(&service, "user", "other", 5).await, 0);
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"found\"} 1").await;
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"absent\"} 1").await;
    until_metric(&service, "tollgate_limit_cache_entries 2").await;
    until_metric(&service, "tollgate_limits_unknown_total 0").await;
    let query = "/explain?domain=api&key=user=241531";
    let (_, explained) = http(service.addresses.admin, "GET", query, "").await.unwrap();
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    let descriptor = &explained["descriptors"][0];
    assert_eq!(descriptor["limit_from"], "the store", "{explained}");
    assert_eq!(descriptor["stored_limit"], "5 per second", "{explained}");
}

#[tokio::test]
async fn changed_limit_decides_after_its_ttl_and_removed_one_ends() {
    let server = Server::start(&[]);
    set(&server, "user=a", r#"{"requests_per_unit":2}"#);
    let service = start(&server, &[("limits.cache.ttl", "10s")]).await;
    assert_eq!(passed(&service, "user", "a", 3).await, 2);
    set(&server, "user=a", r#"{"requests_per_unit":4}"#);
    assert_eq!(passed(&service, "user", "a", 3).await, 0);
    service.advance(Duration::from_secs(10));
    // The first call still uses the old limit, and has the new one read.
    assert_eq!(passed(&service, "user", "a", 1).await, 0);
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"found\"} 2").await;
    let limit = service.status(request_for("api", "user", "a")).await.current_limit.unwrap();
    assert_eq!(limit.requests_per_unit, 4);
    server.run::<()>("DEL limits:api:user=a");
    service.advance(Duration::from_secs(10));
    passed(&service, "user", "a", 1).await;
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"absent\"} 1").await;
    let limit = service.status(request_for("api", "user", "a")).await.current_limit.unwrap();
    assert_eq!(limit.requests_per_unit, 100);
}

#[tokio::test]
async fn store_that_is_down_forgets_no_limit_and_delays_no_call_twice() {
    let mut server = Server::start(&[]);
    set(&server, "user=a", r#"{"requests_per_unit":2}"#);
    let service = start(&server, &[("limits.cache.ttl", "10s"), ("limits.wait", "50ms")]).await;
    until(async || (passed(&service, "user", "a", 1).await == 0).then_some(())).await;
    server.kill();
    service.advance(Duration::from_secs(3_600));
    assert_eq!(passed(&service, "user", "a", 3).await, 2);
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"failed\"} 1").await;
    service.advance(Duration::from_secs(60));
    assert_eq!(passed(&service, "user", "a", 3).await, 2);
    assert_eq!(passed(&service, "user", "new", 101).await, 100);
    let answer = service.call(request_for("api", "user", "new")).await.unwrap();
    assert!(answer.dynamic_metadata.unwrap().fields.contains_key("limit_unknown"));
    server.restart();
    set(&server, "user=new", r#"{"requests_per_unit":7}"#);
    // The counter's window goes on; only the limit is asked for.
    until(async || {
        service.advance(Duration::from_secs(1));
        let status = service.status(request_for("api", "user", "new")).await;
        (status.current_limit?.requests_per_unit == 7).then_some(())
    })
    .await;
}

#[tokio::test]
async fn outages_of_a_store_with_tls_neither_delay_nor_forget() {
    // Far below the time for the server, and far above the wait.
    const LONG: Duration = Duration::from_secs(10);
    let (mut server, url, folder) = start_with_tls();
    set(&server, "user=a", r#"{"requests_per_unit":2}"#);
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(file);
    let settings = [
        ("store.redis.ca", ca.as_str()),
        ("store.redis.cert", &cert),
        ("store.redis.key", &key),
        ("store.redis.timeout", "30s"),
        ("limits.cache.ttl", "10s"),
        ("limits.wait", "50ms"),
    ];
    let service = start_at(&url, &settings).await;
    until(async || (passed(&service, "user", "a", 1).await == 0).then_some(())).await;
    let stale_and_new_are_quick = async |new: &str| {
        service.advance(Duration::from_secs(60));
        let began = Instant::now();
        assert_eq!(passed(&service, "user", "a", 3).await, 2, "the known limit decides");
        assert_eq!(passed(&service, "user", new, 3).await, 3, "the rule decides");
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    };
    // It is connected, and answers nothing.
    server.signal("STOP");
    stale_and_new_are_quick("b").await;
    server.signal("CONT");
    server.kill();
    stale_and_new_are_quick("c").await;
    server.restart();
    set(&server, "user=a", r#"{"requests_per_unit":7}"#);
    until(async || {
        service.advance(Duration::from_secs(10));
        let status = service.status(request_for("api", "user", "a")).await;
        (status.current_limit?.requests_per_unit == 7).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_outlive_a_failover_and_come_from_the_next_master() {
    let mut watched = Watched::start().await;
    set(&watched.master, "user=a", r#"{"requests_per_unit":2}"#);
    let urls = watched.urls().join(",");
    let sentinels = [
        ("store.redis.mode", "sentinel"),
        ("store.redis.sentinel_service", "counters"),
        ("limits.cache.ttl", "10s"),
    ];
    let service = start_at(&urls, &sentinels).await;
    let limit = async || {
        service.advance(Duration::from_secs(10));
        service.status(request_for("api", "user", "a")).await.current_limit.unwrap().requests_per_unit
    };
    until(async || (limit().await == 2).then_some(())).await;
    until(async || (watched.follower.run::<u64>("DBSIZE") == 1).then_some(())).await;
    watched.master.kill();
    until_ok(2 * PATIENCE, "the follower is the master", async || {
        assert_eq!(limit().await, 2, "what is known decides");
        watched.follower.try_run::<()>(&format!("SET limits:api:user=a {NEXT}"))
    })
    .await;
    until(async || (limit().await == 4).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_come_from_all_servers_of_a_cluster() {
    const USERS: usize = 30;
    let cluster = Cluster::start().await;
    for user in 0..USERS {
        let command = format!("SET limits:api:user={user} {NEXT}");
        let has_it = |server: &Server| server.try_run::<()>(&command).is_ok();
        assert_eq!(cluster.servers[..3].iter().filter(|server| has_it(server)).count(), 1, "{user}");
    }
    let urls: Vec<_> = cluster.servers.iter().map(Server::url).collect();
    let service = start_at(&urls.join(","), &[("store.redis.mode", "cluster")]).await;
    // The first calls may come before the connection, and then have the rule's number.
    let limit = async |user: &str| {
        service.advance(Duration::from_secs(1));
        let status = service.status(request_for("api", "user", user)).await;
        status.current_limit.unwrap().requests_per_unit
    };
    for user in 0..USERS {
        until(async || (limit(&user.to_string()).await == 4).then_some(())).await;
    }
    assert_eq!(limit("other").await, 100);
}

#[tokio::test]
async fn value_that_is_no_limit_is_counted_and_its_rule_decides() {
    let server = Server::start(&[]);
    set(&server, "user=garbage", "garbage");
    set(&server, "user=unknown", r#"{"requests_per_unit":5,"per":"hour"}"#);
    server.run::<()>("SETRANGE limits:api:user=large 10485760 x");
    server.run::<()>("LPUSH limits:api:user=list 5");
    set(&server, "plan=unbounded", r#"{"burst":51}"#);
    set(&server, "plan=good", r#"{"burst":50}"#);
    let service = start(&server, &[]).await;
    for user in ["garbage", "unknown", "large", "list"] {
        assert_eq!(passed(&service, "user", user, 101).await, 100, "{user}");
    }
    assert_eq!(passed(&service, "plan", "unbounded", 5).await, 3);
    assert_eq!(passed(&service, "plan", "good", 51).await, 50);
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"invalid\"} 5").await;
    until_metric(&service, "tollgate_limit_lookups_total{outcome=\"failed\"} 0").await;
}

#[tokio::test]
async fn unlimited_key_passes_and_is_counted() {
    let server = Server::start(&[]);
    set(&server, "user=staff", r#"{"unlimited":true}"#);
    set(&server, "user=banned", r#"{"requests_per_unit":0}"#);
    let service = start(&server, &[]).await;
    assert_eq!(passed(&service, "user", "staff", 150).await, 150);
    let status = service.status(request_for("api", "user", "staff")).await;
    assert_eq!((status.current_limit, status.limit_remaining), (None, u32::MAX));
    assert_eq!(passed(&service, "user", "banned", 2).await, 0);
}

#[tokio::test]
async fn limits_come_over_the_connections_of_counters_in_the_same_server() {
    let server = Server::start(&[]);
    set(&server, "user=a", r#"{"requests_per_unit":2,"window":"1h"}"#);
    let service = start(&server, &[("store.kind", "redis")]).await;
    assert_eq!(passed(&service, "user", "a", 3).await, 2);
    // One for commands, one for announcements, and that of the test.
    let clients: String = server.run("CLIENT LIST");
    assert_eq!(clients.lines().count(), 3, "{clients}");
}

#[tokio::test]
async fn limit_set_at_run_time_precedes_that_of_the_store_in_its_window() {
    let server = Server::start(&[]);
    set(&server, "both=a", r#"{"window":"1s","requests_per_unit":5}"#);
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "secret").unwrap();
    let service = start(&server, &[("admin.token_file", token.path().to_str().unwrap())]).await;
    assert_eq!(passed(&service, "both", "a", 9).await, 5);
    let key = json!({"entries": [{"key": "both", "value": "a"}]});
    let limit = json!({"domain": "api", "key": key, "requestsPerUnit": 7});
    let call = json!({"limits": [{"limit": limit}]}).to_string();
    let headers = "host: localhost\r\nauthorization: Bearer secret\r\n";
    let (code, body) = send(service.addresses.http, headers, "POST", "/v1/limits/set", &call).await;
    assert!(code == 200 && !body.contains("error"), "{body}");
    // Five were counted.
    assert_eq!(passed(&service, "both", "a", 9).await, 2);
    let explain = async |limit: serde_json::Value| {
        let descriptor = json!({"entries": [{"key": "both", "value": "a"}], "limit": limit});
        let message = json!({"domain": "api", "descriptors": [descriptor]}).to_string();
        let (_, body) = send(service.addresses.admin, headers, "POST", "/explain", &message).await;
        serde_json::from_str::<serde_json::Value>(&body).unwrap()["descriptors"][0].clone()
    };
    let explained = explain(serde_json::Value::Null).await;
    assert_eq!(explained["limit_from"], "set at run time", "{explained}");
    assert_eq!(explained["limit"], "7 per second, algorithm: fixed_window", "{explained}");
    assert_eq!(explained["counter"]["before"]["own_limit"]["numbers"]["requests_per_unit"], 7, "{explained}");
    assert_eq!(explained["stored_limit"], "5 per second, algorithm: fixed_window", "{explained}");
    assert_eq!(explained["rule"]["limit"], "100 per minute, algorithm: fixed_window", "{explained}");
    let explained = explain(json!({"requestsPerUnit": 3, "unit": "HOUR"})).await;
    assert_eq!(explained["limit_from"], "the request", "{explained}");
    let answer = service.call(request_for("api", "both", "a")).await.unwrap();
    let metadata = format!("{:?}", answer.dynamic_metadata.unwrap().fields["limits"]);
    assert!(metadata.contains("\"set at run time\""), "{metadata}");
    service.advance(Duration::from_secs(1));
    assert_eq!(passed(&service, "both", "a", 9).await, 7);
    let call = json!({"domain": "api", "descriptors": [key]}).to_string();
    let (code, body) = send(service.addresses.http, headers, "POST", "/v1/limits/clear", &call).await;
    assert!(code == 200 && !body.contains("error"), "{body}");
    service.advance(Duration::from_secs(1));
    assert_eq!(passed(&service, "both", "a", 9).await, 5);
}
