//! Probes, JSON and the rules page.

use serde_json::{Value, json};

use crate::harness::{Service, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
";

const ALICE: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;

#[tokio::test]
async fn probes_of_serving_process_answer_200() {
    let service = Service::start(RULES).await;
    for probe in ["/livez", "/readyz", "/healthcheck"] {
        assert_eq!(service.http("GET", probe, "").await, (200, "OK".to_owned()));
    }
}

#[tokio::test]
async fn json_answers_200_then_429_with_grpc_messages() {
    let service = Service::start(RULES).await;
    let (code, body) = service.http("POST", "/json", ALICE).await;
    assert_eq!(code, 200);
    let expected = json!({
        "overallCode": "OK",
        "statuses": [{
            "code": "OK",
            "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"},
            "limitRemaining": 1,
            "durationUntilReset": "36s",
        }],
    });
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    assert_eq!(service.http("POST", "/json", ALICE).await.0, 200);
    let (code, body) = service.http("POST", "/json", ALICE).await;
    assert_eq!(code, 429);
    assert!(body.contains(r#""overallCode":"OVER_LIMIT""#), "{body}");
}

#[tokio::test]
async fn json_accepts_proto_field_names() {
    let service = Service::start(RULES).await;
    let body =
        r#"{"domain":"shop","hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"x"}]}]}"#;
    let (code, body) = service.http("POST", "/json", body).await;
    assert_eq!(code, 200);
    assert!(!body.contains("limitRemaining"), "both hits are charged, and a zero is omitted: {body}");
}

#[tokio::test]
async fn json_resets_have_millisecond_precision() {
    let service = Service::start(RULES).await;
    service.advance(std::time::Duration::from_nanos(250_000_001));
    let (_, body) = service.http("POST", "/json", ALICE).await;
    assert!(body.contains(r#""durationUntilReset":"35.750s""#), "{body}");
}

#[tokio::test]
async fn bad_json_answers_400_with_reason() {
    let service = Service::start(RULES).await;
    let bad = [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid type"),
        (r#"{"domian": "shop"}"#, "domian"),
        (r#"{"domain": "shop"} x"#, "trailing"),
        (r#"{"domain": "shop"}"#, "no descriptors"),
        (r#"{"descriptors": [{}]}"#, "domain"),
        (r#"{"domain": "shop", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}"#, "limit.unit"),
    ];
    for (body, wrong) in bad {
        let (code, answer) = service.http("POST", "/json", body).await;
        assert_eq!(code, 400, "{body}");
        assert!(answer.contains(wrong), "{body}: {answer}");
    }
}

#[tokio::test]
async fn rules_page_shows_generation_and_last_error() {
    let service = Service::start(RULES).await;
    let (code, body) = http(service.addresses.admin, "GET", "/rules", "").await.unwrap();
    let page: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &page["generation"], &page["last_error"]), (200, &json!(1), &Value::Null));
    assert!(page["hash"].as_str().unwrap().len() >= 16);
}
