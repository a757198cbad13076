//! Tollgate is a rate-limit service: it decides whether requests may pass. It speaks Envoy's protocol and keeps its
//! counters in memory.

pub mod algorithm;
pub mod api;
pub mod certificates;
pub mod cli;
pub mod cluster;
pub mod descriptor;
pub mod files;
pub mod limiter;
pub mod rules;
pub mod server;
pub mod settings;
pub mod store;
pub mod telemetry;
pub mod time;
pub mod yaml;
