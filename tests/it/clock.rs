//! A machine whose clock jumps ahead and is corrected.

use tollgate::server::Server;
use tollgate_counter::time::{Clock, SECOND, Timestamp};

use crate::{
    harness::{Service, cluster_view, http, replica, request_for, settings, until, until_linked},
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
async fn server_does_not_start_with_a_clock_out_of_range() {
    let folder = tempfile::tempdir().unwrap();
    for at in [Timestamp::EPOCH, Timestamp::MAX] {
        let started = Server::bind(settings(&folder, &[]), Clock::manual(at)).await;
        let why = started.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why.starts_with("the clock of this machine is not between the years 1970 and 2499"), "{why}");
    }
}

#[tokio::test]
async fn clock_that_leaves_the_range_ends_the_process_with_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let settings = settings(&folder, &[("store.snapshot", path.to_str().unwrap())]);
    let clock = Clock::system();
    let server = Server::bind(settings, clock.clone()).await.unwrap();
    let (_shutdown, shutdown_signal) = tokio::sync::mpsc::channel(2);
    let running = tokio::spawn(server.run(shutdown_signal));
    // 292 years back.
    clock.set_wall_ahead(i64::MIN);
    let why = running.await.unwrap().unwrap_err().to_string();
    assert!(why.starts_with("the clock of this machine is not between the years 1970 and 2499"), "{why}");
    assert!(path.exists());
}

#[tokio::test]
async fn replica_with_corrected_clock_relinks_and_keeps_limits() {
    let log = Log::text();
    let secret = tempfile::tempdir().unwrap();
    let kept = replica(RULES, &secret, "off").await;
    let address = cluster_view(&kept).await["members"][0]["address"].as_str().unwrap().to_owned();
    let first = replica(RULES, &secret, &address).await;
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
    first.terminate().await;
    first.task.await.unwrap().unwrap();
    let second = replica(RULES, &secret, &address).await;
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
