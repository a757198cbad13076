//! `tollgate doctor --envoy`: faults in the configuration of an Envoy, alone and together with the rules.

use std::{fs, process::Output};

use serde_json::Value;

use crate::{
    doctor::{doctor, ids, what},
    harness::Service,
};

const RULES: &str = include_str!("../../../deploy/rules/example.yaml");
const ENVOY: &str = include_str!("../../../deploy/envoy/envoy.yaml");
const MODELS: &str = "
domain: models
descriptors:
  - {key: connection, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: team
    rate_limit: {unit: minute, requests_per_unit: 100, algorithm: fixed_window}
";

/// The output for a server and a configuration with this text.
async fn examined(service: &Service, envoy: &str, arguments: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), envoy).unwrap();
    doctor(service, &[&["--envoy", file.path().to_str().unwrap()], arguments].concat()).await
}

/// The exit code and the findings.
async fn found(service: &Service, envoy: &str) -> (Option<i32>, Vec<Value>) {
    let output = examined(service, envoy, &["--json"]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code(), report["findings"].as_array().unwrap().clone())
}

/// The text of a file of `tests/fixtures/envoy`.
macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../fixtures/envoy/", $name))
    };
}

#[tokio::test]
async fn example_configuration_and_rules_have_advice_only() {
    let service = Service::start(RULES).await;
    let (code, findings) = found(&service, ENVOY).await;
    assert_eq!(code, Some(0), "{findings:?}");
    assert_eq!(ids(&findings), ["never_passes", "envoy_failure_mode", "envoy_optional_entry"]);
    assert!(findings.iter().all(|finding| finding["level"] == "advice"), "{findings:?}");
    let accept =
        ["--accept", "never_passes", "--accept", "envoy_failure_mode", "--accept", "envoy_optional_entry"];
    let output = examined(&service, ENVOY, &accept).await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "errors: 0, warnings: 0, advice: 0, accepted: 3\n");
}

#[tokio::test]
async fn accepted_warning_does_not_change_the_exit_code() {
    let service = Service::start(RULES).await;
    let missing = ENVOY.replace("cluster_name: tollgate }", "cluster_name: elsewhere }");
    assert_eq!(examined(&service, &missing, &[]).await.status.code(), Some(1));
    let accepted = examined(&service, &missing, &["--accept", "envoy_cluster_missing"]).await;
    assert_eq!(accepted.status.code(), Some(0), "{accepted:?}");
}

#[tokio::test]
async fn envoy_configuration_is_compared_with_the_server() {
    let service = Service::start(RULES).await;
    let output = examined(&service, &ENVOY.replace("domain: edge", "domain: edgy"), &[]).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("warning envoy_unknown_domain: ") && text.contains("\n  repair: "), "{text}");
    let output = examined(&service, "{", &[]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--envoy: "));
}

#[tokio::test]
async fn header_that_clients_can_leave_out_is_found_in_envoy() {
    let service = Service::start(RULES).await;
    let found = async |envoy: &str| {
        let (code, mut findings) = found(&service, envoy).await;
        findings.retain(|finding| finding["id"] == "envoy_optional_entry");
        (code, findings)
    };
    // Another descriptor of the same list is sent for every request.
    let (code, findings) = found(ENVOY).await;
    assert_eq!((code, findings.len()), (Some(0), 1), "{findings:?}");
    assert_eq!(findings[0]["level"], "advice");
    assert!(what(&findings[0]).contains(": header \"user-agent\" of (user_agent) at "), "{findings:?}");
    let (code, findings) = found(&ENVOY.replace("skip_if_absent: true", "skip_if_absent: false")).await;
    assert_eq!((code, findings.len()), (Some(1), 2), "{findings:?}");
    assert_eq!(findings[0]["level"], "warning");
    assert!(what(&findings[0]).contains(": header \"x-account\" of (route)(account) at "), "{findings:?}");
    assert!(what(&findings[1]).contains(", header \"x-team\" of (model_tokens)(team) at "), "{findings:?}");
}

#[tokio::test]
async fn token_budget_that_never_ends_is_found_until_its_rule_counts_all() {
    let service = Service::start(MODELS).await;
    let of_budget = async || {
        let (code, mut findings) = found(&service, fixture!("token_budget.yaml")).await;
        findings.retain(|finding| finding["id"] == "envoy_budget_never_ends");
        (code, findings)
    };
    let (code, findings) = of_budget().await;
    assert_eq!((code, findings.len()), (Some(1), 1));
    assert_eq!(findings[0]["level"], "error");
    assert!(what(&findings[0]).contains(" reaches models.team at "), "{findings:?}");
    assert!(findings[0]["repair"].as_str().unwrap().contains("`count_denied: true`"), "{findings:?}");
    for repair in ["algorithm: fixed_window, count_denied: true", "algorithm: fixed_window, overdraft: true"]
    {
        let rules = MODELS.replace("algorithm: fixed_window", repair);
        let service = Service::start(&rules).await;
        let (_, findings) = found(&service, fixture!("token_budget.yaml")).await;
        assert!(!ids(&findings).contains(&"envoy_budget_never_ends"), "{findings:?}");
    }
}

#[tokio::test]
async fn misspelt_texts_of_a_network_filter_are_found_with_what_they_mean() {
    let service = Service::start(MODELS).await;
    let (code, findings) = found(&service, fixture!("tcp_misspelt.yaml")).await;
    assert_eq!(code, Some(1));
    let expected = ["envoy_cluster_without_http2", "envoy_unmatched_descriptor", "envoy_unknown_domain"];
    assert_eq!(ids(&findings), expected, "{findings:?}");
    assert!(what(&findings[1]).contains(": (conection=established) at "), "{findings:?}");
    let meant = " in domain \"models\", did you mean \"connection\"?";
    assert!(what(&findings[1]).ends_with(meant), "{findings:?}");
    assert!(what(&findings[2]).ends_with("; did you mean \"models\"?"), "{findings:?}");
}

#[tokio::test]
async fn envoy_filters_of_istio_are_examined_together() {
    let service = Service::start(MODELS).await;
    let (code, findings) = found(&service, fixture!("istio_filter.yaml")).await;
    assert_eq!(code, Some(0), "{findings:?}");
    assert_eq!(ids(&findings), ["envoy_cluster_missing", "envoy_without_descriptors"]);
    assert!(findings[0]["repair"].as_str().unwrap().contains("appProtocol"), "{findings:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), fixture!("istio_routes.yaml")).unwrap();
    let both = ["--envoy", file.path().to_str().unwrap(), "--json"];
    let output = examined(&service, fixture!("istio_filter.yaml"), &both).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(ids(findings), ["envoy_unmatched_descriptor", "envoy_cluster_missing"], "{findings:?}");
    let place = format!("(paths) at {}:", file.path().display());
    assert!(what(&findings[0]).contains(&place), "{findings:?}");
    assert!(what(&findings[0]).contains(" in domain \"models\""), "{findings:?}");
}
