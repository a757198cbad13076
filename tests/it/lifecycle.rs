//! The lifecycle of the process, as probes and callers observe it.

use std::{io, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tollgate::server::Server;
use tollgate_counter::time::{Clock, Stopwatch};
use tonic::transport::Channel;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha,
};

use crate::harness::{Service, TIMEOUT, request_for, send, settings, until, with_hits};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000}
";

const NAMES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

async fn health(channel: &Channel, name: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest { service: name.into() };
    let answer = HealthClient::new(channel.clone()).check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

#[tokio::test]
async fn health_service_knows_exactly_three_names() {
    let service = Service::start(RULES).await;
    let channel = service.channel().await;
    for name in NAMES {
        until(async || (health(&channel, name).await == Ok(ServingStatus::Serving)).then_some(())).await;
    }
    assert_eq!(health(&channel, "other").await, Err(tonic::Code::NotFound));
}

#[tokio::test]
async fn health_without_rules_is_not_serving() {
    let service = Service::start_unready("domain: [", &[]).await;
    let channel = service.channel().await;
    for name in NAMES {
        until(async || (health(&channel, name).await == Ok(ServingStatus::NotServing)).then_some(())).await;
    }
    assert_eq!(service.http("GET", "/livez", "").await.0, 200, "the process is alive");
    assert_eq!(service.http("GET", "/healthcheck", "").await.0, 500);
}

#[tokio::test]
async fn process_without_rules_serves_once_rules_are_repaired() {
    let service = Service::start_unready("domain: [", &[]).await;
    service.until_http("/readyz", 503).await;
    std::fs::write(service.rules.path().join("rules.yaml"), RULES).unwrap();
    service.until_http("/readyz", 200).await;
    assert!(service.call(request_for("shop", "user", "x")).await.is_ok());
}

/// A replica of a cluster with this seed and `/check`.
async fn starting(seed: &str) -> (Service, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "a secret that replicas share").unwrap();
    let settings = [
        ("cluster.listen", "127.0.0.1:0"),
        ("cluster.secret_file", secret.to_str().unwrap()),
        ("cluster.seed", seed),
        ("check.domain", "shop"),
        ("check.descriptors", "user={x-user}"),
    ];
    (Service::start_unready(RULES, &settings).await, folder)
}

/// The statuses of calls to `/json` and `/check`.
async fn http_calls(service: &Service) -> [u16; 2] {
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "y"}]}]}"#;
    let check = send(service.addresses.http, "host: localhost\r\nx-user: y\r\n", "GET", "/check", "");
    let (json, check) = tokio::join!(service.http("POST", "/json", body), check);
    [json.0, check.0]
}

async fn grpc_error(service: &Service) -> Option<io::ErrorKind> {
    TcpStream::connect(service.addresses.grpc.to_string()).await.err().map(|error| error.kind())
}

#[tokio::test]
async fn calls_wait_while_the_replica_of_a_cluster_starts() {
    // It looks for other replicas first, for more than a second.
    let (service, _folder) = starting("127.0.0.1:1").await;
    assert_eq!(grpc_error(&service).await, Some(io::ErrorKind::ConnectionRefused));
    assert_eq!(service.http("GET", "/livez", "").await.0, 200);
    let (answer, statuses) =
        tokio::join!(service.call(request_for("shop", "user", "x")), http_calls(&service));
    assert_eq!(answer.unwrap().statuses[0].limit_remaining, 999);
    assert_eq!(statuses, [200, 200]);
}

#[tokio::test]
async fn replica_of_a_cluster_that_cannot_join_answers_errors() {
    // A process that accepts connections may be a busy member: the replica looks for 10 s.
    let busy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let begun = Stopwatch::start();
    let (service, _folder) = starting(&busy.local_addr().unwrap().to_string()).await;
    assert_eq!(grpc_error(&service).await, Some(io::ErrorKind::ConnectionRefused));
    assert_eq!(http_calls(&service).await, [503, 503]);
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(
        service.call(request_for("shop", "user", "x")).await.unwrap_err().code(),
        tonic::Code::Unavailable
    );
    assert_eq!(service.http("GET", "/readyz", "").await.0, 503);
}

