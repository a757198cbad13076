//! A finding of the doctor, as the admin listener sends it.

use serde::{Deserialize, Serialize};
use tollgate_counter::named;

/// What goes wrong, and how to repair it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorFinding {
    /// The name of the kind of finding, which does not change.
    pub id: String,
    /// The weight of the finding.
    pub level: FindingLevel,
    /// What was found, with names and numbers.
    pub what: String,
    /// What to do about the finding.
    pub repair: String,
    /// The repaired part of a configuration, as YAML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
}

named! {
    /// The weight of a finding, with its name in JSON and for operators.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum FindingLevel {
        /// Limits do not hold, or requests are not answered.
        Error = "error",
        /// Something is probably not as intended.
        Warning = "warning",
        /// A choice to be aware of.
        Advice = "advice",
    }
}

/// A descriptor that the configuration of an Envoy makes, which the command line sends to the doctor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EnvoyDescriptor {
    /// The domains of the filters that may send the descriptor.
    pub domains: Vec<String>,
    /// The entries of the descriptor; empty if they depend on more than the configuration.
    pub entries: Vec<EnvoyEntry>,
    /// When the descriptor is sent, and what it charges.
    pub charge: EnvoyCharge,
    /// Where the descriptor is in the configuration: file, line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// An entry of an [`EnvoyDescriptor`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EnvoyEntry {
    /// The key.
    pub key: String,
    /// The value; `None` if it is that of a request.
    pub value: Option<String>,
}

/// When a descriptor is sent, and what it charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvoyCharge {
    /// Hits, before the request passes.
    Request,
    /// No hits, before the request passes.
    Peek,
    /// A hit at the end of the stream.
    End,
    /// Hits at the end of the stream whose number the request or the response says.
    EndByCost,
    /// A refund at the end of the stream.
    EndRefund,
}

impl EnvoyDescriptor {
    /// The keys with the values that are fixed, and where it is: `(route=login)(account) at envoy.yaml:5:9`.
    pub fn displayed(&self) -> String {
        let entry = |EnvoyEntry { key, value }: &EnvoyEntry| match value {
            Some(value) => format!("({key}={value})"),
            None => format!("({key})"),
        };
        let at = self.at.as_deref().map(|at| format!(" at {at}"));
        self.entries.iter().map(entry).chain(at).collect()
    }
}

impl DoctorFinding {
    /// A finding for which limits do not hold, or requests are not answered.
    pub fn error(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Error, id, what.into(), repair.into())
    }

    /// A finding of what is probably not as intended.
    pub fn warning(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Warning, id, what.into(), repair.into())
    }

    /// A finding of a choice to be aware of.
    pub fn advice(id: &str, what: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::new(FindingLevel::Advice, id, what.into(), repair.into())
    }

    fn new(level: FindingLevel, id: &str, what: String, repair: String) -> Self {
        Self { id: id.to_owned(), level, what, repair, snippet: None }
    }

    /// Adds the repaired part of a configuration, as YAML.
    pub fn with_snippet(self, yaml: String) -> Self {
        Self { snippet: Some(yaml), ..self }
    }
}

/// The first ten of `texts`, separated by commas, and how many there are beyond them.
pub fn listed(texts: impl IntoIterator<Item = String>) -> String {
    const LISTED_MAX: usize = 10;
    let mut texts = texts.into_iter();
    let mut text = texts.by_ref().take(LISTED_MAX).collect::<Vec<_>>().join(", ");
    let more = texts.count();
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}
