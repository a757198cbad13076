//! `tollgate doctor` against a program whose store cannot be used.

use std::process::Command;

use serde_json::Value;

use crate::{
    program::{PROGRAM, Program},
    replica::until,
    server::Server,
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}
";

/// The exit code of `tollgate doctor` and its findings.
fn examine(program: &Program) -> (Option<i32>, Vec<Value>) {
    let admin = program.admin.to_string();
    let output = Command::new(PROGRAM).args(["doctor", "--to", &admin, "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code(), report["findings"].as_array().unwrap().clone())
}

#[tokio::test]
async fn stopped_store_is_found_until_it_is_back() {
    let mut server = Server::start(&[]);
    let flags = ["--store-kind", "redis", "--store-redis-urls", &server.url()];
    let program = Program::start(RULES, &flags).await;
    until("the program has no findings", async || examine(&program) == (Some(0), Vec::new())).await;
    server.kill();
    until("the store is missed", async || !examine(&program).1.is_empty()).await;
    let (code, found) = examine(&program);
    assert_eq!((code, found.len()), (Some(1), 1), "{found:?}");
    let [id, level, what, repair] =
        ["id", "level", "what", "repair"].map(|name| found[0][name].as_str().unwrap());
    assert_eq!((id, level), ("store_unavailable", "error"));
    assert!(what.starts_with("the shared store cannot be used: "), "{what}");
    assert!(repair.contains("store.redis.urls"), "{repair}");
    server.restart();
    // It may have lost counters, which stays a warning for an hour.
    let is_missed = |findings: &[Value]| findings.iter().any(|finding| finding["id"] == "store_unavailable");
    until("the store is found again", async || !is_missed(&examine(&program).1)).await;
}
