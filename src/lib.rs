//! Tollgate is a rate-limit service: it decides whether requests may pass. It speaks Envoy's protocol and keeps its
//! counters in memory.
//!
//! The package `tollgate-limiter` has the rules, the algorithms, the counters and the limiter, also for programs that
//! decide by themselves.

pub mod api;
pub mod cli;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod persistence;
pub mod server;
pub mod settings;
