//! Tollgate is a rate-limit service: it decides whether requests may pass. It speaks Envoy's protocol and keeps its
//! counters in memory.
//!
//! The package `tollgate-limiter` has the rules, the algorithms, the counters and the limiter, also for programs that
//! decide by themselves.

pub mod accept;
pub mod api;
pub mod bearer_token;
pub mod certificates;
pub mod cli;
pub mod cluster;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http_client;
pub mod persistence;
pub mod private_file;
pub mod rule_source;
pub mod server;
pub mod settings;
pub mod telemetry;
