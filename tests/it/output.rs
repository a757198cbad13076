//! The output and the exit codes of commands.

use std::{
    fs::{self, File},
    process::Stdio,
};

use tokio::{process::Command, time::timeout};

use crate::{harness::TIMEOUT, program::PROGRAM};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
";

#[tokio::test]
async fn command_whose_output_cannot_be_written_fails_without_panic() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    for arguments in [
        "check rules.yaml",
        "diff rules.yaml rules.yaml",
        "simulate rules.yaml --generate constant --descriptor user={key} --duration 1s",
        "schema rules",
    ] {
        let mut command = Command::new(PROGRAM);
        command.current_dir(folder.path()).args(arguments.split(' ')).kill_on_drop(true);
        command.stdout(File::options().write(true).open("/dev/full").unwrap()).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        let ended = timeout(TIMEOUT, process.wait_with_output()).await.unwrap().unwrap();
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert!(errors.starts_with("cannot write the output: "), "{arguments}: {errors}");
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{arguments}: {}", ended.status);
    }
}

#[tokio::test]
async fn usage_errors_exit_with_64_and_print_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let flags = ["serve", "check", "ask", "bench", "explain", "counters", "diff", "doctor", "simulate"]
        .into_iter()
        .chain(["schema", "completions", "man"])
        .map(|command| format!("{command} --no-such-flag"));
    let others = [
        "",
        "no-such-command",
        "serve --grpc-listen nowhere",
        "serve --rules rules.yaml --cluster-seed 127.0.0.1:1",
        "ask edge",
        "ask edge user=ann --to nowhere",
        "explain edge user=ann --to nowhere",
        "bench edge user=ann --keys 2",
        "bench edge user=ann --duration 0s",
        "simulate rules.yaml --generate poisson",
        "simulate rules.yaml --envoys 5",
    ];
    for arguments in flags.chain(others.map(str::to_owned)) {
        let mut command = Command::new(PROGRAM);
        command.current_dir(folder.path()).args(arguments.split_whitespace()).kill_on_drop(true);
        let ended = timeout(TIMEOUT, command.output()).await.unwrap().unwrap();
        assert_eq!(ended.status.code(), Some(64), "{arguments}: {ended:?}");
        assert!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{arguments}: {ended:?}");
    }
}
