//! `tollgate bench`, run against the service and against misbehaving servers.

use std::{process::Output, sync::Arc, time::Duration};

use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::Command,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tollgate_wire::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use crate::{
    certificates::{Authority, Files, borrowed},
    harness::{Service, TIMEOUT, request_for, with_hits},
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 20, algorithm: fixed_window}
  - key: wide
    rate_limit: {unit: year, requests_per_unit: 1000000, algorithm: fixed_window}
";

/// How long a test waits to conclude that nothing happens.
const STALL: Duration = Duration::from_millis(300);

async fn bench(to: &str, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["bench", "--to", to]).args(arguments.split_whitespace()).kill_on_drop(true);
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap()
}

/// The measurements of a run, as JSON.
async fn measure(to: &str, arguments: &str) -> Value {
    let output = bench(to, &format!("{arguments} --json")).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "no progress output without a terminal");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server that passes each request to `received`, and takes a permit of `permits` for each reply.
#[derive(Clone)]
struct SlowServer {
    received: mpsc::UnboundedSender<RateLimitRequest>,
    permits: Arc<Semaphore>,
    answer: Result<Code, tonic::Code>,
}

#[tonic::async_trait]
impl RateLimitService for SlowServer {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.received.send(request.into_inner()).unwrap();
        self.permits.acquire().await.unwrap().forget();
        let code = self.answer.map_err(|code| Status::new(code, "as configured"))?;
        Ok(Response::new(RateLimitResponse { overall_code: code.into(), ..Default::default() }))
    }
}

/// A slow server that answers `permits` requests: its address, the received requests, and permits for more replies.
async fn start_slow_server(
    permits: usize,
    answer: Result<Code, tonic::Code>,
) -> (String, mpsc::UnboundedReceiver<RateLimitRequest>, Arc<Semaphore>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (received, requests) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(permits));
    let service = RateLimitServiceServer::new(SlowServer { received, permits: permits.clone(), answer });
    let mut server = tonic::transport::Server::builder();
    tokio::spawn(server.add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
    (address, requests, permits)
}

#[tokio::test]
async fn closed_loop_counts_exactly_the_limit_of_each_key() {
    let service = Service::start(RULES).await;
    let to = service.addresses.grpc.to_string();
    let flags = "shop user=u{} --keys 3 --requests 300 --connections 2 --streams 8";
    let found = measure(&to, flags).await;
    assert_eq!((&found["ok"], &found["over_limit"], &found["errors"]), (&json!(60), &json!(240), &json!({})));
    assert_eq!((&found["loop"], &found["requests"]), (&json!("closed"), &json!(300)));
    // Each key was charged: the counters are those of u0, u1 and u2.
    for user in ["u0", "u1", "u2"] {
        assert_eq!(
            service.status(with_hits(request_for("shop", "user", user), 1)).await.code(),
            Code::OverLimit
        );
    }
}

#[tokio::test]
async fn bench_charges_several_descriptors_and_hits_in_one_call() {
    let service = Service::start(RULES).await;
    let to = service.addresses.grpc.to_string();
    let found = measure(&to, "shop user=ann wide=x,more=1 wide=w --hits 4 --requests 10").await;
    assert_eq!((&found["ok"], &found["over_limit"]), (&json!(5), &json!(5)));
    // Refused calls charged nothing to the other counter.
    assert_eq!(service.status(request_for("shop", "wide", "w")).await.limit_remaining, 1_000_000 - 5 * 4 - 1);
    let found = measure(&to, "shop wide=y --hits 2-6 --requests 100").await;
    let taken = 1_000_000 - 1 - service.status(request_for("shop", "wide", "y")).await.limit_remaining;
    assert_eq!(found["ok"], 100);
    // Between minimum and maximum, and not always one of them.
    assert!((201..600).contains(&taken), "{taken}");
}

