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
            "refused_by": "shop.c",
            "refused": [{"rule": "shop.c", "domain": "shop", "why": "banned"}],
        });
        assert_eq!(json["dynamicMetadata"], expected);
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
