//! The rate limit quota service over real connections.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tollgate_wire::proto::envoy::{
    service::{
        rate_limit_quota::v3::{
            BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
            rate_limit_quota_response::bucket_action::BucketAction,
            rate_limit_quota_service_client::RateLimitQuotaServiceClient,
            rate_limit_quota_usage_reports::BucketQuotaUsage,
        },
        ratelimit::v3::rate_limit_response::Code as Verdict,
    },
    r#type::v3::rate_limit_strategy::Strategy,
};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

use crate::{
    admin::ok_json,
    harness::{Service, TIMEOUT, http, request_for, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: budget, rate_limit: {unit: minute, requests_per_unit: 500, algorithm: fixed_window}}
  - {key: rate, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}}
";

/// A client that decides by itself, with one bucket.
struct Client {
    reports: mpsc::Sender<RateLimitQuotaUsageReports>,
    responses: Streaming<RateLimitQuotaResponse>,
    key: &'static str,
}

impl Client {
    /// A client of one bucket, which it has reported.
    async fn open(service: &Service, key: &'static str) -> Result<Self, Status> {
        Self::over(service.channel().await, key).await
    }

    /// The same over this connection.
    async fn over(channel: Channel, key: &'static str) -> Result<Self, Status> {
        let (reports, sent) = mpsc::channel(4);
        let mut client = RateLimitQuotaServiceClient::new(channel);
        let opened = client.stream_rate_limit_quotas(ReceiverStream::new(sent)).await?;
        let client = Self { reports, responses: opened.into_inner(), key };
        client.report(0, 1).await;
        Ok(client)
    }

    async fn report(&self, allowed: u64, denied: u64) {
        let id = BucketId { bucket: [(self.key.to_owned(), "a".to_owned())].into() };
        let usage = BucketQuotaUsage {
            bucket_id: Some(id),
            time_elapsed: None,
            num_requests_allowed: allowed,
            num_requests_denied: denied,
        };
        let reports =
            RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: vec![usage] };
        self.reports.send(reports).await.unwrap();
    }

    async fn next(&mut self) -> Result<RateLimitQuotaResponse, Status> {
        timeout(TIMEOUT, self.responses.message()).await.unwrap().map(Option::unwrap)
    }

    /// The tokens and the fill of the last bucket that the next response assigns.
    async fn bucket(&mut self) -> (u32, u32) {
        let mut response = self.next().await.unwrap();
        let Some(BucketAction::QuotaAssignmentAction(assigned)) =
            response.bucket_action.pop().unwrap().bucket_action
        else {
            panic!("not an assignment")
        };
        let Some(Strategy::TokenBucket(bucket)) = assigned.rate_limit_strategy.unwrap().strategy else {
            panic!("not a bucket")
        };
        (bucket.max_tokens, bucket.tokens_per_fill.unwrap())
    }
}

async fn service() -> Service {
    let service = Service::start_with(RULES, &[("rlqs.enabled", "true")]).await;
    // What an earlier process may have assigned is over.
    service.advance(Duration::from_secs(36));
    service
}

/// How many of these calls pass.
async fn passed(service: &Service, key: &str, calls: usize) -> usize {
    let (mut client, mut passed) = (service.client().await, 0);
    for _ in 0..calls {
        let answer = client.should_rate_limit(request_for("shop", key, "a")).await.unwrap().into_inner();
        passed += usize::from(answer.overall_code == i32::from(Verdict::Ok));
    }
    passed
}

#[tokio::test]
async fn two_doors_exhaust_one_budget() {
    let service = service().await;
    let mut client = Client::open(&service, "budget").await.unwrap();
    assert_eq!(client.bucket().await, (20, 1), "the twenty-fifth part for a newcomer");
    assert_eq!(passed(&service, "budget", 600).await, 480);
    service.advance(Duration::from_secs(5));
    client.report(20, 5).await;
    client.bucket().await;
    assert_eq!(passed(&service, "budget", 10).await, 0, "the slice was used");
    let (_, page) = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap();
    for line in [
        "tollgate_rlqs_streams 1",
        "tollgate_rlqs_buckets 1",
        "tollgate_rlqs_granted_hits 0",
        "tollgate_rlqs_reported_requests_total{outcome=\"allowed\"} 20",
        "tollgate_rlqs_requests_beyond_grant_total 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}");
    }
}

