//! Logs, metrics and traces of the process.

#[cfg(feature = "server")]
mod call_site_limit;
#[cfg(feature = "server")]
pub mod logs;
pub mod metrics;
#[cfg(feature = "server")]
mod output;
#[cfg(feature = "server")]
mod parent_span;
#[cfg(feature = "server")]
pub mod sampler;
#[cfg(feature = "server")]
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
