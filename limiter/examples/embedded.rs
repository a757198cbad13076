//! The limiter inside a program: `cargo run -p tollgate-limiter --example embedded`.

use std::error::Error;

use tollgate_limiter::Limiter;

const RULES: &str = "
domain: mail
descriptors:
  - key: sender
    rate_limit: {unit: hour, requests_per_unit: 3, algorithm: sliding_log}
";

fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::from_yaml(RULES)?;
    for number in 1..=4 {
        let checked = limiter.check("mail", &[("sender", "ada@example.com")], 1)?;
        match checked.retry_after {
            _ if checked.passes => println!("mail {number} is sent; {} more may follow", checked.remaining),
            Some(wait) => println!("mail {number} waits for {} s", wait.as_secs()),
            None => println!("mail {number} is never sent"),
        }
    }
    // A mail that bounced does not count.
    limiter.refund("mail", &[("sender", "ada@example.com")], 1)?;
    assert!(limiter.check("mail", &[("sender", "ada@example.com")], 1)?.passes);
    Ok(())
}
