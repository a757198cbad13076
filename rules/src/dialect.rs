//! Formats of other programs that are given in place of rules: how each is recognised, and how it is written here.

use crate::{
    keys::KeySection,
    yaml::{Located, YamlNode, YamlPair, YamlValue, quote},
};

/// A document of another program.
struct Dialect {
    /// Pairs that its document has, each a key with its value, or with any. Of a list, the first item has them.
    signs: &'static [(&'static str, Option<&'static str>)],
    /// What it is, and what to do with it.
    hint: fn(&[YamlPair<'_>]) -> String,
}

/// The dialects, in the order in which they are tried.
const DIALECTS: [Dialect; 10] = [
    Dialect {
        signs: &[("kind", Some("ConfigMap"))],
        hint: |pairs| {
            let name = match pair(pairs, "data").map(|data| &data.value.value) {
                Some(YamlValue::Mapping(files)) => {
                    files.iter().map(|file| &*file.key).find(|key| is_plain(key))
                }
                Some(YamlValue::Scalar(_) | YamlValue::List(_) | YamlValue::Unreadable) | None => None,
            };
            let path = name.map_or("data[]".to_owned(), |name| format!("data[\"{name}\"]"));
            format!(
                "this is a ConfigMap of Kubernetes, whose rules are the text below `data`; take it out with `yq -r '.{path}' FILE > rules.yaml`, or mount the ConfigMap and give its directory"
            )
        },
    },
    Dialect {
        signs: &[("kind", Some("RateLimit")), ("spec", None)],
        hint: |_| {
            "this is a RateLimit of Emissary or Ambassador; here each label of a `pattern` is the `key` of a descriptor, the next one nested in its `descriptors`, and its `value` unless that is `*`; `rate` is `requests_per_unit` of the last one's `rate_limit`, and a `burstFactor` is `algorithm: token_bucket` with a `burst` of rate times factor"
                .to_owned()
        },
    },
    Dialect {
        signs: &[("kind", Some("RateLimitConfig"))],
        hint: |_| {
            "this is a RateLimitConfig of Gloo, whose rules are below `spec.raw`; take them out with `yq '{\"domain\": \"solo.io\"} + .spec.raw' FILE > rules.yaml` and check that file"
                .to_owned()
        },
    },
    Dialect {
        signs: &[("kind", Some("List")), ("items", None)],
        hint: |_| {
            "this is a List of Kubernetes; the rules of its first ConfigMap are `yq -r '.items[0].data[]' FILE > rules.yaml`"
                .to_owned()
        },
    },
    Dialect {
        signs: &[("kind", None), ("apiVersion", None)],
        hint: |pairs| {
            let kind = pair(pairs, "kind").map(|kind| match &kind.value.value {
                YamlValue::Scalar(scalar) => quote(&scalar.text),
                YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable => kind.value.describe(),
            });
            format!(
                "this is an object of Kubernetes of the kind {}, and not rules; a rule file has a `domain` with `descriptors`, and a control plane that translates such objects sends its rules over xDS (`rules.source: xds`)",
                kind.unwrap_or_default()
            )
        },
    },
    Dialect { signs: &[("namespace", None), ("max_value", None)], hint: of_limitador },
    Dialect { signs: &[("namespace", None), ("maxValue", None)], hint: of_limitador },
    Dialect {
        signs: &[("constraints", None)],
        hint: |_| {
            "this is the format of the first versions of ratelimit; write `descriptors` in place of each `constraints`: `sed -i 's/constraints:/descriptors:/' FILE`"
                .to_owned()
        },
    },
    Dialect { signs: &[("static_resources", None)], hint: of_envoy },
    Dialect { signs: &[("configs", None)], hint: of_envoy },
];

/// Keys of other programs in a document that is otherwise one of rules, and what to do with them.
const KEYS_OF_OTHERS: [(&str, KeySection, &str); 14] = [
    (
        "constraints",
        KeySection::Descriptor,
        "write `descriptors`, as `constraints` was named by the first versions of ratelimit",
    ),
    (
        "value_regex",
        KeySection::Descriptor,
        "values are not matched by regular expressions; write a `value` with `*`, which matches any text, as in `user-*`, or let Envoy match and send a text (`header_value_match`)",
    ),
    (
        "weight",
        KeySection::Descriptor,
        "a `weight` of Gloo selects the heaviest rules of a request; here each rule that matches counts, so remove it, and name rules that are to be ignored in `replaces` of the limit",
    ),
    (
        "alwaysApply",
        KeySection::Descriptor,
        "here each rule that matches counts, as with `alwaysApply` of Gloo, so remove it",
    ),
    (
        "always_apply",
        KeySection::Descriptor,
        "here each rule that matches counts, as with `always_apply` of Gloo, so remove it",
    ),
    (
        "priority",
        KeySection::Descriptor,
        "there are no priorities: an exact value wins over patterns, and of two patterns the first in the file, so remove it and write the more specific pattern first",
    ),
    (
        "entries",
        KeySection::Descriptor,
        "each entry is a level of its own: the first one has `key` and `value`, the next one stands below its `descriptors`",
    ),
    ("entries", KeySection::Root, "each entry is a level of `descriptors`, with `key` and `value`"),
    ("limits", KeySection::Descriptor, SEVERAL_LIMITS),
    ("rate_limits", KeySection::Descriptor, SEVERAL_LIMITS),
    ("simpleDescriptors", KeySection::Root, SET_STYLE),
    ("setDescriptors", KeySection::Root, SET_STYLE),
    ("rateLimits", KeySection::Root, ACTIONS),
    ("rate_limits", KeySection::Root, ACTIONS),
];

const SEVERAL_LIMITS: &str = "a descriptor has one limit, its `rate_limit`; nest each further limit below `descriptors` of this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller send a descriptor with that entry too";
const SET_STYLE: &str = "sets of Gloo have no order; here entries are nested in the order in which Envoy sends them: write a descriptor for the first entry, and the next one below its `descriptors`";
const ACTIONS: &str = "these are the actions by which Envoy makes descriptors, and belong into its routes; rules stand below `descriptors`, with the keys and values that these actions send";

/// What a document of another program is, and what to do with it.
pub(crate) fn recognise(document: &YamlNode<'_>) -> Option<Located<String>> {
    let pairs = match &document.value {
        YamlValue::Mapping(pairs) => pairs,
        YamlValue::List(items) => match &items.first()?.value {
            YamlValue::Mapping(pairs) => pairs,
            YamlValue::Scalar(_) | YamlValue::List(_) | YamlValue::Unreadable => return None,
        },
        YamlValue::Scalar(_) | YamlValue::Unreadable => return None,
    };
    let dialect = DIALECTS.iter().find(|dialect| dialect.signs.iter().all(|sign| has(pairs, *sign)))?;
    let (key, _) = dialect.signs[0];
    Some(Located::new(pair(pairs, key)?.mark, (dialect.hint)(pairs)))
}

/// What to do with a key of another program in `section`, if it is known.
pub(crate) fn of_key(name: &str, section: KeySection) -> Option<&'static str> {
    KEYS_OF_OTHERS.iter().find(|(key, of, _)| *key == name && *of == section).map(|(.., hint)| *hint)
}

fn of_limitador(_: &[YamlPair<'_>]) -> String {
    "this is a list of limits of Limitador; here a `namespace` is a document with that `domain`, each of the `variables` is the `key` of a descriptor (the next one nested in its `descriptors`), an equality of the `conditions` a `key` with a `value`, and `rate_limit` has `requests_per_unit` for `max_value` and `window: 60s` for `seconds: 60`"
        .to_owned()
}

fn of_envoy(_: &[YamlPair<'_>]) -> String {
    "this is a configuration of Envoy, which `tollgate doctor --envoy FILE` examines; a rule file has a `domain` with `descriptors`"
        .to_owned()
}

fn pair<'p, 't>(pairs: &'p [YamlPair<'t>], key: &str) -> Option<&'p YamlPair<'t>> {
    pairs.iter().find(|pair| *pair.key == *key)
}

fn has(pairs: &[YamlPair<'_>], (key, value): (&str, Option<&str>)) -> bool {
    pair(pairs, key).is_some_and(|pair| match (&pair.value.value, value) {
        (_, None) => true,
        (YamlValue::Scalar(scalar), Some(value)) => *scalar.text == *value,
        (YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Unreadable, Some(_)) => false,
    })
}

/// Whether a key of `data` needs no escape in a command.
fn is_plain(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
