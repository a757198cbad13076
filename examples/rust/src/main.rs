//! Sends one request to Tollgate; limiter.rs is the part for a service.

use std::{process::ExitCode, time::Duration};

use clap::{Parser, error::ErrorKind, value_parser};

mod limiter;
mod proto {
    include!(concat!(env!("OUT_DIR"), "/proto.rs"));
}

use limiter::{Decision, Limiter, OnError};
use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

const USAGE: u8 = 1;
const DENIED: u8 = 2;

/// Sends one request to Tollgate; exits 0 if allowed, 2 if denied.
#[derive(Parser)]
struct Question {
    #[arg(long, value_name = "HOST:PORT")]
    to: String,
    #[arg(long)]
    domain: String,
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    hits: u32,
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = value_parser!(u32).range(1..))]
    timeout: u32,
    #[arg(long, value_enum, default_value_t = OnError::Allow)]
    on_error: OnError,
    #[arg(value_name = "KEY=VALUE[,KEY=VALUE]", required = true, value_parser = entry, value_delimiter = ',')]
    entries: Vec<Entry>,
}

// A service has a runtime of many threads; for one request, one is enough.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let asked = match Question::try_parse() {
        Ok(asked) => asked,
        Err(error) => {
            // There is no remedy for a closed standard error.
            _ = error.print();
            // The exit code of clap, 2, means "denied" here.
            return if error.kind() == ErrorKind::DisplayHelp {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(USAGE)
            };
        }
    };
    let timeout = Duration::from_millis(asked.timeout.into());
    let limiter = match Limiter::new(&asked.to, timeout, asked.on_error) {
        Ok(limiter) => limiter,
        Err(error) => {
            eprintln!("{}: {error}", asked.to);
            return ExitCode::from(USAGE);
        }
    };
    let decision = limiter.ask(&asked.domain, asked.entries, asked.hits).await;
    println!("{}", line(&decision));
    if let Err(status) = &decision.outcome {
        eprintln!("{status}");
    }
    if decision.allowed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) }
}

fn line(decision: &Decision) -> String {
    let verdict = if decision.allowed { "allowed" } else { "denied" };
    match &decision.outcome {
        Err(status) => format!("{verdict} no_answer={:?}", status.code()),
        Ok(outcome) => {
            let remaining = outcome.remaining.map_or("unlimited".to_owned(), |hits| hits.to_string());
            // Whole seconds as in the header Retry-After, rounded up so that a retry is not too early.
            let seconds = outcome.retry_after.as_secs_f64().ceil();
            format!("{verdict} remaining={remaining} retry_after={seconds}")
        }
    }
}

fn entry(pair: &str) -> Result<Entry, String> {
    match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok(Entry { key: key.to_owned(), value: value.to_owned() }),
        _ => Err(format!("`{pair}` is not KEY=VALUE")),
    }
}
