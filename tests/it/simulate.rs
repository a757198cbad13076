//! `tollgate simulate`: the program on files, and its decisions beside those of a server.

use std::{fmt::Write as _, fs, io::Write as _, path::Path, process::Stdio, time::Duration};

use flate2::{Compression, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};
use tollgate_limiter::algorithm::AlgorithmName;

use crate::{
    admin::record::Recording,
    harness::{Service, TIMEOUT, descriptor, request, request_for, until, with_hits},
    log::Log,
    program::PROGRAM,
};

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
async fn plain_and_compressed_input_give_the_same_report() {
    let (first, second) = CSV.split_at(20);
    let gzip = |text: &str| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    };
    let zstd = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    // Both formats allow a file to have several parts.
    let (gzip, zstd) = ([gzip(first), gzip(second)].concat(), [zstd(first), zstd(second)].concat());
    let folder = folder(RULES, &[("plain", CSV.as_bytes()), ("gzip", &gzip), ("zstd", &zstd)]);
    for name in ["plain", "gzip", "zstd"] {
        let report = reported(folder.path(), &format!("{name} --descriptor user={{user}}")).await;
        assert_eq!((&report["requests"], &report["refused"]), (&4.into(), &1.into()), "{name}: {report}");
        assert_eq!(report["by_rule"][0]["users"], 2, "{name}");
        assert_eq!(report["refused_most"][0]["descriptor"], "shop user=ann", "{name}");
        assert_eq!(report["complete"], true);
    }
}

#[tokio::test]
async fn truncated_compressed_input_is_an_error_with_its_line() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(CSV.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let folder = folder(RULES, &[("cut", &gzip[..gzip.len() - 9])]);
    let (code, _, errors) = ended(simulate(folder.path(), "cut --descriptor user={user}")).await;
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("cut: line "), "{errors}");
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
async fn suggestion_and_page_are_written() {
    let folder = folder(RULES, &[("log.csv", CSV.as_bytes())]);
    let arguments = "log.csv --descriptor user={user} --suggest 100% --html page.html";
    let (code, output, _) = ended(simulate(folder.path(), arguments)).await;
    assert_eq!(code, Some(0));
    assert!(
        output.contains("100.000 % of users never refused\n# the input covers 3s, less than"),
        "{output}"
    );
    assert!(output.ends_with("needs at least 20\nrequests_per_unit: 3\n"), "{output}");
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("requests_per_unit: 3"), "{page}");
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

const EVERY_ALGORITHM: &str = "
domain: shop
descriptors:
  - {key: classic, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: fixed_window}}
  - {key: weighted, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: sliding_window}}
  - {key: parts, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: sliding_window, sub_windows: 6}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket, burst: 4}}
  - {key: leaky, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_bucket, count_denied: true}}
  - {key: queue, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_queue, burst: 0}}
  - {key: steps, rate_limit: {algorithm: token_bucket, refill_amount: 2, refill_interval: 15s, burst: 4}}
  - {key: flight, rate_limit: {algorithm: concurrency, max_in_flight: 4, hold_max: 30s}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 9, calendar: {timezone: Europe/Berlin}}}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 30, calendar: {timezone: UTC}, algorithm: fixed_window}
  - {key: free, rate_limit: {unlimited: true}}
";
const KEYS: [&str; 14] = [
    "classic", "fixed", "weighted", "parts", "log", "bucket", "leaky", "queue", "steps", "flight", "day",
    "month", "free", "unknown",
];

#[test]
fn traffic_has_every_algorithm() {
    for algorithm in AlgorithmName::ALL {
        assert!(EVERY_ALGORITHM.contains(&format!("algorithm: {}", algorithm.name())), "{algorithm:?}");
    }
    for key in &KEYS[..KEYS.len() - 1] {
        assert!(EVERY_ALGORITHM.contains(&format!("key: {key}")), "{key}");
    }
}

