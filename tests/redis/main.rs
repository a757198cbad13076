//! The shared store with real Redis servers.

#![expect(clippy::disallowed_methods, reason = "tests wait for real processes")]
#![allow(clippy::unwrap_used, reason = "an unwrap in a test is an assertion")]

mod algorithms;
mod clusters;
mod doctor;
mod holds;
mod library;
mod outages;
mod races;
mod replica;
mod server;
mod tls;
