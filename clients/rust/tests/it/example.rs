//! The example server, and the lines of it in the README.

use tokio::net::TcpListener;

use crate::harness::{FREE, Server, client, get, options};

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
    for _ in 0..2 {
        assert_eq!(get(address, "/hello", &[]).await.status, 200);
    }
}

#[test]
fn first_block_of_readme_has_lines_of_the_example() {
    let page = include_str!("../../README.md");
    let source = include_str!("../../examples/server.rs");
    let block = page.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.lines().count() > 2);
    for line in block.lines() {
        assert!(
            source.lines().any(|of_source| of_source.trim() == line.trim()),
            "not in the example: {line}"
        );
    }
}
