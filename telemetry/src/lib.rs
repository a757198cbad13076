//! Logs, metrics and traces of the process.

mod call_site_limit;
pub mod logs;
pub mod metrics;
mod output;
mod parent_span;
pub mod sampler;
pub mod traces;

/// An error with all its causes, outermost first.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
