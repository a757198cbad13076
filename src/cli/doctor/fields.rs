//! Fields of Protocol Buffers in JSON.

use serde_json::{Map, Value};

/// The value of a field, under the name of the protocol or under its JSON name.
pub(super) fn field<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    fields.get(name).or_else(|| {
        let mut camel = String::new();
        for (index, part) in name.split('_').enumerate() {
            let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
            let first = if index == 0 { first.to_owned() } else { first.to_ascii_uppercase() };
            camel.extend([first.as_str(), rest]);
        }
        fields.get(&camel)
    })
}

/// The text in a field.
pub(super) fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    Some(field(fields, name)?.as_str()?.to_owned())
}

/// The message in a field.
pub(super) fn message<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Map<String, Value>> {
    field(fields, name)?.as_object()
}
