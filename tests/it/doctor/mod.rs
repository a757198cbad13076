//! `tollgate doctor`, by running the program against servers with one fault each.

use std::{fs, process::Output, time::Duration};

use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, time::timeout};
use tollgate_counter::time::Timestamp;

use crate::{
    certificates::{Authority, Files, borrowed},
    harness::{
        Service, TIMEOUT, cluster_view, descriptor, http, is_store_in_memory, request, request_for, until,
        until_linked, with_hits,
    },
    program::{PROGRAM, Program},
};

mod alerts;
mod envoy;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
";

async fn doctor(service: &Service, arguments: &[&str]) -> Output {
    run(&[&["--to", &service.addresses.admin.to_string()], arguments].concat()).await
}

async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("doctor").args(arguments).kill_on_drop(true);
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap()
}

/// All findings, whose number agrees with the exit code.
async fn findings(service: &Service) -> Vec<Value> {
    let output = doctor(service, &["--json"]).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let findings = report["findings"].as_array().unwrap().clone();
    let is_sound = findings.iter().all(|finding| finding["level"] == "advice");
    assert_eq!(output.status.code(), Some(i32::from(!is_sound)), "{report}");
    findings
}

fn ids(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["id"].as_str().unwrap()).collect()
}

fn what(finding: &Value) -> &str {
    assert!(!finding["repair"].as_str().unwrap().is_empty());
    finding["what"].as_str().unwrap()
}

/// The findings, once they are exactly these.
async fn until_found<const N: usize>(service: &Service, expected: [&str; N]) -> Vec<Value> {
    until(async || {
        let found = findings(service).await;
        (ids(&found) == expected).then_some(found)
    })
    .await
}

/// The only finding.
async fn only(service: &Service, id: &str) -> Value {
    let mut findings = findings(service).await;
    assert_eq!(ids(&findings), [id], "{findings:?}");
    findings.remove(0)
}

#[tokio::test]
async fn sound_server_has_no_findings() {
    let service = Service::start(RULES).await;
    service.call(request_for("shop", "user", "ann")).await.unwrap();
    let output = doctor(&service, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "nothing found\n");
}

#[tokio::test]
async fn server_without_rules_names_the_problems_of_its_files() {
    let service = Service::start_unready("domain: shop\ndescriptor: []\n", &[]).await;
    // A shared store is a finding too until it is connected.
    let found = until_found(&service, ["no_rules", "rule_problems"]).await;
    assert!(what(&found[1]).contains("rules.yaml:2:1: "), "{}", found[1]);
    assert_eq!(found[0]["level"], "error");
}

#[tokio::test]
async fn broken_reload_is_found_beside_active_rules() {
    let service = Service::start(RULES).await;
    fs::write(service.rules.path().join("rules.yaml"), "domain: ''\n").unwrap();
    until_found(&service, ["rule_problems"]).await;
}

#[tokio::test]
async fn unknown_domain_is_named_until_rules_have_it() {
    let service = Service::start(RULES).await;
    for domain in ["edge", "edge", "web"] {
        service.call(request_for(domain, "user", "ann")).await.unwrap();
    }
    let finding = only(&service, "unknown_domain").await;
    assert!(what(&finding).contains("\"edge\", \"web\" (3 such requests"), "{finding}");
    assert!(finding["repair"].as_str().unwrap().ends_with("the rules have \"shop\""), "{finding}");
    for domain in ["edge", "web"] {
        let rules = RULES.replace("domain: shop", &format!("domain: {domain}"));
        fs::write(service.rules.path().join(format!("{domain}.yaml")), rules).unwrap();
    }
    until_found(&service, []).await;
}

#[tokio::test]
async fn unmatched_descriptors_are_shown_by_their_keys() {
    let service = Service::start(RULES).await;
    for value in ["/a", "/b"] {
        let path = descriptor(&[("user", "ann"), ("path", value)]);
        service.call(request("shop", vec![path])).await.unwrap();
    }
    let finding = only(&service, "unmatched_descriptor").await;
    assert!(what(&finding).contains("for example \"shop\" user=ann,path=/a (2 descriptors"), "{finding}");
    assert!(finding["repair"].as_str().unwrap().contains("tollgate explain 'shop' 'user=ann,path=/a'"));
}

