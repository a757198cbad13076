//! Charges one hit to an address, and prints the decision.

use std::time::Duration;

use tollgate_client::{Client, Descriptor, Options, Request};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let client = Client::new(&target, Options { timeout: Duration::from_secs(1), ..Options::default() })?;
    let request = Request::new("edge", [Descriptor::new([("remote_address", "203.0.113.7")])]);
    let decision = client.check(&request).await?;
    println!("{:?}, allowed: {}, refused for {:?}", decision.source, decision.allowed, decision.retry_after);
    Ok(())
}
