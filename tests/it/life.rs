//! How the process starts and leaves, as probes and callers see it.

use std::time::Duration;

use tokio::time::timeout;
use tollgate::{
    server::{Error, Server},
    time::Clock,
};
use tonic::transport::Channel;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::harness::{PATIENCE, Service, one, settings, until, with_hits};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000}
";

const NAMES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

async fn channel(service: &Service) -> Channel {
    Channel::from_shared(format!("http://{}", service.addresses.grpc)).unwrap().connect().await.unwrap()
}

async fn health(channel: &Channel, name: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest { service: name.into() };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test]
async fn the_health_service_knows_us_by_three_names_and_nobody_else() {
    let service = Service::start(RULES).await;
    let channel = channel(&service).await;
    for name in NAMES {
        until(async || (health(&channel, name).await == Ok(ServingStatus::Serving)).then_some(())).await;
    }
    assert_eq!(health(&channel, "other").await, Err(tonic::Code::NotFound));
}

#[tokio::test]
async fn without_rules_health_is_not_serving() {
    let service = Service::start_unready("domain: [", &[]).await;
    let channel = channel(&service).await;
    for name in NAMES {
        until(async || (health(&channel, name).await == Ok(ServingStatus::NotServing)).then_some(())).await;
    }
    assert_eq!(service.http("GET", "/livez", "").await.0, 200, "but it is alive");
    assert_eq!(service.http("GET", "/healthcheck", "").await.0, 500);
}

#[tokio::test]
async fn a_process_without_rules_serves_once_they_are_mended() {
    let service = Service::start_unready("domain: [", &[]).await;
    service.until_http("/readyz", 503).await;
    std::fs::write(service.rules.path().join("rules.yaml"), RULES).unwrap();
    service.until_http("/readyz", 200).await;
    assert!(service.ask(one("shop", "user", "x")).await.is_ok());
}

#[tokio::test]
async fn reflection_names_our_services() {
    let service = Service::start(RULES).await;
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel(&service).await);
    let mut answers = client.server_reflection_info(tokio_stream::once(ask)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
}

#[tokio::test]
async fn while_draining_it_is_not_ready_but_answers_on() {
    let service = Service::start_with(RULES, &[("drain.delay", "30s"), ("drain.timeout", "60s")]).await;
    let channel = channel(&service).await;
    service.leave.send(()).await.unwrap();
    until(async || (health(&channel, "").await == Ok(ServingStatus::NotServing)).then_some(())).await;
    assert_eq!(service.http("GET", "/readyz", "").await, (503, "leaving\n".to_owned()));
    assert!(service.ask(one("shop", "user", "new connection")).await.is_ok());
    // Told twice, it leaves at once.
    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn after_the_delay_it_ends_although_clients_stay_connected_and_watch() {
    let service = Service::start_with(RULES, &[("drain.timeout", "60s")]).await;
    let client = service.client().await;
    let watching = HealthCheckRequest { service: String::new() };
    let mut watch = HealthClient::new(channel(&service).await).watch(watching).await.unwrap().into_inner();
    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
    while let Ok(Some(_)) = watch.message().await {}
    drop(client);
}

#[tokio::test]
async fn the_end_of_the_drains_time_ends_it_whatever_is_open() {
    let queue = "
domain: shop
descriptors:
  - key: queue
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: leaky_queue, burst: 1}
";
    let service = Service::start_with(queue, &[("drain.timeout", "10ms")]).await;
    assert!(service.ask(one("shop", "queue", "x")).await.is_ok());
    // This one waits for an hour.
    let mut client = service.client().await;
    let waiting = tokio::spawn(async move { client.should_rate_limit(one("shop", "queue", "x")).await });
    until(async || {
        let look = with_hits(one("shop", "queue", "x"), 0);
        (service.ask(look).await.unwrap().statuses[0].limit_remaining == 0).then_some(())
    })
    .await;
    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
    assert!(!waiting.is_finished(), "the call was still open");
}

#[tokio::test]
async fn a_second_server_on_one_port_is_an_error_that_names_it() {
    let service = Service::start(RULES).await;
    let address = service.addresses.grpc.to_string();
    let settings = settings(&service.rules, &[("grpc.listen", &address)]);
    let error = Server::bind(settings, Clock::system()).await.unwrap_err();
    assert!(matches!(error, Error::Listen { listener: "grpc", .. }));
    assert!(error.to_string().starts_with(&format!("grpc.listen: cannot listen on {address}: ")), "{error}");
}

#[tokio::test]
async fn a_call_in_flight_is_finished_while_the_process_leaves() {
    let service = Service::start_with(RULES, &[("drain.delay", "100ms"), ("drain.timeout", "60s")]).await;
    let mut client = service.client().await;
    let asking = tokio::spawn(async move {
        let mut answered = 0;
        // Until the connection is told to go away, every call is answered.
        while client.should_rate_limit(one("shop", "user", "x")).await.is_ok() {
            answered += 1;
        }
        answered
    });
    service.leave.send(()).await.unwrap();
    assert!(timeout(PATIENCE, service.ended).await.unwrap().unwrap().is_ok());
    assert!(timeout(PATIENCE + Duration::from_secs(1), asking).await.unwrap().unwrap() > 0);
}
