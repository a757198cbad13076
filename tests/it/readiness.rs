//! When the state of its links makes a replica not ready.

use std::fs;

use tokio::{net::TcpListener, time::timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    harness::{Service, TIMEOUT, http, until, until_linked},
    log::Log,
};

const RULES: &str =
    "{domain: shop, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3}}]}";
const SECRET: &str = "a secret that replicas share";
const OTHER: &str = "another secret that replicas share";

/// A replica with this secret, possibly not ready, and the directory with its secret file.
async fn replica(secret: &str, seeds: &str) -> (Service, tempfile::TempDir) {
    replica_at("127.0.0.1:0", secret, seeds).await
}

/// The same at this address for other replicas.
async fn replica_at(address: &str, secret: &str, seeds: &str) -> (Service, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    fs::write(&file, secret).unwrap();
    let overrides = [
        ("cluster.listen", address),
        ("cluster.secret_file", file.to_str().unwrap()),
        ("cluster.seed", seeds),
        ("tls.poll_interval", "50ms"),
    ];
    (Service::start_unready(RULES, &overrides).await, folder)
}

async fn cluster_address(service: &Service) -> String {
    let (_, view) = http(service.addresses.admin, "GET", "/cluster", "").await.unwrap();
    let view: serde_json::Value = serde_json::from_str(&view).unwrap();
    view["members"][0]["address"].as_str().unwrap().to_owned()
}

async fn health(service: &Service) -> ServingStatus {
    let mut client = HealthClient::new(service.channel().await);
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn replica_whose_links_are_all_rejected_is_not_ready() {
    let (inside, _folder) = replica(SECRET, "off").await;
    inside.until_http("/readyz", 200).await;
    let address = cluster_address(&inside).await;
    let (outside, folder) = replica(OTHER, &address).await;

    let why = until(async || {
        let (code, why) = outside.http("GET", "/readyz", "").await;
        (code == 503 && why.contains("rejected")).then_some(why)
    })
    .await;
    assert_eq!(why, format!("every link to another replica is rejected: {address} (untrusted)\n"));
    until(async || (health(&outside).await == ServingStatus::NotServing).then_some(())).await;
    // A stranger that dials does not change the readiness of a member.
    assert_eq!(inside.http("GET", "/readyz", "").await.0, 200);

    fs::write(folder.path().join("secret"), SECRET).unwrap();
    outside.until_http("/readyz", 200).await;
    until(async || (health(&outside).await == ServingStatus::Serving).then_some(())).await;
}

#[tokio::test]
async fn last_replica_of_a_cluster_stays_ready_beside_a_stranger() {
    let log = Log::text();
    let (first, _folder) = replica(SECRET, "off").await;
    first.until_http("/readyz", 200).await;
    let address = cluster_address(&first).await;
    let (last, _folder) = replica(SECRET, &address).await;
    until_linked(&last).await;
    first.terminate().await;
    assert!(timeout(TIMEOUT, first.task).await.unwrap().unwrap().is_ok());
    // Another process gets the address of the replica that has left.
    let (stranger, _folder) = replica_at(&address, OTHER, "off").await;
    stranger.until_http("/readyz", 200).await;
    let goes_on = |line: &String| line.contains("this replica has served and goes on without them");
    until(async || log.take().iter().any(goes_on).then_some(())).await;
    let (code, why) = last.http("GET", "/readyz", "").await;
    let rejected = format!("OK, but every link to another replica is rejected: {address} (untrusted)\n");
    assert_eq!((code, why), (200, rejected));
    let (_, metrics) = http(last.addresses.metrics, "GET", "/metrics", "").await.unwrap();
    assert!(metrics.contains("tollgate_cluster_rejected 1"), "{metrics}");
    let (_, findings) = http(last.addresses.admin, "GET", "/doctor", "").await.unwrap();
    assert!(findings.contains("links_rejected") && findings.contains(&address), "{findings}");
}

#[tokio::test]
async fn replica_whose_peers_are_silent_is_ready() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (replica, _folder) = replica(SECRET, &silent.local_addr().unwrap().to_string()).await;
    replica.until_http("/readyz", 200).await;
    // The peer accepts connections and never answers the handshake.
    let (_open, _) = silent.accept().await.unwrap();
    let (_again, _) = silent.accept().await.unwrap();
    assert_eq!(replica.http("GET", "/readyz", "").await.0, 200);
}
