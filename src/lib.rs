//! Tollgate decides whether a request may pass: a rate-limit service that speaks Envoy's protocol and keeps
//! its counters in memory.

pub mod algorithm;
pub mod descriptor;
pub mod rules;
pub mod time;
pub mod yaml;
