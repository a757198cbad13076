//! Keys and values that are not UTF-8: decided and counted as bytes over every door, and shown escaped.

use std::fs;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tollgate::api::json::request_text;
use tollgate_wire::proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
    },
    tollgate::v1,
};
use tonic::Request;

use crate::{
    admin::{admin_with, ok_json, record::Recording},
    api_v1,
    harness::Service,
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 2, algorithm: fixed_window}
  - key: address
    rate_limit: {unit: day, requests_per_unit: 5, algorithm: fixed_window}
";

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const BYTE: &[u8] = b"caf\xe9";
const SPELLED: &[u8] = br"caf\xE9";
/// Both as they are shown.
const SHOWN: [&str; 2] = [r"user=caf\xE9", r"user=caf\\xE9"];

fn descriptor(key: &str, value: &[u8]) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    RateLimitDescriptor { entries, ..Default::default() }
}

/// Whether calls with these values pass, one after the other.
async fn passes(service: &Service, values: &[&[u8]]) -> Vec<bool> {
    let mut client = service.client().await;
    let mut all = Vec::new();
    for value in values {
        let request = RateLimitRequest {
            domain: "shop".into(),
            descriptors: vec![descriptor("user", value), descriptor("address", b"10.0.0.1")],
            hits_addend: 0,
        };
        let answer = client.should_rate_limit(request).await.unwrap().into_inner();
        all.push(answer.overall_code() == Code::Ok);
    }
    all
}

async fn checked(service: &Service, user: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    let head = b"POST /check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-user: ";
    stream.write_all(&[head, user, b"\r\n\r\n"].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer)[9..12].parse().unwrap()
}

#[tokio::test]
async fn value_beyond_utf8_is_limited_over_every_door() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user={x-user}")];
    for value in [BYTE, b"\xff", b"a\x00b\xc3", b"\xed\xa0\x80"] {
        let service = Service::start_with(RULES, &check).await;
        assert_eq!(passes(&service, &[value; 4]).await, [true, true, false, false]);
        if !value.contains(&0) {
            assert_eq!(checked(&service, value).await, 429, "it is the same counter");
        }
        let mut client = api_v1::client(&service).await;
        let entries = vec![v1::Entry { key: "user".into(), value: value.into() }];
        let descriptors = vec![v1::Descriptor { entries, ..Default::default() }];
        let request = v1::Request { domain: "shop".into(), descriptors, ..Default::default() };
        let call = v1::CheckRequest { requests: vec![request], mode: 0 };
        let answers = client.check(call).await.unwrap().into_inner().answers;
        assert_eq!(answers[0].verdict(), v1::answer::Verdict::Denied);
    }
}

#[tokio::test]
async fn other_limits_of_a_call_beyond_utf8_hold() {
    let service = Service::start(RULES).await;
    let values: Vec<[u8; 1]> = (0..30).map(|number| [0xe0 + number]).collect();
    let values: Vec<&[u8]> = values.iter().map(|value| &value[..]).collect();
    let passed = passes(&service, &values).await;
    assert_eq!(passed.iter().filter(|passes| **passes).count(), 5, "of the address");
}

#[tokio::test]
async fn byte_and_its_escaped_text_have_their_own_counters() {
    let service = Service::start(RULES).await;
    let values = [BYTE, SPELLED, b"caf\xe8", "café".as_bytes()];
    assert_eq!(passes(&service, &values).await, [true; 4]);
    for key in [SHOWN[0], SHOWN[1], r"user=caf\xE8", "user=café"] {
        let path = format!("/counters?domain=shop&key={}", encoded(key));
        assert_eq!(ok_json(&service, "GET", &path, "").await["remaining"], 1, "{key}");
    }
    // JSON is not escaped.
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "caf\\xE9"}]}]}"#;
    let explained = ok_json(&service, "POST", "/explain", body).await;
    assert_eq!(explained["descriptors"][0]["descriptor"], SHOWN[1]);
    assert_eq!(explained["descriptors"][0]["counter"]["before"]["remaining"], 1);
}

