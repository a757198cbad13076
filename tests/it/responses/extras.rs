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
            "refused": [{"rule": "shop.c", "domain": "shop", "why": "banned"}],
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
        {"rule": "shop.bucket", "domain": "shop", "why": "more hits than ever pass"},
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
    // A ban never ends, so there is no Retry-After.
    assert_eq!(headers(&service, &["banned"]).await.len(), 6);
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
async fn ietf_headers_list_every_policy_and_tightest_remaining() {
    let service = Service::start_with(RULES, &[("headers.ietf", "true")]).await;
    let expected = [
        r#"RateLimit-Policy: "per user";q=10;w=60, "shop.bucket";q=60;w=60, "shop.five_minutes";q=10;w=300"#,
        r#"RateLimit: "shop.bucket";r=4;t=1"#,
    ];
    assert_eq!(headers(&service, &["user", "bucket", "five_minutes"]).await, expected);
}
