//! The body of refusals, as rule files set it.

mod body;
mod read;
mod template;
mod text;

pub use body::DenialBody;
pub(crate) use read::{FORMATS, denial_body};
pub use template::DenialTemplate;
pub use text::{DenialValues, Variable};
