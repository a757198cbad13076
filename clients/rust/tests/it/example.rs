//! The example server, and the lines of it in the README.

use tokio::{net::TcpListener, process::Command};

use crate::harness::{FREE, Server, client, eventually, get, options};

#[path = "../../examples/server.rs"]
#[expect(dead_code, reason = "the program's main")]
mod server;

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
";

#[tokio::test]
async fn example_keeps_the_limit_of_each_user() {
    let tollgate = Server::start(RULES).await;
    let app = server::app(client(tollgate.target(), options()));
    let listener = TcpListener::bind(FREE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    for (user, want) in [("ann", 200), ("ann", 429), ("bob", 200)] {
        assert_eq!(get(address, "/hello", &[("user", user)]).await.status, want, "{user}");
    }
    for want in [200, 429] {
        assert_eq!(get(address, "/hello", &[]).await.status, want, "without a user");
    }
}

fn readme_blocks() -> impl Iterator<Item = &'static str> {
    let blocks = include_str!("../../README.md").split("```rust\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap())
}

#[tokio::test]
async fn first_program_of_readme_prints_the_decision() {
    assert_eq!(readme_blocks().next(), Some(include_str!("../../examples/check.rs")));
    let rules = "
domain: edge
descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}]
";
    let tollgate = Server::start(rules).await;
    // `cargo test` has built it, beside this test.
    let folder = std::env::current_exe().unwrap();
    let program = folder.ancestors().nth(2).unwrap().join("examples/check");
    let command = "cargo build --package tollgate-ratelimit-client --examples";
    assert!(program.is_file(), "the example is missing: {command}");
    let page = include_str!("../../README.md");
    let (_, printed) = page.split_once("```text\n").unwrap();
    let (mut passed, mut refused) = (String::new(), String::new());
    // Its deadline may be too short for a busy machine, so that the default decides.
    eventually("it is refused", async || {
        let done = Command::new(&program).arg(tollgate.target()).output().await.unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let line = String::from_utf8(done.stdout).unwrap();
        let is_refused = !line.contains("allowed: true");
        if is_refused {
            refused = line;
        } else if line.starts_with("Server") {
            passed = line;
        }
        is_refused
    })
    .await;
    assert!(printed.starts_with(&passed) && !passed.is_empty(), "{passed}");
    assert!(refused.starts_with("Server, allowed: false, refused for Some("), "{refused}");
}

#[test]
fn lines_of_the_layer_in_readme_are_lines_of_the_example() {
    let block = readme_blocks().nth(1).unwrap();
    assert!(include_str!("../../examples/server.rs").contains(block), "not in the example:\n{block}");
}
