//! One difference between two sets of rules, in words and as JSON.

use std::fmt;

use serde::Serialize;

/// A difference that changes the answers for some descriptors.
#[derive(Debug, Default, Serialize)]
pub(super) struct Difference {
    /// What happened to the descriptor or the domain.
    pub(super) change: ChangeKind,
    /// The domain.
    pub(super) domain: String,
    /// The descriptors from the top of the tree, as in `user=bob, path`; empty for the domain itself.
    pub(super) path: String,
    /// The entries that the difference applies to, in words; empty for the domain itself.
    pub(super) applies_to: String,
    /// The place in the old rules.
    pub(super) old_at: Option<String>,
    /// The place in the new rules.
    pub(super) new_at: Option<String>,
    /// What was decided by before, if another descriptor did.
    pub(super) before: Option<Applied>,
    /// What decides from now on, if another descriptor does.
    pub(super) after: Option<Applied>,
    /// The keys that differ.
    pub(super) keys: Vec<KeyValueChange>,
    /// What happens to the counters at the reload.
    pub(super) counters: Option<&'static str>,
    /// What happens to keys with limits of their own. How many there are is known only to the server.
    pub(super) own_limits: Option<String>,
}

/// What happened to a descriptor or a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChangeKind {
    /// Only the new rules have the descriptor or the domain.
    Added,
    /// Only the old rules have the descriptor or the domain.
    Removed,
    /// The old and the new rules have the descriptor or the domain, with other keys.
    #[default]
    Changed,
    /// The patterns of a level are in another order.
    Reordered,
}

/// A key with another value.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct KeyValueChange {
    /// The key as in rule files, or `limit`.
    pub(super) key: &'static str,
    /// The old value; `None` without a rule.
    pub(super) old: Option<String>,
    /// The new value; `None` without a rule.
    pub(super) new: Option<String>,
}

/// The limit that applies to a descriptor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Applied {
    /// The path of the rule.
    pub(super) rule: String,
    /// The limit in words.
    pub(super) limit: String,
    /// The place of the rule.
    pub(super) at: String,
}

impl ChangeKind {
    fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Reordered => "patterns in another order",
        }
    }
}

impl fmt::Display for KeyValueChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => write!(f, "{}: {old} -> {new}", self.key),
            (Some(old), None) => write!(f, "{}: {old}", self.key),
            (None, Some(new)) => write!(f, "{}: {new}", self.key),
            (None, None) => f.write_str(self.key),
        }
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} ({})", self.limit, self.rule, self.at)
    }
}

/// A heading, and an indented line for each part.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.path.is_empty() { "domain" } else { &self.path };
        write!(f, "{}: {what}: {}", self.domain, self.change.word())?;
        if !self.applies_to.is_empty() {
            write!(f, "\n  applies to {}", self.applies_to)?;
        }
        for key in &self.keys {
            write!(f, "\n  {key}")?;
        }
        for (word, applied) in [("before", &self.before), ("after", &self.after)] {
            if let Some(applied) = applied {
                write!(f, "\n  {word}: {applied}")?;
            }
        }
        if let Some(counters) = self.counters {
            write!(f, "\n  counters: {counters}")?;
        }
        if let Some(own_limits) = &self.own_limits {
            write!(f, "\n  warning: limits of their own: {own_limits}")?;
        }
        match (&self.old_at, &self.new_at) {
            (Some(old), Some(new)) => write!(f, "\n  at {old}, now {new}"),
            (Some(at), None) | (None, Some(at)) => write!(f, "\n  at {at}"),
            (None, None) => Ok(()),
        }
    }
}
