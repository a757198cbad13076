//! The messages of the public interfaces, and the texts of descriptors.

pub mod descriptor_template;
pub mod descriptor_text;
pub mod finding;
pub mod json;
#[allow(missing_docs, clippy::all, clippy::disallowed_methods)]
pub mod proto;
pub mod protobuf;

/// The name of a code as the specification of gRPC writes it: that of tonic in capitals, with underscores.
pub fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
