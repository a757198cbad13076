//! Requests that are refused for their content or size are refused alike by every API.

use prost::Message;
use serde_json::Value;
use tollgate::api::json::request_text;
use tollgate_counter::descriptor::escaped;
use tollgate_wire::proto::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
        service::ratelimit::v3::RateLimitRequest,
    },
    tollgate::v1::{CancelRequest, Request, ReserveRequest, SettleRequest},
};
use tonic::Code;

use crate::{
    api_v1::{self, each},
    harness::{Service, descriptor, http, request, request_for},
};

const RULES: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}
";

const BOUNDS: [(&str, &str); 2] = [("api.max_descriptors", "2"), ("api.max_entries", "3")];

fn entries(number: usize) -> RateLimitDescriptor {
    descriptor(&vec![("user", "x"); number])
}

fn with_unit(unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 5, unit }),
        ..descriptor(&[("user", "x")])
    }
}

/// Every kind of bad request, with a part of the reason.
fn bad_requests() -> Vec<(RateLimitRequest, &'static str)> {
    vec![
        (request_for("", "user", "x"), "the domain of the request is empty"),
        (request("shop", Vec::new()), "the request has no descriptors"),
        (request("", Vec::new()), "the domain of the request is empty"),
        (request("shop", vec![with_unit(0)]), "descriptors[0].limit.unit: 0 is not a unit"),
        (request("shop", vec![entries(1), with_unit(8)]), "descriptors[1].limit.unit: 8 is not a unit"),
        (request("shop", vec![with_unit(-1)]), "descriptors[0].limit.unit: -1 is not a unit"),
        (request("other", vec![with_unit(i32::MAX)]), "descriptors[0].limit.unit"),
        (request("shop", vec![entries(1); 3]), "the request has more than 2 descriptors"),
        (request("shop", vec![entries(1), entries(4)]), "descriptors[1] has more than 3 entries"),
    ]
}

/// The request as a query of `/explain`, which has no overrides.
fn query(request: &RateLimitRequest) -> Option<String> {
    let mut query = format!("/explain?domain={}", request.domain);
    for descriptor in &request.descriptors {
        let entries = descriptor
            .entries
            .iter()
            .map(|entry| format!("{}%3D{}", escaped(&entry.key), escaped(&entry.value)));
        query += &format!("&key={}", entries.collect::<Vec<_>>().join(","));
    }
    request.descriptors.iter().all(|descriptor| descriptor.limit.is_none()).then_some(query)
}

/// The errors of our own API, over gRPC and in JSON. Its requests have the same fields.
async fn errors_of_v1(service: &Service, request: &RateLimitRequest) -> [String; 2] {
    let own = Request::decode(&*request.encode_to_vec()).unwrap();
    let error = api_v1::check(service, each(vec![own])).await.remove(0).error.unwrap();
    assert_eq!(error.code, i32::from(Code::InvalidArgument));
    let body = format!("{{\"requests\": [{}]}}", request_text(request).unwrap());
    let (_, answer) = service.http("POST", "/v1/check", &body).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    // A request that is too large is not built, so the call as a whole is refused, and its error names the request.
    let error_in_json = answer.pointer("/answers/0/error").unwrap_or(&answer);
    assert_eq!(error_in_json["code"], error.code);
    let message_in_json = error_in_json["message"].as_str().unwrap();
    [error.message, message_in_json.trim_start_matches("requests[0]: ").to_owned()]
}

/// The errors of calls for reservations, over gRPC and in JSON. Their requests begin with the same fields.
async fn errors_of_reservations(service: &Service, request: &RateLimitRequest) -> Vec<String> {
    let mut client = api_v1::client(service).await;
    let (message, reservation_id) = (&*request.encode_to_vec(), "a".to_owned());
    let reserve = ReserveRequest::decode(message).unwrap();
    let settle =
        SettleRequest { reservation_id: reservation_id.clone(), ..SettleRequest::decode(message).unwrap() };
    let cancel = CancelRequest { reservation_id, ..CancelRequest::decode(message).unwrap() };
    let refused = [
        client.reserve(reserve).await.unwrap_err(),
        client.settle(settle).await.unwrap_err(),
        client.cancel(cancel).await.unwrap_err(),
    ];
    let mut errors = refused.map(|error| error.message().to_owned()).to_vec();
    for path in ["/v1/reserve", "/v1/settle", "/v1/cancel"] {
        let mut body: Value = serde_json::from_str(&request_text(request).unwrap()).unwrap();
        if path != "/v1/reserve" {
            body["reservationId"] = "a".into();
        }
        let (code, answer) = service.http("POST", path, &body.to_string()).await;
        assert_eq!(code, 400, "{path}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        errors.push(answer["message"].as_str().unwrap().to_owned());
    }
    errors
}

#[tokio::test]
async fn bad_request_is_refused_alike_by_every_api() {
    let service = Service::start_with(RULES, &BOUNDS).await;
    for (bad, reason) in bad_requests() {
        let refused = service.call(bad.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(reason), "{refused}");
        let body = request_text(&bad).unwrap();
        let mut calls = vec![
            (service.addresses.http, "POST", "/json".to_owned(), body.as_str()),
            (service.addresses.admin, "POST", "/explain".to_owned(), body.as_str()),
        ];
        calls.extend(query(&bad).map(|query| (service.addresses.admin, "GET", query, "")));
        for (address, method, path, body) in calls {
            let (code, answer) = http(address, method, &path, body).await.unwrap();
            assert_eq!(code, 400, "{method} {path} {body}: {answer}");
            assert_eq!(answer.trim_end(), refused.message(), "{method} {path} {body}");
        }
        assert_eq!(errors_of_v1(&service, &bad).await, [refused.message(); 2]);
        assert_eq!(errors_of_reservations(&service, &bad).await, [refused.message(); 6]);
    }
    let page = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().1;
    let invalid = 10 * bad_requests().len();
    let counted = format!("tollgate_unanswered_requests_total{{reason=\"invalid\"}} {invalid}\n");
    assert!(page.contains(&counted), "over gRPC and in JSON, by every call: {page}");
}

#[tokio::test]
async fn request_at_the_bounds_is_answered_by_every_api() {
    let service = Service::start_with(RULES, &BOUNDS).await;
    let largest = request("shop", vec![entries(3), entries(3)]);
    let body = request_text(&largest).unwrap();
    let own = Request::decode(&*largest.encode_to_vec()).unwrap();
    assert_eq!(api_v1::check(&service, each(vec![own])).await[0].error, None);
    assert!(service.call(largest).await.is_ok());
    assert_eq!(http(service.addresses.http, "POST", "/json", &body).await.unwrap().0, 200);
    assert_eq!(http(service.addresses.admin, "POST", "/explain", &body).await.unwrap().0, 200);
}
