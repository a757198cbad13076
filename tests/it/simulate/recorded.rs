//! `tollgate simulate` on recorded requests: its decisions are those of the server.

use std::{fmt::Write as _, fs, time::Duration};

use serde_json::Value;

use crate::{
    admin::record::Recording,
    counters::every_rule,
    harness::{Service, descriptor, request, request_for, with_hits},
    log::Log,
    simulate::{RULES, ended, folder, reported, simulate},
};

/// Keys without a limit.
const UNLIMITED: [&str; 2] = ["free", "unknown"];

/// The key of each rule of [`every_rule`], and those without a limit.
fn keys() -> Vec<&'static str> {
    every_rule().map(|(name, _)| name).chain(UNLIMITED).collect()
}

/// A file with every rule that a test of counters has, each with a key of its own. In ten minutes some calls are refused.
fn every_algorithm() -> String {
    let mut text = "domain: shop\ndescriptors:\n  - {key: free, rate_limit: {unlimited: true}}\n".to_owned();
    for (key, rule_text) in every_rule() {
        // A queue without places delays no call. A delayed call would never end: the clock stands still while a call waits.
        let number = match key {
            "leaky_queue" => 1,
            "concurrency" => 2,
            _ => 4,
        };
        let limit = rule_text(number);
        let limit =
            limit.replace("unit: hour", "unit: minute").replace("1h", "15s").replace("unit: 10,", "unit: 2,");
        writeln!(text, "  - {{key: \"{key}\", rate_limit: {{{limit}}}}}").unwrap();
    }
    text
}

/// What the server answered to a request: the keys, whether it passed, and the remaining hits of each key.
type Answered = (Vec<&'static str>, bool, Vec<u32>);

/// Requests of every algorithm, alone and two at a time, at irregular instants and with a `pause` after each hundred:
/// what the server answered to each, and the same requests as lines of JSON with the instants by which it decided.
async fn recorded(service: &Service, calls: usize, pause: Duration) -> (Vec<Answered>, String) {
    let mut client = service.client().await;
    let all = keys();
    let (mut answers, mut lines, mut random) = (Vec::new(), String::new(), 1_u64);
    for call in 0..calls {
        // Knuth's generator of random numbers.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (random >> 33) as usize;
        service.advance(Duration::from_nanos(random >> 33));
        if call % 100 == 99 {
            service.advance(pause);
        }
        let keys = [all[number % all.len()], all[number / all.len() % all.len()]];
        let keys = if (number / 10_000).is_multiple_of(3) { &keys[..] } else { &keys[..1] };
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
    let service = Service::start(&every_algorithm()).await;
    let (answers, lines) = recorded(&service, CALLS, PAUSE).await;
    for (key, _) in every_rule() {
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
    let service = Service::start_with(&every_algorithm(), &[("admin.record", "hashed")]).await;
    let recording = Recording::start(&service, "seconds=600").await;
    let (answers, lines) = recorded(&service, CALLS, Duration::ZERO).await;
    service.terminate().await;
    let recording = recording.ended().await;
    assert_eq!(recording.len(), lines.lines().count() + 1);
    assert!(!recording.iter().any(|line| line.contains("ann")));
    assert_replay_decides_alike(&answers, &recording.join("\n")).await;
}

async fn assert_replay_decides_alike(answers: &[Answered], lines: &str) {
    let folder = folder(&every_algorithm(), &[("log.jsonl", lines.as_bytes())]);
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
    assert!(code == Some(64) && errors.contains("cannot be used with"), "{errors}");
}
