//! `tollgate doctor`: what the alerts of docs/metrics.md find, in the state of a running server.

use std::fs;

use serde_json::Value;
use tokio::net::TcpListener;

use crate::{
    certificates::{Authority, Files, borrowed},
    doctor::{RULES, findings, ids, only, run, until_found, what},
    harness::{Service, http, until},
    program::Program,
};

#[tokio::test]
async fn failed_accepts_and_full_listeners_are_found_by_listener() {
    let service = Service::start(RULES).await;
    service.counters.grpc.accept_errors.add(3);
    let found = only(&service, "accept_errors").await;
    assert!(what(&found).ends_with(": grpc (3)"), "{found}");
    assert!(found["repair"].as_str().unwrap().contains("TollgateAcceptErrors in docs/metrics.md"), "{found}");
    service.counters.http.refused_full.increase();
    let found = findings(&service).await;
    assert_eq!(ids(&found), ["accept_errors", "connections_refused"]);
    assert!(what(&found[1]).ends_with(": http (1)"), "{found:?}");
}

#[tokio::test]
async fn certificate_renewal_that_failed_is_found_until_it_succeeds() {
    let authority = Authority::new("ca");
    let files = Files::new(&authority.server());
    let of_files = files.settings("grpc");
    let settings = [&borrowed(&of_files)[..], &[("tls.poll_interval", "50ms")]].concat();
    let service = Service::start_with(RULES, &settings).await;
    assert!(findings(&service).await.is_empty());
    files.write("tls.crt", "not a certificate");
    let found = until_found(&service, ["certificate_refused"]).await;
    assert!(what(&found[0]).ends_with(": grpc"), "{found:?}");
    files.replace(&authority.server());
    until_found(&service, []).await;
    files.write("tls.crt", "not a certificate");
    until_found(&service, ["certificate_refused"]).await;
}

#[tokio::test]
async fn rules_without_file_events_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/rules.yaml");
    let settings = [("rules.path", path.to_str().unwrap()), ("rules.required", "false")];
    let service = Service::start_unready(RULES, &settings).await;
    let found = until_found(&service, ["no_rules", "rule_problems", "rules_polled_only"]).await;
    assert!(what(&found[2]).contains("missing/rules.yaml"), "{found:?}");
    fs::create_dir(folder.path().join("missing")).unwrap();
    fs::write(&path, RULES).unwrap();
    until_found(&service, []).await;
}

#[tokio::test]
async fn lost_control_plane_is_found_beside_missing_rules() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let settings = [("rules.source", "xds"), ("rules.path", "off"), ("rules.xds.url", &*url)];
    let service = Service::start_unready(RULES, &settings).await;
    let found = until_found(&service, ["no_rules", "control_plane_lost"]).await;
    assert!(found[0]["repair"].as_str().unwrap().contains(&url), "{found:?}");
}

#[tokio::test]
async fn member_that_died_is_found_and_one_that_left_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "a secret that replicas share").unwrap();
    let start = async |seed: &str| {
        let secret = secret.to_str().unwrap();
        let flags =
            ["--cluster-listen", "127.0.0.1:0", "--cluster-secret-file", secret, "--cluster-seed", seed];
        Program::start(RULES, &flags).await
    };
    let view = async |program: &Program| {
        let (_, view) = http(program.admin, "GET", "/cluster", "").await.unwrap();
        serde_json::from_str::<Value>(&view).unwrap()
    };
    let settled = async |program: &Program, members: usize| {
        until(async || {
            let view = view(program).await;
            let is_serving = |member: &&Value| member["state"] == "serving";
            let serving = view["members"].as_array().unwrap().iter().filter(is_serving).count();
            (serving == members && view["moving"] == 0).then_some(())
        })
        .await;
    };
    let found = async |program: &Program| {
        let output = run(&["--to", &program.admin.to_string(), "--json"]).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["findings"].as_array().unwrap().clone()
    };
    let first = start("off").await;
    settled(&first, 1).await;
    let seed = view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = start(&seed).await;
    settled(&first, 2).await;
    second.signal("TERM").await;
    let departed = async |how: &str| {
        until(async || {
            let view = view(&first).await;
            view["members"].as_array().unwrap().iter().any(|member| member["departure"] == how).then_some(())
        })
        .await;
    };
    departed("left").await;
    settled(&first, 1).await;
    let after = found(&first).await;
    assert!(!ids(&after).contains(&"member_died"), "{after:?}");
    let third = start(&seed).await;
    settled(&first, 2).await;
    third.signal("KILL").await;
    departed("died").await;
    let after = found(&first).await;
    let died = after.iter().find(|finding| finding["id"] == "member_died").unwrap();
    assert!(what(died).contains(" died ") && what(died).ends_with(" s ago"), "{died}");
}
