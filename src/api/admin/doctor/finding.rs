//! A finding of the doctor.

use serde::{Deserialize, Serialize};

/// What goes wrong, and how to repair it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DoctorFinding {
    /// The name of the kind of finding, which does not change.
    pub(crate) id: String,
    pub(crate) level: FindingLevel,
    /// What was found, with names and numbers.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) repair: String,
    /// The repaired part of a configuration, as YAML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) snippet: Option<String>,
}

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FindingLevel {
    /// Limits do not hold, or requests are not answered.
    Error,
    /// Something is probably not as intended.
    Warning,
    /// A choice to be aware of.
    Advice,
}

impl FindingLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Advice => "advice",
        }
    }
}

impl DoctorFinding {
    pub(crate) fn error(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Error, id, what.into(), repair.into())
    }

    pub(crate) fn warning(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Warning, id, what.into(), repair.into())
    }

    pub(crate) fn advice(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Advice, id, what.into(), repair.into())
    }

    fn new(level: FindingLevel, id: &str, what: String, repair: String) -> Self {
        Self { id: id.to_owned(), level, what, repair, snippet: None }
    }

    pub(crate) fn with_snippet(self, yaml: String) -> Self {
        Self { snippet: Some(yaml), ..self }
    }
}

/// The first of these, separated by commas, and how many there are beyond them.
pub(crate) fn listed(texts: impl IntoIterator<Item = String>) -> String {
    const LISTED_MAX: usize = 10;
    let mut texts = texts.into_iter();
    let mut text = texts.by_ref().take(LISTED_MAX).collect::<Vec<_>>().join(", ");
    let more = texts.count();
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}
