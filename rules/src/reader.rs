//! Reads mappings with known keys, of every section.

use serde_json::Value as Json;

use crate::{
    denial_body::{self, TemplateDraft, template::DenialBody},
    diagnostics::Diagnostics,
    dialect,
    key_values::{GivenKey, GivenValue, KeyValues},
    keys::{self, KeySection, RuleKey, Takes},
    quotas::{self, QUOTAS_MAX},
    rule::Quota,
    yaml::{Located, YamlNode, YamlPair, YamlValue, quote, scalar::Resolved},
};

const SEVERAL_LIMITS: &str = "`rate_limit` takes one limit, a mapping, not a list; nest each further limit below `descriptors` of this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller send a descriptor with that entry too";
const ANY_INTEGER: &str = "a whole number from 0 to 18446744073709551615, without quotes";

/// Reads `node` as a mapping with the keys of `section`; `None` after reporting that it is none. Reports each key that is
/// not allowed there. One that is known but for case and separators is read nevertheless, so that the problems below it
/// are reported at once. A key without a value counts as absent.
pub(crate) fn read(
    node: &YamlNode<'_>,
    section: KeySection,
    diagnostics: &Diagnostics<'_>,
) -> Option<KeyValues> {
    let pairs = match &node.value {
        YamlValue::Mapping(pairs) => pairs,
        YamlValue::List(limits) if section == KeySection::RateLimit => {
            diagnostics.add(node.mark, SEVERAL_LIMITS);
            for limit in limits {
                read(limit, section, diagnostics);
            }
            return None;
        }
        YamlValue::Scalar(_) | YamlValue::List(_) => {
            diagnostics.add(node.mark, format!("expected a mapping, not {}", node.describe()));
            return None;
        }
        YamlValue::Unreadable => return None,
    };
    let mut given = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        let key = match keys::find(&pair.key, section) {
            Some(_) if pair.value.is_null() => None,
            Some(key) => Some(key),
            None => {
                diagnostics.add_with(pair.mark, || unknown_key(&pair.key, section));
                keys::find_misspelt(&pair.key, section)
            }
        };
        given.extend(key.map(|key| GivenKey {
            key,
            mark: pair.mark,
            value: value(key, pair, index, diagnostics),
        }));
    }
    let values = KeyValues { mark: node.mark, given };
    require(&values, section, diagnostics);
    Some(values)
}

/// Reports what a mapping lacks, whatever is around it.
fn require(values: &KeyValues, section: KeySection, diagnostics: &Diagnostics<'_>) {
    if section == KeySection::Calendar && values.given("timezone").is_none() {
        diagnostics.add(values.mark, "`timezone` is missing; it is an IANA name such as `Europe/Berlin`");
    }
    if section != KeySection::Own {
        return;
    }
    for GivenKey { key, mark, value } in &values.given {
        let Some(GivenValue::Mapping(bound)) = value else { continue };
        if bound.given("max").is_none() {
            let what = format!("`{}` needs a `max`, the largest number of a key", key.name);
            diagnostics.add(*mark, what);
        }
        if let Some(max) = bound.integer("max").filter(|max| max.value == 0) {
            diagnostics.add(max.mark, "`max` is at least 1");
        }
    }
    if values.given.is_empty() {
        let what = "`own` names no number that a key may have, as in `requests_per_unit: {max: 1000}`, and no source";
        diagnostics.add(values.mark, what);
    }
}

/// The value of a pair, which is the one with this index in its mapping, as what its key takes. `None` after reporting a
/// problem.
fn value(
    key: &RuleKey,
    pair: &YamlPair<'_>,
    index: usize,
    diagnostics: &Diagnostics<'_>,
) -> Option<GivenValue> {
    let node = &pair.value;
    let mark = node.mark;
    let wrong = |wanted: &str| wrong_value(pair, wanted, diagnostics);
    match key.takes {
        Takes::Required | Takes::Text => {
            let value = text(pair, diagnostics)?.to_owned();
            Some(GivenValue::Text(Located { value, mark }))
        }
        Takes::Choice(_) | Takes::Unit => choice(key, pair, diagnostics).map(GivenValue::Choice),
        Takes::Boolean => match resolve(node) {
            Some(Resolved::Bool(value)) => Some(GivenValue::Boolean(Located { value, mark })),
            Some(Resolved::Null | Resolved::Integer(_) | Resolved::Float(_) | Resolved::Text) | None => {
                wrong("`true` or `false`")
            }
        },
        Takes::Integer(_) => match integer(node) {
            Some(value) => Some(GivenValue::Integer(Located { value, mark })),
            None => wrong(ANY_INTEGER),
        },
        Takes::PrefixLength(max) => match integer(node) {
            Some(value) if (1..=u64::from(max)).contains(&value) => {
                Some(GivenValue::Integer(Located { value, mark }))
            }
            Some(_) | None => wrong(&format!("a prefix length from 1 to {max}")),
        },
        Takes::Mapping(section) => read(node, section, diagnostics).map(GivenValue::Mapping),
        Takes::Candidate => read(node, key.section, diagnostics).map(GivenValue::Mapping),
        Takes::List(KeySection::Quota) => Some(GivenValue::Quotas(quotas_of(pair, diagnostics))),
        Takes::List(KeySection::Replaced) => Some(GivenValue::Replaced(replaced(pair, diagnostics))),
        Takes::List(_) | Takes::Path => list(pair, diagnostics).map(|_| GivenValue::Node(index)),
        Takes::Json => Some(GivenValue::Node(index)),
        Takes::Anything => metadata(pair, diagnostics),
        Takes::DenialBody(_) => {
            let value = denial_body_of(key, pair, diagnostics)?;
            Some(GivenValue::DenialBody(Located { value, mark: pair.mark }))
        }
    }
}

