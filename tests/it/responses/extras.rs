//! Headers and dynamic metadata of responses.

use crate::{
    harness::{Service, descriptor, request, request_for, with_hits},
    responses::RULES,
};

#[tokio::test]
async fn dynamic_metadata_contains_request_and_merged_rule_metadata() {
    let rules = "
domain: shop
descriptors:
  - key: a
    metadata: {owner: {team: red}, tier: 1}
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: b
    metadata: {owner: {team: blue, mail: b@x}, tags: [x]}
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: c
    metadata: {refused: true}
    rate_limit: {unit: hour, requests_per_unit: 0}
";
    let service = Service::start_with(rules, &[("api.dynamic_metadata", "true")]).await;
    let body = r#"{"domain": "shop", "hitsAddend": 2, "descriptors": [{"entries": [{"key": "a", "value": "1"}]},
        {"entries": [{"key": "b"}], "hitsAddend": "1"}, {"entries": [{"key": "c", "value": "x"}]},
        {"entries": [{"key": "d"}], "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}}]}"#;
    for _ in 0..2 {
        let (code, json) = service.http("POST", "/json", body).await;
        assert_eq!(code, 429);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let expected = serde_json::json!({
            "domain": "shop",
            "hitsAddend": 2.0,
            "descriptors": [
                {"entries": ["a=1"]},
                {"entries": ["b="], "hitsAddend": 1.0},
                {"entries": ["c=x"]},
                {"entries": ["d="], "limit": "requests_per_unit:5 unit:MINUTE"},
            ],
            "metadata": {"owner": {"team": "red", "mail": "b@x"}, "tier": 1.0, "tags": ["x"]},
            "passed_by": "shop.a,shop.b,override",
            "refused_by": "shop.c",
            "refused": [{"rule": "shop.c", "domain": "shop", "why": "banned", "mostHits": 0.0}],
        });
        let mut metadata = json["dynamicMetadata"].clone();
        metadata.as_object_mut().unwrap().remove("limits");
        assert_eq!(metadata, expected);
    }
}

#[tokio::test]
async fn dynamic_metadata_names_each_refusing_rule_and_reason() {
    let service = Service::start_with(RULES, &[("api.dynamic_metadata", "true")]).await;
    service.status(with_hits(request_for("shop", "user", "alice"), 10)).await;
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]},
        {"entries": [{"key": "bucket"}], "hitsAddend": "9"}]}"#;
    let (_, json) = service.http("POST", "/json", body).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let metadata = &json["dynamicMetadata"];
    assert_eq!(metadata["refused_by"], "per user,shop.bucket");
    let expected = serde_json::json!([
        {"rule": "per user", "domain": "shop", "why": "over limit", "retryAfterMillis": 36_000.0},
        {"rule": "shop.bucket", "domain": "shop", "why": "more hits than ever pass", "mostHits": 5.0},
    ]);
    assert_eq!(metadata["refused"], expected);
}

