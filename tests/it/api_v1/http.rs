//! The same calls over HTTP, as JSON.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Service, send};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: fixed_window}}
";

fn user(value: &str) -> Value {
    json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": value}]}]})
}

async fn post(service: &Service, path: &str, body: &Value) -> (u16, Value) {
    let (code, body) = service.http("POST", path, &body.to_string()).await;
    (code, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

#[tokio::test]
async fn calls_in_json_are_answered_in_json() {
    let service = Service::start(RULES).await;
    service.advance(std::time::Duration::from_nanos(1));
    let mut asked = user("ann");
    (asked["id"], asked["hits"]) = (json!("a"), json!("2"));
    let (code, answer) = post(&service, "/v1/check", &json!({"requests": [asked, user("ann")]})).await;
    let limit = |rest: Value| {
        let mut limit = json!({
            "rule": "shop.user", "requestsPerUnit": "2", "unit": "MINUTE", "resetAfter": "35.999999999s",
        });
        limit.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!([limit])
    };
    let expected = json!({"answers": [
        {"id": "a", "verdict": "ALLOWED", "limits": limit(json!({}))},
        {
            "verdict": "DENIED", "retryAfter": "35.999999999s",
            "limits": limit(json!({"retryAfter": "35.999999999s", "refused": true})),
        },
    ]});
    assert_eq!((code, answer), (200, expected));
    let (code, answer) = post(&service, "/v1/refund", &json!({"requests": [user("ann")]})).await;
    assert_eq!((code, &answer["answers"][0]["limits"][0]["remaining"]), (200, &json!("1")));
    let (code, answer) = post(&service, "/v1/peek", &json!({"requests": [user("ann")]})).await;
    assert_eq!((code, &answer["answers"][0]["limits"][0]["remaining"]), (200, &json!("1")));
    let together = json!({"mode": "TOGETHER", "requests": [user("ann"), user("ann")]});
    let (code, answer) = post(&service, "/v1/check", &together).await;
    assert_eq!((code, &answer["answers"][0]["verdict"]), (200, &json!("DENIED")));
}

#[tokio::test]
async fn bad_json_calls_are_answered_with_reason_and_place() {
    let service = Service::start_with(RULES, &[("api.max_requests", "2"), ("api.max_entries", "1")]).await;
    let mut wide = user("ann");
    wide["descriptors"][0]["entries"] = json!([{}, {}]);
    for (body, reason, message) in [
        ("{\n\"requests\": [{]}".to_owned(), "MALFORMED", "line 2 column 15"),
        ("{\"requests\":\n [{\"domian\": \"shop\"}]}".to_owned(), "MALFORMED", "domian"),
        (r#"{"requests": [{"hits": -1}]}"#.to_owned(), "MALFORMED", "line 1 column"),
        (r#"{"mode": "SOME"}"#.to_owned(), "MALFORMED", "SOME"),
        ("{}".to_owned(), "NO_REQUESTS", "no requests"),
        (json!({"requests": [{}, {}, {}]}).to_string(), "TOO_LARGE", "more than 2 requests"),
        (
            json!({"requests": [user("a"), wide]}).to_string(),
            "TOO_LARGE",
            "requests[1]: descriptors[0] has more than 1 entries",
        ),
    ] {
        let (code, answer) = service.http("POST", "/v1/check", &body).await;
        assert_eq!(code, 400, "{body}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["code"], 3);
        assert!(answer["message"].as_str().unwrap().contains(message), "{body}: {answer}");
        let detail = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "tollgate",
        });
        assert_eq!(answer["details"], json!([detail]));
    }
}

#[tokio::test]
async fn errors_of_requests_in_json_have_details() {
    let service = Service::start(RULES).await;
    let (code, answer) = post(&service, "/v1/check", &json!({"requests": [{}, user("ann")]})).await;
    assert_eq!((code, &answer["answers"][1]["verdict"]), (200, &json!("ALLOWED")));
    let error = &answer["answers"][0]["error"];
    assert_eq!(error["details"][0]["reason"], "EMPTY_DOMAIN");
}

#[tokio::test]
async fn reset_over_http_needs_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    post(&service, "/v1/check", &json!({"requests": [user("ann")]})).await;
    let (code, answer) = post(&service, "/v1/reset", &user("ann")).await;
    assert_eq!((code, &answer["details"][0]["reason"]), (401, &json!("WRONG_TOKEN")));
    let (headers, body) = ("host: localhost\r\nauthorization: Bearer secret\r\n", user("ann").to_string());
    let (_, answer) = send(service.addresses.http, headers, "POST", "/v1/reset", &body).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let counter = json!({"rule": "shop.user", "remainingBefore": "1", "remaining": "2"});
    assert_eq!(answer, json!({"counters": [counter]}));
}

#[tokio::test]
async fn calls_of_web_pages_of_other_origins_are_refused() {
    let service = Service::start(RULES).await;
    for call in ["check", "peek", "refund", "reserve", "settle", "cancel", "reset"] {
        let (headers, path) = ("host: localhost\r\norigin: http://example.com\r\n", format!("/v1/{call}"));
        assert_eq!(send(service.addresses.http, headers, "POST", &path, "{}").await.0, 403, "{call}");
    }
}

#[tokio::test]
async fn other_methods_of_calls_in_json_are_refused() {
    let service = Service::start(RULES).await;
    assert_eq!(service.http("GET", "/v1/check", "").await.0, 405);
    assert_eq!(service.http("POST", "/v1/nothing", "").await.0, 404);
}
