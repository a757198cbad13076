//! YAML as a tree in which every node has its position. Texts are those of the file, unless they are written with
//! escapes or over several lines.
//!
//! Loading reports every problem, except that a syntax error ends its document. Anchors, aliases and `<<` merges are
//! supported, within a bound on the expanded size; tags are not.

use std::borrow::Cow;

use serde_json::{Map, Number, Value as Json};
use tollgate_counter::printable;

mod load;
pub(crate) mod scalar;

pub use load::{BYTES_MAX, PROBLEMS_MAX, load};
pub use scalar::Resolved;

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Mark {
    /// The first character of a text.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// A value, such as a node or what is wrong, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The position.
    pub mark: Mark,
}

impl<T> Located<T> {
    /// A value at this position.
    pub fn new(mark: Mark, value: impl Into<T>) -> Self {
        Self { value: value.into(), mark }
    }
}

/// The documents of one file and the problems found in it.
#[derive(Debug, Default)]
pub struct YamlStream<'t> {
    /// The valid documents, in order. An empty document is a null node.
    pub documents: Vec<YamlNode<'t>>,
    /// The problems in the order found; at most [`PROBLEMS_MAX`].
    pub problems: Vec<Located<String>>,
}

/// A value at the position of its first character, or of its key if the value is absent.
pub type YamlNode<'t> = Located<YamlValue<'t>>;

/// The value of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum YamlValue<'t> {
    /// A text, number, boolean or null; the reader resolves which.
    Scalar(Scalar<'t>),
    /// Nodes in order.
    List(Vec<YamlNode<'t>>),
    /// Unique keys with their values, in order.
    Mapping(Vec<YamlPair<'t>>),
    /// An invalid value that was already reported.
    Unreadable,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlPair<'t> {
    /// The text of the key.
    pub key: Cow<'t, str>,
    /// The position of the key.
    pub mark: Mark,
    /// The value.
    pub value: YamlNode<'t>,
}

/// A scalar as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar<'t> {
    /// The text, without quotes and with escapes resolved. Empty if the value is absent.
    pub text: Cow<'t, str>,
    /// Whether the scalar can only be text: it was quoted or is a block scalar.
    pub quoted: bool,
}

impl<'t> YamlNode<'t> {
    /// Whether the value is null: absent, `~` or `null`.
    pub fn is_null(&self) -> bool {
        match &self.value {
            YamlValue::Scalar(scalar) => scalar.resolve() == Resolved::Null,
            YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => false,
        }
    }

    /// The pair with this index of a mapping.
    pub fn pair(&self, index: usize) -> Option<&YamlPair<'t>> {
        let YamlValue::Mapping(pairs) = &self.value else { return None };
        pairs.get(index)
    }

    /// Takes the items of the list in the pair with this index of a mapping, and leaves an empty list. Empty if there is no
    /// such list.
    pub fn take_items(&mut self, index: usize) -> Vec<Self> {
        let YamlValue::Mapping(pairs) = &mut self.value else { return Vec::new() };
        match pairs.get_mut(index).map(|pair| &mut pair.value.value) {
            Some(YamlValue::List(items)) => std::mem::take(items),
            Some(YamlValue::Scalar(_) | YamlValue::Mapping(_) | YamlValue::Unreadable) | None => Vec::new(),
        }
    }

    /// A description for messages: "a list", "the text `x`".
    pub fn describe(&self) -> String {
        match &self.value {
            YamlValue::Scalar(scalar) => scalar.describe(),
            YamlValue::List(_) => "a list".into(),
            YamlValue::Mapping(_) => "a mapping".into(),
            YamlValue::Unreadable => "unreadable".into(),
        }
    }
}

/// `text` in backquotes for messages, truncated to 80 characters, with hidden characters escaped.
pub fn quote(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let end = text.char_indices().nth(CHARACTERS_MAX).map_or(text.len(), |(end, _)| end);
    let shown = printable::escaped(&text[..end]);
    let rest = if end < text.len() { "..." } else { "" };
    format!("`{shown}{rest}`")
}

#[cfg(test)]
mod tests;

impl YamlNode<'_> {
    /// The value as JSON. Reports numbers that JSON cannot represent and replaces them by null.
    pub fn to_json(&self, problems: &mut Vec<Located<String>>) -> Json {
        match &self.value {
            YamlValue::Scalar(scalar) => scalar.to_json().unwrap_or_else(|| {
                let what = format!(
                    "{} is a number that JSON cannot hold; write it as text, in quotes",
                    quote(&scalar.text)
                );
                problems.push(Located::new(self.mark, what));
                Json::Null
            }),
            YamlValue::List(items) => items.iter().map(|item| item.to_json(problems)).collect(),
            YamlValue::Mapping(pairs) => {
                let fields = pairs.iter().map(|pair| (pair.key.to_string(), pair.value.to_json(problems)));
                Json::Object(fields.collect::<Map<_, _>>())
            }
            YamlValue::Unreadable => Json::Null,
        }
    }
}

impl Scalar<'_> {
    fn to_json(&self) -> Option<Json> {
        match self.resolve() {
            Resolved::Null => Some(Json::Null),
            Resolved::Bool(value) => Some(Json::Bool(value)),
            Resolved::Integer(value) => i64::try_from(value)
                .map(Number::from)
                .or_else(|_| u64::try_from(value).map(Number::from))
                .ok()
                .or_else(|| Number::from_f64(value as f64))
                .map(Json::Number),
            Resolved::Float(value) => Number::from_f64(value).map(Json::Number),
            Resolved::Text => Some(Json::String(self.text.to_string())),
        }
    }
}

/// The maximum depth of nested lists and mappings.
pub const DEPTH_MAX: usize = 32;
/// The maximum number of nodes of a file with all aliases expanded. A scalar counts one more for every 64 bytes.
pub const WEIGHT_MAX: usize = 4_000_000;

/// The weight of a scalar with this text.
fn weight_of(text: &str) -> usize {
    1 + text.len() / 64
}

/// Whether a scalar is allowed as a key. A single letter such as `y` is a name here, although YAML 1.1 reads it as a
/// boolean.
fn is_key(scalar: &Scalar<'_>) -> bool {
    match scalar.resolve() {
        Resolved::Text => true,
        Resolved::Bool(_) => scalar.text.len() == 1,
        Resolved::Null | Resolved::Integer(_) | Resolved::Float(_) => false,
    }
}

#[cfg(test)]
mod json_tests {
    use serde_json::json;

    use crate::yaml::load;

    #[test]
    fn yaml_converts_to_equal_json() {
        let text = "a: yes\nb: [1, 0x10, 1.5, ~, '1', text]\nc: {d: }\n";
        let stream = load(text.as_bytes());
        let mut problems = Vec::new();
        let json = stream.documents[0].to_json(&mut problems);
        assert_eq!(json, json!({"a": true, "b": [1, 16, 1.5, null, "1", "text"], "c": {"d": null}}));
        assert_eq!(problems, []);
    }

    #[test]
    fn number_that_json_cannot_hold_is_reported() {
        let mut problems = Vec::new();
        load(b"a:\n  b: .inf\n").documents[0].to_json(&mut problems);
        assert_eq!((problems[0].mark.line, problems[0].mark.column), (2, 6));
    }
}