#[tokio::test]
async fn printed_command_is_safe_in_a_shell_and_on_a_terminal() {
    let service = Service::start(RULES).await;
    let folder = tempfile::tempdir().unwrap();
    let value = "x'; touch owned; echo '\x1b]0;t\x07\r\u{9b}2J\u{202e}";
    let path = descriptor(&[("user", "ann"), ("path", value)]);
    service.call(request("shop", vec![path])).await.unwrap();
    let hidden = |text: &str| text.replace('\n', "").contains(|c: char| c.is_control() || c == '\u{202e}');
    let output = String::from_utf8(doctor(&service, &[]).await.stdout).unwrap();
    assert!(!hidden(&output), "{output:?}");
    let json = String::from_utf8(doctor(&service, &["--json"]).await.stdout).unwrap();
    assert!(!hidden(&json), "{json:?}");

    let command = output.split('`').find(|part| part.starts_with("tollgate explain")).unwrap();
    let to = format!("--to {} ", service.addresses.admin);
    let command = command.replace("tollgate explain", &format!("{PROGRAM} explain --json {to}"));
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &command]).current_dir(folder.path());
    let explained = timeout(TIMEOUT, shell.output()).await.unwrap().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{command}");
    let answer: Value = serde_json::from_slice(&explained.stdout).unwrap_or_else(|_| panic!("{explained:?}"));
    let same = r"user=ann,path=x'; touch owned; echo '\u{1b}]0;t\u{7}\r\u{9b}2J\u{202e}";
    assert_eq!(answer["descriptors"][0]["descriptor"], same);
}

#[tokio::test]
async fn faults_in_rules_are_found_with_their_places() {
    let each = [
        ("{key: a, rate_limit: {unit: day, requests_per_unit: 0}}", "never_passes"),
        ("{key: a, rate_limit: {unit: second, requests_per_unit: 4000000000}}", "never_refuses"),
        ("{key: a, shadow_mode: true}", "rule_warnings"),
    ];
    for (rule, id) in each {
        let service = Service::start(&format!("{RULES}  - {rule}\n")).await;
        let finding = only(&service, id).await;
        assert!(what(&finding).contains("rules.yaml:5:"), "{finding}");
    }
    let pattern = |value| {
        format!("  - {{key: p, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 9}}}}\n")
    };
    let service =
        Service::start(&(RULES.to_owned() + &pattern("/a*") + &pattern("/a*/b*") + &pattern("/*"))).await;
    let finding = only(&service, "never_applies").await;
    assert!(what(&finding).contains("p_/a*/b* (") && !what(&finding).contains("p_/* ("), "{finding}");
    let service = Service::start("domain: shop\ndescriptors: [{key: user}]\n").await;
    only(&service, "no_limits").await;
}

#[tokio::test]
async fn rule_that_looks_up_limits_without_a_source_is_found() {
    const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per_user, unit: day, requests_per_unit: 3, own: {from: source}}}
";
    let service = Service::start(RULES).await;
    let finding = only(&service, "no_limits_source").await;
    assert!(what(&finding).contains("per_user"), "{finding}");
    let url = ("limits.url", "http://127.0.0.1:1/{domain}/{descriptor}");
    let service = Service::start_with(RULES, &[("limits.source", "url"), url]).await;
    assert_eq!(findings(&service).await, [] as [Value; 0]);
}

#[tokio::test]
async fn shadow_mode_of_all_rules_is_found() {
    let service = Service::start_with(RULES, &[("limiter.shadow_mode", "true")]).await;
    only(&service, "shadow_mode").await;
}

#[tokio::test]
async fn full_memory_is_found_with_what_it_cost() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let mut client = service.client().await;
    for call in 0..200 {
        let users = (0..200).map(|user| descriptor(&[("user", &format!("{call}-{user}"))]));
        // Counters that refuse are never evicted, but a call that finds no memory takes its charges back.
        client.should_rate_limit(with_hits(request("shop", users.collect()), 10)).await.unwrap();
    }
    let found = findings(&service).await;
    let all = ["memory_full", "memory_near_limit", "counters_evicted"];
    let expected = if is_store_in_memory() { &all[..] } else { &[] };
    assert_eq!(ids(&found), expected, "{found:?}");
}

#[tokio::test]
async fn certificate_is_found_before_and_after_its_end() {
    let files = Files::new(&Authority::new("ca").pair(&["localhost"], 2030));
    let service = Service::start_with(RULES, &borrowed(&files.settings("grpc"))).await;
    assert!(findings(&service).await.is_empty());
    let end = service.counters.grpc.certificate_expires().unwrap();
    let at = |time: Timestamp| service.clock.set(time);
    at(end.before(Duration::from_secs(8 * 86_400)));
    assert!(findings(&service).await.is_empty());
    at(end.before(Duration::from_secs(6 * 86_400)));
    assert!(what(&only(&service, "certificate_ends").await).contains("2030-01-01"));
    at(end.after(Duration::from_secs(1)));
    assert_eq!(only(&service, "certificate_expired").await["level"], "error");
}

