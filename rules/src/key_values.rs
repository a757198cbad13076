//! The mappings of rule files as written: each value with its location.

use std::ops::Deref;

use jiff::SignedDuration;
use serde_json::{Map, Value as Json};
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    Unit,
    denial_body::template::DenialBody,
    diagnostics::Diagnostics,
    keys::{self, KEYS, KeySection, RuleKey, Takes},
    rule::Quota,
    yaml::{Located, Mark, YamlNode, YamlValue},
};

impl Located<&'static str> {
    /// What has this name.
    fn named<T: Copy>(&self, named: &[(&'static str, T)]) -> Option<Located<T>> {
        let (_, value) = named.iter().find(|(name, _)| *name == self.value)?;
        Some(Located { value: *value, mark: self.mark })
    }
}

/// A mapping in which all keys are known in its section. A key in `given` that has no value had an invalid one, which
/// was reported, or its value was taken.
#[derive(Clone, Debug)]
pub(crate) struct KeyValues {
    pub(crate) mark: Mark,
    pub(crate) given: Vec<GivenKey>,
}

/// A key that is present.
#[derive(Clone, Debug)]
pub(crate) struct GivenKey {
    pub(crate) key: &'static RuleKey,
    pub(crate) mark: Mark,
    pub(crate) value: Option<GivenValue>,
}

/// The value of a key, as the table of keys says.
#[derive(Clone, Debug)]
pub(crate) enum GivenValue {
    Integer(Located<u64>),
    Boolean(Located<bool>),
    Text(Located<String>),
    Choice(Located<&'static str>),
    Mapping(KeyValues),
    Replaced(Vec<Located<String>>),
    Quotas(Vec<Located<Quota>>),
    DenialBody(Located<DenialBody>),
    Metadata(Located<Map<String, Json>>),
    /// A value that stays in the node of the mapping: the index of its pair.
    Node(usize),
}

/// A mapping of a `rate_limit` that is interpreted, and where its problems are added.
#[derive(Clone, Copy)]
pub(crate) struct LimitDraft<'d> {
    pub(crate) keys: &'d KeyValues,
    pub(crate) diagnostics: &'d Diagnostics<'d>,
}

impl LimitDraft<'_> {
    /// Adds a problem at `mark`.
    pub(crate) fn report(self, mark: Mark, what: impl Into<String>) {
        self.diagnostics.add(mark, what);
    }
}

impl Deref for LimitDraft<'_> {
    type Target = KeyValues;

    fn deref(&self) -> &KeyValues {
        self.keys
    }
}

