//! Problems in rule files and their locations.

use std::{fmt, sync::Arc};

use crate::yaml::{self, Mark};

/// A position in a rule file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The path of the file, as configured.
    pub file: Arc<str>,
    /// Line and column.
    pub mark: Mark,
}

impl Location {
    /// The location of a file as a whole.
    pub fn whole(file: Arc<str>) -> Self {
        Self { file, mark: Mark::START }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.mark.line, self.mark.column)
    }
}

/// A problem in a rule file. Displayed as `file:line:column: what`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The location.
    pub location: Location,
    /// What is wrong and what is allowed.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.what)
    }
}

/// All problems of a set of rule files. Displayed one to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    dropped: usize,
}

impl Problems {
    /// The maximum number of problems kept; further ones are only counted.
    pub const MAX: usize = 1_000;

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        if self.list.len() < Self::MAX { self.list.push(problem) } else { self.dropped += 1 }
    }

    /// The problems kept, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// The number of problems, including those not kept.
    pub fn len(&self) -> usize {
        self.list.len() + self.dropped
    }

    /// Whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Sorts the problems by location.
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

/// Collects the problems of one file.
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
