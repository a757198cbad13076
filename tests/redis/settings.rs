//! What settings of the shared store change in the service.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::json;
use tokio::process::Command;
use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    harness::{http, until},
    program::{PROGRAM, Program},
    server::Server,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window}}
";

/// A ready program with its counters on this server.
async fn start(server: &Server, flags: &[&str]) -> Program {
    let url = server.url();
    Program::start(RULES, &[&["--store-kind", "redis", "--store-redis-urls", &url], flags].concat()).await
}

async fn charge(program: &Program, user: u32) {
    let entries = json!([{"key": "user", "value": user.to_string()}]);
    let call = json!({"domain": "shop", "descriptors": [{"entries": entries}]});
    let (code, body) = http(program.http, "POST", "/json", &call.to_string()).await.unwrap();
    assert_eq!(code, 200, "{body}");
}

async fn health(grpc: SocketAddr) -> ServingStatus {
    let endpoint = Endpoint::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = HealthClient::new(endpoint.connect().await.unwrap());
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

/// Waits until the readiness probe is answered with this code and text, and until health checks agree.
async fn until_probed(program: &Program, code: u16, text: &str) {
    until(async || {
        let (answered, body) = http(program.http, "GET", "/readyz", "").await.unwrap();
        (answered == code && body.starts_with(text)).then_some(())
    })
    .await;
    let expected = if code == 200 { ServingStatus::Serving } else { ServingStatus::NotServing };
    until(async || (health(program.grpc).await == expected).then_some(())).await;
}

/// The addresses from which these calls reach the server, as far as they charge counters.
async fn sources_of(server: &Server, calls: impl Future<Output = ()>) -> BTreeSet<String> {
    let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    calls.await;
    server.run::<String>("ECHO finished");
    // A greeting is a script too, with keys of its own.
    let is_charge = |line: &String| line.contains("\"EVALSHA\"") && !line.contains("{replicas}");
    let charges = lines.take_while(|line| !line.contains("\"finished\"")).filter(is_charge);
    // `+TIME [0 ADDRESS] "EVALSHA" ...`
    charges.map(|line| line.split([' ', ']']).nth(2).unwrap().to_owned()).collect()
}

/// How many of three processes' calls pass, four each, with these variables in the place of envoyproxy/ratelimit.
async fn passed_over_three_processes(variables: &[(&str, &str)]) -> (usize, Program) {
    let start = async || {
        let mut command = Command::new(PROGRAM);
        command.envs(variables.iter().copied());
        Program::start_command(command, RULES, &["--compat", "envoy-ratelimit"]).await
    };
    let programs = [start().await, start().await, start().await];
    let call = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
    let mut passed = 0;
    for _ in 0..4 {
        for program in &programs {
            let (code, _) = http(program.http, "POST", "/json", &call.to_string()).await.unwrap();
            passed += usize::from(code == 200);
        }
    }
    let [program, ..] = programs;
    (passed, program)
}

#[tokio::test]
async fn variables_of_reference_share_limit_between_processes() {
    let server = Server::start(&["--requirepass", "hush"]);
    let url = format!("127.0.0.1:{}", server.port());
    let variables = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*url), ("REDIS_AUTH", "hush")];
    let (passed, program) = passed_over_three_processes(&variables).await;
    assert_eq!(passed, 10);
    let page = async |path| {
        let (_, body) = http(program.admin, "GET", path, "").await.unwrap();
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    assert_eq!(page("/config").await["from"]["store.kind"], "reference");
    let is_alone = async || {
        let findings = page("/doctor").await["findings"].clone();
        findings.as_array().unwrap().iter().any(|finding| finding["id"] == "counters_in_memory")
    };
    assert!(!is_alone().await);
    let (passed, program) = passed_over_three_processes(&[("REDIS_URL", "redis.invalid:6379")]).await;
    assert_eq!(passed, 12, "each process has counters of its own");
    let (_, findings) = http(program.admin, "GET", "/doctor", "").await.unwrap();
    assert!(findings.contains("the host of REDIS_URL is below .invalid"), "{findings}");
}

#[tokio::test]
async fn lost_store_makes_replica_unready_only_if_configured() {
    let mut server = Server::start(&[]);
    let by_default = start(&server, &[]).await;
    let unready = start(&server, &["--store-redis-unready-without-store", "true"]).await;
    until_probed(&unready, 200, "OK").await;
    server.kill();
    let reason = "the shared store cannot be used: ";
    until_probed(&by_default, 200, &format!("OK, but {reason}")).await;
    until_probed(&unready, 503, reason).await;
    assert_eq!(health(by_default.grpc).await, ServingStatus::Serving);
    // Callers that still ask are answered as `on_owner_unavailable` says.
    charge(&unready, 1).await;
    server.restart();
    for replica in [&by_default, &unready] {
        until(async || {
            let probe = http(replica.http, "GET", "/readyz", "").await.unwrap();
            (probe == (200, "OK".to_owned())).then_some(())
        })
        .await;
    }
    until_probed(&unready, 200, "OK").await;
}