/// A text. Numbers and booleans are accepted as written.
fn text<'p>(pair: &'p YamlPair<'_>, diagnostics: &Diagnostics<'_>) -> Option<&'p str> {
    match &pair.value.value {
        YamlValue::Scalar(scalar) => Some(&scalar.text),
        YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => {
            wrong_value(pair, "text", diagnostics)
        }
    }
}

/// One of the texts that the key takes.
fn choice(
    key: &RuleKey,
    pair: &YamlPair<'_>,
    diagnostics: &Diagnostics<'_>,
) -> Option<Located<&'static str>> {
    let text = text(pair, diagnostics)?;
    let mark = pair.value.mark;
    let is_text = if key.takes == Takes::Unit { str::eq_ignore_ascii_case } else { str::eq };
    let choices = || key.takes.choices().iter().copied();
    let found = choices().find(|name| is_text(name, text));
    if found.is_none() {
        diagnostics.add_with(mark, || {
            let hint = keys::hint(text, choices());
            let given = quote(text);
            let names = keys::quoted_list(choices());
            format!("`{}` cannot be {given}; it is one of {names}{hint}", key.name)
        });
    }
    found.map(|value| Located { value, mark })
}

/// The items of a list.
fn list<'p, 't>(pair: &'p YamlPair<'t>, diagnostics: &Diagnostics<'_>) -> Option<&'p [YamlNode<'t>]> {
    match &pair.value.value {
        YamlValue::List(items) => Some(items),
        YamlValue::Scalar(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => {
            wrong_value(pair, "a list", diagnostics)
        }
    }
}

fn quotas_of(pair: &YamlPair<'_>, diagnostics: &Diagnostics<'_>) -> Vec<Located<Quota>> {
    let items = list(pair, diagnostics).unwrap_or_default();
    if let Some(beyond) = items.get(QUOTAS_MAX) {
        diagnostics.add(beyond.mark, format!("`quotas` has at most {QUOTAS_MAX} items"));
    }
    let items = items.iter().take(QUOTAS_MAX);
    quotas::read(items.filter_map(|item| read(item, KeySection::Quota, diagnostics)), diagnostics)
}

fn replaced(pair: &YamlPair<'_>, diagnostics: &Diagnostics<'_>) -> Vec<Located<String>> {
    let items = list(pair, diagnostics).unwrap_or_default();
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let Some(values) = read(item, KeySection::Replaced, diagnostics) else { continue };
        match values.text("name").filter(|name| !name.value.is_empty()) {
            Some(name) => names.push(Located { value: name.value.clone(), mark: item.mark }),
            None => {
                let what = "an item of `replaces` needs a `name`, that of the limit it replaces";
                diagnostics.add(item.mark, what);
            }
        }
    }
    names
}

fn metadata(pair: &YamlPair<'_>, diagnostics: &Diagnostics<'_>) -> Option<GivenValue> {
    let mut problems = Vec::new();
    let json = pair.value.to_json(&mut problems);
    diagnostics.add_all(problems);
    match json {
        Json::Object(value) => Some(GivenValue::Metadata(Located { value, mark: pair.value.mark })),
        _other_json => wrong_value(pair, "a mapping", diagnostics),
    }
}

fn denial_body_of(key: &RuleKey, pair: &YamlPair<'_>, diagnostics: &Diagnostics<'_>) -> Option<DenialBody> {
    match &pair.value.value {
        YamlValue::Mapping(_) => {
            let values = read(&pair.value, KeySection::DenialBody, diagnostics)?;
            let text = |name: &str| values.given(name).map(|_| values.text(name));
            let json = values.index("json").and_then(|index| pair.value.pair(index));
            let draft = TemplateDraft {
                mark: values.mark,
                text: text("text"),
                json: json.map(|pair| &pair.value),
                content_type: text("content_type"),
            };
            denial_body::template(&draft, diagnostics).map(DenialBody::Template)
        }
        YamlValue::Scalar(_) | YamlValue::List(_) | YamlValue::Unreadable => {
            Some(denial_body::without_template(choice(key, pair, diagnostics)?.value))
        }
    }
}

/// Reports that a value has the wrong type for its key.
fn wrong_value<T>(pair: &YamlPair<'_>, wanted: &str, diagnostics: &Diagnostics<'_>) -> Option<T> {
    if pair.value.value != YamlValue::Unreadable {
        let what = format!("`{}` takes {wanted}, not {}", pair.key, pair.value.describe());
        diagnostics.add(pair.value.mark, what);
    }
    None
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

/// An integer from 0 to 2^64 - 1.
fn integer(node: &YamlNode<'_>) -> Option<u64> {
    match resolve(node)? {
        Resolved::Integer(value) => u64::try_from(value).ok(),
        Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Text => None,
    }
}
