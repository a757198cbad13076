//! Whatever only looks changes no counter, over every door.

use serde_json::{Value, json};
use tollgate_wire::proto::tollgate::v1::PeekRequest;

use crate::{
    admin::ok_json,
    api_v1,
    harness::{Service, http, request_for, with_hits},
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: log
    rate_limit: {unit: day, requests_per_unit: 9, algorithm: sliding_log, penalty: {after: 2, first: 1h}}
  - {key: denied, rate_limit: {unit: day, requests_per_unit: 9, algorithm: token_bucket, count_denied: true}}
  - {key: classic, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: places, rate_limit: {algorithm: concurrency, max_in_flight: 9}}
";

/// What only looks at the counter of a descriptor.
const LOOKS: [&str; 9] = [
    "ShouldRateLimit",
    "/json",
    "Peek",
    "/v1/peek",
    "GET /explain",
    "POST /explain",
    "GET /counters",
    "GET /rules",
    "GET /metrics",
];

async fn look(service: &Service, how: &str, key: &str) {
    let admin = service.addresses.admin;
    let entries = json!([{"key": key, "value": "ann"}]);
    let body = |descriptor: Value| json!({"domain": "shop", "descriptors": [descriptor]});
    let peek = body(json!({"entries": entries, "hitsAddend": "0"}));
    let charge = body(json!({"entries": entries, "hitsAddend": "99"}));
    let answered = match how {
        "ShouldRateLimit" => service.call(with_hits(request_for("shop", key, "ann"), 0)).await.is_ok(),
        "/json" => matches!(service.http("POST", how, &peek.to_string()).await.0, 200 | 429),
        "Peek" => {
            let requests = vec![api_v1::request(key, "ann")];
            api_v1::client(service).await.peek(PeekRequest { requests }).await.is_ok()
        }
        "/v1/peek" => {
            let call = json!({"requests": [body(json!({"entries": entries}))]});
            service.http("POST", how, &call.to_string()).await.0 == 200
        }
        "GET /explain" => {
            let path = format!("/explain?domain=shop&key={key}=ann&hits=99");
            http(admin, "GET", &path, "").await.unwrap().0 == 200
        }
        "POST /explain" => http(admin, "POST", "/explain", &charge.to_string()).await.unwrap().0 == 200,
        "GET /metrics" => http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().0 == 200,
        other => {
            let path = other.trim_start_matches("GET ").to_owned();
            let query =
                if path == "/counters" { format!("?domain=shop&key={key}=ann") } else { String::new() };
            http(admin, "GET", &(path + &query), "").await.unwrap().0 == 200
        }
    };
    assert!(answered, "{how}");
}

#[tokio::test]
async fn whatever_looks_changes_no_counter() {
    let service = Service::start(RULES).await;
    for key in ["log", "denied", "classic", "places"] {
        let charge = |hits| with_hits(request_for("shop", key, "ann"), hits);
        service.call(charge(4)).await.unwrap();
        for refusals in 0..3 {
            let counter = format!("/counters?domain=shop&key={key}=ann");
            let before = ok_json(&service, "GET", &counter, "").await;
            for how in LOOKS {
                look(&service, how, key).await;
                assert_eq!(ok_json(&service, "GET", &counter, "").await, before, "{how} after {refusals}");
            }
            service.call(charge(99)).await.unwrap();
        }
    }
}