#[tokio::test]
async fn open_loop_sends_or_reports_every_due_request() {
    let service = Service::start(RULES).await;
    let to = service.addresses.grpc.to_string();
    let flags = "shop wide=w{} --keys 100 --rate 500 --duration 1s --connections 4 --streams 16";
    for (flags, poisson) in [(flags.to_owned(), false), (format!("{flags} --poisson"), true)] {
        let found = measure(&to, &flags).await;
        let number = |name: &str| found[name].as_u64().unwrap();
        assert_eq!((&found["loop"], &found["rate"]), (&json!("open"), &json!(500)));
        assert_eq!(number("due"), number("requests") + number("unsent"));
        assert_eq!(number("requests"), number("ok"));
        assert_eq!(number("unanswered"), 0);
        // Five standard deviations of a Poisson distribution.
        let slack = if poisson { 112 } else { 0 };
        assert!(number("due").abs_diff(500) <= slack, "{found}");
    }
}

#[tokio::test]
async fn server_stall_is_in_latency_of_every_request_due_meanwhile() {
    const BEFORE: usize = 10;
    let (to, mut received, permits) = start_slow_server(BEFORE, Ok(Code::Ok)).await;
    let flags = "shop user=ann --rate 100 --requests 60 --connections 1 --streams 1";
    let running = tokio::spawn(async move { measure(&to, flags).await });
    for _ in 0..=BEFORE {
        timeout(TIMEOUT, received.recv()).await.unwrap().unwrap();
    }
    assert!(timeout(STALL, received.recv()).await.is_err(), "the only stream waits for its answer");
    permits.add_permits(1_000);
    let found = timeout(TIMEOUT, running).await.unwrap().unwrap();
    assert_eq!((&found["due"], &found["ok"], &found["unsent"]), (&json!(60), &json!(60), &json!(0)));
    let (late, latency) = (found["late"].as_u64().unwrap(), &found["latency_us"]);
    // One request is due each 10 ms: at least 29 in 300 ms, the last of which may be in time.
    assert!(late > 28, "{found}");
    assert!(latency["max"].as_f64().unwrap() >= 300_000.0, "{found}");
    // A third of the requests was due in the first 200 ms of the stall and waited for more than 100 ms.
    assert!(latency["p90"].as_f64().unwrap() >= 90_000.0, "{found}");
}

#[tokio::test]
async fn unsent_due_requests_are_reported() {
    let (to, _received, permits) = start_slow_server(0, Ok(Code::Ok)).await;
    let flags = "shop user=ann --rate 100 --duration 1s --streams 2 --timeout 1500ms --json";
    let output = bench(&to, flags).await;
    permits.close();
    assert_eq!(output.status.code(), Some(1), "there was no answer");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["due"], 100);
    assert_eq!((&found["requests"], &found["unsent"]), (&json!(2), &json!(98)));
    assert_eq!(found["errors"], json!({"DEADLINE_EXCEEDED": 2}));
    assert!(
        found["latency_us"]["p50"].as_f64().unwrap() >= 1_500_000.0,
        "errors have a latency too: {found}"
    );
}

#[tokio::test]
async fn bench_errors_are_counted_by_code() {
    let (to, _received, _permits) = start_slow_server(1_000, Err(tonic::Code::ResourceExhausted)).await;
    let output = bench(&to, "shop user=ann --requests 7 --json").await;
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["requests"], &found["ok"]), (&json!(7), &json!(0)));
    assert_eq!(found["errors"], json!({"RESOURCE_EXHAUSTED": 7}));
    let text = String::from_utf8(bench(&to, "shop user=ann --requests 7").await.stdout).unwrap();
    assert!(text.contains("errors      7 (RESOURCE_EXHAUSTED 7)"), "{text}");
}

#[tokio::test]
async fn interrupted_bench_reports_its_measurements() {
    let (to, mut received, _permits) = start_slow_server(25, Ok(Code::OverLimit)).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["bench", "--to", &to, "shop", "user=ann", "--duration", "1h", "--timeout", "1h", "--json"]);
    let child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    // The last of these requests is never answered.
    for _ in 0..26 {
        timeout(TIMEOUT, received.recv()).await.unwrap().unwrap();
    }
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    let output = timeout(TIMEOUT, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["over_limit"], &found["unanswered"]), (&json!(25), &json!(1)));
}

