//! What the process tells of itself while it runs.

pub mod logs;
pub mod metrics;
