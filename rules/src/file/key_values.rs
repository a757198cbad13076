//! The value of `rate_limit`, and of mappings in it, as written: each value with its location.

use std::ops::Deref;

use jiff::SignedDuration;
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    DenialBody, Quota, Unit,
    denial_body::denial_body,
    diagnostics::Diagnostics,
    keys::{self, KEYS, KeySection, RuleKey, Takes},
    quotas,
    reader::MappingFields,
    yaml::{Located, Mark, YamlNode, YamlValue},
};

const SEVERAL_LIMITS: &str = "`rate_limit` takes one limit, a mapping, not a list; nest each further limit below `descriptors` of this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller send a descriptor with that entry too";

/// A mapping of a `rate_limit`, or that itself. A key in `given` that has no value had an invalid one, which was
/// reported.
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
    value: Option<GivenValue>,
}

/// The value of a key, as the table of keys says.
#[derive(Clone, Debug)]
enum GivenValue {
    Integer(Located<u64>),
    Boolean(Located<bool>),
    Text(Located<String>),
    Choice(Located<&'static str>),
    Mapping(KeyValues),
    Replaced(Vec<Located<String>>),
    Quotas(Vec<Located<Quota>>),
    DenialBody(Located<DenialBody>),
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
    /// Reads a mapping with the keys of `section`; `None` after reporting that it is none.
    pub(crate) fn read(
        node: &YamlNode<'_>,
        section: KeySection,
        diagnostics: &Diagnostics<'_>,
    ) -> Option<Self> {
        if let (KeySection::RateLimit, YamlValue::List(limits)) = (section, &node.value) {
            diagnostics.add(node.mark, SEVERAL_LIMITS);
            for limit in limits {
                Self::read(limit, section, diagnostics);
            }
            return None;
        }
        let fields = MappingFields::read(node, section, diagnostics)?;
        let mut given = Vec::new();
        for (key, pair) in fields.pairs() {
            let value = GivenValue::read(key, &pair.value, &fields);
            given.push(GivenKey { key, mark: pair.mark, value });
        }
        let values = Self { mark: fields.mark, given };
        values.require(section, diagnostics);
        Some(values)
    }

    /// Reports what a mapping lacks, whatever is around it.
    fn require(&self, section: KeySection, diagnostics: &Diagnostics<'_>) {
        if section == KeySection::Calendar && self.given("timezone").is_none() {
            diagnostics.add(self.mark, "`timezone` is missing; it is an IANA name such as `Europe/Berlin`");
        }
        if section != KeySection::Own {
            return;
        }
        for GivenKey { key, mark, value } in &self.given {
            let Some(GivenValue::Mapping(bound)) = value else { continue };
            if bound.given("max").is_none() {
                let what = format!("`{}` needs a `max`, the largest number of a key", key.name);
                diagnostics.add(*mark, what);
            }
            if let Some(max) = bound.integer("max").filter(|max| max.value == 0) {
                diagnostics.add(max.mark, "`max` is at least 1");
            }
        }
        if self.given.is_empty() {
            let what = "`own` names no number that a key may have, as in `requests_per_unit: {max: 1000}`, and no source";
            diagnostics.add(self.mark, what);
        }
    }

    /// The location of a key, if present.
    pub(crate) fn given(&self, name: &str) -> Option<Mark> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.mark)
    }

    /// The name, if it has one.
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

    /// Whether a key that takes a boolean is set to `true`.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.boolean(name).is_some_and(|boolean| boolean.value)
    }

    /// The value of a key that takes a text.
    pub(crate) fn text(&self, name: &str) -> Option<&Located<String>> {
        let Some(GivenValue::Text(value)) = self.value(name, Takes::is_text) else { return None };
        Some(value)
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
    pub(crate) fn denial_body(&self) -> Option<&DenialBody> {
        let Some(GivenValue::DenialBody(body)) = self.value("denial_body", Takes::is_text) else {
            return None;
        };
        Some(&body.value)
    }

    /// These keys without some of them.
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

impl GivenValue {
    fn read(key: &RuleKey, node: &YamlNode<'_>, fields: &MappingFields<'_, '_>) -> Option<Self> {
        match key.takes {
            Takes::Integer(_) => fields.integer(key.name).map(Self::Integer),
            Takes::Boolean => fields.boolean(key.name).map(Self::Boolean),
            Takes::Required | Takes::Text => fields.text(key.name).map(Self::Text),
            Takes::Choice(_) | Takes::Unit => fields.choice(key.name).map(Self::Choice),
            Takes::Mapping(section) => KeyValues::read(node, section, fields.diagnostics).map(Self::Mapping),
            Takes::Candidate => KeyValues::read(node, key.section, fields.diagnostics).map(Self::Mapping),
            Takes::List(KeySection::Quota) => Some(Self::Quotas(quotas::read(fields))),
            Takes::List(_) => Some(Self::Replaced(replaced(fields))),
            Takes::DenialBody(_) => denial_body(fields).map(Self::DenialBody),
            Takes::PrefixLength(_) | Takes::Anything | Takes::Json | Takes::Path => None,
        }
    }
}

fn replaced(fields: &MappingFields<'_, '_>) -> Vec<Located<String>> {
    let diagnostics = fields.diagnostics;
    let items = fields.items("replaces");
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let Some(fields) = MappingFields::read(item, KeySection::Replaced, diagnostics) else { continue };
        let name = fields.text("name").map(|name| name.value).unwrap_or_default();
        if name.is_empty() {
            diagnostics.add(item.mark, "an item of `replaces` needs a `name`, that of the limit it replaces");
        } else {
            names.push(Located { value: name, mark: item.mark });
        }
    }
    names
}
