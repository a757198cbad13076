//! Where something is written, and what is wrong there.

use std::{fmt, sync::Arc};

use crate::yaml::{self, Mark};

/// A position in a rule file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file, by the path it was asked for.
    pub file: Arc<str>,
    /// Line and column.
    pub mark: Mark,
}

impl Location {
    /// The place that stands for a file as a whole.
    pub fn whole(file: Arc<str>) -> Self {
        Self { file, mark: Mark::START }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.mark.line, self.mark.column)
    }
}

/// Something wrong with a rule file: what it is, and what is allowed. Shown as `file:line:column: what`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub location: Location,
    /// What is wrong, and what is allowed.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.what)
    }
}

/// Everything that is wrong with a set of rule files. Shown one to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    dropped: usize,
}

impl Problems {
    /// How many are kept; the others are only counted.
    pub const MAX: usize = 1_000;

    /// Adds one.
    pub fn push(&mut self, problem: Problem) {
        if self.list.len() < Self::MAX { self.list.push(problem) } else { self.dropped += 1 }
    }

    /// Those that are kept, by file and then as they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// How many there are, kept or not.
    pub fn len(&self) -> usize {
        self.list.len() + self.dropped
    }

    /// Whether all is well.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Brings them into the order of the files.
    pub(crate) fn sort(&mut self) {
        self.list.sort_by(|one, other| one.location.cmp(&other.location));
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            write!(f, "{end}{problem}")?;
        }
        match self.dropped {
            0 => Ok(()),
            dropped => write!(f, "\nand {dropped} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// Takes down the problems of one file.
pub(crate) struct Diagnostics<'p> {
    file: Arc<str>,
    problems: &'p mut Problems,
}

impl<'p> Diagnostics<'p> {
    pub(crate) fn new(file: Arc<str>, problems: &'p mut Problems) -> Self {
        Self { file, problems }
    }

    pub(crate) fn add(&mut self, mark: Mark, what: impl Into<String>) {
        let location = self.location(mark);
        self.problems.push(Problem { location, what: what.into() });
    }

    pub(crate) fn add_all(&mut self, problems: Vec<yaml::Problem>) {
        problems.into_iter().for_each(|problem| self.add(problem.mark, problem.what));
    }

    pub(crate) fn location(&self, mark: Mark) -> Location {
        Location { file: self.file.clone(), mark }
    }
}
