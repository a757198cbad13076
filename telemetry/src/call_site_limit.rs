//! Bounds the log lines of each call site, because a peer can trigger the same line again and again.

use std::{
    collections::HashMap,
    fmt,
    num::NonZeroU16,
    sync::{Arc, Mutex, atomic::AtomicU64, atomic::Ordering::Relaxed},
};

use tollgate_counter::lock::lock;
use tracing::{Event, Level, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::sampler::Sampler;

/// The name of events that are exempt from the rate limit of call sites, because their number is bounded elsewhere.
pub const UNLIMITED: &str = "unlimited";

/// The maximum number of lines of one call site per second. The lines of a library that logs through the crate `log`
/// count as one call site per level.
const PER_SECOND_MAX: NonZeroU16 = NonZeroU16::new(10).expect("10 is not 0");

/// The format of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Formats the first events of each call site per second and reports with the next one how many were left out. Levels
/// below `info` are not bounded: they are written only if the operator enables them.
pub(super) struct CallSiteLimit<F, S> {
    pub(super) inner: F,
    pub(super) format: LogFormat,
    pub(super) second: S,
    pub(super) left_out: Arc<AtomicU64>,
    // Bounded by the number of call sites in the program.
    call_sites: Mutex<HashMap<Identifier, Sampler>>,
}

impl<F, S: Fn() -> u64> CallSiteLimit<F, S> {
    pub(super) fn new(inner: F, format: LogFormat, second: S, left_out: Arc<AtomicU64>) -> Self {
        Self { inner, format, second, left_out, call_sites: Mutex::default() }
    }

    /// Whether to write an event: if so, the number of events of its call site left out since the last one.
    fn take(&self, metadata: &Metadata<'_>) -> Option<u64> {
        if *metadata.level() > Level::INFO || metadata.name() == UNLIMITED {
            return Some(0);
        }
        let second = (self.second)();
        let mut call_sites = lock(&self.call_sites);
        let sample = call_sites.entry(metadata.callsite()).or_insert_with(|| Sampler::new(PER_SECOND_MAX));
        let taken = sample.take(second);
        if taken.is_none() {
            self.left_out.fetch_add(1, Relaxed);
        }
        taken
    }
}

impl<C, N, F, S> FormatEvent<C, N> for CallSiteLimit<F, S>
where
    C: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<C, N>,
    S: Fn() -> u64,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, C, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.take(event.metadata()) {
            None => Ok(()),
            Some(0) => self.inner.format_event(ctx, writer, event),
            Some(left_out) => {
                let mut line = String::new();
                self.inner.format_event(ctx, Writer::new(&mut line), event)?;
                match self.format {
                    LogFormat::Text => {
                        writeln!(writer, "{} left_out={left_out}", line.trim_end_matches('\n'))
                    }
                    LogFormat::Json => {
                        let fields = line.trim_end_matches('\n').strip_suffix('}').ok_or(fmt::Error)?;
                        writeln!(writer, "{fields},\"left_out\":{left_out}}}")
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    use tracing::{debug, info, subscriber::with_default, warn};

    use super::*;
    use crate::logs::{LogSettings, logs};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            io::Write::write(&mut *self.0.lock().unwrap(), bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines written while `log` runs; its argument is the current second.
    fn written(format: LogFormat, log: impl FnOnce(&AtomicU64)) -> Vec<String> {
        let settings = LogSettings { level: "debug".to_owned(), format, denials: None };
        let lines = Lines::default();
        let second = Arc::new(AtomicU64::new(5));
        let sink = lines.clone();
        let now = Arc::clone(&second);
        let (subscriber, _) =
            logs(&settings, move || sink.clone(), false, move || now.load(Relaxed)).unwrap();
        with_default(subscriber, || log(&second));
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Logs `number` events from one call site.
    fn repeat(number: u64) {
        for number in 0..number {
            warn!(number, "again");
        }
    }

    #[test]
    fn call_site_is_bounded_and_next_line_reports_left_out() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let lines = written(format, |second| {
                repeat(100);
                info!("another call site");
                second.store(6, Relaxed);
                repeat(2);
            });
            let [.., other, next, last] = &lines[..] else { panic!("{lines:?}") };
            assert_eq!(lines.len(), 10 + 1 + 2, "{lines:#?}");
            assert!(other.contains("another call site") && !last.contains("left_out"), "{lines:#?}");
            match format {
                LogFormat::Text => assert!(next.ends_with("again number=0 left_out=90"), "{next}"),
                LogFormat::Json => {
                    let event: serde_json::Value = serde_json::from_str(next).unwrap();
                    assert_eq!((&event["left_out"], &event["message"]), (&90.into(), &"again".into()));
                }
            }
        }
    }

    #[test]
    fn debug_and_unlimited_lines_are_not_bounded() {
        let lines = written(LogFormat::Text, |_| {
            for _ in 0..100 {
                debug!("on request");
                info!(name: UNLIMITED, "an operator's change");
            }
        });
        assert_eq!(lines.len(), 200);
    }
}