#[tokio::test]
async fn explanation_and_lists_show_shares_of_clients() {
    let service = service().await;
    let mut first = Client::open(&service, "rate").await.unwrap();
    first.bucket().await;
    service.advance(Duration::from_secs(5));
    first.report(150, 150).await;
    first.bucket().await;
    let answer = ok_json(&service, "GET", "/explain?domain=shop&key=rate=a", "").await;
    let shares = &answer["descriptors"][0]["shares"];
    assert_eq!((&shares["clients"], &shares["callers_per_second"]), (&json!(1), &json!(0.0)));
    let share = &shares["first"][0];
    assert!(share["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{share}");
    // A bucket that refuses keeps its burst.
    assert_eq!(share["share"], json!({"per_second": 100, "burst": 10}));
    assert_eq!((&share["demand_per_second"], &share["has_ended"]), (&json!(60.2), &json!(false)));
    assert!((14_000..=16_000).contains(&share["ends_after_ms"].as_u64().unwrap()), "{share}");
    let top = ok_json(&service, "GET", "/top", "").await;
    assert_eq!(top["quotas"], json!([{"key": "shop rate=a", "count": 301, "error": 0}]));
    let other = ok_json(&service, "GET", "/explain?domain=shop&key=rate=b", "").await;
    assert!(other["descriptors"][0]["shares"].is_null());
}

#[tokio::test]
async fn share_of_a_rate_is_pushed_to_other_clients() {
    let service = service().await;
    let mut first = Client::open(&service, "rate").await.unwrap();
    assert_eq!(first.bucket().await, (10, 50), "half of what is free");
    service.advance(Duration::from_secs(5));
    first.report(250, 250).await;
    assert_eq!(first.bucket().await, (10, 100), "a bucket that refuses keeps its burst");
    let mut second = Client::open(&service, "rate").await.unwrap();
    let less = first.bucket().await;
    assert!(less.1 < 100, "{less:?}");
    // The smaller share is in force after half a second.
    service.advance(Duration::from_secs(1));
    let got = until(async || {
        let response = second.next().await.unwrap();
        let action = response.bucket_action.into_iter().next_back()?.bucket_action?;
        let BucketAction::QuotaAssignmentAction(assigned) = action else { return None };
        match assigned.rate_limit_strategy?.strategy? {
            Strategy::TokenBucket(bucket) => bucket.tokens_per_fill,
            Strategy::BlanketRule(_) | Strategy::RequestsPerTimeUnit(_) => None,
        }
    })
    .await;
    assert!(got >= 1 && got + less.1 <= 100, "{got} and {less:?}");
}

#[tokio::test]
async fn stream_ends_when_the_server_stops() {
    let service = service().await;
    let mut client = Client::open(&service, "rate").await.unwrap();
    client.bucket().await;
    service.terminate().await;
    assert_eq!(client.next().await.unwrap_err().code(), Code::Unavailable);
    timeout(TIMEOUT, service.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn stream_ends_when_its_connection_breaks() {
    let service = service().await;
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grpc = service.addresses.grpc.to_string();
    let endpoint = Endpoint::from_shared(format!("http://{}", relay.local_addr().unwrap())).unwrap();
    let relaying = tokio::spawn(async move {
        let (mut client, _) = relay.accept().await.unwrap();
        let mut server = TcpStream::connect(grpc).await.unwrap();
        copy_bidirectional(&mut client, &mut server).await
    });
    let mut client = Client::over(endpoint.connect().await.unwrap(), "rate").await.unwrap();
    client.bucket().await;
    relaying.abort();
    until(async || {
        let (_, page) = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap();
        page.lines().any(|line| line == "tollgate_rlqs_streams 0").then_some(())
    })
    .await;
}

#[tokio::test]
async fn service_that_is_not_enabled_is_unimplemented() {
    let service = Service::start(RULES).await;
    let (_reports, sent) = mpsc::channel::<RateLimitQuotaUsageReports>(1);
    let mut client = RateLimitQuotaServiceClient::new(service.channel().await);
    let refused = client.stream_rate_limit_quotas(ReceiverStream::new(sent)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}
