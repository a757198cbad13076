//! Logs: events with fields, one to a line, on standard error. Logging never blocks a thread.

use std::{
    io::{self, IsTerminal, stderr},
    num::NonZeroU16,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tollgate_counter::lock::lock;
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    fmt::MakeWriter,
    layer::SubscriberExt,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

use crate::{call_site_limit::CallSiteLimit, output::LogOutput};

pub use crate::call_site_limit::{LogFormat, UNLIMITED};

/// The beginning of the targets of all events of this program, with those of the package `tollgate-limiter`.
const OWN: &str = "tollgate";

/// The settings of logs.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// The minimum level, also per module.
    pub level: String,
    /// The format of an event.
    pub format: LogFormat,
    /// The maximum number of denials that are logged each second, the first ones; `None` if none are logged.
    pub denials: Option<NonZeroU16>,
}

/// Reads and changes the log level at run time.
#[derive(Clone, Debug)]
pub struct LogControl {
    handle: Handle<Targets, Registry>,
    level: Arc<Mutex<String>>,
    left_out: Arc<AtomicU64>,
    output: Option<LogOutput>,
}

/// Why logging does not start, or the level stays unchanged.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is invalid.
    #[error(
        "`{0}` is not a level; allowed are error, warn, info, debug, trace or off, also per module, as in info,tollgate_rules=debug"
    )]
    Level(String),
    /// The writer thread cannot be started.
    #[error("cannot start the log writer: {0}")]
    Thread(#[from] io::Error),
    /// This control is not attached to any logs.
    #[error("this process does not write logs")]
    Detached,
}

/// Parses a level. A level without a module applies to the events of this program; libraries log errors only, unless
/// the level names their modules.
pub fn filter(level: &str) -> Result<Targets, LogError> {
    let wrong = || LogError::Level(level.to_owned());
    // The filter would read any other word as the name of a module to log in full.
    let is_level = |part: &str| !part.trim().is_empty() && part.trim().parse::<LevelFilter>().is_ok();
    // Nor are there spans, which brackets would name.
    let is_module = |part: &str| !part.trim().is_empty() && !part.contains(['[', '{']);
    let is_word = |part: &str| match part.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(part),
    };
    if !level.split(',').all(is_word) {
        return Err(wrong());
    }
    let directives: Vec<_> = level
        .split(',')
        .map(|part| match part.trim().parse::<LevelFilter>() {
            Ok(level) => format!("{},{OWN}={level}", level.min(LevelFilter::ERROR)),
            Err(_) => part.to_owned(),
        })
        .collect();
    directives.join(",").parse().map_err(|_| wrong())
}

/// Starts logging to standard error. `second` returns a number that grows by one each second. A second call in the
/// same process has no effect.
pub fn start(
    settings: &LogSettings,
    second: impl Fn() -> u64 + Clone + Send + Sync + 'static,
) -> Result<LogControl, LogError> {
    let output = LogOutput::start(stderr(), second.clone())?;
    let writer = output.clone();
    let (logs, log_control) = logs(settings, move || writer.clone(), stderr().is_terminal(), second)?;
    // Fails if logging has already started, as in tests.
    let _ = logs.try_init();
    Ok(LogControl { output: Some(output), ..log_control })
}

/// A subscriber that writes logs to `writer`, and its control. `second` returns a number that grows by one each
/// second.
pub fn logs<W>(
    settings: &LogSettings,
    writer: W,
    colours: bool,
    second: impl Fn() -> u64 + Send + Sync + 'static,
) -> Result<(impl Subscriber, LogControl), LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(&settings.level)?);
    let left_out = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&left_out);
    let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(writer);
    let lines = match settings.format {
        LogFormat::Text => lines
            .map_event_format(|format| {
                CallSiteLimit::new(format.with_ansi(colours), LogFormat::Text, second, counted)
            })
            .boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .map_event_format(|format| CallSiteLimit::new(format, LogFormat::Json, second, counted))
            .boxed(),
    };
    let log_control =
        LogControl { handle, level: Arc::new(Mutex::new(settings.level.clone())), left_out, output: None };
    Ok((tracing_subscriber::registry().with(filter).with(lines), log_control))
}

impl Default for LogControl {
    /// A control without logs.
    fn default() -> Self {
        let (_, handle) = reload::Layer::new(Targets::new());
        Self { handle, level: Arc::new(Mutex::new("off".to_owned())), left_out: Arc::default(), output: None }
    }
}

impl LogControl {
    /// The current level.
    pub fn level(&self) -> String {
        lock(&self.level).clone()
    }

    /// Sets the level and returns the previous one.
    pub fn set_level(&self, level: &str) -> Result<String, LogError> {
        let filter = filter(level)?;
        let mut current = lock(&self.level);
        self.handle.reload(filter).map_err(|_| LogError::Detached)?;
        Ok(std::mem::replace(&mut *current, level.to_owned()))
    }

    /// The number of lines that the rate limit of their call site has dropped.
    pub fn dropped_by_rate(&self) -> u64 {
        self.left_out.load(Relaxed)
    }

    /// The number of lines dropped because the output did not accept them.
    pub fn dropped_by_output(&self) -> u64 {
        self.output.as_ref().map_or(0, LogOutput::dropped)
    }

    /// Waits until all lines so far are written, for at most `time_max`.
    pub fn flush(&self, time_max: Duration) {
        if let Some(output) = &self.output {
            output.flush(time_max);
        }
    }
}
