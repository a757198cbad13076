//! What a client decides while servers are silent, gone, back, or several.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use tokio::net::{TcpListener, TcpSocket};
use tollgate_client::{Code, Decision, Error, OnNoAnswer, Options, Outcome};

use crate::harness::{FREE, PATIENCE, RULES, Server, answers, client, counted, eventually, options, request};

const DEFAULTS: [(OnNoAnswer, bool); 2] = [(OnNoAnswer::Allow, true), (OnNoAnswer::Deny, false)];

fn code(decision: &Decision) -> Option<Code> {
    decision.no_answer.as_ref().map(|reason| reason.code)
}

/// A bound socket that does not listen, so that no other process takes the port.
fn closed_port() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(FREE.parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

#[tokio::test]
async fn listener_that_never_speaks_gives_the_default() {
    let listener = TcpListener::bind(FREE).await.unwrap();
    let options = Options { timeout: Duration::from_millis(50), ..Options::default() };
    let client = client(listener.local_addr().unwrap().to_string(), options);
    let decision = client.check(&request("user", "ann")).await.unwrap();
    assert_eq!((decision.allowed, code(&decision)), (true, Some(Code::DeadlineExceeded)));
}

#[tokio::test]
async fn missing_server_gives_the_default_at_once() {
    let (_socket, target) = closed_port();
    for (on_no_answer, allowed) in DEFAULTS {
        let (options, counts) = counted();
        let client = client(&target, Options { timeout: 2 * PATIENCE, on_no_answer, ..options });
        let begin = Instant::now();
        let checked = client.check(&request("user", "ann")).await.unwrap();
        let peeked = client.peek(&request("user", "ann")).await.unwrap();
        let refunded = client.refund(&request("user", "ann")).await.unwrap_err();
        assert!(begin.elapsed() < PATIENCE);
        for decision in [checked, peeked] {
            assert_eq!((decision.allowed, code(&decision)), (allowed, Some(Code::Unavailable)));
        }
        assert!(
            matches!(&refunded, Error::NoAnswer(reason)
            if reason.code == Code::Unavailable && reason.message.contains("refused")),
            "{refunded:?}"
        );
        assert_eq!(counts.of(Outcome::NoAnswer), 1);
    }
}

#[tokio::test]
async fn unknown_name_gives_the_default_at_once() {
    let client = client("tollgate.invalid:8081", options());
    let decision = client.check(&request("user", "ann")).await.unwrap();
    assert_eq!((decision.allowed, code(&decision)), (true, Some(Code::Unavailable)));
}

#[tokio::test]
async fn client_reconnects_to_restarted_server() {
    let mut server = Server::start(RULES).await;
    let client = client(server.target(), options());
    assert!(answers(&client).await);
    server.kill().await;
    assert!(!answers(&client).await);
    let _restarted = Server::start_with(RULES, &["--grpc-listen", &server.target()]).await;
    eventually("the server answers again", async || answers(&client).await).await;
}

#[tokio::test]
async fn check_after_quick_restart_is_answered() {
    let mut server = Server::start(RULES).await;
    let client = client(server.target(), options());
    assert!(answers(&client).await);
    server.kill().await;
    let _restarted = Server::start_with(RULES, &["--grpc-listen", &server.target()]).await;
    assert!(answers(&client).await);
}

#[tokio::test]
async fn checks_take_all_addresses_in_turn() {
    let mut servers = Vec::new();
    for limit in [100, 200] {
        let rules = format!(
            "domain: edge\ndescriptors: [{{key: many, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
        );
        servers.push(Server::start(&rules).await);
    }
    let client = client(format!("{}, {}", servers[0].target(), servers[1].target()), options());
    let mut seen = BTreeSet::new();
    eventually("both servers answer", async || {
        let decision = client.check(&request("many", "x")).await.unwrap();
        seen.extend(decision.tightest().map(|limit| limit.requests_per_unit));
        seen.len() == 2
    })
    .await;
    assert_eq!(seen, [100, 200].into());

    servers[0].kill().await;
    for _ in 0..4 {
        assert!(answers(&client).await, "the other server takes the checks");
    }
}
