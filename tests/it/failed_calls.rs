//! Calls that are answered with an error are counted, logged and found by `doctor`.

use prost::Message as _;
use serde_json::Value;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::RateLimitRequest,
};
use tonic::Code;

use crate::{
    frames::{METHOD, framed},
    harness::{Service, http, request, request_for},
    hostile_clients::RULES,
    malformed_messages::{CallBody, status_of},
    metrics::{page, value},
};

const V2: &str = "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit";

fn with_unknown_unit() -> RateLimitRequest {
    let mut request = request_for("shop", "user", "ann");
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 99 });
    request
}

/// The findings of failed calls.
async fn found(service: &Service) -> Vec<String> {
    let (_, report) = http(service.addresses.admin, "GET", "/doctor", "").await.unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let failed = findings.filter(|finding| finding["id"] == "failed_calls");
    failed.map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn failed_calls_are_counted_by_method_and_reason_and_found() {
    let service = Service::start(RULES).await;
    assert_eq!(found(&service).await, Vec::<String>::new());
    let valid = || CallBody::Whole(framed(&request_for("shop", "user", "ann")));
    assert_eq!(status_of(&service, METHOD, "identity", valid()).await, Code::Ok);
    for _ in 0..3 {
        let error = service.call(request("shop", Vec::new())).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
    assert!(service.call(with_unknown_unit()).await.is_err());
    assert_eq!(status_of(&service, METHOD, "gzip", valid()).await, Code::Unimplemented);
    assert_eq!(status_of(&service, V2, "identity", valid()).await, Code::Unimplemented);
    assert_eq!(status_of(&service, "/any/Method", "identity", valid()).await, Code::Unimplemented);
    let cut = CallBody::Whole(request_for("shop", "user", "ann").encode_to_vec());
    assert_ne!(status_of(&service, METHOD, "identity", cut).await, Code::Ok);
    assert_eq!(service.http("POST", "/v1/check", "{").await.0, 400);

    let page = page(&service).await;
    for (method, reason, calls) in [
        (METHOD, "NO_DESCRIPTORS", 3.0),
        (METHOD, "UNKNOWN_UNIT", 1.0),
        (METHOD, "COMPRESSED", 1.0),
        (V2, "UNKNOWN_METHOD", 1.0),
        ("other", "UNKNOWN_METHOD", 1.0),
        ("/v1/check", "MALFORMED", 1.0),
    ] {
        let series = format!(r#"tollgate_failed_calls_total{{method="{method}",reason="{reason}"}}"#);
        assert_eq!(value(&page, &series), calls, "{series}");
    }
    let found = found(&service).await;
    let of =
        |code: &str| found.iter().find(|what| what.contains(code)).unwrap_or_else(|| panic!("{found:?}"));
    let invalid = of("INVALID_ARGUMENT");
    for part in [
        "calls in the last minute were answered",
        "NO_DESCRIPTORS (3 of",
        "from 127.0.0.1",
        "failure_mode_deny",
    ] {
        assert!(invalid.contains(part), "{invalid}");
    }
    assert!(of("UNIMPLEMENTED").contains(V2));
}
