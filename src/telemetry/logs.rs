//! Logs: events with fields, one a line, on standard error.

use std::{
    io::{IsTerminal, stderr},
    num::NonZeroU16,
    str::FromStr,
};

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
    /// How much is logged of who is refused.
    pub denials: Denials,
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

/// How much is logged of who is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Denials {
    /// Nothing.
    Off,
    /// The first so many of each second, at most [`Denials::PER_SECOND_MAX`].
    PerSecond(NonZeroU16),
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

impl Denials {
    /// The most that may be asked for.
    pub const PER_SECOND_MAX: u16 = 1_000;
    /// What may be written.
    pub const EXPECTED: &str = "off, or how many each second, as in 10/s, from 1/s to 1000/s";
}

impl FromStr for Denials {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let number = text.strip_suffix("/s").and_then(|number| number.parse::<NonZeroU16>().ok());
        let allowed = number.filter(|number| number.get() <= Self::PER_SECOND_MAX);
        allowed.map(Self::PerSecond).ok_or(Self::EXPECTED)
    }
}

impl TryFrom<String> for Denials {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}
