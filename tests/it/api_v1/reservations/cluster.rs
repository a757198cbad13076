//! Reservations over several replicas.

use tollgate_wire::proto::tollgate::v1::Descriptor;
use tonic::Code;

use crate::{
    api_v1::{
        descriptor, reason_of,
        reservations::{Caller, hold, is_held, used},
    },
    harness::{Service, cluster_view, http, replica, until, until_linked},
    program::Program,
};

const CLUSTER_RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}}
";

/// Descriptors whose counters are in both replicas.
fn users() -> Vec<Descriptor> {
    (0..40).map(|user| descriptor("user", &user.to_string())).collect()
}

async fn address_of(replica: &Service) -> String {
    cluster_view(replica).await["members"][0]["address"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn reservation_over_two_replicas_is_settled_by_either() {
    let secret = tempfile::tempdir().unwrap();
    let first = replica(CLUSTER_RULES, &secret, "off").await;
    let second = replica(CLUSTER_RULES, &secret, &address_of(&first).await).await;
    until_linked(&first).await;
    until_linked(&second).await;
    let [mut one, mut other] = [Caller::new(&first).await, Caller::new(&second).await];
    assert!(is_held(&one.reserve(hold(&users(), 6, "a")).await.unwrap(), "a"));
    assert_eq!(other.left(&users()).await, [4; 40]);
    let mut too_many = users();
    too_many[20].hits = Some(5);
    assert!(!is_held(&other.reserve(hold(&too_many, 1, "b")).await.unwrap(), "b"));
    until(async || (one.left(&users()).await == [4; 40]).then_some(())).await;
    assert!(is_held(&other.reserve(hold(&users(), 6, "a")).await.unwrap(), "a"));
    let settled = other.settle(used(&users(), 2, "a")).await.unwrap();
    assert!(
        !settled.unknown && settled.limits.iter().all(|limit| (limit.reserved, limit.remaining) == (6, 8))
    );
    assert_eq!(one.settle(used(&users(), 9, "a")).await.unwrap(), settled);
    assert_eq!(one.left(&users()).await, [8; 40]);
}

#[tokio::test]
async fn reservation_without_an_owner_is_unavailable_and_holds_nothing() {
    let secret = tempfile::tempdir().unwrap();
    let first = replica(CLUSTER_RULES, &secret, "off").await;
    let (address, file) = (address_of(&first).await, secret.path().join("secret"));
    let file = file.to_str().unwrap();
    let flags =
        ["--cluster-listen", "127.0.0.1:0", "--cluster-secret-file", file, "--cluster-seed", &address];
    let second = Program::start(CLUSTER_RULES, &flags).await;
    until_linked(&first).await;
    let mut caller = Caller::new(&first).await;
    second.signal("STOP").await;
    let error = caller.reserve(hold(&users(), 6, "a")).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::Unavailable, "OWNER_UNREACHABLE".to_owned()));
    let page = http(first.addresses.metrics, "GET", "/metrics", "").await.unwrap().1;
    assert!(page.contains("tollgate_unanswered_requests_total{reason=\"owner_unreachable\"} 1\n"), "{page}");
    second.signal("CONT").await;
    until(async || (caller.left(&users()).await == [10; 40]).then_some(())).await;
}