impl KeyValues {
    /// The location of a key, if present.
    pub(crate) fn given(&self, name: &str) -> Option<Mark> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.mark)
    }

    /// The name, if one is given.
    pub(crate) fn name(&self) -> Option<&str> {
        self.text("name").map(|name| &*name.value).filter(|name| !name.is_empty())
    }

    /// The algorithm, if a valid one is given.
    pub(crate) fn algorithm(&self) -> Option<AlgorithmName> {
        self.choice("algorithm", &AlgorithmName::NAMED).map(|algorithm| algorithm.value)
    }

    /// The value of a key, which must be one that `is` says.
    fn value(&self, name: &str, is: impl Fn(Takes) -> bool) -> Option<&GivenValue> {
        debug_assert!(KEYS.iter().any(|key| key.name == name && is(key.takes)), "{name}");
        self.given.iter().find(|given| given.key.name == name)?.value.as_ref()
    }

    /// The value of a key that takes an integer.
    pub(crate) fn integer(&self, name: &str) -> Option<&Located<u64>> {
        let Some(GivenValue::Integer(value)) = self.value(name, Takes::is_integer) else { return None };
        Some(value)
    }

    /// The value of a key that takes a boolean.
    pub(crate) fn boolean(&self, name: &str) -> Option<&Located<bool>> {
        let is_boolean = |takes| takes == Takes::Boolean;
        let Some(GivenValue::Boolean(value)) = self.value(name, is_boolean) else { return None };
        Some(value)
    }

    /// The location of a boolean that is `true`.
    pub(crate) fn flag(&self, name: &str) -> Option<Mark> {
        self.boolean(name).filter(|boolean| boolean.value).map(|boolean| boolean.mark)
    }

    /// Whether a key that takes a boolean is set to `true`.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.flag(name).is_some()
    }

    /// The value of a key that takes a text.
    pub(crate) fn text(&self, name: &str) -> Option<&Located<String>> {
        let Some(GivenValue::Text(value)) = self.value(name, Takes::is_text) else { return None };
        Some(value)
    }

    /// A text that must be given and not be empty. `None` after reporting what it lacks.
    pub(crate) fn required(
        &self,
        name: &str,
        meaning: &str,
        diagnostics: &Diagnostics<'_>,
    ) -> Option<String> {
        if self.given(name).is_none() {
            let what = format!("`{name}` is missing; it is {meaning} and must not be empty");
            diagnostics.add(self.mark, what);
            return None;
        }
        let text = self.text(name)?;
        if text.value.is_empty() {
            let what = format!("`{name}` is empty; it is {meaning} and must not be empty");
            diagnostics.add(text.mark, what);
            return None;
        }
        Some(text.value.clone())
    }

    /// The value of a key that takes one of these.
    pub(crate) fn choice<T: Copy>(&self, name: &str, named: &[(&'static str, T)]) -> Option<Located<T>> {
        let Some(GivenValue::Choice(chosen)) = self.value(name, Takes::is_text) else { return None };
        chosen.named(named)
    }

    /// The mapping of a key that takes one.
    pub(crate) fn mapping(&self, name: &str) -> Option<&Self> {
        let is_mapping = |takes| matches!(takes, Takes::Mapping(_) | Takes::Candidate);
        let Some(GivenValue::Mapping(values)) = self.value(name, is_mapping) else { return None };
        Some(values)
    }

    /// The names of the limits that are replaced.
    pub(crate) fn replaces(&self) -> &[Located<String>] {
        let Some(GivenValue::Replaced(names)) = self.value("replaces", Takes::is_list) else { return &[] };
        names
    }

    /// How the limit is divided.
    pub(crate) fn quotas(&self) -> &[Located<Quota>] {
        let Some(GivenValue::Quotas(quotas)) = self.value("quotas", Takes::is_list) else { return &[] };
        quotas
    }

    /// The body of refusals.
    pub(crate) fn denial_body(&self) -> Option<&Located<DenialBody>> {
        let Some(GivenValue::DenialBody(body)) = self.value("denial_body", Takes::is_text) else {
            return None;
        };
        Some(body)
    }

    /// The index of the pair of a key whose value stays in the node of the mapping.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        let stays = |takes| matches!(takes, Takes::List(_) | Takes::Path | Takes::Json);
        let Some(GivenValue::Node(index)) = self.value(name, stays) else { return None };
        Some(*index)
    }

    /// The items of a list that stays in `node`, the node of this mapping; empty if it is absent.
    pub(crate) fn list<'n, 't>(&self, node: &'n YamlNode<'t>, name: &str) -> &'n [YamlNode<'t>] {
        match self.index(name).and_then(|index| node.pair(index)).map(|pair| &pair.value.value) {
            Some(YamlValue::List(items)) => items,
            Some(YamlValue::Scalar(_) | YamlValue::Mapping(_) | YamlValue::Unreadable) | None => &[],
        }
    }

    /// Takes the mapping of a key that takes one.
    pub(crate) fn take_mapping(&mut self, name: &str) -> Option<Self> {
        let Some(GivenValue::Mapping(values)) = self.take(name) else { return None };
        Some(values)
    }

    /// Takes the metadata of responses.
    pub(crate) fn take_metadata(&mut self) -> Option<Located<Map<String, Json>>> {
        let Some(GivenValue::Metadata(metadata)) = self.take("metadata") else { return None };
        Some(metadata)
    }

    fn take(&mut self, name: &str) -> Option<GivenValue> {
        self.given.iter_mut().find(|given| given.key.name == name)?.value.take()
    }

    /// The keys without those of these names.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let mut values = self.clone();
        values.given.retain(|given| !names.contains(&given.key.name));
        values
    }

    /// Sets the number of a key that takes an integer, as if the file had it.
    pub(crate) fn set(&mut self, name: &str, number: u64) {
        let mark = self.given(name).unwrap_or(self.mark);
        self.set_value(name, GivenValue::Integer(Located { value: number, mark }), mark);
    }

    /// Sets the window, in place of another period.
    pub(crate) fn set_window(&mut self, window: &str) {
        let span = window.parse::<SignedDuration>().ok().map(|window| window.as_nanos());
        *self = self.without(&["calendar", "unit", "unit_multiplier", "window"]);
        // Answers name a unit where there is one.
        match Unit::ALL.into_iter().find(|unit| Some(i128::from(unit.span().nanos())) == span) {
            Some(unit) => {
                let mark = self.given("requests_per_unit").unwrap_or(self.mark);
                self.set_value("unit", GivenValue::Choice(Located { value: unit.name(), mark }), mark);
            }
            None => {
                let mark = self.mark;
                self.set_value("window", GivenValue::Text(Located { value: window.to_owned(), mark }), mark);
            }
        }
    }

    fn set_value(&mut self, name: &str, value: GivenValue, mark: Mark) {
        self.given.retain(|given| given.key.name != name);
        let key = keys::find(name, KeySection::RateLimit);
        self.given.extend(key.map(|key| GivenKey { key, mark, value: Some(value) }));
    }
}
