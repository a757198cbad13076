//! What docs/llm.md says beyond its commands.

use std::{fmt::Write as _, fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    harness::Service,
    pages::{blocks, is_rule_file, page},
};

const LIMIT: u64 = 100_000;
/// The most that one call costs.
const MOST: u64 = 8_000;
const RESERVED: u64 = 2_000;
/// Calls in flight.
const CALLS: u64 = 4;

/// The rule files of the page.
fn rule_files(page: &str) -> Vec<&str> {
    blocks(page).filter(|block| is_rule_file(*block)).map(|(_, text)| text).collect()
}

/// The number that the page has for the example in the row that begins with `way`.
fn example_of(page: &str, way: &str) -> u64 {
    let row = page.lines().find(|line| line.starts_with(&format!("| {way} |"))).unwrap();
    let cell = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
    cell.replace(',', "").parse().unwrap()
}

/// A tenant that calls a service with the rules of the page.
struct Tenant(Service);

impl Tenant {
    async fn start() -> Self {
        Self(Service::start(rule_files(&page("llm.md"))[0]).await)
    }

    fn descriptor(limit: &str) -> Value {
        let entry = |key: &str, value: &str| json!({"key": key, "value": value});
        json!({"entries": [entry("tenant", "acme"), entry("model", "large"), entry("limit", limit)]})
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (code, answer) = self.0.http("POST", path, &body.to_string()).await;
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Sends hits to a limit by `call`, and returns whether they pass and what is left.
    async fn send(&self, call: &str, limit: &str, hits: u64) -> (bool, u64) {
        let mut request = json!({"domain": "models", "descriptors": [Self::descriptor(limit)]});
        if call != "peek" {
            request["hits"] = hits.into();
        }
        let answer = &self.post(&format!("/v1/{call}"), json!({"requests": [request]})).await["answers"][0];
        let left = answer["limits"][0]["remaining"].as_str().unwrap_or("0").parse().unwrap();
        (answer["verdict"] == "ALLOWED", left)
    }

    async fn reserves(&self, amount: u64, id: &str) -> bool {
        let descriptors = [Self::descriptor("minute")];
        let body =
            json!({"domain": "models", "descriptors": descriptors, "amount": amount, "reservationId": id});
        self.post("/v1/reserve", body).await["reservationId"] == id
    }

    /// Settles, and returns the hits that were not charged.
    async fn settle(&self, actual: u64, id: &str) -> u64 {
        let descriptors = [Self::descriptor("minute")];
        let body =
            json!({"domain": "models", "descriptors": descriptors, "actual": actual, "reservationId": id});
        let settled = self.post("/v1/settle", body).await;
        settled["limits"][0]["notCharged"].as_str().map_or(0, |hits| hits.parse().unwrap())
    }
}

#[tokio::test]
async fn reservations_of_the_most_never_exceed_the_limit() {
    let tenant = Tenant::start().await;
    let mut used = 0;
    for id in 0.. {
        let amount = MOST.min(LIMIT - used).max(1);
        if !tenant.reserves(amount, &id.to_string()).await {
            break;
        }
        assert_eq!(tenant.settle(amount, &id.to_string()).await, 0);
        used += amount;
    }
    assert_eq!(used, example_of(&page("llm.md"), "reserve M"));
}

#[tokio::test]
async fn reservations_of_less_exceed_limit_by_rest_of_calls_in_flight() {
    let tenant = Tenant::start().await;
    let mut used = LIMIT - CALLS * RESERVED;
    assert!(tenant.send("check", "minute", used).await.0);
    for id in 0..CALLS {
        assert!(tenant.reserves(RESERVED, &id.to_string()).await);
    }
    assert!(!tenant.reserves(1, "too much").await);
    for id in 0..CALLS {
        assert_eq!(tenant.settle(MOST, &id.to_string()).await, MOST - RESERVED);
        used += MOST;
    }
    assert_eq!(used, example_of(&page("llm.md"), "reserve R"));
}

#[tokio::test]
async fn charges_afterwards_exceed_limit_by_calls_in_flight() {
    let tenant = Tenant::start().await;
    let mut used = LIMIT - 1;
    assert!(tenant.send("check", "minute", used).await.0);
    for _ in 0..CALLS {
        assert!(tenant.send("peek", "minute", 0).await.0);
        assert!(tenant.send("check", "in_flight", 1).await.0);
    }
    assert!(!tenant.send("check", "in_flight", 1).await.0);
    for _ in 0..CALLS {
        assert!(!tenant.send("check", "minute", MOST).await.0, "the charge does not fit, and counts");
        used += MOST;
    }
    assert!(!tenant.send("peek", "minute", 0).await.0);
    assert_eq!(used, example_of(&page("llm.md"), "peek, and charge afterwards"));
    assert_eq!(tenant.send("refund", "minute", used - LIMIT + 1).await, (true, 1));
}

#[tokio::test]
async fn place_that_is_never_freed_stays_lost_until_the_tenant_is_quiet() {
    let tenant = Tenant::start().await;
    assert!(tenant.send("check", "in_flight", 1).await.0, "the place that is lost");
    for _ in 0..10 {
        assert!(tenant.send("check", "in_flight", 1).await.0);
        tenant.0.advance(Duration::from_secs(200));
        assert_eq!(tenant.send("refund", "in_flight", 1).await, (true, CALLS - 1));
    }
    tenant.0.advance(Duration::from_secs(600));
    assert_eq!(tenant.send("peek", "in_flight", 0).await, (true, CALLS));
}

/// The part of one tenant, once for each of ten thousand.
#[test]
fn rules_of_ten_thousand_tenants_fit_into_a_file() {
    let page = page("llm.md");
    let (name, rules) = ("globex", rule_files(&page)[2]);
    let (common, own) = rules.split_at(rules.find("  - key: tenant\n    value: ").unwrap());
    let mut text = common.to_owned();
    for number in 0..10_000 {
        writeln!(text, "{}", own.replace(name, &format!("tenant-{number}"))).unwrap();
    }
    assert!((4_500_000..5_500_000).contains(&text.len()), "{} bytes", text.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    let rules = tollgate_rules::load(file.path()).unwrap();
    assert_eq!((rules.len(), rules.warnings()), (40_004, &[][..]));
}
