//! The decision on a request, and a file with a line of JSON for each.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;
use smallvec::SmallVec;
use tollgate_counter::time::Timestamp;

/// The outcome of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleOutcome {
    /// The index of the rule; `None` if no limit applies.
    pub(super) rule: Option<usize>,
    pub(super) is_refused: bool,
    /// Hits that are left; `u64::MAX` if unlimited, 0 without a rule.
    pub(super) remaining: u64,
}

/// The outcome of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    pub(super) passes: bool,
    pub(super) retry_after: Option<Duration>,
    /// The time that the request waits in a queue.
    pub(super) delay: Duration,
    /// The outcome of each descriptor, in order.
    pub(super) outcomes: SmallVec<[RuleOutcome; 4]>,
}

/// A file of decisions.
#[derive(Debug)]
pub(super) struct DecisionsFile {
    path: PathBuf,
    file: BufWriter<File>,
}

#[derive(Serialize)]
struct DecisionLine {
    /// The time of the request, in nanoseconds since 1970.
    time: u64,
    passes: bool,
    retry_after_ms: Option<u64>,
    delay_ms: u64,
    /// Hits that are left, for each descriptor; `null` without a limit.
    remaining: Vec<Option<u64>>,
}

impl DecisionsFile {
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file) })
    }

    pub(super) fn write(&mut self, now: Timestamp, decided: &Decided) -> Result<(), String> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let outcomes = decided.outcomes.iter();
        let line = DecisionLine {
            time: now.as_nanos(),
            passes: decided.passes,
            retry_after_ms: decided.retry_after.map(millis),
            delay_ms: millis(decided.delay),
            remaining: outcomes.map(|outcome| outcome.rule.map(|_| outcome.remaining)).collect(),
        };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(std::io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|error| self.named(&error))
    }

    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.file.flush().map_err(|error| self.named(&error))
    }

    fn named(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.path.display())
    }
}
