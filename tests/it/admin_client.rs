//! The errors of commands that ask an admin listener, by running one of them, `tollgate counters`.

use std::{fs, process::Output};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    process::Command,
    time::timeout,
};

use crate::{
    harness::{Service, TIMEOUT},
    program::PROGRAM,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
";

async fn counters(to: impl ToString, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .args(["counters", "shop", "user=bob", "--to", &to.to_string()])
        .args(arguments)
        .kill_on_drop(true);
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
async fn command_needs_the_token_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let [token, wrong] = ["token", "wrong"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&token, "a-token").unwrap();
    fs::write(&wrong, "another").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", &token)]).await;
    let admin = service.addresses.admin;
    for arguments in [&[][..], &["--token-file", &wrong]] {
        assert!(error(&counters(admin, arguments).await).contains("requires a token"));
    }
    assert!(error(&counters(admin, &["--token-file", "/no/such"]).await).starts_with("--token-file: "));
    assert_eq!(counters(admin, &["--token-file", &token]).await.status.code(), Some(0));
}

#[tokio::test]
async fn command_for_another_server_says_so() {
    let service = Service::start(RULES).await;
    let text = error(&counters(service.addresses.http, &[]).await);
    assert!(text.contains("is this an admin listener?"), "{text}");
    // It is closed before or after the request is written.
    let text = error(&counters(&service.addresses.grpc, &[]).await);
    assert!(text.starts_with("no answer from "), "{text}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = [
        ("200 OK", "text/html", "<html>\n<body>", "expected value at line 1"),
        ("404 Not Found", "text/html", "<html>\n<body>", "is this an admin listener?"),
        ("500 Internal Server Error", "text/plain", "\u{1b}[2Jno\nmore", r"refused the request: \u{1b}[2Jno"),
        ("200 OK", "application/json", "", "EOF while parsing"),
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
        let (output, ()) = tokio::join!(counters(address, &[]), answer);
        let text = error(&output);
        assert!(text.contains(why) && !text.contains('\u{1b}'), "{text}");
    }
    drop(listener);
    assert!(error(&counters(address, &[]).await).starts_with(&format!("no answer from {address}: ")));
}
