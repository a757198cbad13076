//! `tollgate simulate`: the program on files, and its decisions beside those of a server.

use std::{fs, path::Path, process::Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

use crate::{
    harness::{TIMEOUT, until},
    program::PROGRAM,
};

mod quotas;
mod recorded;

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, algorithm: fixed_window}
";
const CSV: &str = "time,user\n60,ann\n61,ann\n62,ann\n63,bob\n";

/// A directory with `rules.yaml` and these files.
fn folder(rules: &str, files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn simulate(folder: &Path, arguments: &str) -> Child {
    let mut command = Command::new(PROGRAM);
    command.current_dir(folder).args(["simulate", "rules.yaml"]).args(arguments.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().unwrap()
}

/// The exit code, the output and the errors.
async fn ended(process: Child) -> (Option<i32>, String, String) {
    let output = timeout(TIMEOUT, process.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn reported(folder: &Path, arguments: &str) -> Value {
    let (code, output, errors) = ended(simulate(folder, &format!("{arguments} --json"))).await;
    assert_eq!((code, &*errors), (Some(0), ""), "{arguments}");
    serde_json::from_str(&output).unwrap()
}

#[tokio::test]
async fn report_counts_requests_refusals_and_users() {
    let folder = folder(RULES, &[("plain", CSV.as_bytes())]);
    let report = reported(folder.path(), "plain --descriptor user={user}").await;
    assert_eq!((&report["requests"], &report["refused"]), (&4.into(), &1.into()), "{report}");
    assert_eq!(report["by_rule"][0]["users"], 2);
    assert_eq!(report["refused_most"][0]["descriptor"], "shop user=ann");
    assert_eq!(report["complete"], true);
}

#[tokio::test]
async fn compressed_input_is_refused_with_a_pipe_that_reads_it() {
    for (start, program) in [(&[0x1f, 0x8b][..], "zcat"), (&[0x28, 0xb5, 0x2f, 0xfd], "zstdcat")] {
        let folder = folder(RULES, &[("log", start)]);
        let (code, _, errors) = ended(simulate(folder.path(), "log --descriptor user={user}")).await;
        assert_eq!(code, Some(1));
        let why = format!(
            "log: it is compressed; decompress it in a pipe: {program} FILE | tollgate simulate RULES -"
        );
        assert!(errors.starts_with(&why), "{errors}");
    }
}

#[tokio::test]
async fn standard_input_is_read() {
    let folder = folder(RULES, &[]);
    let mut process = simulate(folder.path(), "- --descriptor user={user}");
    process.stdin.take().unwrap().write_all(CSV.as_bytes()).await.unwrap();
    let (code, output, _) = ended(process).await;
    assert_eq!(code, Some(0));
    assert!(output.starts_with("standard input: 4 requests from 1970-01-01T00:01:00Z to"), "{output}");
}

#[tokio::test]
async fn suggestion_for_standard_input_is_that_for_the_file() {
    let folder = folder(RULES, &[("log.csv", CSV.as_bytes())]);
    let mut process = simulate(folder.path(), "- --descriptor user={user} --suggest 100% --json");
    process.stdin.take().unwrap().write_all(CSV.as_bytes()).await.unwrap();
    let (code, output, errors) = ended(process).await;
    assert_eq!(code, Some(0), "{errors}");
    let piped: Value = serde_json::from_str(&output).unwrap();
    let named = reported(folder.path(), "log.csv --descriptor user={user} --suggest 100%").await;
    assert_eq!(piped["suggestions"][0]["reaches_goal"], true);
    assert_eq!(piped["suggestions"], named["suggestions"]);
}

#[tokio::test]
async fn bad_lines_are_named_and_strict_stops_at_the_first() {
    let text = CSV.replace("61,", "soon,");
    let folder = folder(RULES, &[("log.csv", text.as_bytes())]);
    let (code, output, _) = ended(simulate(folder.path(), "log.csv --descriptor user={user}")).await;
    assert_eq!(code, Some(0));
    assert!(
        output.contains("bad lines, left out: 1") && output.contains("line 3: `soon` is no time"),
        "{output}"
    );
    let strict = simulate(folder.path(), "log.csv --descriptor user={user} --strict");
    let (code, _, errors) = ended(strict).await;
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("log.csv: line 3: `soon` is no time"), "{errors}");
}

#[tokio::test]
async fn input_of_which_nothing_is_decided_is_an_error() {
    let line = br#"{"timestamp":"2026-11-01T00:00:00Z","message":"started"}"#;
    let folder = folder(RULES, &[("empty", b""), ("lines", b"\n\n"), ("log", line)]);
    for arguments in ["empty", "lines --strict", "log --from-denials"] {
        let (code, output, errors) = ended(simulate(folder.path(), arguments)).await;
        assert_eq!((code, &*output), (Some(1), ""), "{arguments}");
        assert!(
            errors.contains(": nothing was decided: the input has no request with a descriptor\n"),
            "{errors}"
        );
    }
}

#[tokio::test]
async fn input_whose_descriptors_match_no_rule_is_an_error() {
    let other = RULES.replace("key: user", "key: plan");
    let folder = folder(RULES, &[("log.csv", CSV.as_bytes()), ("other.yaml", other.as_bytes())]);
    let run = async |arguments: &str| ended(simulate(folder.path(), arguments)).await;
    for compare in ["", " --compare other.yaml"] {
        let (code, output, errors) = run(&format!("log.csv --descriptor route={{user}}{compare}")).await;
        assert_eq!((code, &*output), (Some(1), ""), "{compare}");
        assert!(errors.contains("nothing was decided: no rule matches any of the 4 descriptors"), "{errors}");
    }
    let (code, output, _) = run("log.csv --descriptor plan={user} --compare other.yaml").await;
    assert_eq!(code, Some(0), "a rule of the other side matches");
    assert!(output.contains("descriptors that match no rule, and pass: 4"), "{output}");
}

#[tokio::test]
async fn error_of_an_undecided_input_names_the_reasons() {
    let folder = folder(RULES, &[("log.csv", b"time,user\nsoon,ann\n60,\n")]);
    let (code, _, errors) = ended(simulate(folder.path(), "log.csv --descriptor user={user}")).await;
    assert_eq!(code, Some(1));
    for reason in ["log.csv: ", "bad lines, left out: 1", "line 2: `soon` is no time", "missing or empty: 1"]
    {
        assert!(errors.contains(reason), "{reason}: {errors}");
    }
}

#[tokio::test]
async fn combined_access_log_is_decided() {
    let line = |second: u64, address: &str| {
        format!(
            "{address} - - [02/Mar/2026:09:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"curl\"\n"
        )
    };
    let log =
        [line(1, "192.0.2.1"), line(2, "192.0.2.1"), line(3, "192.0.2.2"), line(4, "192.0.2.1")].concat();
    let folder = folder(RULES, &[("access.log", log.as_bytes())]);
    for format in ["", " --format combined"] {
        let report =
            reported(folder.path(), &format!("access.log --descriptor user={{remote_addr}}{format}")).await;
        assert_eq!((&report["requests"], &report["refused"]), (&4.into(), &1.into()), "{report}");
        assert_eq!(report["from"], "2026-03-02T09:00:01Z");
    }
}

#[tokio::test]
async fn problems_of_either_rules_are_reported_as_by_check() {
    let broken = "domain: shop\ndescriptor: []\n";
    let folder = folder(RULES, &[("broken.yaml", broken.as_bytes()), ("log.csv", CSV.as_bytes())]);
    let (code, _, errors) = ended(simulate(folder.path(), "log.csv --compare broken.yaml")).await;
    assert_eq!(code, Some(1));
    assert!(errors.contains("broken.yaml:2:1: unknown key `descriptor`"), "{errors}");
}

#[tokio::test]
async fn suggestion_is_printed() {
    let folder = folder(RULES, &[("log.csv", CSV.as_bytes())]);
    let arguments = "log.csv --descriptor user={user} --suggest 100%";
    let (code, output, _) = ended(simulate(folder.path(), arguments)).await;
    assert_eq!(code, Some(0));
    assert!(
        output.contains("100.000 % of users never refused\n# the input covers 3s, less than"),
        "{output}"
    );
    assert!(output.ends_with("needs at least 20\nrequests_per_unit: 3\n"), "{output}");
}

#[tokio::test]
async fn same_generated_traffic_gives_the_same_report() {
    let folder = folder(RULES, &[]);
    let arguments = "--generate bursts --descriptor user={key} --keys 20 --skew 1 --attack-rate 5 --retries 3 --duration 10m";
    let report = async || {
        let mut report = reported(folder.path(), arguments).await;
        report.as_object_mut().unwrap().remove("speed");
        report
    };
    let first = report().await;
    assert_eq!(first, report().await);
    assert_eq!(first["refused_most"][0]["descriptor"], "shop user=attacker");
}

#[tokio::test]
async fn interrupted_replay_reports_what_it_has() {
    let folder = folder(RULES, &[]);
    // Ten days of ten million requests a second.
    let arguments = "--generate constant --descriptor user={key} --rate 10000000 --duration 240h --decisions lines --json";
    let process = simulate(folder.path(), arguments);
    let lines = folder.path().join("lines");
    until(async || fs::metadata(&lines).is_ok_and(|about| about.len() > 0).then_some(())).await;
    let id = process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    let (code, output, _) = ended(process).await;
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &report["complete"]), (Some(0), &Value::Bool(false)));
    assert!(report["requests"].as_u64() > Some(0));
}
