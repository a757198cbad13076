//! Typed access to mappings with known keys.

use crate::{
    diagnostics::Diagnostics,
    dialect,
    keys::{self, KeySection, RuleKey, Takes},
    yaml::{Located, Mark, Resolved, YamlNode, YamlPair, YamlValue, quote},
};

impl Located<&'static str> {
    /// What has this name.
    pub(crate) fn named<T: Copy>(&self, named: &[(&'static str, T)]) -> Option<Located<T>> {
        let (_, value) = named.iter().find(|(name, _)| *name == self.value)?;
        Some(Located { value: *value, mark: self.mark })
    }
}

/// A mapping in which all keys are known in its section. A key without a value counts as absent.
pub(crate) struct MappingFields<'n, 'd> {
    pub(crate) mark: Mark,
    pub(crate) diagnostics: &'d Diagnostics<'d>,
    section: KeySection,
    pairs: Vec<(&'static RuleKey, &'n YamlPair<'n>)>,
}

impl<'n, 'd> MappingFields<'n, 'd> {
    /// Reads `node` as a mapping and reports each key that is not allowed in `section`. One that is known but for case
    /// and separators is read nevertheless, so that the problems below it are reported at once.
    pub(crate) fn read(
        node: &'n YamlNode<'n>,
        section: KeySection,
        diagnostics: &'d Diagnostics<'d>,
    ) -> Option<Self> {
        let YamlValue::Mapping(pairs) = &node.value else {
            if node.value != YamlValue::Unreadable {
                diagnostics.add(node.mark, format!("expected a mapping, not {}", node.describe()));
            }
            return None;
        };
        let mut known = Vec::with_capacity(pairs.len());
        for pair in pairs {
            match keys::find(&pair.key, section) {
                Some(key) if !pair.value.is_null() => known.push((key, pair)),
                Some(_) => {}
                None => {
                    diagnostics.add_with(pair.mark, || unknown_key(&pair.key, section));
                    known.extend(keys::find_misspelt(&pair.key, section).map(|key| (key, pair)));
                }
            }
        }
        Some(Self { mark: node.mark, diagnostics, section, pairs: known })
    }

    /// The pairs that are present, in order, each with its key in the table of keys.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static RuleKey, &'n YamlPair<'n>)> {
        self.pairs.iter().copied()
    }

    /// The pair with this key, if it is present.
    pub(crate) fn pair(&self, key: &str) -> Option<&'n YamlPair<'n>> {
        self.pairs().find(|(found, _)| found.name == key).map(|(_, pair)| pair)
    }

    /// A key must be read as what the table of keys says, because the JSON Schema of rule files is made from it.
    fn assert_takes(&self, key: &str, is_wanted: impl Fn(Takes) -> bool) {
        debug_assert!(keys::find(key, self.section).is_some_and(|key| is_wanted(key.takes)), "{key}");
    }

    /// A text. Numbers and booleans are accepted as written.
    pub(crate) fn text(&self, key: &str) -> Option<Located<String>> {
        let Located { value, mark } = self.text_as_written(key)?;
        Some(Located { value: value.to_owned(), mark })
    }

    fn text_as_written(&self, key: &str) -> Option<Located<&'n str>> {
        self.assert_takes(key, Takes::is_text);
        let pair = self.pair(key)?;
        match &pair.value.value {
            YamlValue::Scalar(scalar) => Some(Located { value: &*scalar.text, mark: pair.value.mark }),
            YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => {
                self.wrong_value(pair, "text")
            }
        }
    }

    /// A boolean.
    pub(crate) fn boolean(&self, key: &str) -> Option<Located<bool>> {
        self.assert_takes(key, |takes| takes == Takes::Boolean);
        let pair = self.pair(key)?;
        match resolve(&pair.value) {
            Some(Resolved::Bool(value)) => Some(Located { value, mark: pair.value.mark }),
            Some(Resolved::Null | Resolved::Integer(_) | Resolved::Float(_) | Resolved::Text) | None => {
                self.wrong_value(pair, "`true` or `false`")
            }
        }
    }

    /// The location of a boolean that is `true`.
    pub(crate) fn flag(&self, key: &str) -> Option<Mark> {
        self.boolean(key).filter(|boolean| boolean.value).map(|boolean| boolean.mark)
    }

    /// An integer from 0 to 2^64 - 1.
    pub(crate) fn integer(&self, key: &str) -> Option<Located<u64>> {
        const WANTED: &str = "a whole number from 0 to 18446744073709551615, without quotes";
        self.assert_takes(key, Takes::is_integer);
        let pair = self.pair(key)?;
        match resolve(&pair.value) {
            Some(Resolved::Integer(value)) if u64::try_from(value).is_ok() => {
                Some(Located { value: value as u64, mark: pair.value.mark })
            }
            Some(_) | None => self.wrong_value(pair, WANTED),
        }
    }

    /// A prefix length from 1 to the number of bits of an address.
    pub(crate) fn prefix_length(&self, key: &str, max: u8) -> Option<u8> {
        self.assert_takes(key, |takes| takes == Takes::PrefixLength(max));
        let pair = self.pair(key)?;
        let length = match resolve(&pair.value) {
            Some(Resolved::Integer(value)) => u8::try_from(value).ok(),
            Some(Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Text) | None => None,
        };
        let length = length.filter(|length| (1..=max).contains(length));
        length.or_else(|| self.wrong_value(pair, &format!("a prefix length from 1 to {max}")))
    }

    /// The items of a list; empty if it is absent.
    pub(crate) fn items(&self, key: &str) -> &'n [YamlNode<'n>] {
        self.assert_takes(key, Takes::is_list);
        let Some(pair) = self.pair(key) else { return &[] };
        match &pair.value.value {
            YamlValue::List(items) => items,
            YamlValue::Scalar(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => {
                self.wrong_value(pair, "a list").unwrap_or_default()
            }
        }
    }

    /// One of the texts that the table of keys has for the key.
    pub(crate) fn choice(&self, key: &str) -> Option<Located<&'static str>> {
        let Located { value: text, mark } = self.text_as_written(key)?;
        let takes = self.pairs().find(|(found, _)| found.name == key)?.0.takes;
        let is_text = if takes == Takes::Unit { str::eq_ignore_ascii_case } else { str::eq };
        let choices = || takes.choices().iter().copied();
        let found = choices().find(|name| is_text(name, text));
        if found.is_none() {
            self.diagnostics.add_with(mark, || {
                let hint = keys::hint(text, choices());
                let given = quote(text);
                let names = keys::quoted_list(choices());
                format!("`{key}` cannot be {given}; it is one of {names}{hint}")
            });
        }
        found.map(|value| Located { value, mark })
    }

    /// A text that must be given and not be empty.
    pub(crate) fn required(&self, key: &str, meaning: &str) -> Option<String> {
        if self.pair(key).is_none() {
            let what = format!("`{key}` is missing; it is {meaning} and must not be empty");
            self.diagnostics.add(self.mark, what);
            return None;
        }
        let text = self.text(key)?;
        if text.value.is_empty() {
            let what = format!("`{key}` is empty; it is {meaning} and must not be empty");
            self.diagnostics.add(text.mark, what);
            return None;
        }
        Some(text.value)
    }

    /// Reports that a value has the wrong type for its key.
    fn wrong_value<T>(&self, pair: &YamlPair<'_>, wanted: &str) -> Option<T> {
        if pair.value.value != YamlValue::Unreadable {
            let what = format!("`{}` takes {wanted}, not {}", pair.key, pair.value.describe());
            self.diagnostics.add(pair.value.mark, what);
        }
        None
    }
}

/// The message for a key that is not allowed in `section`.
fn unknown_key(name: &str, section: KeySection) -> String {
    match dialect::of_key(name, section) {
        Some(hint) => format!("unknown key {}; {hint}", quote(name)),
        None => keys::misplaced_key(name, section),
    }
}

fn resolve(node: &YamlNode<'_>) -> Option<Resolved> {
    match &node.value {
        YamlValue::Scalar(scalar) => Some(scalar.resolve()),
        YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => None,
    }
}
