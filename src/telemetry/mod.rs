//! What the process tells of itself while it runs.

mod line_rate;
pub mod logs;
pub mod metrics;
mod output;
mod parent;
pub mod sample;
pub mod traces;
