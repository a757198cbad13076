//! `tollgate doctor --envoy`: faults in the configuration of an Envoy.

use std::fs;

use serde_json::Value;

use crate::{
    doctor::{RULES, doctor, what},
    harness::Service,
};

#[tokio::test]
async fn envoy_configuration_is_compared_with_the_server() {
    let service = Service::start(RULES).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    let envoy = include_str!("../../../deploy/envoy/envoy.yaml");
    fs::write(&file, envoy).unwrap();
    let output = doctor(&service, &["--envoy", file.to_str().unwrap()]).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("warning envoy_unknown_domain: ") && text.contains("\n  repair: "), "{text}");
    fs::write(&file, envoy.replace("domain: edge", "domain: shop")).unwrap();
    let output = doctor(&service, &["--envoy", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(1), "clients write headers, and errors pass: {output:?}");
    let closed = envoy
        .replace("domain: edge", "domain: shop")
        .replace("failure_mode_deny: false", "failure_mode_deny: true");
    fs::write(&file, closed).unwrap();
    let output = doctor(&service, &["--envoy", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "advice is no fault: {output:?}");
    fs::write(&file, "{").unwrap();
    let output = doctor(&service, &["--envoy", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--envoy: "));
}

#[tokio::test]
async fn header_that_clients_can_leave_out_is_found_in_envoy() {
    let service = Service::start(&RULES.replace("shop", "edge")).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    let envoy = include_str!("../../../deploy/envoy/envoy.yaml")
        .replace("failure_mode_deny: false", "failure_mode_deny: true");
    let found = async |envoy: &str| {
        fs::write(&file, envoy).unwrap();
        let output = doctor(&service, &["--envoy", file.to_str().unwrap(), "--json"]).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let mut findings = report["findings"].as_array().unwrap().clone();
        findings.retain(|finding| finding["id"] == "envoy_optional_entry");
        (output.status.code(), findings)
    };
    // Another descriptor of the same list is sent for every request.
    let (code, findings) = found(&envoy).await;
    assert_eq!((code, findings.len()), (Some(0), 1), "{findings:?}");
    assert_eq!(findings[0]["level"], "advice");
    assert!(what(&findings[0]).ends_with(": header \"user-agent\" of (user_agent)"), "{findings:?}");
    let (code, findings) = found(&envoy.replace("skip_if_absent: true", "skip_if_absent: false")).await;
    assert_eq!((code, findings.len()), (Some(1), 2), "{findings:?}");
    assert_eq!(findings[0]["level"], "warning");
    assert!(what(&findings[0]).ends_with(": header \"x-account\" of (route)(account)"), "{findings:?}");
    assert!(what(&findings[1]).ends_with(", header \"x-team\" of (model_tokens)(team)"), "{findings:?}");
}
