//! What the process tells of itself while it runs.

pub mod logs;
pub mod metrics;
mod parent;
pub mod sample;
pub mod traces;
