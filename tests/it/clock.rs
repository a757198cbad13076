//! A machine whose clock jumps ahead and is corrected.

use std::fs;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tollgate::{
    server::Server,
    time::{Clock, SECOND},
};

use crate::{
    harness::{Service, http, request_for, settings, until},
    log::Log,
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - {key: user, rate_limit: {algorithm: fixed_window, unit: year, requests_per_unit: 20}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 20}}
";
const DAYS: i64 = 3 * 86_400 * SECOND as i64;

/// A ready replica with its own clock.
async fn replica(secret: &TempDir, seeds: &str) -> Service {
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let file = secret.path().join("secret");
    fs::write(&file, "a secret that replicas share").unwrap();
    let overrides = [
        ("cluster.listen", "127.0.0.1:0"),
        ("cluster.secret_file", file.to_str().unwrap()),
        ("cluster.seed", seeds),
        ("tls.poll_interval", "50ms"),
    ];
    let clock = Clock::system();
    let server = Server::bind(settings(&rules, &overrides), clock.clone()).await.unwrap();
    let (addresses, counters) = (server.addresses().unwrap(), server.stats());
    let (shutdown, shutdown_signal) = mpsc::channel(2);
    let task = tokio::spawn(server.run(shutdown_signal));
    let service = Service { addresses, clock, shutdown, task, rules, counters };
    service.until_http("/readyz", 200).await;
    service
}

async fn view(replica: &Service) -> serde_json::Value {
    let (_, view) = http(replica.addresses.admin, "GET", "/cluster", "").await.unwrap();
    serde_json::from_str(&view).unwrap()
}

async fn until_linked(replica: &Service) {
    until(async || {
        let view = view(replica).await;
        let members = view["members"].as_array().unwrap();
        let serving = members.iter().filter(|member| member["state"] == "serving").count();
        (serving == 2 && view["moving"] == 0).then_some(())
    })
    .await;
}

async fn until_stepped(replica: &Service, direction: &str) {
    let line = format!("tollgate_clock_steps_total{{direction=\"{direction}\"}} 1");
    until(async || {
        let (_, page) = http(replica.addresses.metrics, "GET", "/metrics", "").await.unwrap();
        page.contains(&line).then_some(())
    })
    .await;
}

/// How many of `calls` pass, sent to both replicas in turn.
async fn passed(replicas: [&Service; 2], key: &str, value: &str, calls: usize) -> usize {
    let mut passed = 0;
    for call in 0..calls {
        let status = replicas[call % 2].status(request_for("shop", key, value)).await;
        passed += usize::from(status.code == 1);
    }
    passed
}

#[tokio::test]
async fn replica_with_corrected_clock_relinks_and_keeps_limits() {
    let log = Log::text();
    let secret = tempfile::tempdir().unwrap();
    let kept = replica(&secret, "off").await;
    let address = view(&kept).await["members"][0]["address"].as_str().unwrap().to_owned();
    let first = replica(&secret, &address).await;
    until_linked(&kept).await;

    kept.clock.set_wall_ahead(DAYS);
    until_stepped(&kept, "forward").await;
    // A bucket is used up while the clock is ahead.
    for value in ["a", "b", "c", "d"] {
        assert!(passed([&kept, &first], "bucket", value, 22).await >= 20);
    }
    kept.clock.set_wall_ahead(0);
    until_stepped(&kept, "back").await;
    assert!(log.take().iter().any(|line| line.contains("WARN") && line.contains("was corrected")));

    // The other replica restarts, so that every link is new.
    first.shutdown.send(()).await.unwrap();
    first.task.await.unwrap().unwrap();
    let second = replica(&secret, &address).await;
    until_linked(&kept).await;
    until_linked(&second).await;
    for value in ["e", "f", "g", "h"] {
        assert_eq!(passed([&kept, &second], "user", value, 30).await, 20, "exactly the limit");
    }
    for value in ["a", "b", "c", "d"] {
        let status = kept.status(request_for("shop", "bucket", value)).await;
        let until_reset = status.duration_until_reset.unwrap().seconds;
        assert!(until_reset <= 3_600, "locked out for {until_reset} s");
    }
}