#[tokio::test]
async fn clocks_apart_in_a_cluster_are_found_from_any_replica() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "a secret that replicas share").unwrap();
    let start = async |seed: &str| {
        let settings = [
            ("cluster.listen", "127.0.0.1:0"),
            ("cluster.secret_file", secret.to_str().unwrap()),
            ("cluster.seed", seed),
        ];
        Service::start_with(RULES, &settings).await
    };
    let first = start("off").await;
    let seed = cluster_view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = start(&seed).await;
    for replica in [&first, &second] {
        until_linked(replica).await;
        until(async || {
            let view = cluster_view(replica).await;
            let members = view["members"].as_array().unwrap();
            members.iter().all(|member| member["program"] == env!("CARGO_PKG_VERSION")).then_some(())
        })
        .await;
        until_found(replica, []).await;
    }
    second.advance(Duration::from_secs(60));
    for (replica, ahead) in [(&first, "by 60000 ms"), (&second, "by -60000 ms")] {
        let found = until(async || findings(replica).await.pop()).await;
        assert_eq!(found["id"], "clocks_apart");
        assert!(what(&found).ends_with(ahead), "{found}");
    }
    fs::write(second.rules.path().join("rules.yaml"), RULES.replace("10", "11")).unwrap();
    second.advance(Duration::from_secs(1));
    first.advance(Duration::from_secs(61));
    until_found(&first, ["members_of_other_rules"]).await;
}

#[tokio::test]
async fn frozen_member_of_a_cluster_is_found_with_degraded_answers() {
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
    let first = start("off").await;
    let seed = view(&first).await["members"][0]["address"].as_str().unwrap().to_owned();
    let second = start(&seed).await;
    let found = async || {
        let output = run(&["--to", &first.admin.to_string(), "--json"]).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        ids(report["findings"].as_array().unwrap()).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    until(async || {
        let view = view(&first).await;
        let serving =
            view["members"].as_array().unwrap().iter().filter(|member| member["state"] == "serving");
        let is_settled = serving.count() == 2 && view["moving"] == 0;
        // The second one has also told its rules.
        (is_settled && found().await.is_empty()).then_some(())
    })
    .await;
    second.signal("STOP").await;
    let mut user = 0;
    until(async || {
        user += 1;
        let call = json!({
            "domain": "shop",
            "descriptors": [{"entries": [{"key": "user", "value": user.to_string()}]}],
        });
        http(first.http, "POST", "/json", &call.to_string()).await.unwrap();
        let found = found().await;
        ["member_unreachable", "degraded"].iter().all(|id| found.iter().any(|one| one == id)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn refused_links_are_found_with_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str, secret: &str, seed: &str| {
        let file = folder.path().join(name);
        fs::write(&file, secret).unwrap();
        let settings = [
            ("cluster.listen", "127.0.0.1:0"),
            ("cluster.secret_file", file.to_str().unwrap()),
            ("cluster.seed", seed),
        ];
        Service::start_unready(RULES, &settings).await
    };
    let inside = start("secret", "a secret that replicas share", "off").await;
    inside.until_http("/readyz", 200).await;
    assert!(findings(&inside).await.is_empty());
    let seed = cluster_view(&inside).await["members"][0]["address"].as_str().unwrap().to_owned();
    let stranger = start("other", "a secret of another cluster", &seed).await;
    // The stranger opens the connection, so that it is the first to see a certificate.
    for (replica, reason) in [(&inside, "by_peer"), (&stranger, "untrusted")] {
        let found = until(async || {
            let found = findings(replica).await;
            found.into_iter().find(|finding| finding["id"] == "links_refused")
        })
        .await;
        assert_eq!(found["level"], "warning");
        assert!(what(&found).contains(&format!("by reason: {reason} (")), "{found}");
    }
    only(&inside, "links_refused").await;
}

#[tokio::test]
async fn broken_overlay_is_found_with_its_place_until_it_is_repaired() {
    // Bound and never accepted from, so that no other process can take the port.
    let control_plane = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", control_plane.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let overlay = folder.path().join("overlay.yaml");
    let write = |algorithm: &str| {
        let rule = format!("{{match: [user], rate_limit: {{algorithm: {algorithm}}}}}");
        fs::write(&overlay, format!("overlay:\n  - domain: shop\n    rules: [{rule}]\n")).unwrap();
    };
    write("token_buckt");
    let settings = [
        ("rules.source", "xds"),
        ("rules.path", "off"),
        ("rules.xds.url", &*url),
        ("rules.overlay", overlay.to_str().unwrap()),
    ];
    let service = Service::start_unready(RULES, &settings).await;
    let found = until_found(&service, ["no_rules", "overlay_problems"]).await;
    assert_eq!(found[1]["level"], "error");
    assert!(what(&found[1]).contains("overlay.yaml:3:"), "{}", found[1]);
    assert!(what(&found[1]).contains("token_buckt"), "{}", found[1]);
    write("token_bucket");
    let found = until_found(&service, ["no_rules"]).await;
    assert!(found[0]["repair"].as_str().unwrap().contains(&url), "{}", found[0]);
}

#[tokio::test]
async fn doctor_without_answer_exits_with_2() {
    // Bound and never accepted from, so that no other process can take the port.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let output = run(&["--to", &address]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!output.stderr.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "a-token").unwrap();
    let token = token.to_str().unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", token)]).await;
    assert_eq!(doctor(&service, &[]).await.status.code(), Some(2));
    assert_eq!(doctor(&service, &["--token-file", token]).await.status.code(), Some(0));
}
