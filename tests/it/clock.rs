//! A machine whose clock jumps ahead and is put right.

use std::fs;

use tempfile::TempDir;
use tokio::sync::mpsc;
use tollgate::{
    server::Server,
    time::{Clock, SECOND},
};

use crate::{
    harness::{Service, http, one, settings, until},
    reload::Log,
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - {key: user, rate_limit: {algorithm: fixed_window, unit: year, requests_per_unit: 20}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, unit: hour, requests_per_unit: 20}}
";
const DAYS: i64 = 3 * 86_400 * SECOND as i64;

/// A replica with a clock of its own, ready to answer.
async fn replica(secret: &TempDir, seeds: &str) -> Service {
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
    let file = secret.path().join("secret");
    fs::write(&file, "a secret that replicas share").unwrap();
    let given = [
        ("cluster.listen", "127.0.0.1:0"),
        ("cluster.secret_file", file.to_str().unwrap()),
        ("cluster.seed", seeds),
        ("tls.poll_interval", "50ms"),
    ];
    let clock = Clock::system();
    let server = Server::bind(settings(&rules, &given), clock.clone()).await.unwrap();
    let (addresses, counters) = (server.addresses().unwrap(), server.stats());
    let (leave, left) = mpsc::channel(2);
    let ended = tokio::spawn(server.run(left));
    let service = Service { addresses, clock, leave, ended, rules, counters };
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

/// How many of `calls` pass, from both by turns.
async fn passed(replicas: [&Service; 2], key: &str, value: &str, calls: usize) -> usize {
    let mut passed = 0;
    for call in 0..calls {
        let status = replicas[call % 2].status(one("shop", key, value)).await;
        passed += usize::from(status.code == 1);
    }
    passed
}

#[tokio::test]
async fn replica_whose_clock_was_put_right_links_again_and_keeps_limits() {
    let log = Log::start();
    let secret = tempfile::tempdir().unwrap();
    let kept = replica(&secret, "off").await;
    let address = view(&kept).await["members"][0]["address"].as_str().unwrap().to_owned();
    let first = replica(&secret, &address).await;
    until_linked(&kept).await;

    kept.clock.set_wall_ahead(DAYS);
    until_stepped(&kept, "forward").await;
    // While it is ahead, a bucket is used up.
    for value in ["a", "b", "c", "d"] {
        assert!(20 <= passed([&kept, &first], "bucket", value, 22).await);
    }
    kept.clock.set_wall_ahead(0);
    until_stepped(&kept, "back").await;
    assert!(log.take().iter().any(|line| line.contains("WARN") && line.contains("was corrected")));

    // The other replica restarts: every link is a new one.
    first.leave.send(()).await.unwrap();
    first.ended.await.unwrap().unwrap();
    let second = replica(&secret, &address).await;
    until_linked(&kept).await;
    until_linked(&second).await;
    for value in ["e", "f", "g", "h"] {
        assert_eq!(passed([&kept, &second], "user", value, 30).await, 20, "the limit, and no more");
    }
    for value in ["a", "b", "c", "d"] {
        let status = kept.status(one("shop", "bucket", value)).await;
        let until_reset = status.duration_until_reset.unwrap().seconds;
        assert!(until_reset <= 3_600, "locked out for {until_reset} s");
    }
}
