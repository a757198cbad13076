//! The log of a test and of the service on its thread.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tollgate_telemetry::logs::{LogControl, LogFormat, LogSettings, logs};
use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber, set_default},
};

/// The lines that this thread logs while the value lives.
pub struct Log {
    lines: Lines,
    pub control: LogControl,
    // With several subscribers, a thread without one cannot disable a callsite for all threads.
    _other: Dispatch,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Lines of text at `info` and above.
    pub fn text() -> Self {
        Self::start("info", LogFormat::Text)
    }

    /// Lines of JSON at `level` and above.
    pub fn json(level: &str) -> Self {
        Self::start(level, LogFormat::Json)
    }

    fn start(level: &str, format: LogFormat) -> Self {
        let lines = Lines::default();
        let settings = LogSettings { level: level.to_owned(), format, denials: None };
        let sink = lines.clone();
        let (subscriber, control) = logs(&settings, move || sink.clone(), false, || 0).unwrap();
        let (other, guard) = (Dispatch::new(NoSubscriber::new()), set_default(subscriber));
        tracing::callsite::rebuild_interest_cache();
        Self { lines, control, _other: other, _guard: guard }
    }

    /// The lines since the last call.
    pub fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.lines.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    /// The events with this message, of a log in JSON.
    pub fn events(&self, message: &str) -> Vec<Value> {
        let text = String::from_utf8(self.lines.0.lock().unwrap().clone()).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["message"] == message).collect()
    }
}
