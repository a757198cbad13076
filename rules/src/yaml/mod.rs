//! YAML as a tree in which every node has its position. Texts are those of the file, unless they are written with
//! escapes or over several lines.
//!
//! Loading reports every problem, except that a syntax error ends its document. Anchors, aliases and `<<` merges are
//! supported, within a bound on the expanded size; tags are not.

mod bounds;
mod json;
mod load;
mod scalar;
mod simple;

pub use bounds::{DEPTH_MAX, WEIGHT_MAX};
#[cfg(any(test, fuzzing, feature = "testing"))]
pub use load::compare_readers;
pub use load::{BYTES_MAX, PROBLEMS_MAX, load};
pub use scalar::Resolved;

use std::borrow::Cow;

use tollgate_counter::printable;

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

/// A problem and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlProblem {
    /// The position.
    pub mark: Mark,
    /// What is wrong.
    pub what: String,
}

/// The documents of one file and the problems found in it.
#[derive(Debug, Default)]
pub struct YamlStream<'t> {
    /// The valid documents, in order. An empty document is a null node.
    pub documents: Vec<YamlNode<'t>>,
    /// The problems in the order found; at most [`PROBLEMS_MAX`].
    pub problems: Vec<YamlProblem>,
}

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlNode<'t> {
    /// The position of its first character, or of its key if the value is absent.
    pub mark: Mark,
    /// The value.
    pub value: YamlValue<'t>,
}

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
    /// Whether it can only be text: it was quoted or is a block scalar.
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

    /// Takes the items of the list under `key` of a mapping and leaves an empty list. Empty if there is no such list.
    pub fn take_items(&mut self, key: &str) -> Vec<Self> {
        let YamlValue::Mapping(pairs) = &mut self.value else { return Vec::new() };
        match pairs.iter_mut().find(|pair| *pair.key == *key).map(|pair| &mut pair.value.value) {
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