#[tokio::test]
async fn reflection_lists_served_services() {
    let service = Service::start(RULES).await;
    let query = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(service.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::once(query)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for name in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        "tollgate.v1.RateLimiter",
        "grpc.health.v1.Health",
    ] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
}

#[tokio::test]
async fn reflection_answers_older_tools_too() {
    let service = Service::start(RULES).await;
    let query = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "envoy.service.ratelimit.v3.RateLimitService".to_owned(),
        )),
    };
    let channel = service.channel().await;
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::once(query)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let is_file = |answer: &_| {
        matches!(answer, v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
    };
    assert!(is_file(&answer), "{answer:?}");
}

#[tokio::test]
async fn draining_process_is_not_ready_but_answers_calls() {
    let service = Service::start_with(RULES, &[("drain.delay", "30s"), ("drain.timeout", "60s")]).await;
    let channel = service.channel().await;
    service.terminate().await;
    until(async || (health(&channel, "").await == Ok(ServingStatus::NotServing)).then_some(())).await;
    assert_eq!(service.http("GET", "/readyz", "").await, (503, "draining\n".to_owned()));
    assert!(service.call(request_for("shop", "user", "new connection")).await.is_ok());
    // A second signal ends the process at once.
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn shutdown_ends_despite_connected_and_watching_clients() {
    let service = Service::start_with(RULES, &[("drain.timeout", "60s")]).await;
    let client = service.client().await;
    let watching = HealthCheckRequest { service: String::new() };
    let mut watch = HealthClient::new(service.channel().await).watch(watching).await.unwrap().into_inner();
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    while let Ok(Some(_)) = watch.message().await {}
    drop(client);
}

#[tokio::test]
async fn drain_timeout_ends_process_with_open_calls() {
    let queue = "
domain: shop
descriptors:
  - key: queue
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: leaky_queue, burst: 1}
";
    let service = Service::start_with(queue, &[("drain.timeout", "10ms")]).await;
    assert!(service.call(request_for("shop", "queue", "x")).await.is_ok());
    // This call is delayed by an hour.
    let mut client = service.client().await;
    let waiting =
        tokio::spawn(async move { client.should_rate_limit(request_for("shop", "queue", "x")).await });
    until(async || {
        let peek = with_hits(request_for("shop", "queue", "x"), 0);
        (service.call(peek).await.unwrap().statuses[0].limit_remaining == 0).then_some(())
    })
    .await;
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    assert!(!waiting.is_finished(), "the call was still open");
}

#[tokio::test]
async fn missing_path_of_required_rules_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rulez.yaml").display().to_string();
    let bind = async |required| {
        let overrides = [("rules.path", &*path), ("rules.required", required)];
        Server::bind(settings(&folder, &overrides), Clock::system()).await
    };
    let error = bind("true").await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("rules.path: {path} does not exist; with rules.required false the service starts without it")
    );
    assert!(bind("false").await.is_ok());
    std::fs::write(&path, "domain: [").unwrap();
    assert!(bind("true").await.is_ok(), "the file can be repaired while the service runs");
}

#[tokio::test]
async fn second_server_on_same_port_fails_and_names_it() {
    let service = Service::start(RULES).await;
    let address = service.addresses.grpc.to_string();
    let settings = settings(&service.rules, &[("grpc.listen", &address)]);
    let error = Server::bind(settings, Clock::system()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("grpc.listen: cannot listen on {address}: ")), "{error}");
}

#[tokio::test]
async fn calls_in_flight_are_finished_during_drain() {
    let service = Service::start_with(RULES, &[("drain.delay", "100ms"), ("drain.timeout", "60s")]).await;
    let mut client = service.client().await;
    let calling = tokio::spawn(async move {
        let mut answered = 0;
        // Every call is answered until the connection gets GOAWAY.
        while client.should_rate_limit(request_for("shop", "user", "x")).await.is_ok() {
            answered += 1;
        }
        answered
    });
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    assert!(timeout(TIMEOUT + Duration::from_secs(1), calling).await.unwrap().unwrap() > 0);
}
