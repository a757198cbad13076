//! The kinds of bodies.

use std::fmt;

use crate::rules::denial_body::template::Template;

/// The values of `denial_body` in rule files that are no mapping.
pub(super) const NONE: &str = "none";
pub(super) const PROBLEM: &str = "problem";

/// The body of refusals by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialBody {
    /// None, whatever the settings say.
    None,
    /// `application/problem+json`.
    Problem,
    /// What the operator has written.
    Template(Template),
}

/// As in the rule file: `none`, `problem`, or the content type and the template.
impl fmt::Display for DenialBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Problem => f.write_str(PROBLEM),
            Self::Template(template) => write!(f, "{}: {}", template.content_type(), template.source()),
        }
    }
}
