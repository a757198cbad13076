//! Logs, metrics and traces of the process.

mod call_site_limit;
pub mod logs;
pub mod metrics;
mod output;
mod parent_span;
pub mod sampler;
pub mod traces;
