//! The JSON Schema of rule files, for editors. Made from the table of keys.
//!
//! It never refuses what the compiler takes, whether its reader follows YAML 1.1 or 1.2. The compiler refuses more.
//! There is one exception: the schema refuses an empty document, which is an empty file for most editors. The compiler
//! skips it if there are other documents.

use serde_json::{Map, Value as Json, json};
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    Unit,
    keys::{
        AppliesTo, EXCLUSIVE, KEYS, KeySection, NOT_IN_CANDIDATE, REQUIRED, REQUIRED_IN_PENALTY, RuleKey,
        Takes, amounts, periods,
    },
};

/// The sections of rule files that others refer to, with their names in the schema.
const DEFINITIONS: [(KeySection, &str); 10] = [
    (KeySection::Descriptor, "descriptor"),
    (KeySection::RateLimit, "rate_limit"),
    (KeySection::Replaced, "replaced"),
    (KeySection::Calendar, "calendar"),
    (KeySection::Group, "group"),
    (KeySection::Penalty, "penalty"),
    (KeySection::Quota, "quota"),
    (KeySection::Own, "own"),
    (KeySection::OwnBound, "own_bound"),
    (KeySection::DenialBody, "denial_body"),
];

/// The texts that YAML 1.1 reads as booleans and YAML 1.2 as text.
const TRUE: &str = "^([yY]|yes|Yes|YES|on|On|ON)$";
const TRUE_OR_FALSE: &str = "^([yY]|yes|Yes|YES|on|On|ON|[nN]|no|No|NO|off|Off|OFF)$";
/// The integers of YAML 1.1 that YAML 1.2 reads as text, such as `1_000` and `0b11`.
const INTEGER: &str = "^[-+]?[0-9_][0-9a-fA-FxXoObB_]*$";

/// The JSON Schema (draft 7) of a document of a rule file.
pub fn json_schema() -> Json {
    let mut definitions: Map<_, _> =
        DEFINITIONS.iter().map(|(of, name)| ((*name).to_owned(), section(*of))).collect();
    let mut limit = section(KeySection::RateLimit);
    limit["if"] = is_unlimited();
    limit["then"] = absent(KEYS.iter().filter(|key| key.applies_to != AppliesTo::Any).map(|key| key.name));
    limit["else"] = json!({"allOf": limit_conditions()});
    definitions.insert("rate_limit".to_owned(), limit);
    let mut descriptor = section(KeySection::Descriptor);
    descriptor["if"] = present("match");
    descriptor["then"] = present("value");
    definitions.insert("descriptor".to_owned(), descriptor);
    let mut root = section(KeySection::Root);
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Rules of Tollgate".into();
    root["type"] = "object".into();
    root["definitions"] = definitions.into();
    root
}

/// The keys of a section. `<<` merges others in.
fn section(section: KeySection) -> Json {
    let keys = || KEYS.iter().filter(move |key| key.section == section);
    let mut properties: Map<_, _> = keys().map(|key| (key.name.to_owned(), property(key))).collect();
    properties.insert("<<".to_owned(), json!({"description": "The mapping whose keys are merged in."}));
    let required: Vec<_> = keys().filter(|key| key.takes == Takes::Required).map(|key| key.name).collect();
    let mut section_of =
        json!({"properties": properties, "required": required, "additionalProperties": false});
    if section == KeySection::Penalty {
        section_of["allOf"] = REQUIRED_IN_PENALTY.map(present).to_vec().into();
    }
    section_of
}

/// The values of a key, with what it means.
fn property(key: &RuleKey) -> Json {
    let mut property = value(key.takes);
    property["description"] = key.help.into();
    property
}

/// The values of a key. A key without a value counts as absent.
fn value(takes: Takes) -> Json {
    match takes {
        Takes::Required => json!({"type": ["string", "number", "boolean"], "minLength": 1}),
        // Numbers and booleans are taken as written.
        Takes::Text => json!({"type": ["string", "number", "boolean", "null"]}),
        Takes::Integer(min) => json!({
            "type": ["integer", "string", "null"], "minimum": min, "maximum": u64::MAX, "pattern": INTEGER,
        }),
        Takes::PrefixLength(max) => json!({
            "type": ["integer", "string", "null"], "minimum": 1, "maximum": max, "pattern": INTEGER,
        }),
        Takes::Boolean => json!({"type": ["boolean", "string", "null"], "pattern": TRUE_OR_FALSE}),
        Takes::Choice(names) => choice(names),
        Takes::Unit => {
            let any_case = Unit::ALL.map(|unit| in_any_case(unit.name())).join("|");
            let names = choice(takes.choices());
            json!({"anyOf": [names, {"type": "string", "pattern": format!("^({any_case})$")}]})
        }
        Takes::Anything => json!({"type": ["object", "null"]}),
        Takes::Json => json!({}),
        Takes::DenialBody(names) => {
            let template = json!({"type": "object", "allOf": [reference(KeySection::DenialBody)]});
            // `off` is a boolean in YAML 1.1.
            json!({"anyOf": [choice(names), {"const": false}, template]})
        }
        Takes::Mapping(section) => json!({"type": ["object", "null"], "allOf": [reference(section)]}),
        Takes::Candidate => {
            let limit = reference(KeySection::RateLimit);
            json!({"type": ["object", "null"], "allOf": [limit, absent(NOT_IN_CANDIDATE)]})
        }
        Takes::List(section) => {
            json!({"type": ["array", "null"], "items": {"type": "object", "allOf": [reference(section)]}})
        }
        // A part of overlay files.
        Takes::Path => json!({"type": ["array", "null"]}),
    }
}