#[tokio::test]
async fn explain_counters_and_reset_reach_a_counter_of_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret\n").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    assert_eq!(passes(&service, &[BYTE, SPELLED, SPELLED]).await, [true; 3]);
    for (key, left) in SHOWN.into_iter().zip([1, 0]) {
        let path = format!("/explain?domain=shop&key={}", encoded(key));
        let (code, body) = admin_with(&service, "authorization: Bearer secret\r\n", "GET", &path, "").await;
        assert_eq!(code, 200, "{body}");
        let explained = &serde_json::from_str::<Value>(&body).unwrap()["descriptors"][0];
        assert_eq!(explained["descriptor"], key);
        assert_eq!(explained["counter"]["before"]["remaining"], left);
    }
    let mut client = api_v1::client(&service).await;
    let mut reset = async |value: &str| {
        let descriptors = vec![api_v1::descriptor("user", value)];
        let mut request = Request::new(v1::ResetRequest { domain: "shop".into(), descriptors });
        request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        client.reset(request).await.map(|response| response.into_inner().counters[0].remaining_before)
    };
    assert_eq!(reset(r"caf\xE9").await.unwrap(), 1);
    assert_eq!(reset(r"caf\xE9").await.unwrap(), 2, "it is reset");
    assert_eq!(reset(r"caf\\xE9").await.unwrap(), 0);
    let error = reset(r"caf\d").await.unwrap_err();
    assert_eq!(api_v1::reason_of(&error), "NOT_ESCAPED");
}

#[tokio::test]
async fn bytes_are_shown_escaped_wherever_text_is_needed() {
    let service = Service::start_with(RULES, &[("api.dynamic_metadata", "true")]).await;
    let mut client = service.client().await;
    for value in [BYTE, SPELLED] {
        for _ in 0..3 {
            let descriptors = vec![descriptor("user", value)];
            let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 };
            // `prost` reads no text that is not UTF-8.
            let answer = client.should_rate_limit(request).await.unwrap().into_inner();
            let metadata = format!("{:?}", answer.dynamic_metadata.unwrap());
            let shown = SHOWN[usize::from(value == SPELLED)];
            assert!(metadata.contains(&format!("{shown:?}")), "{metadata}");
        }
    }
    let top = ok_json(&service, "GET", "/top", "").await;
    let keys: Vec<_> = top["denied"].as_array().unwrap().iter().map(|key| &key["key"]).collect();
    assert_eq!(keys.len(), 2);
    for shown in SHOWN {
        assert!(keys.iter().any(|key| **key == format!("shop {shown}")), "{keys:?}");
    }
    let page = crate::metrics::page(&service).await;
    // The page of metrics escapes each backslash again.
    for value in [r#"user_caf\\xE9""#, r#"user_caf\\\\xE9""#] {
        assert!(page.contains(value), "{value}: {page}");
    }
}

#[tokio::test]
async fn recording_of_bytes_is_read_back_by_its_escapes() {
    let service = Service::start_with(RULES, &[("admin.record", "plain")]).await;
    let recording = Recording::start(&service, "seconds=60&values=plain").await;
    assert_eq!(passes(&service, &[BYTE, SPELLED]).await, [true; 2]);
    service.terminate().await;
    let lines = recording.ended().await;
    let entry =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["descriptors"][0]["entries"][0].clone();
    assert_eq!(entry(&lines[0]), json!({"key": "user", "value": r"caf\xE9", "escaped": true}));
    assert_eq!(entry(&lines[1]), json!({"key": "user", "value": r"caf\xE9"}));
}

/// Whatever operators choose stays within the bounds: domain, keys, and the number of entries.
#[tokio::test]
async fn no_text_of_a_client_makes_a_call_an_error() {
    let service = Service::start(RULES).await;
    let mut client = service.client().await;
    let long = "x".repeat(60 * 1024);
    for value in ["", "a\0b", "\\{\"},=;\r\n", "\u{202e}", "\u{10ffff}", &long] {
        // Equal descriptors, in as many calls as Envoy can make of headers of 60 KiB, and more hits than any limit.
        let same = descriptor("user", value.as_bytes());
        let mut many = descriptor("user", value.as_bytes());
        many.hits_addend = Some(u64::MAX);
        let descriptors = [vec![same; 60], vec![many]].concat();
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: u32::MAX };
        let mut call = Request::new(request.clone());
        // What Envoy passes on of the headers of a request if it traces.
        for (name, value) in [("traceparent", PARENT), ("tracestate", &format!("a={long}"))] {
            call.metadata_mut().insert(name, value.parse().unwrap());
        }
        let answer = client.should_rate_limit(call).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), Code::OverLimit, "{}", value.escape_debug());
        let entries = vec![v1::Entry { key: "user".into(), value: value.into() }];
        let descriptors = vec![v1::Descriptor { entries, ..Default::default() }; 61];
        let own = v1::Request { domain: "shop".into(), descriptors, hits: u64::MAX, ..Default::default() };
        let [answer] = &*api_v1::check(&service, api_v1::each(vec![own])).await else { panic!("one answer") };
        assert_eq!(answer.error, None, "{}", value.escape_debug());
        let (code, body) = service.http("POST", "/json", &request_text(&request).unwrap()).await;
        assert_eq!(code, 429, "{}: {body}", value.escape_debug());
    }
}

/// Percent-encoded.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
