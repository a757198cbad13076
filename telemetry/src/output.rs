//! Log output that never blocks the threads that log: a bounded queue and a writer thread.
//!
//! `tracing_appender::non_blocking` is similar, but bounds lines instead of bytes, and prints to standard output if
//! its queue is still full at the end of the process: if both outputs are one blocked pipe, the process would never
//! end.

use std::{
    io::{self, Write},
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

use tracing::error;

use crate::sampler::Sampler;

/// The maximum size of queued lines. Each logging thread may exceed it by one line.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// The time without a line after which dropped lines are reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Queues lines, each in one `write`, and drops lines for which the queue has no room.
#[derive(Clone, Debug)]
pub(super) struct LogOutput {
    queue: Sender<Item>,
    stats: Arc<OutputStats>,
}

/// Stats of the output.
#[derive(Debug, Default)]
struct OutputStats {
    queued_bytes: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Item {
    Line(Vec<u8>),
    /// Answered when everything queued before it is written.
    Flush(Sender<()>),
}

impl LogOutput {
    /// Starts the thread that writes to `target`. Dropped lines are reported in the log, at most once per second of
    /// `second`.
    pub(super) fn start(
        target: impl Write + Send + 'static,
        second: impl Fn() -> u64 + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, items) = channel();
        let stats = Arc::new(OutputStats::default());
        let writer = Writer { items, stats: Arc::clone(&stats), target };
        thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(second))?;
        Ok(Self { queue, stats })
    }

    /// The number of lines dropped because the queue was full or the output failed.
    pub(super) fn dropped(&self) -> u64 {
        self.stats.dropped.load(Relaxed)
    }

    /// Waits until all lines so far are written, for at most `time_max`.
    pub(super) fn flush(&self, time_max: Duration) {
        let (written, end) = channel();
        if self.queue.send(Item::Flush(written)).is_ok() {
            // Fails if the output is still blocked.
            let _ = end.recv_timeout(time_max);
        }
    }
}

impl Write for LogOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.stats.queued_bytes.load(Relaxed) < QUEUE_BYTES_MAX {
            // Before sending, so that the writer never subtracts what was not added.
            self.stats.queued_bytes.fetch_add(line.len(), Relaxed);
            self.queue.send(Item::Line(line.to_vec())).map_err(io::Error::other)?;
        } else {
            self.stats.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The writer thread.
struct Writer<W> {
    items: Receiver<Item>,
    stats: Arc<OutputStats>,
    target: W,
}

impl<W: Write> Writer<W> {
    fn run(mut self, second: impl Fn() -> u64) {
        let reports = Sampler::new(NonZeroU16::MIN);
        let mut reported = 0;
        loop {
            let has_new_drops = self.stats.dropped.load(Relaxed) != reported;
            let item = if has_new_drops {
                self.items.recv_timeout(REPORT_AFTER)
            } else {
                self.items.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match item {
                Ok(Item::Line(line)) => self.write(&line),
                // Fails if the flush has timed out.
                Ok(Item::Flush(written)) => {
                    let _ = written.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // The output accepts lines again. The report contains the total, because it may itself be dropped.
            if has_new_drops && reports.take(second()).is_some() {
                reported = self.stats.dropped.load(Relaxed);
                error!(
                    dropped_total = reported,
                    "log lines were dropped: the log output did not accept them"
                );
            }
        }
    }

    fn write(&mut self, line: &[u8]) {
        if self.target.write_all(line).and_then(|()| self.target.flush()).is_err() {
            self.stats.dropped.fetch_add(1, Relaxed);
        }
        self.stats.queued_bytes.fetch_sub(line.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc::Sender};

    use tracing::subscriber::with_default;
    use tracing_subscriber::{layer::SubscriberExt, registry};

    use super::*;

    /// An output that accepts a line only when the test allows it.
    struct Gate(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated() -> (LogOutput, Sender<()>, Receiver<Vec<u8>>) {
        let (open, gate) = channel();
        let (taken, lines) = channel();
        (LogOutput::start(Gate(gate, taken), || 0).unwrap(), open, lines)
    }

    #[test]
    fn blocked_output_drops_lines_without_blocking_callers() {
        let (mut output, open, lines) = gated();
        let line = vec![b'x'; QUEUE_BYTES_MAX / 4];
        for _ in 0..7 {
            output.write_all(&line).unwrap();
        }
        assert_eq!(output.dropped(), 3);
        for _ in 0..4 {
            open.send(()).unwrap();
            assert_eq!(lines.recv().unwrap(), line);
        }
        output.flush(Duration::MAX);
        output.write_all(b"next").unwrap();
        open.send(()).unwrap();
        assert_eq!(lines.recv().unwrap(), b"next");
        assert_eq!(output.dropped(), 3);
    }

    #[test]
    fn flush_of_blocked_output_times_out() {
        let (mut output, _open, lines) = gated();
        output.write_all(b"never written").unwrap();
        output.flush(Duration::from_millis(1));
        assert!(lines.try_recv().is_err());
    }

    #[test]
    fn dropped_lines_are_reported_when_the_output_recovers() {
        let sink = Arc::new(Mutex::new(Vec::new()));
        let stats = Arc::new(OutputStats::default());
        let (queue, items) = channel();
        stats.dropped.fetch_add(7, Relaxed);
        queue.send(Item::Line(b"a line".to_vec())).unwrap();
        drop(queue);
        let report = Arc::clone(&sink);
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Shared(report.clone()));
        with_default(registry().with(lines), || {
            Writer { items, stats, target: Shared(Arc::clone(&sink)) }.run(|| 0);
        });
        let written = String::from_utf8(sink.lock().unwrap().clone()).unwrap();
        assert!(written.starts_with("a line") && written.contains("dropped_total=7"), "{written}");
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Write::write(&mut *self.0.lock().unwrap(), bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
