//! Tollgate is a rate-limit service: it decides whether requests may pass. It speaks Envoy's protocol and keeps its
//! counters in memory.
//!
//! With `default-features = false` it is the limiter alone, for programs that decide by themselves: see
//! [`limiter::Limiter::from_yaml`].

#![cfg_attr(
    not(feature = "server"),
    allow(dead_code, unused_imports, unused_macros, reason = "the service uses the rest")
)]

#[cfg(feature = "server")]
pub mod accept;
pub mod algorithm;
#[cfg(feature = "server")]
pub mod api;
#[cfg(feature = "server")]
pub mod certificates;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod cluster;
pub mod descriptor;
#[cfg(feature = "watch")]
pub mod file_watch;
pub mod files;
#[cfg(all(feature = "server", any(test, fuzzing)))]
pub mod fuzz;
pub mod limiter;
pub mod metrics;
mod named;
#[cfg(feature = "server")]
pub mod persistence;
pub mod remote;
pub mod resilience;
#[cfg(feature = "server")]
pub mod rule_source;
pub mod rules;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod settings;
#[cfg(feature = "redis")]
pub mod shared_limiter;
#[cfg(feature = "redis")]
pub mod shared_store;
pub mod store;
#[cfg(feature = "server")]
pub mod telemetry;
pub mod time;
#[cfg(feature = "tower")]
pub mod tower;
pub mod yaml;
