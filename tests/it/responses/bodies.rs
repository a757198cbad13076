//! Bodies of refusals, over gRPC, as JSON and to `/check`.

use tokio::io::AsyncReadExt as _;

use crate::harness::{Answer, Service, descriptor, request, request_for, with_hits};

const RULES: &str = "
domain: shop
on_denied: charge_none
denial_body: {json: {error: '{rule}: {limit} per {unit}', retry_after: '{retry_after}', of: '{violated_policies}'}}
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1, name: per user}
  - key: hour
    rate_limit: {unit: hour, requests_per_unit: 1, denial_body: {text: 'Wait {retry_after_ms} ms.\n'}}
  - key: banned
    rate_limit: {unit: day, requests_per_unit: 0, denial_body: problem}
  - key: silent
    rate_limit: {unit: day, requests_per_unit: 0, denial_body: off}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: quota
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
---
domain: plain
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1}
";

/// The body of the answer to descriptors with these keys, with its content type.
async fn body(service: &Service, domain: &str, keys: &[&str]) -> Option<(String, String)> {
    let descriptors = keys.iter().map(|key| descriptor(&[(key, "x")])).collect();
    let answer = service.call(request(domain, descriptors)).await.unwrap();
    let mut types = answer.response_headers_to_add.iter().filter(|header| header.key == "Content-Type");
    let content_type = types.next().map(|header| header.value.clone());
    assert_eq!(types.next(), None);
    let body = String::from_utf8(answer.raw_body).unwrap();
    assert_eq!(content_type.is_none(), body.is_empty());
    content_type.map(|content_type| (content_type, body))
}

fn expected(content_type: &str, body: &str) -> Option<(String, String)> {
    Some((content_type.to_owned(), body.to_owned()))
}

#[tokio::test]
async fn refusal_has_body_of_rule_or_domain() {
    let service = Service::start(RULES).await;
    assert_eq!(body(&service, "shop", &["user", "hour", "shadow", "unknown"]).await, None);
    let json = r#"{"error":"per user: 1 per minute","retry_after":36,"of":["per user"]}"#;
    assert_eq!(body(&service, "shop", &["user"]).await, expected("application/json", json));
    let of_both = body(&service, "shop", &["user", "hour"]).await.unwrap();
    assert_eq!((&*of_both.0, of_both.1.starts_with("Wait ")), ("text/plain; charset=utf-8", true));
    let problem = r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","detail":"larger than the limit: at most 0 can ever pass","violated-policies":["per user","shop.banned"]}"#;
    let banned = body(&service, "shop", &["user", "banned"]).await;
    assert_eq!(banned, expected("application/problem+json", problem));
    assert_eq!(body(&service, "shop", &["silent", "user"]).await, None);
    let quota = body(&service, "shop", &["quota"]).await.unwrap();
    assert!(quota.1.contains(r#"shop.quota"#), "{quota:?}");
    // A quota that refuses does not decide if another rule does.
    assert!(
        body(&service, "shop", &["quota", "user"]).await.unwrap().1.starts_with(r#"{"error":"per user:"#)
    );
}

#[tokio::test]
async fn hidden_limit_is_in_no_body() {
    let rules = "
domain: shop
on_denied: charge_none
denial_body: {json: {rule: '{rule}', limit: '{limit}', of: '{violated_policies}', retry_after: '{retry_after}'}}
descriptors:
  - {key: shown, rate_limit: {unit: minute, requests_per_unit: 0, name: shown}}
  - {key: hidden, rate_limit: {unit: hour, requests_per_unit: 1, name: secret, headers: false}}
";
    let service = Service::start(rules).await;
    service.status(request_for("shop", "hidden", "x")).await;
    let both = body(&service, "shop", &["hidden", "shown"]).await;
    assert_eq!(both, expected("application/json", r#"{"rule":"shown","limit":0,"of":["shown"]}"#));
    let (_, alone) = body(&service, "shop", &["hidden"]).await.unwrap();
    assert!(alone.starts_with(r#"{"of":[],"retry_after":"#), "{alone}");
    let service = Service::start_with(rules, &[("api.dynamic_metadata", "true")]).await;
    service.status(request_for("shop", "hidden", "x")).await;
    let answer = service.call(request_for("shop", "hidden", "x")).await.unwrap();
    assert!(format!("{:?}", answer.dynamic_metadata).contains("secret"), "{answer:?}");
}

#[tokio::test]
async fn setting_decides_for_rules_without_body() {
    let service = Service::start(RULES).await;
    assert_eq!(body(&service, "plain", &["user"]).await, None);
    assert_eq!(body(&service, "plain", &["user"]).await, None);
    let set = [("denial.body", "problem"), ("denial.problem_type", "https://example.com/slow-down")];
    let service = Service::start_with(RULES, &set).await;
    service.status(request_for("plain", "user", "x")).await;
    let (content_type, problem) = body(&service, "plain", &["user"]).await.unwrap();
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
    assert_eq!(content_type, "application/problem+json");
    assert_eq!(
        (&problem["type"], &problem["violated-policies"][0], &problem["retry-after"]),
        (&"https://example.com/slow-down".into(), &"plain.user".into(), &36.into())
    );
    assert_eq!(body(&service, "shop", &["silent"]).await, None);
}

#[tokio::test]
async fn limit_of_request_has_body_of_domain() {
    let service = Service::start(RULES).await;
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "x"}],
        "limit": {"requestsPerUnit": 0, "unit": "DAY"}}]}"#;
    let (code, json) = service.http("POST", "/json", body).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 429);
    assert_eq!(
        json["responseHeadersToAdd"][0],
        serde_json::json!({"key": "Content-Type", "value": "application/json"})
    );
    // {"error":"override: 0 per day",
    assert!(
        json["rawBody"].as_str().unwrap().starts_with("eyJlcnJvciI6Im92ZXJyaWRlOiAwIHBlciBkYXki"),
        "{json}"
    );
}

#[tokio::test]
async fn header_and_body_name_the_same_time() {
    let service = Service::start_with(RULES, &[("headers.retry_after", "true")]).await;
    service.status(with_hits(request_for("shop", "user", "x"), 1)).await;
    service.advance(std::time::Duration::from_millis(1_500));
    let answer = service.call(request_for("shop", "user", "x")).await.unwrap();
    let retry_after =
        answer.response_headers_to_add.iter().find(|header| header.key == "Retry-After").unwrap();
    let body: serde_json::Value = serde_json::from_slice(&answer.raw_body).unwrap();
    assert_eq!((&*retry_after.value, &body["retry_after"]), ("35", &35.into()));
}

#[tokio::test]
async fn check_answers_with_the_body() {
    let set = [("check.domain", "shop"), ("check.descriptors", "user={x-user}")];
    let service = Service::start_with(RULES, &set).await;
    let headers = "host: localhost\r\nx-user: ann\r\nx-forwarded-proto: http\r\n";
    let ask = async || {
        let mut answer = Answer::get(service.addresses.http, headers, "/check").await;
        let mut body = String::new();
        answer.body.read_to_string(&mut body).await.unwrap();
        (answer.code, answer.head.to_lowercase(), body)
    };
    let (code, head, body) = ask().await;
    assert_eq!((code, &*body), (200, ""));
    assert!(!head.contains("content-type"), "{head}");
    let (code, head, body) = ask().await;
    assert_eq!((code, head.contains("\r\ncontent-type: application/json\r\n")), (429, true), "{head}");
    assert!(body.starts_with(r#"{"error":"per user: 1 per minute""#), "{body}");
}
