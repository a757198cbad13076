//! The messages of the public interfaces, and the texts of descriptors.

pub mod descriptor_template;
pub mod descriptor_text;
pub mod finding;
pub mod json;
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
pub mod proto;
pub mod protobuf;
