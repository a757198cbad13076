//! `tollgate simulate` on recorded requests: its decisions are those of the server.

use std::{fmt::Write as _, fs, time::Duration};

use serde_json::Value;
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    admin::record::Recording,
    harness::{Service, descriptor, request, request_for, with_hits},
    log::Log,
    simulate::{RULES, ended, folder, reported, simulate},
};

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
    service.terminate().await;
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
    assert!(code == Some(64) && errors.contains("cannot be used with"), "{errors}");
}
