//! Slices that are spent without calls.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_client::{PrepaidSlices, Request, SliceOptions, Source};

use crate::harness::{RULES, Server, client, counted, eventually, options, remaining, request};

const TEN: SliceOptions = SliceOptions { hits: 10, ttl: Duration::from_secs(60), keys_max: 10 };

async fn spends_slice(prepaid: &PrepaidSlices, request: &Request) -> bool {
    prepaid.check(request).await.unwrap().source == Source::Prepaid
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_with_slices_pass_exactly_what_is_charged() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let red = request("group", "red");
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let prepaid = PrepaidSlices::new(client.clone(), TEN).unwrap();
        let red = red.clone();
        callers.spawn(async move {
            let mut passed = 0;
            for _ in 0..100 {
                passed += u64::from(prepaid.check(&red).await.unwrap().allowed);
            }
            prepaid.close().await;
            passed
        });
    }

    let passed: u64 = callers.join_all().await.into_iter().sum();

    assert!(passed <= 100, "{passed} passed of a limit of 100");
    assert_eq!(remaining(&client, &red).await, 100 - passed);
}

#[tokio::test]
async fn slice_that_is_not_used_is_given_back() {
    let server = Server::start(RULES).await;
    let client = client(server.target(), options());
    let prepaid =
        PrepaidSlices::new(client.clone(), SliceOptions { ttl: Duration::from_millis(200), ..TEN }).unwrap();
    let red = request("group", "red");
    assert!(prepaid.check(&red).await.unwrap().allowed);
    eventually("the slice is held", async || remaining(&client, &red).await == 89).await;
    eventually("the slice is given back", async || remaining(&client, &red).await == 99).await;
}

#[tokio::test]
async fn lost_settlement_counts_hits_that_stay_charged() {
    let mut server = Server::start(RULES).await;
    let (options, counts) = counted();
    let prepaid = PrepaidSlices::new(client(server.target(), options), TEN).unwrap();
    let red = request("group", "red");
    eventually("a slice is reserved", async || spends_slice(&prepaid, &red).await).await;
    assert!(spends_slice(&prepaid, &red).await);
    server.kill().await;

    prepaid.close().await;

    assert_eq!(counts.lost_hits(), 8);
}
