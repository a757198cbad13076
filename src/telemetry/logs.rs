//! Logs: events with fields, one a line, on standard error.

use std::io::{IsTerminal, stderr};

use serde::Deserialize;
use tracing_subscriber::{EnvFilter, filter::ParseError};

/// What is logged, and how.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The least level that is written, also per module.
    pub level: String,
    /// How an event is written.
    pub format: Format,
}

/// How an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// Starts logging. A second call in one process changes nothing.
pub fn start(settings: &Settings) -> Result<(), ParseError> {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(&settings.level)?)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr);
    // An error says that logging has already begun, as it may in tests.
    let _ = match settings.format {
        Format::Text => logs.try_init(),
        Format::Json => logs.json().flatten_event(true).try_init(),
    };
    Ok(())
}
