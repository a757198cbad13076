//! `tollgate top --once`, and the errors of `tollgate top`, by running the program. The screen is tested in
//! tests/external.

use std::{fs, process::Output};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    process::Command,
    time::timeout,
};

use crate::{
    harness::{Answer, Service, TIMEOUT, request_for},
    program::PROGRAM,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
";

async fn top(to: impl ToString, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["top", "--to", &to.to_string()]).args(arguments).kill_on_drop(true);
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap()
}

/// The error of a command that has failed, which is one line.
fn error(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text
}

#[tokio::test]
async fn top_once_prints_figures_refused_keys_and_rules() {
    let service = Service::start(RULES).await;
    for _ in 0..13 {
        service.call(request_for("shop", "user", "bob\u{1b}[2J")).await.unwrap();
    }
    let output = top(service.addresses.admin, &["--once"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for shown in [
        "10 since the start",
        "3 since the start",
        "generation 1: 1 rule in 1 domain",
        r"shop user=bob\u{1b}[2J",
        "13        –  shop.user",
    ] {
        assert!(text.contains(shown), "{shown} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[tokio::test]
async fn top_needs_the_token_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let [token, wrong] = ["token", "wrong"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&token, "a-token").unwrap();
    fs::write(&wrong, "another").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", &token)]).await;
    let admin = service.addresses.admin;
    for arguments in [&["--once"][..], &["--once", "--token-file", &wrong]] {
        assert!(error(&top(admin, arguments).await).contains("requires a token"));
    }
    assert!(error(&top(admin, &["--once", "--token-file", "/no/such"]).await).starts_with("--token-file: "));
    assert_eq!(top(admin, &["--once", "--token-file", &token]).await.status.code(), Some(0));
}

#[tokio::test]
async fn top_beyond_the_open_pages_is_refused() {
    let service = Service::start(RULES).await;
    let mut pages = Vec::new();
    for _ in 0..10 {
        pages.push(Answer::get(service.addresses.admin, "host: localhost\r\n", "/live").await);
    }
    assert!(error(&top(service.addresses.admin, &["--once"]).await).contains("10 pages are open already"));
    drop(pages);
}

#[tokio::test]
async fn top_of_another_server_says_so() {
    let service = Service::start(RULES).await;
    let text = error(&top(service.addresses.http, &["--once"]).await);
    assert!(text.contains("is this an admin listener?"), "{text}");
    // It is closed before or after the request is written.
    let text = error(&top(&service.addresses.grpc, &["--once"]).await);
    assert!(text.starts_with("no answer from "), "{text}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = [
        ("200 OK", "text/html", "<html>\n<body>", "it is not a Tollgate"),
        ("404 Not Found", "text/html", "<html>\n<body>", "is this an admin listener?"),
        ("500 Internal Server Error", "text/plain", "\u{1b}[2Jno\nmore", r"refused the request: \u{1b}[2Jno"),
        ("200 OK", "application/x-ndjson", "{}\n", "cannot read a sample"),
        ("200 OK", "application/x-ndjson", "", "the stream ended without a sample"),
    ];
    for (status, kind, body, why) in answers {
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4_096]).await.unwrap();
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all((head + body).as_bytes()).await.unwrap();
        };
        let (output, ()) = tokio::join!(top(address, &["--once"]), answer);
        let text = error(&output);
        assert!(text.contains(why) && !text.contains('\u{1b}'), "{text}");
    }
    drop(listener);
    assert!(error(&top(address, &["--once"]).await).starts_with(&format!("no answer from {address}: ")));
}

#[tokio::test]
async fn top_without_terminal_names_the_other_form() {
    let service = Service::start(RULES).await;
    assert!(error(&top(service.addresses.admin, &[]).await).contains("--once"));
}
