//! YAML as a tree that remembers where everything was written.
//!
//! Reports every problem it can find, not the first: one syntax error per document, and all else there is.
//! Anchors, aliases and `<<` merges work, within a bound on what they expand to; tags do not.

mod json;
mod load;
mod scalar;

pub use load::{BYTES_MAX, DEPTH_MAX, PROBLEMS_MAX, WEIGHT_MAX, load};
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

/// Something wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub mark: Mark,
    /// What is wrong.
    pub what: String,
}

/// The documents of one file, and what is wrong with the file.
#[derive(Debug, Default)]
pub struct Stream {
    /// The documents that could be read, in order. An empty document is a node that is null.
    pub documents: Vec<Node>,
    /// What is wrong, in the order it was found. Its number is bounded by [`PROBLEMS_MAX`].
    pub problems: Vec<Problem>,
}

/// A value and where it starts. Where nothing is written after a key, that is the place of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it starts.
    pub mark: Mark,
    /// What it is.
    pub value: Value,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// One text, number, boolean or nothing: which of them is for the reader to say.
    Scalar(Scalar),
    /// Nodes in order.
    List(Vec<Node>),
    /// Keys, each at most once, with their values, in order.
    Mapping(Vec<Pair>),
    /// Something that was reported as a problem, so that a reader need not report it again.
    Unreadable,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key's text.
    pub key: Box<str>,
    /// Where the key starts.
    pub mark: Mark,
    /// Its value.
    pub value: Node,
}

/// A scalar as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its text, without quotes and with escapes resolved. Empty where nothing is written.
    pub text: Box<str>,
    /// Whether it was written so that it can only be text: in quotes or as a block.
    pub quoted: bool,
}

impl Node {
    /// Whether it is nothing: absent, `~` or `null`.
    pub fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar(scalar) => scalar.resolve() == Resolved::Null,
            Value::List(_) | Value::Mapping(_) | Value::Unreadable => false,
        }
    }

    /// Takes the items of the list under `key` of a mapping, which leaves an empty list there; none where there is no
    /// such list.
    pub fn take_items(&mut self, key: &str) -> Vec<Node> {
        let Value::Mapping(pairs) = &mut self.value else { return Vec::new() };
        match pairs.iter_mut().find(|pair| *pair.key == *key).map(|pair| &mut pair.value.value) {
            Some(Value::List(items)) => std::mem::take(items),
            Some(Value::Scalar(_) | Value::Mapping(_) | Value::Unreadable) | None => Vec::new(),
        }
    }

    /// What it is, for a message: "a list", "the text `x`".
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Scalar(scalar) => scalar.describe(),
            Value::List(_) => "a list".into(),
            Value::Mapping(_) => "a mapping".into(),
            Value::Unreadable => "unreadable".into(),
        }
    }
}

/// `text` in backquotes for a message, cut where it is long, with control characters escaped.
pub fn quote(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let shown: String = text.chars().take(CHARACTERS_MAX).flat_map(visible).collect();
    let rest = if text.chars().nth(CHARACTERS_MAX).is_some() { "..." } else { "" };
    format!("`{shown}{rest}`")
}

fn visible(character: char) -> impl Iterator<Item = char> {
    let escaped = character.is_control().then(|| character.escape_default());
    let plain = (!character.is_control()).then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

#[cfg(test)]
mod tests;
