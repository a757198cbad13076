//! Requests that are decided together.

use tollgate_wire::proto::tollgate::v1::{PeekRequest, Request, answer::Verdict};
use tonic::Code;

use crate::{
    api_v1::{check, client, descriptor, reason_of, remaining, request, together, verdicts, with_hits},
    harness::Service,
};

// Classic and `count_denied` rules, whose refused hits count otherwise, and a domain that charges other limits too.
const RULES: &str = "
domain: shop
on_denied: charge_all
descriptors:
  - {key: classic, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: named, rate_limit: {unit: day, requests_per_unit: 3, algorithm: fixed_window}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 3, algorithm: token_bucket}}
  - {key: counted, rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_log, count_denied: true}}
";
const KEYS: [&str; 4] = ["classic", "named", "bucket", "counted"];

fn all() -> Vec<Request> {
    KEYS.map(|key| request(key, "x")).to_vec()
}

async fn left(service: &Service) -> Vec<Vec<u64>> {
    let peeked = client(service).await.peek(PeekRequest { requests: all() }).await.unwrap();
    remaining(&peeked.into_inner().answers)
}

#[tokio::test]
async fn refused_call_of_requests_together_charges_nothing() {
    let service = Service::start(RULES).await;
    assert_eq!(verdicts(&check(&service, together(all())).await), [Verdict::Allowed; 4]);
    assert_eq!(left(&service).await, [[2]; 4]);
    for key in KEYS {
        let mut requests = all();
        let index = KEYS.iter().position(|each| *each == key).unwrap();
        requests[index] = with_hits(requests[index].clone(), 3);
        let answers = check(&service, together(requests)).await;
        assert_eq!(verdicts(&answers), [Verdict::Denied; 4]);
        let refused: Vec<_> = answers.iter().map(|answer| answer.limits[0].refused).collect();
        assert_eq!(refused, KEYS.map(|each| each == key));
        assert_eq!(left(&service).await, [[2]; 4], "{key}");
    }
}

#[tokio::test]
async fn answers_of_requests_together_have_their_own_limits() {
    let service = Service::start(RULES).await;
    let mut requests = vec![request("named", "x"), request("bucket", "x")];
    requests[0].descriptors.insert(0, descriptor("no", "rule"));
    requests[1].id = "second".into();
    let answers = check(&service, together(requests)).await;
    let limits: Vec<_> = answers
        .iter()
        .map(|answer| (&*answer.id, answer.limits[0].descriptor_index, &*answer.limits[0].rule))
        .collect();
    assert_eq!(limits, [("", 1, "shop.named"), ("second", 0, "shop.bucket")]);
}

#[tokio::test]
async fn two_requests_of_one_counter_together_charge_twice_or_not_at_all() {
    let service = Service::start(RULES).await;
    let twice = |hits| together(vec![with_hits(request("classic", "x"), hits); 2]);
    assert_eq!(verdicts(&check(&service, twice(2)).await), [Verdict::Denied; 2]);
    assert_eq!(remaining(&check(&service, twice(1)).await), [[2], [1]]);
}

#[tokio::test]
async fn bad_requests_together_are_refused_with_their_index() {
    let service = Service::start_with(RULES, &[("api.max_descriptors", "5")]).await;
    let other = Request { domain: "other".into(), ..request("named", "x") };
    let empty = Request { descriptors: Vec::new(), ..request("named", "x") };
    let wide = Request { descriptors: vec![descriptor("named", "x"); 5], ..request("named", "x") };
    for (bad, reason, message) in [
        (other, "SEVERAL_DOMAINS", "requests[1]: requests that are decided together have one domain"),
        (empty, "NO_DESCRIPTORS", "requests[1]: the request has no descriptors"),
        (wide, "TOO_LARGE", "more than 5 descriptors"),
    ] {
        let call = together(vec![request("named", "x"), bad]);
        let error = client(&service).await.check(call).await.unwrap_err();
        assert_eq!((error.code(), reason_of(&error)), (Code::InvalidArgument, reason.to_owned()));
        assert!(error.message().contains(message), "{error}");
    }
    assert_eq!(left(&service).await[1], [3]);
}
