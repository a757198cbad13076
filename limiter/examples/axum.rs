//! An HTTP service that limits each client by itself: `cargo run --example axum --features tower`, then
//! `curl -i http://127.0.0.1:3000/` four times.

use std::{error::Error, sync::Arc};

use axum::{Router, extract::Request, routing::get};
use tollgate_limiter::{
    limiter::Limiter,
    tower::{Question, RateLimitLayer},
};

const RULES: &str = "
domain: site
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}
";

/// One limit for each client, by the header that a proxy in front sets.
fn question(request: &Request) -> Option<Question> {
    let client = request.headers().get("x-client").and_then(|value| value.to_str().ok()).unwrap_or("unknown");
    let entries = vec![("client".to_owned(), client.to_owned())];
    Some(Question { domain: "site".to_owned(), entries, hits: 1 })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Arc::new(Limiter::from_yaml(RULES)?);
    let service =
        Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter, question));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, service).await?;
    Ok(())
}
