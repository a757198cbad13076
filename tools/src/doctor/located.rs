//! The configuration of an Envoy as JSON whose objects say where they begin, and the fields of its messages.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use tollgate_rules::yaml::{self, Mark, YamlNode, YamlValue};

/// The field of an object that has its place. Names of Envoy begin with a letter.
pub(super) const PLACE: &str = "~place";
/// Objects with one of these fields have a place: what findings are about.
const PLACED: [&str; 8] = [
    "actions",
    "connect_timeout",
    "eds_cluster_config",
    "entries",
    "lb_policy",
    "load_assignment",
    "rate_limit_service",
    "rlqs_server",
];

/// The documents of `bytes`, which are JSON or YAML. `file` begins each place.
pub(super) fn documents(bytes: &[u8], file: &str) -> Result<Vec<Value>, String> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let mut objects = Objects { bytes, file, mark: Mark::START, is_text: false };
    let read = LocatedValue(&mut objects).deserialize(&mut text).and_then(|value| text.end().map(|()| value));
    match read {
        Ok(value) => Ok(vec![value]),
        Err(error) if bytes.trim_ascii_start().starts_with(b"{") => Err(format!("this is not JSON: {error}")),
        Err(_) => {
            let stream = yaml::load(bytes);
            if let Some(problem) = stream.problems.first() {
                let Mark { line, column } = problem.mark;
                return Err(format!("{line}:{column}: {}", problem.value));
            }
            Ok(stream.documents.iter().map(|document| from_yaml(document, file)).collect())
        }
    }
}

fn from_yaml(node: &YamlNode<'_>, file: &str) -> Value {
    match &node.value {
        YamlValue::List(items) => items.iter().map(|item| from_yaml(item, file)).collect(),
        YamlValue::Mapping(pairs) => {
            let fields = pairs.iter().map(|pair| (pair.key.to_string(), from_yaml(&pair.value, file)));
            placed(fields.collect(), file, node.mark)
        }
        // Numbers that JSON cannot hold are in no field that is read here.
        YamlValue::Scalar(_) | YamlValue::Unreadable => node.to_json(&mut Vec::new()),
    }
}

fn placed(mut fields: Map<String, Value>, file: &str, mark: Mark) -> Value {
    if PLACED.into_iter().any(|name| field(&fields, name).is_some()) {
        fields.insert(PLACE.to_owned(), format!("{file}:{}:{}", mark.line, mark.column).into());
    }
    Value::Object(fields)
}

/// The places of the objects of a text of JSON, in their order.
#[derive(Debug)]
struct Objects<'t> {
    /// What is left of the text.
    bytes: &'t [u8],
    file: &'t str,
    /// Where it begins.
    mark: Mark,
    is_text: bool,
}

impl Objects<'_> {
    /// Where the next object begins.
    fn next(&mut self) -> Mark {
        while let Some((byte, rest)) = self.bytes.split_first() {
            let here = self.mark;
            self.bytes = rest;
            match byte {
                b'\n' => self.mark = Mark { line: here.line + 1, column: 1 },
                // Bytes in a character.
                0x80..=0xbf => {}
                _first => self.mark.column += 1,
            }
            match (byte, self.is_text) {
                (b'"', _) => self.is_text ^= true,
                (b'\\', true) => {
                    // An escaped quote ends no text.
                    self.bytes = self.bytes.get(1..).unwrap_or_default();
                    self.mark.column += 1;
                }
                (b'{', false) => return here,
                _other => {}
            }
        }
        self.mark
    }
}

/// Reads a value whose first object is the next one.
struct LocatedValue<'o, 't>(&'o mut Objects<'t>);

impl<'de> DeserializeSeed<'de> for LocatedValue<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LocatedValue<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(LocatedValue(&mut *self.0))? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mark = self.0.next();
        let mut fields = Map::new();
        while let Some(name) = pairs.next_key::<String>()? {
            fields.insert(name, pairs.next_value_seed(LocatedValue(&mut *self.0))?);
        }
        Ok(placed(fields, self.0.file, mark))
    }
}

/// The objects in `value`, itself included, each before those in it.
pub(super) fn objects(value: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    let mut rest = vec![value];
    std::iter::from_fn(move || {
        loop {
            match rest.pop()? {
                Value::Array(items) => rest.extend(items.iter().rev()),
                Value::Object(fields) => {
                    rest.extend(fields.values().rev());
                    return Some(fields);
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    })
}

/// The items of the `rate_limits` of a message, each of which makes a descriptor; none of a local rate limit.
pub(super) fn rate_limits(fields: &Map<String, Value>) -> impl Iterator<Item = &Map<String, Value>> {
    let is_local = text(fields, "@type").is_some_and(|kind| kind.ends_with(".LocalRateLimit"));
    let items = field(fields, "rate_limits").filter(|_| !is_local).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(Value::as_object)
}

/// Whether a field is true.
pub(super) fn is_true(fields: &Map<String, Value>, name: &str) -> bool {
    field(fields, name).and_then(Value::as_bool) == Some(true)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of all objects that have one.
    fn places(text: &str) -> Vec<String> {
        let documents = documents(text.as_bytes(), "f").unwrap();
        let mut found: Vec<_> = documents.iter().flat_map(objects).filter_map(place).collect();
        found.sort();
        found
    }

    #[test]
    fn objects_that_findings_are_about_have_their_places() {
        let yaml = "a: {b: 1}\nc:\n- é: {actions: []}\n- entries: []\n---\nlb_policy: x\n";
        assert_eq!(places(yaml), ["f:3:6", "f:4:3", "f:6:1"]);
        let json = "{\"a\": \"{\\\"\",\n \"é\": {\"x\": {}, \"rateLimitService\": {}}, \"b\": [{}, {\"actions\": []}]}";
        assert_eq!(places(json), ["f:2:52", "f:2:7"]);
    }

    #[test]
    fn text_that_is_neither_json_nor_yaml_is_an_error() {
        assert!(documents(b"{\"a\": ", "f").unwrap_err().contains("line 1"));
        assert!(documents(b"a: b\na: c\n", "f").unwrap_err().starts_with("2:1: "));
    }
}