#[tokio::test]
async fn calls_use_the_configured_number_of_connections() {
    for (flags, connections) in [(&[][..], 1), (&["--store-redis-connections", "3"], 3)] {
        let server = Server::start(&[]);
        let program = start(&server, flags).await;
        // Announcements have a connection of their own, and this question has one.
        let opened = async || {
            let clients: String = server.run("CLIENT LIST TYPE normal");
            (clients.lines().count() == connections + 1).then_some(())
        };
        until(opened).await;
        // The script is known to the server from the first call on.
        charge(&program, 0).await;
        let calls = async {
            for user in 1..100 {
                charge(&program, user).await;
            }
        };
        let sources = sources_of(&server, calls).await;
        assert_eq!(sources.len(), connections, "{sources:?}");
        until(opened).await;
    }
}

/// The password that no log line and no answer may contain.
const PASSWORD: &str = "hush:42";

/// A program in the place of envoyproxy/ratelimit, with these variables of it. It logs all that it can.
async fn start_in_place(variables: &[(&str, &str)]) -> Program {
    let mut command = Command::new(PROGRAM);
    command.envs([("TOLLGATE_STORE__KIND", "redis"), ("TOLLGATE_LOG__LEVEL", "trace,redis=trace")]);
    command.envs(variables.iter().copied());
    Program::start_unready(command, RULES, &["--compat", "envoy-ratelimit", "--drain-delay", "0s"]).await
}

/// All that the program shows of its settings and of its log.
async fn shown(program: Program) -> String {
    let mut texts = Vec::new();
    for path in ["/config", "/doctor", "/rules"] {
        texts.push(http(program.admin, "GET", path, "").await.unwrap().1);
    }
    texts.push(serde_json::to_string(&program.end().await).unwrap());
    texts.concat()
}

#[tokio::test]
async fn variables_of_reference_log_in_and_show_no_password() {
    let server = Server::start(&["--requirepass", "other"]);
    let rights = format!("ACL SETUSER ann on >{PASSWORD} ~tollgate:* &tollgate:* +@all");
    server.run_with_password::<()>("other", &rights);
    let (url, login) = (format!("127.0.0.1:{}", server.port()), format!("ann:{PASSWORD}"));
    let pool = [("REDIS_TIMEOUT", "5s"), ("REDIS_POOL_SIZE", "2")];
    let program = start_in_place(&[&pool[..], &[("REDIS_URL", &url), ("REDIS_AUTH", &login)]].concat()).await;
    until_probed(&program, 200, "OK").await;
    charge(&program, 1).await;
    let users: String = server.run_with_password("other", "CLIENT LIST");
    assert!(users.lines().filter(|client| client.contains("user=ann")).count() >= 2, "{users}");
    let shown = shown(program).await;
    assert!(shown.contains("store.redis.timeout") && shown.contains("drain"), "{shown}");
    assert!(!shown.contains(PASSWORD), "{shown}");
}

#[tokio::test]
async fn refused_login_of_reference_shows_no_password() {
    let server = Server::start(&["--requirepass", "other"]);
    let (url, login) = (format!("127.0.0.1:{}", server.port()), format!(":{PASSWORD}"));
    let mut program = start_in_place(&[("REDIS_URL", &url), ("REDIS_AUTH", &login)]).await;
    let refused = program.until_logged("cannot connect to the shared store").await;
    assert!(refused["reason"].as_str().unwrap().contains("authentication failed"), "{refused}");
    let shown = shown(program).await + &refused.to_string();
    assert!(!shown.contains(PASSWORD), "{shown}");
}

#[tokio::test]
async fn variables_of_reference_log_in_at_sentinels() {
    let server = Server::start(&["--requirepass", "other"]);
    let accounts =
        format!("sentinel auth-pass counters other\nuser default off\nuser watcher on >{PASSWORD} +@all\n");
    let sentinel = Server::start_sentinel_with(server.port(), &accounts);
    let (url, login) = (format!("counters,127.0.0.1:{}", sentinel.port()), format!("watcher:{PASSWORD}"));
    let variables = [
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", &*url),
        ("REDIS_AUTH", "other"),
        ("REDIS_SENTINEL_AUTH", &login),
    ];
    let program = start_in_place(&variables).await;
    until_probed(&program, 200, "OK").await;
    charge(&program, 1).await;
    let shown = shown(program).await;
    assert!(!shown.contains(PASSWORD), "{shown}");
}