fn choice(names: &[&str]) -> Json {
    let names: Vec<Json> = names.iter().copied().map(Json::from).chain([Json::Null]).collect();
    json!({"enum": names})
}

/// A regular expression for `name` in any case.
fn in_any_case(name: &str) -> String {
    name.chars().map(|letter| format!("[{letter}{}]", letter.to_ascii_uppercase())).collect()
}

fn reference(section: KeySection) -> Json {
    let defined = DEFINITIONS.iter().find(|(of, _)| *of == section);
    // A section of overlay files has any keys.
    defined.map_or(true.into(), |(_, name)| json!({"$ref": format!("#/definitions/{name}")}))
}

/// The conditions of a rule that is not unlimited.
fn limit_conditions() -> Vec<Json> {
    let excluded = EXCLUSIVE.iter().flat_map(|(ones, others)| {
        ones.iter().map(|one| json!({"if": present(one), "then": absent(others.iter().copied())}))
    });
    let algorithms = KEYS.iter().filter_map(|key: &RuleKey| {
        let names = |some: &[AlgorithmName]| some.iter().map(|one| one.name().into()).collect::<Vec<Json>>();
        match key.applies_to {
            AppliesTo::Any | AppliesTo::Limited => None,
            AppliesTo::Named => Some(json!({"if": present(key.name), "then": present("algorithm")})),
            AppliesTo::Only(some) => Some(json!({
                "if": present(key.name),
                "then": {"required": ["algorithm"], "properties": {"algorithm": {"enum": names(some)}}},
            })),
            AppliesTo::ClassicOr(some) => {
                let names: Vec<_> = names(some).into_iter().chain([Json::Null]).collect();
                Some(json!({
                    "if": present(key.name),
                    "then": {"properties": {"algorithm": {"enum": names}}},
                }))
            }
        }
    });
    let required = REQUIRED.iter().map(|(algorithm, key)| {
        let is_chosen =
            json!({"required": ["algorithm"], "properties": {"algorithm": {"const": algorithm.name()}}});
        json!({"if": is_chosen, "then": present(key)})
    });
    let given = [any_present(amounts()), any_present(periods())];
    excluded.chain(algorithms).chain(required).chain(given).collect()
}

fn any_present<'k>(keys: impl Iterator<Item = &'k str>) -> Json {
    json!({"anyOf": keys.map(present).collect::<Vec<_>>()})
}

fn is_unlimited() -> Json {
    let is_true = json!({"anyOf": [{"const": true}, {"type": "string", "pattern": TRUE}]});
    json!({"required": ["unlimited"], "properties": {"unlimited": is_true}})
}

fn present(key: &str) -> Json {
    json!({"required": [key], "properties": {key: {"not": {"type": "null"}}}})
}

fn absent<'k>(keys: impl IntoIterator<Item = &'k str>) -> Json {
    let nulls: Map<_, _> = keys.into_iter().map(|key| (key.to_owned(), json!({"type": "null"}))).collect();
    json!({"properties": nulls})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_set::Rules;

    /// The properties that a part of the schema declares; conditions only refer to them.
    fn declared(schema: &Json) -> Vec<(&String, &Json)> {
        let own = schema["properties"].as_object().into_iter().flatten();
        let definitions = schema["definitions"].as_object().into_iter().flatten();
        own.chain(definitions.flat_map(|(_, definition)| declared(definition))).collect()
    }

    #[test]
    fn every_property_of_the_schema_has_a_description() {
        let schema = json_schema();
        let declared = declared(&schema);
        let without = declared
            .iter()
            .filter(|(_, property)| property["description"].as_str().is_none_or(str::is_empty));
        assert_eq!(without.map(|(name, _)| *name).collect::<Vec<_>>(), Vec::<&String>::new());
        let keys = KEYS.iter().filter(|key| DEFINITIONS.iter().any(|(section, _)| *section == key.section));
        assert!(declared.len() > keys.count(), "keys of the root and merges are declared too");
    }

    #[test]
    fn help_of_every_key_is_a_sentence() {
        for key in KEYS {
            assert!(key.help.len() > 10 && key.help.ends_with('.'), "{}: {}", key.name, key.help);
        }
    }

    #[test]
    fn zero_is_refused_for_keys_that_are_at_least_one() {
        for (key, others) in [
            ("unit_multiplier", "unit: day, requests_per_unit: 1"),
            ("refill_amount", "algorithm: token_bucket, refill_interval: 1s, burst: 1"),
            ("max_in_flight", "algorithm: concurrency"),
        ] {
            let with = |number| {
                let limit = format!("{{{others}, {key}: {number}}}");
                Rules::parse("f", &format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]\n"))
            };
            let takes = KEYS.iter().find(|row| row.name == key).unwrap().takes;
            assert!(takes == Takes::Integer(1) && with(1).is_ok() && with(0).is_err(), "{key}");
        }
    }
}
