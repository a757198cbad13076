//! A program that shares its limits with others through Redis or Valkey: `cargo run --example shared
//! --features redis -- redis://127.0.0.1:6379`, several times within a minute.

use std::{error::Error, time::Duration};

use tollgate_limiter::{
    Limiter,
    shared_limiter::{SharedLimiter, SharedStoreSettings},
};

const RULES: &str = "
domain: mail
descriptors:
  - key: recipient
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log}
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: shared URL")?;
    let connecting = SharedLimiter::connect(Limiter::from_yaml(RULES)?, SharedStoreSettings::new([url]));
    let limiter = tokio::time::timeout(Duration::from_secs(10), connecting).await??;
    for mail in 1..=2 {
        let checked = limiter.check("mail", &[("recipient", "ada")], 1).await?;
        match checked.retry_after {
            _ if checked.passes => println!("mail {mail} goes out, {} more may follow", checked.remaining),
            Some(after) => println!("mail {mail} waits for {} s", after.as_secs()),
            None => println!("mail {mail} never goes out"),
        }
    }
    Ok(())
}
