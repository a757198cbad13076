//! Fields of Protocol Buffers in JSON.

use serde_json::{Map, Value};

/// The field of an object that has its place. Names of Envoy begin with a letter.
pub(super) const PLACE: &str = "~place";

/// The value of a field, under the name of the protocol or under its JSON name.
pub(super) fn field<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    fields.get(name).or_else(|| fields.get(&json_name(name)))
}

/// A mutable reference to a field, under the name of the protocol or under its JSON name.
pub(super) fn field_mut<'v>(fields: &'v mut Map<String, Value>, name: &str) -> Option<&'v mut Value> {
    let name = if fields.contains_key(name) { name.to_owned() } else { json_name(name) };
    fields.get_mut(&name)
}

/// Removes a field under both names.
pub(super) fn remove(fields: &mut Map<String, Value>, name: &str) {
    fields.remove(name);
    fields.remove(&json_name(name));
}

fn json_name(name: &str) -> String {
    let mut camel = String::new();
    for (index, part) in name.split('_').enumerate() {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        let first = if index == 0 { first.to_owned() } else { first.to_ascii_uppercase() };
        camel.extend([first.as_str(), rest]);
    }
    camel
}

/// The text in a field.
pub(super) fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    Some(field(fields, name)?.as_str()?.to_owned())
}

/// The message in a field.
pub(super) fn message<'v>(fields: &'v Map<String, Value>, name: &str) -> Option<&'v Map<String, Value>> {
    field(fields, name)?.as_object()
}

/// Where an object begins: file, line and column.
pub(super) fn place(fields: &Map<String, Value>) -> Option<String> {
    Some(fields.get(PLACE)?.as_str()?.to_owned())
}

/// ` at ` and a place, if there is one.
pub(super) fn at(place: Option<&str>) -> String {
    place.map(|place| format!(" at {place}")).unwrap_or_default()
}
