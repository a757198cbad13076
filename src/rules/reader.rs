//! Reads mappings of known keys and values of known types.

use crate::{
    rules::{
        keys::{self, Level},
        place::Report,
    },
    yaml::{Mark, Meaning, Node, Pair, Value, quote},
};

/// A value and where it is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) mark: Mark,
}

/// A mapping whose keys are all known at its level. A key with nothing after it counts as absent.
pub(crate) struct Fields<'n> {
    pub(crate) mark: Mark,
    pairs: Vec<&'n Pair>,
}

impl<'n> Fields<'n> {
    /// Reads `node` as a mapping at `level`, reporting each key that is not allowed there.
    pub(crate) fn read(node: &'n Node, level: Level, report: &mut Report<'_>) -> Option<Self> {
        let Value::Mapping(pairs) = &node.value else {
            wrong_type(node, "a mapping", report);
            return None;
        };
        let mut known = Vec::with_capacity(pairs.len());
        for pair in pairs {
            if keys::find(&pair.key, level).is_none() {
                report.add(pair.mark, keys::stray(&pair.key, level));
            } else if !pair.value.is_null() {
                known.push(pair);
            }
        }
        Some(Self { mark: node.mark, pairs: known })
    }

    /// What is given, in order.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = &'n Pair> {
        self.pairs.iter().copied()
    }

    pub(crate) fn pair(&self, key: &str) -> Option<&'n Pair> {
        self.pairs().find(|pair| *pair.key == *key)
    }

    /// A text; numbers and booleans are taken as they are written.
    pub(crate) fn text(&self, key: &str, report: &mut Report<'_>) -> Option<Located<String>> {
        let pair = self.pair(key)?;
        match &pair.value.value {
            Value::Scalar(scalar) => Some(Located { value: scalar.text.to_string(), mark: pair.value.mark }),
            Value::List(_) | Value::Mapping(_) | Value::Unreadable => wrong_value(pair, "text", report),
        }
    }

    /// A boolean.
    pub(crate) fn flag(&self, key: &str, report: &mut Report<'_>) -> Option<Located<bool>> {
        let pair = self.pair(key)?;
        match meaning(&pair.value) {
            Some(Meaning::Bool(value)) => Some(Located { value, mark: pair.value.mark }),
            Some(Meaning::Null | Meaning::Whole(_) | Meaning::Number(_) | Meaning::Text) | None => {
                wrong_value(pair, "`true` or `false`", report)
            }
        }
    }

    /// A whole number from 0 to 2^64 - 1.
    pub(crate) fn whole(&self, key: &str, report: &mut Report<'_>) -> Option<Located<u64>> {
        const WANTED: &str = "a whole number from 0 to 18446744073709551615, without quotes";
        let pair = self.pair(key)?;
        match meaning(&pair.value) {
            Some(Meaning::Whole(value)) if u64::try_from(value).is_ok() => {
                Some(Located { value: value as u64, mark: pair.value.mark })
            }
            Some(_) | None => wrong_value(pair, WANTED, report),
        }
    }

    /// The items of a list; none where it is absent.
    pub(crate) fn items(&self, key: &str, report: &mut Report<'_>) -> &'n [Node] {
        let Some(pair) = self.pair(key) else { return &[] };
        match &pair.value.value {
            Value::List(items) => items,
            Value::Scalar(_) | Value::Mapping(_) | Value::Unreadable => {
                wrong_value(pair, "a list", report).unwrap_or_default()
            }
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&'static str, T)],
        report: &mut Report<'_>,
    ) -> Option<Located<T>> {
        let Located { value: text, mark } = self.text(key, report)?;
        let found = choices.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let names = || choices.iter().map(|(name, _)| *name);
            let hint = keys::nearest(&text, names())
                .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            report.add(
                mark,
                format!("`{key}` cannot be {}; it is one of {}{hint}", quote(&text), keys::list(names())),
            );
        }
        found.map(|(_, value)| Located { value: *value, mark })
    }
}

fn meaning(node: &Node) -> Option<Meaning> {
    match &node.value {
        Value::Scalar(scalar) => Some(scalar.meaning()),
        Value::List(_) | Value::Mapping(_) | Value::Unreadable => None,
    }
}

/// Reports that a value is not what its key takes.
fn wrong_value<T>(pair: &Pair, wanted: &str, report: &mut Report<'_>) -> Option<T> {
    match pair.value.value {
        Value::Unreadable => {}
        Value::Scalar(_) | Value::List(_) | Value::Mapping(_) => {
            report.add(
                pair.value.mark,
                format!("`{}` takes {wanted}, not {}", pair.key, pair.value.describe()),
            );
        }
    }
    None
}

fn wrong_type(node: &Node, wanted: &str, report: &mut Report<'_>) {
    match node.value {
        Value::Unreadable => {}
        Value::Scalar(_) | Value::List(_) | Value::Mapping(_) => {
            report.add(node.mark, format!("expected {wanted}, not {}", node.describe()));
        }
    }
}
