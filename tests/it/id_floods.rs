//! Callers with many ids leave room for those of others.

use std::{pin::pin, time::Duration};

use tokio::{task::JoinSet, time::timeout};
use tollgate_wire::proto::tollgate::v1::{
    self, ReserveRequest, SettleRequest, answer::Verdict, rate_limiter_client::RateLimiterClient,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{
    api_v1::{check, descriptor, each, reason_of, request},
    certificates::{Authority, Files, borrowed, connect},
    harness::{Service, rounds},
    hostile_clients::RULES,
};

fn reserve(user: usize, id: &str) -> ReserveRequest {
    ReserveRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", &user.to_string())],
        amount: 1,
        reservation_id: id.into(),
        ..ReserveRequest::default()
    }
}

/// A client whose connection comes from this address.
async fn client_from(address: [u8; 4], service: &Service) -> RateLimiterClient<Channel> {
    let server = Endpoint::from_shared(format!("http://{}", service.addresses.grpc)).unwrap();
    RateLimiterClient::new(server.local_address(Some(address.into())).connect().await.unwrap())
}

/// Reserves for one user after the other until there is no more room for ids of this client.
async fn take_share(client: &mut RateLimiterClient<Channel>) {
    for user in 0.. {
        if let Err(error) = client.reserve(reserve(user, "a")).await {
            assert_eq!(reason_of(&error), "TOO_MANY_RESERVATIONS");
            return;
        }
    }
}

