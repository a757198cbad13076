//! Recordings of requests.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};
use tollgate_counter::time::Stopwatch;

use crate::{
    admin::{access::FOREIGN, admin},
    harness::{Answer, Service, TIMEOUT, descriptor, request, request_for, send, until, with_hits},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: fixed_window}}
  - {key: user, value: root, rate_limit: {unlimited: true}}
  - {key: path, value: /api/*, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: fixed_window}}
";

/// A recording that runs.
pub struct Recording(Answer<TcpStream>);

impl Recording {
    pub async fn start(service: &Service, query: &str) -> Self {
        let path = format!("/record?{query}");
        let answer = Answer::get(service.addresses.admin, "host: localhost\r\n", &path).await;
        assert_eq!(answer.code, 200, "{}", answer.head);
        Self(answer)
    }

    /// All lines of JSON, when the recording has ended.
    pub async fn ended(mut self) -> Vec<String> {
        let mut all = String::new();
        timeout(TIMEOUT, self.0.body.read_to_string(&mut all)).await.unwrap().unwrap();
        // Other lines are the sizes of chunks.
        all.lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect()
    }
}

async fn recorded(values: &str, calls: impl AsyncFnOnce(&Service)) -> Vec<Value> {
    recorded_by(RULES, values, calls).await
}

async fn recorded_by(rules: &str, values: &str, calls: impl AsyncFnOnce(&Service)) -> Vec<Value> {
    let service = Service::start_with(rules, &[("admin.record", "plain")]).await;
    let recording = Recording::start(&service, &format!("seconds=60&values={values}")).await;
    assert!(recording.0.head.contains("application/x-ndjson"), "{}", recording.0.head);
    calls(&service).await;
    service.terminate().await;
    recording.ended().await.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn recording_has_the_charges_of_every_api() {
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}], "hitsAddend": 3}"#;
    let v1 = r#"{"requests": [{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "cy"}]}]}]}"#;
    let lines = recorded("plain", async |service| {
        let two = vec![descriptor(&[("user", "ann")]), descriptor(&[("path", "/api/a")])];
        service.call(with_hits(request("shop", two), 2)).await.unwrap();
        assert_eq!(service.http("POST", "/v1/peek", v1).await.0, 200);
        assert_eq!(service.http("POST", "/json", body).await.0, 429);
        assert_eq!(service.http("POST", "/v1/check", v1).await.0, 200);
    })
    .await;
    let entry = |key: &str, value: &str| json!([{"key": key, "value": value}]);
    let descriptors: Vec<_> = lines.iter().map(|line| line["descriptors"].clone()).collect();
    let user = |name: &str, hits: u64| json!({"entries": entry("user", name), "hitsAddend": hits});
    let path = json!({"entries": entry("path", "/api/a"), "hitsAddend": 2});
    let expected =
        [json!([user("ann", 2), path]), json!([user("bob", 3)]), json!([user("cy", 1)]), Value::Null];
    assert_eq!(descriptors, expected);
    assert!(lines[..3].iter().all(|line| line["domain"] == "shop" && line["time"].is_u64()));
    assert_eq!(lines[3], json!({"recording": {"requests": 3, "left_out": 0, "values": "plain"}}));
}

#[tokio::test]
async fn hashed_recording_shows_only_values_that_rules_name() {
    let lines = recorded("hashed", async |service| {
        for (key, value) in [
            ("user", "ann"),
            ("user", "ann"),
            ("user", "bob"),
            ("user", "root"),
            ("path", "/api/ann"),
            ("other", "ann"),
        ] {
            service.call(with_hits(request_for("shop", key, value), 1)).await.unwrap();
        }
    })
    .await;
    let values: Vec<_> =
        lines.iter().filter_map(|line| line["descriptors"][0]["entries"][0]["value"].as_str()).collect();
    let [ann, again, bob, root, path, other] = values[..] else { panic!("{values:?}") };
    assert_eq!((ann, root), (again, "root"));
    assert!(ann != bob && ann.len() == 16 && path.starts_with("/api/"), "{values:?}");
    assert!(![ann, bob, path, other].iter().any(|value| value.contains("ann") || value.contains("bob")));
}

#[tokio::test]
async fn hashed_values_match_no_other_pattern() {
    let patterns = ["0*", "1*", "2*", "3*", "*4", "*5", "*6", "*7"];
    let rule = |pattern: &str| {
        format!("  - {{key: user, value: \"{pattern}\", rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n")
    };
    let rules = format!("{RULES}{}", patterns.map(rule).concat());
    let users: Vec<_> = (0..30).map(|number| format!("user-{number}x")).collect();
    let lines = recorded_by(&rules, "hashed", async |service| {
        for user in &users {
            service.call(with_hits(request_for("shop", "user", user), 1)).await.unwrap();
        }
    })
    .await;
    let mut values: Vec<_> =
        lines.iter().filter_map(|line| line["descriptors"][0]["entries"][0]["value"].as_str()).collect();
    let other =
        |value: &&str| value.starts_with(['0', '1', '2', '3']) || value.ends_with(['4', '5', '6', '7']);
    assert!(!values.iter().any(other), "{values:?}");
    values.sort_unstable();
    values.dedup();
    assert_eq!(values.len(), users.len());
}

#[tokio::test]
async fn hashed_addresses_stay_in_their_networks_and_groups() {
    let rules = format!(
        "{RULES}  - {{key: ip, group: {{ipv4: 24}}, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n  \
         - {{key: ip, value: 10.0.0.0/8, match: cidr, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n"
    );
    let sent = ["192.0.2.1", "192.0.2.9", "198.51.100.1", "10.1.2.3", "unknown"];
    let lines = recorded_by(&rules, "hashed", async |service| {
        for address in sent {
            service.call(with_hits(request_for("shop", "ip", address), 1)).await.unwrap();
        }
    })
    .await;
    let values: Vec<_> =
        lines.iter().filter_map(|line| line["descriptors"][0]["entries"][0]["value"].as_str()).collect();
    let [one, same, other, inside, text] = values[..] else { panic!("{values:?}") };
    let group = |value: &str| value.parse::<Ipv4Addr>().unwrap().octets()[..3].to_vec();
    assert!(one != same && group(one) == group(same) && group(one) != group(other), "{values:?}");
    assert!(inside.starts_with("10.") && !one.starts_with("10.") && text.len() == 16, "{values:?}");
    assert!(!sent.iter().any(|sent| values.contains(sent)), "{values:?}");
}

#[tokio::test]
async fn values_chosen_against_the_patterns_delay_no_call() {
    // Nearly every hash has most of these digits, so none matches as a value without any of them does.
    let pattern = |digit: u32| {
        format!(
            "  - {{key: user, value: \"*{digit:x}*\", rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n"
        )
    };
    let rules = format!("{RULES}{}", (0..16).map(pattern).collect::<String>());
    let service = Service::start_with(&rules, &[("admin.record", "hashed")]).await;
    let values: Vec<_> = (0..250).map(|number| "xyz".repeat(number + 1)).collect();
    let call =
        || with_hits(request("shop", values.iter().map(|value| descriptor(&[("user", value)])).collect()), 1);
    let mut client = service.client().await;
    let mut quickest = async || {
        let mut least = TIMEOUT;
        for _ in 0..5 {
            let begun = Stopwatch::start();
            client.should_rate_limit(call()).await.unwrap();
            least = least.min(begun.elapsed());
        }
        least
    };
    let without = quickest().await;
    let recording = Recording::start(&service, "seconds=600").await;
    let with = quickest().await;
    assert!(with < without * 4, "{with:?}, without a recording {without:?}");
    service.terminate().await;
    let lines = recording.ended().await;
    assert_eq!(lines.len(), 6, "five calls and the summary");
    assert!(!lines[0].contains("xyz"));
}

#[tokio::test]
async fn recording_needs_its_setting_and_is_one_at_a_time() {
    let service = Service::start(RULES).await;
    let refused =
        async |service: &Service, query: &str| admin(service, "GET", &format!("/record{query}"), "").await;
    assert_eq!(refused(&service, "").await.0, 403, "it is off by default");
    let service = Service::start_with(RULES, &[("admin.record", "hashed")]).await;
    let (code, why) = refused(&service, "?values=plain").await;
    assert_eq!((code, &*why), (403, "values are recorded as hashes only, unless admin.record is `plain`\n"));
    for wrong in ["?seconds=0", "?seconds=601", "?seconds=soon", "?values=all", "?other=1"] {
        assert_eq!(refused(&service, wrong).await.0, 400, "{wrong}");
    }
    for headers in FOREIGN {
        assert_eq!(send(service.addresses.admin, headers, "GET", "/record", "").await.0, 403, "{headers:?}");
    }
    let first = Recording::start(&service, "seconds=600").await;
    assert_eq!(refused(&service, "").await.0, 409);
    drop(first);
    // The server notices that the client is gone when it writes, also without requests.
    until(async || (refused(&service, "?seconds=1").await.0 != 409).then_some(())).await;
}

#[tokio::test]
async fn recording_ends_after_its_time() {
    let service = Service::start_with(RULES, &[("admin.record", "hashed")]).await;
    let lines = Recording::start(&service, "seconds=1").await.ended().await;
    assert_eq!(lines, [r#"{"recording":{"left_out":0,"requests":0,"values":"hashed"}}"#]);
    Recording::start(&service, "seconds=1").await;
}

#[tokio::test]
async fn requests_beyond_the_bound_are_left_out_and_counted() {
    let service = Service::start_with(RULES, &[("admin.record", "plain")]).await;
    let recording = Recording::start(&service, "seconds=600&values=plain").await;
    // 100 requests of 200 kB, and a client that does not read: more than the bound and the buffers of the sockets.
    let mut client = service.client().await;
    let value = "x".repeat(200_000);
    for _ in 0..100 {
        client.should_rate_limit(with_hits(request_for("shop", "user", &value), 1)).await.unwrap();
    }
    service.terminate().await;
    let lines = recording.ended().await;
    let summary: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    let number = |name: &str| summary["recording"][name].as_u64().unwrap();
    assert_eq!(number("requests") + number("left_out"), 100);
    assert_eq!(number("requests"), lines.len() as u64 - 1);
    assert!(number("left_out") > 0, "{summary}");
}
