//! When reservations expire, and what becomes of their hits.

use std::time::Duration;

use tollgate_wire::proto::tollgate::v1::{
    Descriptor, ReserveRequest, reserve_request::OnExpiry, settled_limit::Outcome,
};
use tonic::Code;

use crate::{
    api_v1::{
        descriptor, reason_of,
        reservations::{Caller, RULES, hold, is_held, tokens, used, with_hits},
    },
    harness::Service,
};

#[tokio::test]
async fn expired_reservation_is_released_or_stays_charged() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let ttl = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let on_expiry = OnExpiry::Charge.into();
    caller.reserve(ReserveRequest { ttl, ..hold(&tokens(), 100, "released") }).await.unwrap();
    caller.reserve(ReserveRequest { ttl, on_expiry, ..hold(&tokens(), 50, "charged") }).await.unwrap();
    caller.reserve(hold(&tokens(), 10, "default")).await.unwrap();
    service.advance(Duration::from_millis(1_999));
    assert_eq!(caller.left(&tokens()).await, [840]);
    service.advance(Duration::from_millis(1));
    assert_eq!(caller.left(&tokens()).await, [940]);
    let settled = caller.settle_one(used(&tokens(), 20, "charged")).await;
    assert_eq!((settled.outcome(), settled.reserved, settled.remaining), (Outcome::Charged, 50, 970));
    let settled = caller.settle_one(used(&tokens(), 20, "released")).await;
    assert_eq!((settled.outcome(), settled.reserved, settled.remaining), (Outcome::Released, 0, 950));
    service.advance(Duration::from_secs(58));
    assert_eq!(caller.left(&tokens()).await, [960], "without a ttl after 60 s");
}

#[tokio::test]
async fn descriptors_of_a_reservation_expire_each_as_it_says() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let both = [
        Descriptor { on_expiry: Some(OnExpiry::Release.into()), ..with_hits(descriptor("places", "ann"), 1) },
        Descriptor { on_expiry: Some(OnExpiry::Charge.into()), ..descriptor("tokens", "ann") },
    ];
    assert!(is_held(&caller.reserve(hold(&both, 700, "a")).await.unwrap(), "a"));
    let without_hits = both.clone().map(|both| Descriptor { hits: None, ..both });
    assert_eq!(caller.left(&without_hits).await, [1, 300]);
    service.advance(Duration::from_secs(60));
    assert_eq!(caller.left(&without_hits).await, [2, 300]);
    let unknown = Descriptor { on_expiry: Some(7), ..descriptor("tokens", "ann") };
    let error = caller.reserve(hold(&[unknown], 1, "b")).await.unwrap_err();
    assert_eq!((error.code(), &*reason_of(&error)), (Code::InvalidArgument, "UNKNOWN_ON_EXPIRY"));
}

#[tokio::test]
async fn place_of_a_reservation_is_kept_longer_than_hold_max() {
    let service = Service::start(RULES).await;
    let mut caller = Caller::new(&service).await;
    let place = [descriptor("places", "ann")];
    for id in ["a", "b"] {
        assert!(is_held(&caller.reserve(hold(&place, 1, id)).await.unwrap(), id));
    }
    service.advance(Duration::from_secs(10));
    assert_eq!(caller.left(&place).await, [0]);
    assert!(!is_held(&caller.reserve(hold(&place, 1, "c")).await.unwrap(), "c"));
    assert_eq!(caller.settle_one(used(&place, 0, "a")).await.remaining, 1);
    service.advance(Duration::from_secs(50));
    assert_eq!(caller.left(&place).await, [2]);
}
