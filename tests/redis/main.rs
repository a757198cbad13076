//! The shared store with real Redis servers.

#![expect(clippy::disallowed_methods, reason = "tests wait for real processes")]
#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

mod algorithms;
mod clusters;
mod doctor;
#[path = "../it/harness.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod harness;
mod holds;
mod library;
mod limits;
mod outages;
#[path = "../it/program.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod program;
mod races;
mod refusals;
mod replica;
mod replies;
mod server;
mod settings;
mod tls;
