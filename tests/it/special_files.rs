//! Named pipes in place of configured files: refused with their name, without blocking.

use std::{fs, path::Path};

use tokio::{process::Command, time::timeout};

use crate::{
    harness::{Service, TIMEOUT, http, send},
    program::{PROGRAM, Program},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
";
const REFUSAL: &str = "it is a named pipe, not a regular file";

/// A directory with rules and a named pipe, and the path of each.
fn folder() -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let [rules, pipe] = ["rules.yaml", "pipe"].map(|name| folder.path().join(name));
    fs::write(&rules, RULES).unwrap();
    make_pipe(&pipe);
    let [rules, pipe] = [rules, pipe].map(|path| path.to_str().unwrap().to_owned());
    (folder, rules, pipe)
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Whether the program succeeds, and its output, within the timeout.
async fn run(arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(arguments).kill_on_drop(true).output();
    let output = timeout(TIMEOUT, output).await.expect("the program ends").unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(printed).unwrap())
}

#[tokio::test]
async fn pipe_as_file_of_a_setting_refuses_start() {
    let (_folder, rules, pipe) = folder();
    let (cert, key) = (["--grpc-tls-cert", &pipe], ["--grpc-tls-key", &pipe]);
    let (cluster, secret) = (["--cluster-listen", "127.0.0.1:0"], ["--cluster-secret-file", &pipe]);
    for flags in [
        vec!["--settings", &pipe],
        vec!["--admin-token-file", &pipe],
        [cert, key].concat(),
        [cluster, secret].concat(),
    ] {
        let listeners = ["--grpc-listen", "--http-listen", "--admin-listen", "--metrics-listen"];
        let listeners = listeners.iter().flat_map(|flag| [*flag, "127.0.0.1:0"]);
        let arguments: Vec<_> =
            ["serve", "--rules", &rules].into_iter().chain(listeners).chain(flags.clone()).collect();
        let (started, printed) = run(&arguments).await;
        assert!(!started && printed.contains(REFUSAL), "{flags:?}: {printed}");
    }
}

/// A store is not connected at the start, so its certificate is read while the process serves.
#[tokio::test]
async fn pipe_as_certificate_of_a_store_blocks_no_thread() {
    let (_folder, _, pipe) = folder();
    let flags = ["--store-kind", "redis", "--store-redis-urls", "rediss://127.0.0.1:1"];
    let flags = [&flags[..], &["--store-redis-ca", &pipe, "--drain-delay", "0s"]].concat();
    let mut program = Program::start_unready(Command::new(PROGRAM), RULES, &flags).await;
    let failed = program.until_logged("cannot connect to the shared store").await;
    assert!(failed["reason"].as_str().unwrap().contains(REFUSAL), "{failed}");
    assert_eq!(timeout(TIMEOUT, http(program.http, "GET", "/livez", "")).await.unwrap().unwrap().0, 200);
    program.signal("TERM").await;
    assert_eq!(program.exit_code().await, Some(0));
}

#[tokio::test]
async fn pipe_as_rules_is_a_problem_of_that_file() {
    let (_folder, _, pipe) = folder();
    let (good, printed) = run(&["check", &pipe]).await;
    assert!(!good && printed.contains(REFUSAL), "{printed}");
}

#[tokio::test]
async fn pipe_as_snapshot_is_kept_and_counters_start_empty() {
    let (_folder, _, pipe) = folder();
    let service = timeout(TIMEOUT, Service::start_with(RULES, &[("store.snapshot", &pipe)])).await.unwrap();
    service.terminate().await;
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
    assert!(!fs::symlink_metadata(&pipe).unwrap().is_file());
}

#[tokio::test]
async fn token_file_that_becomes_a_pipe_answers_503() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "first").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", token.to_str().unwrap())]).await;
    let headers = "host: localhost\r\nauthorization: Bearer first\r\n";
    let get_rules = || timeout(TIMEOUT, send(service.addresses.admin, headers, "GET", "/rules", ""));
    assert_eq!(get_rules().await.unwrap().0, 200);
    fs::remove_file(&token).unwrap();
    make_pipe(&token);
    assert_eq!(get_rules().await.unwrap().0, 503);
}
