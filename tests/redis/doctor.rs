//! `tollgate doctor` against a program whose store cannot be used.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{replica::until, server::Server};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
";

/// A running `tollgate serve`, which is killed when this is dropped.
struct Program {
    process: Child,
    admin: String,
    _rules: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Program {
    /// Starts it with the counters at this URL, and waits until it listens.
    fn start(url: &str) -> Self {
        let rules = tempfile::tempdir().unwrap();
        fs::write(rules.path().join("rules.yaml"), RULES).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--log-format", "json", "--store-kind", "redis", "--store-redis-urls", url]);
        command.arg("--rules").arg(rules.path());
        for listener in ["grpc", "http", "admin", "metrics"] {
            command.args([format!("--{listener}-listen"), "127.0.0.1:0".to_owned()]);
        }
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let admin = lines
            .by_ref()
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
            .find(|event| event["message"] == "listening" && event["listener"] == "admin")
            .map(|event| event["address"].as_str().unwrap().to_owned())
            .unwrap();
        // Read to its end, so that the program never waits for its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, admin, _rules: rules }
    }

    /// The exit code of `tollgate doctor` and its findings.
    fn examine(&self) -> (Option<i32>, Vec<Value>) {
        let output = Command::new(PROGRAM).args(["doctor", "--to", &self.admin, "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code(), report["findings"].as_array().unwrap().clone())
    }
}

#[tokio::test]
async fn stopped_store_is_found_until_it_is_back() {
    let mut server = Server::start(&[]);
    let program = Program::start(&server.url());
    until("the program has no findings", || program.examine() == (Some(0), Vec::new())).await;
    server.kill();
    until("the store is missed", || !program.examine().1.is_empty()).await;
    let (code, found) = program.examine();
    assert_eq!((code, found.len()), (Some(1), 1), "{found:?}");
    let [id, level, what, mend] =
        ["id", "level", "what", "mend"].map(|name| found[0][name].as_str().unwrap());
    assert_eq!((id, level), ("store_unavailable", "error"));
    assert!(what.starts_with("the shared store cannot be used: "), "{what}");
    assert!(mend.contains("store.redis.urls"), "{mend}");
    server.restart();
    until("the program has no findings", || program.examine().1.is_empty()).await;
}
