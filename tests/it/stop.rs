//! Stop signals to a process whose snapshot takes long.

use std::{path::Path, process::Stdio};

use tokio::process::Command;

use crate::program::{PROGRAM, Program};

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
    program.signal("INT").await;
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
