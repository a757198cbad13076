//! The body of refusals, as rule files set it.

use std::fmt;

mod read;
mod template;
mod text;

pub(crate) use read::FORMATS;
pub(crate) use read::denial_body;
pub use template::Template;
pub use text::{DenialValues, Variable};

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
            Self::None => f.write_str(read::NONE),
            Self::Problem => f.write_str(read::PROBLEM),
            Self::Template(template) => write!(f, "{}: {}", template.content_type(), template.source()),
        }
    }
}
