//! Problems in rules and their locations.

use std::{cell::Cell, fmt, sync::Arc};

use tollgate_counter::printable::escaped;

use crate::yaml::{Located, Mark};

/// What rules are read from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleOrigin {
    /// A file, by its path as configured.
    File(Box<str>),
    /// A resource of a control plane. The line of a mark is the number of a location in it, from 1.
    Resource {
        /// The name of the resource.
        name: Box<str>,
        /// The locations in the resource: the domain, then each descriptor after the one that it is nested in.
        locations: Vec<ResourceLocation>,
    },
}

/// A location in a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceLocation {
    /// The index of the location that contains this one; `None` for the domain.
    pub parent: Option<u32>,
    /// The domain, or the key and value of the descriptor.
    pub text: Box<str>,
}

impl RuleOrigin {
    /// A file.
    pub fn file(path: &str) -> Arc<Self> {
        Arc::new(Self::File(path.into()))
    }
}

/// A position in a rule file or in a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file or resource.
    pub origin: Arc<RuleOrigin>,
    /// Line and column.
    pub mark: Mark,
}

impl Location {
    /// The location of a file as a whole.
    pub fn whole(origin: Arc<RuleOrigin>) -> Self {
        Self { origin, mark: Mark::START }
    }

    /// Whether the location is in a file, and not in a resource of a control plane.
    pub(crate) fn is_in_file(&self) -> bool {
        match &*self.origin {
            RuleOrigin::File(_) => true,
            RuleOrigin::Resource { .. } => false,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.origin {
            RuleOrigin::File(path) => write!(f, "{path}:{}:{}", self.mark.line, self.mark.column),
            RuleOrigin::Resource { name, locations } => {
                let at = |index: u32| locations.get(usize::try_from(index).unwrap_or(usize::MAX));
                let mut texts = Vec::new();
                let mut place = self.mark.line.checked_sub(1).and_then(at);
                while let Some(ResourceLocation { parent, text }) = place {
                    texts.push(escaped(text));
                    place = parent.and_then(at);
                }
                write!(f, "resource {}", escaped(name))?;
                for (index, text) in texts.iter().rev().enumerate() {
                    let before = if index == 0 { " at " } else { "." };
                    write!(f, "{before}{text}")?;
                }
                Ok(())
            }
        }
    }
}

/// A problem in a rule file or resource. Displayed as `file:line:column: what` or `resource name at path: what`.
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

/// All problems of a set of rule files or resources. Displayed one to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    dropped: usize,
}

impl Problems {
    /// The maximum number of problems retained; further ones are only counted.
    pub const MAX: usize = 1_000;

    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        if self.is_full() { self.dropped += 1 } else { self.list.push(problem) }
    }

    /// Whether further problems are only counted.
    fn is_full(&self) -> bool {
        self.list.len() >= Self::MAX
    }

    /// The problems retained, in the order of the files or resources.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// The number of problems, including those not retained.
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

/// Collects the problems of one file or resource.
pub(crate) struct Diagnostics<'p> {
    origin: Arc<RuleOrigin>,
    problems: &'p Cell<Problems>,
}

impl<'p> Diagnostics<'p> {
    /// Adds the problems of `origin` to `problems`.
    pub(crate) fn new(origin: Arc<RuleOrigin>, problems: &'p mut Problems) -> Self {
        Self { origin, problems: Cell::from_mut(problems) }
    }

    /// Adds a problem at `mark`.
    pub(crate) fn add(&self, mark: Mark, what: impl Into<String>) {
        self.add_with(mark, || what.into());
    }

    /// Adds a problem whose text takes a while, such as one with a suggestion. The text is written only if the problem
    /// is retained.
    pub(crate) fn add_with(&self, mark: Mark, what: impl FnOnce() -> String) {
        let mut problems = self.problems.take();
        if problems.is_full() {
            problems.dropped += 1;
        } else {
            problems.list.push(Problem { location: self.location(mark), what: what() });
        }
        self.problems.set(problems);
    }

    /// Adds several problems.
    pub(crate) fn add_all(&self, problems: Vec<Located<String>>) {
        problems.into_iter().for_each(|problem| self.add(problem.mark, problem.value));
    }

    /// The location of `mark` in this file or resource.
    pub(crate) fn location(&self, mark: Mark) -> Location {
        Location { origin: self.origin.clone(), mark }
    }
}
