//! The output of commands.

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
