//! The client against the real server, whose program is in the variable TOLLGATE.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod batches;
mod checks;
mod example;
mod harness;
mod llm;
mod middleware;
mod outages;
mod prepaid;
mod reservations;
mod tls;
