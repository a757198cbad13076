//! What the vectors cannot say: that the client and the real server understand each other, connections, and what only
//! Rust has. The program of the server is that of the variable TOLLGATE, or the one beside the tests.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod checks;
mod example;
mod harness;
mod llm;
mod middleware;
mod outages;
mod own_limits;
mod prepaid;
mod reservations;
mod tls;