#[tokio::test]
async fn bench_replaces_connection_after_goaway_without_errors() {
    let overrides = [("grpc.max_connection_age", "100ms"), ("grpc.max_connection_age_grace", "10s")];
    let service = Service::start_with(RULES, &overrides).await;
    let to = service.addresses.grpc.to_string();
    let found = measure(&to, "shop wide=w --duration 1s --connections 2 --streams 4").await;
    assert_eq!((&found["errors"], &found["over_limit"]), (&json!({}), &json!(0)));
    assert_eq!(found["requests"], found["ok"]);
}

#[tokio::test]
async fn bench_works_over_tls_and_unix_socket() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    files.write("ca.crt", &authority.pem);
    let settings = files.settings("grpc");
    let service = Service::start_with(RULES, &borrowed(&settings)).await;
    let ca = files.path("ca.crt");
    let to = service.addresses.grpc.to_string();
    let found = measure(&to, &format!("shop wide=w --requests 20 --streams 4 --tls-ca {ca}")).await;
    assert_eq!(found["ok"], 20);
    assert_eq!(bench(&to, "shop wide=w --requests 1").await.status.code(), Some(1), "not in plaintext");
    let other = bench(&to, &format!("shop wide=w --requests 1 --tls-ca {ca} --tls-name elsewhere")).await;
    assert_eq!(other.status.code(), Some(1), "not under another name");

    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}/socket", folder.path().display());
    let _service = Service::start_with(RULES, &[("grpc.listen", &socket)]).await;
    assert_eq!(measure(&socket, "shop wide=w --requests 20 --streams 4").await["ok"], 20);
}

/// The hexadecimal digits of a gRPC request for a decision in this domain.
fn hexadecimal(domain: &str) -> String {
    let message = RateLimitRequest { domain: domain.into(), ..Default::default() }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn calls_of_a_file_are_sent_in_turn() {
    let (to, mut requests, _permits) = start_slow_server(100, Ok(Code::OverLimit)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let calls = ["a", "b"].map(|domain| json!({"path": path, "body": hexadecimal(domain)}));
    let calls = [&calls[..], &[json!({"path": "/elsewhere"})]].concat();
    std::fs::write(file.path(), json!(calls).to_string()).unwrap();
    let found = measure(&to, &format!("--calls {} --requests 6", file.path().display())).await;
    let domains: Vec<_> = std::iter::from_fn(|| requests.try_recv().ok()).map(|one| one.domain).collect();
    assert_eq!(domains, ["a", "b", "a", "b"]);
    // An answer of any content passes; there is no such method.
    assert_eq!((&found["ok"], &found["errors"]), (&json!(4), &json!({"UNIMPLEMENTED": 2})));
}

#[tokio::test]
async fn file_without_calls_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (text, why) in [("[]", "no calls"), ("[", "EOF"), (r#"[{"path": "/", "body": "0"}]"#, "hexadecimal")]
    {
        std::fs::write(file.path(), text).unwrap();
        let output = bench("127.0.0.1:1", &format!("--calls {}", file.path().display())).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.starts_with("--calls: "), "{error}");
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn bench_without_server_reports_error() {
    // Bound but not listening, so that no other process takes the port.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let dead = taken.local_addr().unwrap().to_string();
    // Listens, but does not speak HTTP/2.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = (mute.local_addr().unwrap().to_string(), mute);
    for (to, why) in [(dead.as_str(), "Connection refused"), (&mute.0, "no connection within 200ms")] {
        let output = bench(to, "shop user=ann --timeout 200ms").await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with(&format!("no answer from {to}: ")) && error.contains(why), "{error}");
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn bench_json_fields_are_documented() {
    let page = include_str!("../../docs/bench.md");
    let service = Service::start(RULES).await;
    let to = service.addresses.grpc.to_string();
    let found = measure(&to, "shop wide=w --rate 100 --requests 10").await;
    let mut names: Vec<_> = found.as_object().unwrap().keys().cloned().collect();
    names.extend(found["latency_us"].as_object().unwrap().keys().cloned());
    let (_, figures) = page.split_once("## Figures").unwrap();
    let undocumented: Vec<_> =
        names.into_iter().filter(|name| !figures.contains(&format!("`{name}`"))).collect();
    assert_eq!(undocumented, [] as [&str; 0]);
}
