//! Logs: events with fields, one a line, on standard error.

use std::{
    io::{IsTerminal, stderr},
    num::NonZeroU16,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::MakeWriter,
    layer::SubscriberExt,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

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

/// Tells what is logged, and changes it while running.
#[derive(Clone, Debug)]
pub struct Dial {
    handle: Handle<EnvFilter, Registry>,
    level: Arc<Mutex<String>>,
}

/// A level that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no level; allowed are error, warn, info, debug, trace or off, also per module, as in info,tollgate::rules=debug"
)]
pub struct LevelError(String);

/// Why the level stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The other one cannot be read.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Nothing is logged through this dial.
    #[error("this process does not write logs")]
    Detached,
}

/// Reads a level.
pub fn filter(level: &str) -> Result<EnvFilter, LevelError> {
    let wrong = || LevelError(level.to_owned());
    // The filter would take any other word for a module of which everything is logged, and nothing for `error`.
    let is_level = |part: &str| !part.is_empty() && part.parse::<LevelFilter>().is_ok();
    let is_word = |part: &str| part.contains(['=', '[']) || is_level(part.trim());
    if level.split(',').all(is_word) { EnvFilter::try_new(level).map_err(|_| wrong()) } else { Err(wrong()) }
}

/// Starts logging to standard error. A second call in one process changes nothing.
pub fn start(settings: &Settings) -> Result<Dial, LevelError> {
    let (logs, dial) = logs(settings, stderr, stderr().is_terminal())?;
    // An error says that logging has already begun, as it may in tests.
    let _ = logs.try_init();
    Ok(dial)
}

/// What writes logs to `writer`, and the dial of it.
pub fn logs<W>(settings: &Settings, writer: W, colours: bool) -> Result<(impl Subscriber, Dial), LevelError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(&settings.level)?);
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(writer);
    let lines = match settings.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    };
    let dial = Dial { handle, level: Arc::new(Mutex::new(settings.level.clone())) };
    Ok((tracing_subscriber::registry().with(filter).with(lines), dial))
}

impl Default for Dial {
    /// One that nothing is logged through.
    fn default() -> Self {
        let (_, handle) = reload::Layer::new(EnvFilter::default());
        Self { handle, level: Arc::new(Mutex::new("off".to_owned())) }
    }
}

impl Dial {
    /// What is logged.
    pub fn level(&self) -> String {
        self.level.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs what `level` says from now on; what was logged before.
    pub fn turn(&self, level: &str) -> Result<String, DialError> {
        let filter = filter(level)?;
        let mut current = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle.reload(filter).map_err(|_| DialError::Detached)?;
        Ok(std::mem::replace(&mut *current, level.to_owned()))
    }
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
