//! Stop signals to a process, also to one whose snapshot takes long.

use std::{path::Path, process::Stdio};

use tokio::process::Command;
use tollgate_wire::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::{
    harness::{http, request_for, until},
    program::{PROGRAM, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 10}
";

/// A replacement of fsync that takes longer than any test waits.
const SLOW_SYNC: &str = "#include <unistd.h>\nint fsync(int file) { (void)file; sleep(300); return 0; }\n";

/// A process whose snapshots at `path` do not end.
async fn with_slow_snapshot(folder: &Path, path: &Path, drain_timeout: &str) -> Program {
    let [source, library] = ["sync.c", "sync.so"].map(|name| folder.join(name));
    std::fs::write(&source, SLOW_SYNC).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .stdin(Stdio::null())
        .status()
        .await;
    assert!(compiled.unwrap().success());
    let mut command = Command::new(PROGRAM);
    command.env("LD_PRELOAD", library);
    let path = path.to_str().unwrap();
    let flags = ["--snapshot", path, "--store-snapshot-every", "1h", "--drain-delay", "0s"];
    Program::start_command(command, RULES, &[&flags[..], &["--drain-timeout", drain_timeout]].concat()).await
}

#[tokio::test]
async fn snapshot_at_shutdown_is_given_up_at_drain_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let mut program = with_slow_snapshot(folder.path(), &path, "1s").await;
    program.signal("TERM").await;
    let event = program.until_logged("the snapshot was not written in time; the previous one stays").await;
    assert_eq!(event["path"], path.to_str().unwrap());
    assert_eq!(program.exit_code().await, Some(0));
    assert!(!path.exists());
}

#[tokio::test]
async fn second_signal_during_snapshot_ends_process_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let mut program = with_slow_snapshot(folder.path(), &path, "200s").await;
    program.signal("TERM").await;
    program.until_logged("stopped").await;
    program.signal("TERM").await;
    let event = program.until_logged("second stop signal received, stopping without finishing these").await;
    assert_eq!(
        (&event["snapshot"], &event["calls"]),
        (&path.to_str().unwrap().into(), &false.into()),
        "{event}"
    );
    assert_eq!(program.exit_code().await, Some(0));
}

#[tokio::test]
async fn second_signal_during_drain_ends_process_without_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counters");
    let flags = ["--snapshot", path.to_str().unwrap(), "--drain-delay", "100s", "--drain-timeout", "200s"];
    let mut program = Program::start(RULES, &flags).await;
    program.signal("TERM").await;
    program.until_logged("draining").await;
    program.signal("TERM").await;
    let event = program.until_logged("second stop signal received, stopping without finishing these").await;
    assert_eq!(
        (&event["snapshot"], &event["calls"]),
        (&path.to_str().unwrap().into(), &true.into()),
        "{event}"
    );
    assert_eq!(program.exit_code().await, Some(0));
}

const SLOW_DRAIN: [&str; 4] = ["--drain-delay", "100s", "--drain-timeout", "200s"];

/// Waits until the connections of the probes are closed.
async fn until_no_connection(program: &Program) {
    until(async || {
        let (_, page) = http(program.metrics, "GET", "/metrics", "").await.ok()?;
        page.contains("tollgate_connections{listener=\"http\"} 0\n").then_some(())
    })
    .await;
}

#[tokio::test]
async fn interrupt_without_callers_ends_process_at_once() {
    let mut program = Program::start(RULES, &SLOW_DRAIN).await;
    until_no_connection(&program).await;
    program.signal("INT").await;
    assert_eq!(program.until_logged("draining").await["delay"], "0ns");
    assert_eq!(program.exit_code().await, Some(0));
}

#[tokio::test]
async fn interrupt_with_a_caller_and_sigterm_keep_the_drain_delay() {
    let mut called = Program::start(RULES, &SLOW_DRAIN).await;
    let to = format!("http://{}", called.grpc);
    let mut client = RateLimitServiceClient::connect(to).await.unwrap();
    client.should_rate_limit(request_for("shop", "user", "ann")).await.unwrap();
    let mut alone = Program::start(RULES, &SLOW_DRAIN).await;
    until_no_connection(&alone).await;
    for (program, signal) in [(&mut called, "INT"), (&mut alone, "TERM")] {
        program.signal(signal).await;
        assert_eq!(program.until_logged("draining").await["delay"], "100s", "{signal}");
    }
}

#[tokio::test]
async fn interrupt_keeps_the_drain_delay_in_a_cluster() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "a secret that replicas share").unwrap();
    let secret = secret.path().to_str().unwrap();
    let cluster = ["--cluster-listen", "127.0.0.1:0", "--cluster-secret-file", secret];
    let mut member = Program::start(RULES, &[&SLOW_DRAIN[..], &cluster].concat()).await;
    until_no_connection(&member).await;
    member.signal("INT").await;
    assert_eq!(member.until_logged("draining").await["delay"], "100s");
}