#[tokio::test]
async fn dynamic_metadata_has_outcome_of_each_limit() {
    let rules = "
domain: shop
descriptors:
  - key: user
    metadata: {plan: free}
    rate_limit: {unit: minute, requests_per_unit: 3, name: per user, algorithm: token_bucket}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: search
    rate_limit: {unit: minute, requests_per_unit: 10, name: search}
  - key: page
    rate_limit: {unit: minute, requests_per_unit: 4, name: search}
  - {key: free, rate_limit: {unlimited: true}}
  - key: closed
    rate_limit: {unit: day, requests_per_unit: 0}
";
    let service = Service::start_with(rules, &[("api.dynamic_metadata", "true")]).await;
    let metadata = async |keys: &[&str]| {
        let entries = keys.iter().map(|key| format!(r#"{{"entries": [{{"key": "{key}", "value": "x"}}]}}"#));
        let descriptors = entries.collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"domain": "shop", "descriptors": [{descriptors}]}}"#);
        let (_, json) = service.http("POST", "/json", &body).await;
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["dynamicMetadata"].clone()
    };
    let passed = metadata(&["user", "trial", "search", "page", "free", "unknown"]).await;
    let expected = serde_json::json!({
        "per user": {
            "outcome": "passed", "limit": 3.0, "remaining": 2.0, "resetMillis": 20_000.0, "metadata": {"plan": "free"},
        },
        "shop.trial": {"outcome": "refused_in_shadow", "limit": 0.0, "remaining": 0.0, "resetMillis": 36_000.0},
        // Of two limits with one name, the tighter one.
        "search": {"outcome": "passed", "limit": 4.0, "remaining": 3.0, "resetMillis": 36_000.0},
        "shop.free": {"outcome": "passed"},
    });
    assert_eq!(passed["limits"], expected);
    assert_eq!(passed["passed_by"], "per user,search,shop.free");
    assert_eq!(passed["refused_in_shadow_by"], "shop.trial");
    assert_eq!(
        (&passed["refused_by"], &passed["degraded_by"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    for _ in 0..2 {
        service.status(request_for("shop", "user", "x")).await;
    }
    service.advance(std::time::Duration::from_micros(1_500_100));
    let refused = metadata(&["user", "closed", "search"]).await;
    let expected = serde_json::json!({
        "outcome": "refused", "limit": 3.0, "remaining": 0.0, "resetMillis": 18_500.0, "retryAfterMillis": 18_500.0,
        "metadata": {"plan": "free"},
    });
    assert_eq!(refused["limits"]["per user"], expected);
    assert_eq!(
        (&refused["passed_by"], &refused["refused_by"]),
        (&"search".into(), &"per user,shop.closed".into())
    );
    assert_eq!(metadata(&["unknown"]).await["limits"], serde_json::Value::Null);
}

async fn headers(service: &Service, keys: &[&str]) -> Vec<String> {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
    let answer = service.call(request("shop", descriptors)).await.unwrap();
    let headers = answer.response_headers_to_add.iter();
    headers.map(|header| format!("{}: {}", header.key, header.value)).collect()
}

#[tokio::test]
async fn headers_are_off_by_default() {
    let service = Service::start(RULES).await;
    assert_eq!(headers(&service, &["user"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn headers_show_refusing_limit_first_then_tightest() {
    let overrides = [
        ("headers.x_ratelimit", "true"),
        ("headers.ratelimit", "true"),
        ("headers.reset_name", "X-Again-In"),
        ("headers.retry_after", "true"),
    ];
    let service = Service::start_with(RULES, &overrides).await;
    let expected = [
        "X-RateLimit-Limit: 60",
        "X-RateLimit-Remaining: 4",
        "X-RateLimit-Reset: 1",
        "RateLimit-Limit: 60",
        "RateLimit-Remaining: 4",
        "X-Again-In: 1",
    ];
    assert_eq!(headers(&service, &["user", "bucket", "free", "unknown"]).await, expected);
    service.status(with_hits(request_for("shop", "user", "x"), 9)).await;
    let refused = headers(&service, &["bucket", "user"]).await;
    assert_eq!(refused[..3], ["X-RateLimit-Limit: 10", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 36"]);
    assert_eq!(refused[6], "Retry-After: 36");
    // A ban never ends, so there is neither a reset nor a Retry-After.
    let banned =
        ["X-RateLimit-Limit: 0", "X-RateLimit-Remaining: 0", "RateLimit-Limit: 0", "RateLimit-Remaining: 0"];
    assert_eq!(headers(&service, &["banned"]).await, banned);
    assert_eq!(headers(&service, &["unknown"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn ratelimit_headers_have_their_configured_names() {
    let service = Service::start_with(RULES, &[("headers.ratelimit", "true")]).await;
    let default = ["RateLimit-Limit: 10", "RateLimit-Remaining: 9", "RateLimit-Reset: 36"];
    assert_eq!(headers(&service, &["user"]).await, default);
    let named = [
        ("headers.ratelimit", "true"),
        ("headers.limit_name", "X-Limit"),
        ("headers.remaining_name", "X-Left"),
        ("headers.reset_name", "X-Again-In"),
    ];
    let service = Service::start_with(RULES, &named).await;
    assert_eq!(headers(&service, &["user"]).await, ["X-Limit: 10", "X-Left: 9", "X-Again-In: 36"]);
}

#[tokio::test]
async fn ietf_headers_list_all_limits_or_the_tightest() {
    let service = Service::start_with(RULES, &[("headers.ietf", "all")]).await;
    let expected = [
        r#"RateLimit-Policy: "per user";q=10;w=60;qu="requests", "shop.bucket";q=60;w=60;qu="requests", "shop.five_minutes";q=10;w=300;qu="requests""#,
        r#"RateLimit: "per user";r=9;t=36, "shop.bucket";r=4;t=1, "shop.five_minutes";r=9;t=36"#,
    ];
    assert_eq!(headers(&service, &["user", "bucket", "five_minutes", "free"]).await, expected);
    let service = Service::start_with(RULES, &[("headers.ietf", "tightest")]).await;
    let expected =
        [r#"RateLimit-Policy: "shop.bucket";q=60;w=60;qu="requests""#, r#"RateLimit: "shop.bucket";r=4;t=1"#];
    assert_eq!(headers(&service, &["user", "bucket", "five_minutes"]).await, expected);
    // A limit with no end.
    assert_eq!(headers(&service, &["banned"]).await[1], r#"RateLimit: "shop.banned";r=0"#);
    assert_eq!(headers(&service, &["free", "unknown"]).await, Vec::<String>::new());
}

const SHOWN: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 40000000000000000, name: sky, quota_unit: tokens}
  - {key: low, rate_limit: {name: sky, unit: minute, requests_per_unit: 7}}
  - {key: secret, rate_limit: {name: secret, unit: minute, requests_per_unit: 1, algorithm: fixed_window, headers: false}}
  - {key: month, rate_limit: {window: 744h, requests_per_unit: 9, algorithm: fixed_window}}
  - {key: calls, rate_limit: {algorithm: concurrency, max_in_flight: 1}}
";

#[tokio::test]
async fn ietf_headers_name_each_limit_once_and_bound_numbers() {
    let service = Service::start_with(SHOWN, &[("headers.ietf", "all"), ("headers.window_max", "24h")]).await;
    assert_eq!(
        headers(&service, &["user"]).await,
        [
            r#"RateLimit-Policy: "sky";q=999999999999999;w=3600;qu="tokens""#,
            r#"RateLimit: "sky";r=999999999999999;t=2736"#,
        ]
    );
    let both = [r#"RateLimit-Policy: "sky";q=7;w=60;qu="requests""#, r#"RateLimit: "sky";r=6;t=36"#];
    assert_eq!(headers(&service, &["user", "low"]).await, both);
    let longer = [r#"RateLimit-Policy: "shop.month";q=9;qu="requests""#, r#"RateLimit: "shop.month";r=8"#];
    assert_eq!(headers(&service, &["month"]).await, longer);
    headers(&service, &["calls"]).await;
    let places =
        [r#"RateLimit-Policy: "shop.calls";q=1;qu="concurrent-requests""#, r#"RateLimit: "shop.calls";r=0"#];
    assert_eq!(headers(&service, &["calls"]).await, places);
}

#[tokio::test]
async fn hidden_limit_is_in_no_header_and_refuses() {
    let settings = [
        ("headers.ietf", "all"),
        ("headers.x_ratelimit", "true"),
        ("headers.ratelimit", "true"),
        ("headers.retry_after", "true"),
    ];
    let service = Service::start_with(SHOWN, &settings).await;
    assert_eq!(headers(&service, &["secret"]).await, Vec::<String>::new());
    assert_eq!(headers(&service, &["secret"]).await, ["Retry-After: 36"]);
    let beside = headers(&service, &["low", "secret"]).await;
    assert_eq!(beside[0], "X-RateLimit-Limit: 7");
    assert_eq!(
        beside[6..],
        [r#"RateLimit-Policy: "sky";q=7;w=60;qu="requests""#, r#"RateLimit: "sky";r=7"#, "Retry-After: 36"]
    );
}

#[tokio::test]
async fn partition_key_is_that_of_the_counter() {
    let service =
        Service::start_with(RULES, &[("headers.ietf", "all"), ("headers.partition_key", "true")]).await;
    let of = async |value: &str| {
        let answer = service.call(request_for("shop", "user", value)).await.unwrap();
        let key = |header: usize| {
            let (_, key) = answer.response_headers_to_add[header].value.split_once(";pk=:").unwrap();
            key.strip_suffix(":").unwrap().to_owned()
        };
        let key = key(0);
        // Eight bytes in Base64.
        assert!(
            key.len() == 12 && key.ends_with('=') && answer.response_headers_to_add[1].value.contains(&key)
        );
        key
    };
    let (ann, ben) = (of("ann").await, of("ben").await);
    assert_eq!(of("ann").await, ann);
    assert_ne!(ann, ben);
}

#[tokio::test]
async fn ai_clients_are_told_in_milliseconds_or_not_to_retry() {
    let settings = [("headers.ai_retry", "true"), ("headers.ai_retry_max", "40s")];
    let service = Service::start_with(RULES, &settings).await;
    assert_eq!(headers(&service, &["user"]).await, Vec::<String>::new());
    for (key, hits) in [("user", 10), ("window", 10)] {
        service.status(with_hits(request_for("shop", key, "x"), hits)).await;
    }
    assert_eq!(headers(&service, &["user"]).await, ["retry-after-ms: 36000"]);
    let longer = ["retry-after-ms: 2736000", "x-should-retry: false"];
    assert_eq!(headers(&service, &["window"]).await, longer);
    assert_eq!(headers(&service, &["banned"]).await, ["x-should-retry: false"]);
    // Places may be free again at any time.
    let service = Service::start_with(SHOWN, &settings).await;
    headers(&service, &["calls"]).await;
    assert_eq!(headers(&service, &["calls"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn retry_jitter_only_adds() {
    let service =
        Service::start_with(RULES, &[("headers.retry_after", "true"), ("headers.retry_jitter", "1h")]).await;
    service.status(with_hits(request_for("shop", "user", "x"), 10)).await;
    let mut waits = std::collections::HashSet::new();
    for _ in 0..10 {
        let headers = headers(&service, &["user"]).await;
        let wait: u64 = headers[0].strip_prefix("Retry-After: ").unwrap().parse().unwrap();
        assert!((36..=36 + 3_600).contains(&wait), "{wait}");
        waits.insert(wait);
    }
    assert!(waits.len() > 1, "{waits:?}");
}