/// Charges once for each of many ids, in calls under way at the same time on one connection. Returns how many were
/// refused.
async fn flood_with_ids(client: RateLimiterClient<Channel>, ids: usize) -> usize {
    const EACH: usize = 256;
    // Of more, the last may take longer on a busy machine than the 30 s in which a request must arrive.
    const UNDER_WAY: usize = 20;
    let mut calls = JoinSet::new();
    let mut refused = 0;
    let mut count = |answered: Result<tonic::Response<v1::CheckResponse>, Status>| match answered {
        Ok(answered) => {
            let answers = answered.into_inner().answers;
            refused += answers.iter().filter(|answer| answer.verdict() != Verdict::Allowed).count();
        }
        Err(error) => {
            assert_eq!(reason_of(&error), "TOO_MANY_RESERVATIONS");
            refused += EACH;
        }
    };
    for call in 0..ids / EACH {
        let once = |id: usize| v1::Request {
            request_id: (call * EACH + id).to_string(),
            ..request("user", &(call * EACH + id).to_string())
        };
        let (requests, mut client) = (each((0..EACH).map(once).collect()), client.clone());
        calls.spawn(async move { client.check(requests).await });
        if calls.len() >= UNDER_WAY {
            count(calls.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(answered) = calls.join_next().await {
        count(answered.unwrap());
    }
    refused
}

/// Others are answered while a flood of ids is under way, and afterwards.
async fn others_succeed_during_flood_of_ids(ids: usize, overrides: &[(&str, &str)]) -> usize {
    let service = Service::start_with(RULES, overrides).await;
    let mut other = client_from([127, 0, 0, 2], &service).await;
    let mut flood = pin!(flood_with_ids(client_from([127, 0, 0, 3], &service).await, ids));
    let mut refused = None;
    for round in 0.. {
        let held = other.reserve(reserve(round, &format!("b{round}"))).await;
        assert!(held.is_ok(), "{round}: {held:?}");
        let once = v1::Request { request_id: format!("c{round}"), ..request("user", &round.to_string()) };
        let answers = other.check(each(vec![once])).await.unwrap().into_inner().answers;
        assert_eq!(answers[0].verdict(), Verdict::Allowed, "{round}");
        if refused.is_some() {
            break;
        }
        // A poll of the flood between two calls of the other.
        refused = timeout(Duration::from_millis(20), &mut flood).await.ok();
        assert!(refused.is_none() || round >= 10, "{round} rounds during the flood");
    }
    refused.unwrap()
}

#[tokio::test]
async fn others_reserve_while_one_connection_sends_many_ids() {
    others_succeed_during_flood_of_ids(rounds(12_800, 102_400), &[]).await;
    let refused = others_succeed_during_flood_of_ids(25_600, &[("store.memory_limit", "16MiB")]).await;
    assert!(refused > 10_000, "{refused}: there is room for a part of these ids");
}

#[tokio::test]
async fn caller_that_reconnects_keeps_the_account_of_its_ids() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let mut hostile = client_from([127, 0, 0, 3], &service).await;
    take_share(&mut hostile).await;
    drop(hostile);
    let mut again = client_from([127, 0, 0, 3], &service).await;
    let refused = again.reserve(reserve(5_000, "b")).await.unwrap_err();
    assert_eq!(reason_of(&refused), "TOO_MANY_RESERVATIONS");
    assert!(again.reserve(reserve(0, "a")).await.is_ok(), "a known id is answered as the first time");
    let mut other = client_from([127, 0, 0, 2], &service).await;
    assert!(other.reserve(reserve(5_000, "b")).await.is_ok());
    service.advance(Duration::from_secs(10 * 60));
    assert!(again.reserve(reserve(5_000, "c")).await.is_ok(), "counters have forgotten the ids");
}

#[tokio::test]
async fn many_open_connections_of_one_address_have_one_share() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let mut taking = JoinSet::new();
    for number in 0..20 {
        let mut hostile = client_from([127, 0, 0, 3], &service).await;
        taking.spawn(async move {
            let id = number.to_string();
            let mut users = 0;
            while hostile.reserve(reserve(1_000 * number + users, &id)).await.is_ok() {
                users += 1;
            }
            hostile
        });
    }
    let mut open = taking.join_all().await;
    assert!(open[0].reserve(reserve(50_000, "a")).await.is_err());
    let mut other = client_from([127, 0, 0, 2], &service).await;
    // Its room is a quarter of what the hostile address leaves: 28 of these when it was measured.
    for user in 0..20 {
        let held = other.reserve(reserve(user, "b")).await;
        assert!(held.is_ok(), "{user}: {held:?}");
    }
}

#[tokio::test]
async fn connections_with_one_certificate_name_share_their_ids() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let mut settings = files.mutual("grpc", &ours);
    settings.push(("store.memory_limit".to_owned(), "1MiB".to_owned()));
    let service = Service::start_with(RULES, &borrowed(&settings)).await;
    let client = async |names: &[&str]| {
        let identity = ours.pair(names, 2100);
        RateLimiterClient::new(connect(&service.addresses.grpc, &ours, Some(&identity)).await.unwrap())
    };
    let (mut hostile, mut beside) = (client(&["edge.shop"]).await, client(&["EDGE.shop"]).await);
    take_share(&mut hostile).await;
    let refused = beside.reserve(reserve(5_000, "b")).await.unwrap_err();
    assert_eq!(reason_of(&refused), "TOO_MANY_RESERVATIONS");
    assert!(client(&["spiffe://shop/other"]).await.reserve(reserve(5_000, "b")).await.is_ok());
}

#[tokio::test]
async fn caller_with_many_ids_leaves_room_for_those_of_others() {
    let service = Service::start_with(RULES, &[("store.memory_limit", "1MiB")]).await;
    let mut hostile = client_from([127, 0, 0, 3], &service).await;
    let mut other = client_from([127, 0, 0, 2], &service).await;
    let settle = |user: usize| SettleRequest {
        domain: "shop".into(),
        descriptors: vec![descriptor("user", &user.to_string())],
        reservation_id: "unknown".into(),
        actual: 1,
    };
    let mut refused = 0;
    for user in 0..1_000 {
        let held = hostile.reserve(reserve(user, "a")).await;
        refused += usize::from(held.is_err_and(|error| reason_of(&error) == "TOO_MANY_RESERVATIONS"));
        hostile.settle(settle(user)).await.unwrap();
    }
    assert!(refused > 0, "there is room for a part of these ids");
    for user in 0..10 {
        assert_eq!(other.reserve(reserve(user, "b")).await.unwrap().into_inner().reservation_id, "b");
        let once = v1::Request { request_id: "c".into(), ..request("user", &user.to_string()) };
        assert_eq!(check(&service, each(vec![once])).await[0].verdict(), Verdict::Allowed);
    }
    let repeated = hostile.reserve(reserve(0, "a")).await.unwrap().into_inner();
    assert_eq!(repeated.reservation_id, "a", "a known id is answered as the first time");
}
