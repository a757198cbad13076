//! The kinds of bodies.

use std::fmt;

use crate::denial_body::template::DenialTemplate;

/// The values of `denial_body` in rule files that are no mapping.
pub(super) const OFF: &str = "off";
pub(super) const PROBLEM: &str = "problem";

/// The body of refusals by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialBody {
    /// None, whatever the settings say.
    Off,
    /// `application/problem+json`.
    Problem,
    /// What the operator has written.
    Template(DenialTemplate),
}

/// As in the rule file: `off`, `problem`, or the content type and the template.
impl fmt::Display for DenialBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(OFF),
            Self::Problem => f.write_str(PROBLEM),
            Self::Template(template) => write!(f, "{}: {}", template.content_type(), template.source()),
        }
    }
}