/// What the server answered to a request: the keys, whether it passed, and the remaining hits of each key.
type Answered = (Vec<&'static str>, bool, Vec<u32>);

/// Requests of every algorithm, alone and two at a time, at irregular instants and with a `pause` after each hundred:
/// what the server answered to each, and the same requests as lines of JSON with the instants by which it decided.
async fn recorded(service: &Service, calls: usize, pause: Duration) -> (Vec<Answered>, String) {
    let mut client = service.client().await;
    let (mut answers, mut lines, mut random) = (Vec::new(), String::new(), 1_u64);
    for call in 0..calls {
        // Knuth's generator of random numbers.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (random >> 33) as usize;
        service.advance(Duration::from_nanos(random >> 33));
        if call % 100 == 99 {
            service.advance(pause);
        }
        let keys = [KEYS[number % KEYS.len()], KEYS[number / KEYS.len() % KEYS.len()]];
        let keys = if number.is_multiple_of(3) { &keys[..] } else { &keys[..1] };
        let hits = (number / 100 % 3) as u32 + 1;
        let user = if number / 1_000 % 7 < 5 { "ann" } else { "bob" };
        let descriptors = keys.iter().map(|key| descriptor(&[(key, user)])).collect();
        let mut sent = request("shop", descriptors);
        sent.hits_addend = hits;
        let answer = client.should_rate_limit(sent).await.unwrap().into_inner();
        let remaining = answer.statuses.iter().map(|status| status.limit_remaining).collect();
        answers.push((keys.to_vec(), answer.overall_code == 1, remaining));
        let descriptors: Vec<_> =
            keys.iter().map(|key| format!(r#"{{"entries":[{{"key":"{key}","value":"{user}"}}]}}"#)).collect();
        let (at, descriptors) = (service.clock.now().as_nanos(), descriptors.join(","));
        writeln!(lines, r#"{{"time":{at},"hits":{hits},"descriptors":[{descriptors}]}}"#).unwrap();
    }
    (answers, lines)
}

#[tokio::test]
async fn simulator_decides_as_the_server_did() {
    const CALLS: usize = 2_000;
    // Long enough for days to end, and a month.
    const PAUSE: Duration = Duration::from_secs(20 * 3_600);
    let service = Service::start(EVERY_ALGORITHM).await;
    let (answers, lines) = recorded(&service, CALLS, PAUSE).await;
    for key in KEYS.into_iter().filter(|key| !["free", "unknown"].contains(key)) {
        let alone = || answers.iter().filter(|(keys, ..)| *keys == [key]);
        let refused = alone().filter(|(_, passes, _)| !passes).count();
        assert!(0 < refused && refused < alone().count(), "{key}: {refused} of {}", alone().count());
    }
    assert_replay_decides_alike(&answers, &lines).await;
}

#[tokio::test]
async fn replayed_recording_decides_as_the_server_did() {
    // They take less than ten minutes of the server's clock.
    const CALLS: usize = 400;
    let service = Service::start_with(EVERY_ALGORITHM, &[("admin.record", "hashed")]).await;
    let recording = Recording::start(&service, "seconds=600").await;
    let (answers, lines) = recorded(&service, CALLS, Duration::ZERO).await;
    service.shutdown.send(()).await.unwrap();
    let recording = recording.ended().await;
    assert_eq!(recording.len(), lines.lines().count() + 1);
    assert!(!recording.iter().any(|line| line.contains("ann")));
    assert_replay_decides_alike(&answers, &recording.join("\n")).await;
}

async fn assert_replay_decides_alike(answers: &[Answered], lines: &str) {
    let folder = folder(EVERY_ALGORITHM, &[("log.jsonl", lines.as_bytes())]);
    let report = reported(folder.path(), "log.jsonl --decisions decisions.jsonl").await;
    assert_eq!((&report["requests"], &report["bad_lines"]), (&answers.len().into(), &0.into()));
    let decisions = fs::read_to_string(folder.path().join("decisions.jsonl")).unwrap();
    let decided = decisions.lines().map(|line| {
        let decision: Value = serde_json::from_str(line).unwrap();
        // Without a limit the server answers with the maximum or with 0.
        let remaining =
            decision["remaining"].as_array().unwrap().iter().map(Value::as_u64).collect::<Vec<_>>();
        (decision["passes"].as_bool().unwrap(), remaining)
    });
    assert_eq!(decisions.lines().count(), answers.len());
    for (index, ((_, passes, remaining), decided)) in answers.iter().zip(decided).enumerate() {
        assert_eq!(*passes, decided.0, "request {index}");
        for (served, simulated) in remaining.iter().zip(decided.1) {
            assert!(simulated.is_none_or(|simulated| simulated == u64::from(*served)), "request {index}");
        }
    }
    let refused = answers.iter().filter(|(_, passes, _)| !passes).count();
    assert!(
        refused * 10 > answers.len() && refused * 10 < answers.len() * 9,
        "{refused} of {} are refused: the traffic tests too little",
        answers.len()
    );
    assert_eq!(report["refused"], refused);
}

#[tokio::test]
async fn denials_in_the_log_of_the_service_are_replayed() {
    let log = Log::json("info");
    let service = Service::start_on_this_thread(RULES, &[("log.denials", "1000/s")]).await;
    for user in ["ann,", "ann,", "ann,", "bob"] {
        service.call(with_hits(request_for("shop", "user", user), 1)).await.unwrap();
    }
    let folder = folder(RULES, &[("log", log.take().join("\n").as_bytes())]);
    let report = reported(folder.path(), "log --from-denials").await;
    assert_eq!((&report["requests"], &report["bad_lines"]), (&1.into(), &0.into()));
    let (code, _, errors) =
        ended(simulate(folder.path(), "log --from-denials --descriptor user={user}")).await;
    assert!(code == Some(1) && errors.contains("cannot be used with"), "{errors}");
}

const QUOTAS: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}
  - key: batch
    rate_limit: {unit: minute, requests_per_unit: 500, algorithm: fixed_window}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
  - key: zone
    value: '*'
    share_threshold: true
    rate_limit:
      unit: second
      requests_per_unit: 100
      quotas: [{key: zone, value: a, weight: 3}]
";

#[tokio::test]
async fn rate_is_divided_over_envoys_by_demand() {
    let folder = folder(QUOTAS, &[]);
    let report = reported(folder.path(), "--envoys 150,60,5 --descriptor tenant=acme --duration 1m").await;
    let envoys = report["envoys"].as_array().unwrap();
    let refused: Vec<u64> = envoys.iter().map(|envoy| envoy["refused"].as_u64().unwrap()).collect();
    assert!(refused[0] > refused[1] && refused[1] > 100 && refused[2] < 20, "{refused:?}");
    let passed = report["passed"].as_u64().unwrap();
    assert!((5_400..=6_023).contains(&passed), "{passed}");
    let most = &report["most_passed"];
    assert_eq!((&most[0]["seconds"], &most[1]["seconds"]), (&1.into(), &10.into()));
    assert!(
        most[0]["requests"].as_u64() <= Some(123) && most[1]["requests"].as_u64() <= Some(1_023),
        "{most}"
    );
    let shares: Vec<u64> = envoys
        .iter()
        .map(|envoy| envoy["shares"].as_array().unwrap().last().unwrap().as_u64().unwrap())
        .collect();
    assert!(shares.iter().sum::<u64>() <= 100 && shares[2] >= 5, "{shares:?}");
    assert_eq!(envoys[0]["shares"].as_array().unwrap().len(), 12);
}

#[tokio::test]
async fn budget_is_divided_over_envoys_without_excess() {
    let folder = folder(QUOTAS, &[]);
    let report = reported(folder.path(), "--envoys 10x3 --descriptor batch=b --duration 59s").await;
    let passed = report["passed"].as_u64().unwrap();
    assert!((490..=500).contains(&passed), "{passed}");
    assert_eq!(report["envoys"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn table_of_envoys_shows_weights_by_value() {
    let folder = folder(QUOTAS, &[]);
    let arguments = "--envoys 200x2 --descriptor zone=a --descriptor zone=b --duration 2m";
    let (code, output, errors) = ended(simulate(folder.path(), arguments)).await;
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(output.starts_with("rules.yaml: 2 Envoys ask for 400 requests a second, for 120 s"), "{output}");
    assert!(output.contains("rule shop.zone_* at rules.yaml:14:7: 100 per second"), "{output}");
    let row = |bucket: &str| {
        let line = output.lines().find(|line| line.contains(bucket)).unwrap();
        line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    assert!(row("zone=a").abs_diff(75) <= 5 && row("zone=b").abs_diff(25) <= 5, "{output}");
}

#[tokio::test]
async fn bucket_that_no_limit_divides_is_an_error() {
    let folder = folder(QUOTAS, &[]);
    for (arguments, wrong) in [
        ("--envoys 5", "--envoys needs --descriptor"),
        ("--envoys 5 --descriptor user=a", "user=a has no limit in domain `shop`, so everything passes"),
        ("--envoys 5 --descriptor log=a", "RLQS does not divide a limit with `algorithm: sliding_log`"),
        ("--envoys 5x3 --descriptor zone=a --descriptor zone=b", "2 --descriptor for 3 Envoys"),
        ("--envoys 5 --descriptor tenant=", "is no bucket: each pair has a value and a key of its own"),
        ("--envoys 5x2 --descriptor tenant=a --descriptor tenant=b", "tenant=b has another counter"),
        ("--envoys 5x900,5x900 --descriptor tenant=a", "--envoys has 1800 Envoys"),
    ] {
        let (code, _, errors) = ended(simulate(folder.path(), arguments)).await;
        assert!(code == Some(1) && errors.contains(wrong), "{arguments}: {errors}");
    }
}

#[tokio::test]
async fn check_warns_of_limits_without_quotas_only_if_asked() {
    let folder = folder(QUOTAS, &[]);
    let check = async |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.current_dir(folder.path()).args(["check", "rules.yaml"]).args(arguments).kill_on_drop(true);
        let output = timeout(TIMEOUT, command.output()).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check(&[]).await.starts_with("good: 4 rules in 1 domain"));
    let warned = check(&["--rlqs"]).await;
    assert!(
        warned.starts_with("rules.yaml:9:17: RLQS does not divide a limit with `algorithm: sliding_log`"),
        "{warned}"
    );
    let report: Value = serde_json::from_str(&check(&["--rlqs", "--json"]).await).unwrap();
    assert_eq!(
        (&report["findings"][0]["level"], &report["findings"][0]["line"]),
        (&"warning".into(), &9.into())
    );
}
