//! Metrics as Prometheus reads them.

mod process;
mod text;

pub use process::ProcessStats;
pub use text::metrics;
pub use text::{CONTENT_TYPE, Family, Metric, MetricKind, Page, Row};
