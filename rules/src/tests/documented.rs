//! Compares `docs/rules.md` with the code.

use super::rules;
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    Unit, Variable,
    keys::{AppliesTo, KEYS, KeySection},
};

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rules.md"));

/// The rows of the tables below a heading: the name in the first cell, and the whole row.
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let (_, section) =
        PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let row = |line: &'static str| Some((line.strip_prefix("| `")?.split_once('`')?.0, line));
    section.lines().filter_map(row).collect()
}

#[test]
fn documented_keys_are_the_keys_of_each_section() {
    for (section, heading) in [
        (KeySection::Root, "The document"),
        (KeySection::Descriptor, "A descriptor"),
        (KeySection::RateLimit, "`rate_limit`"),
        (KeySection::Replaced, "An item of `replaces`"),
        (KeySection::Calendar, "`calendar`"),
        (KeySection::Penalty, "`penalty`"),
        (KeySection::Quota, "`quotas`"),
        (KeySection::DenialBody, "`denial_body`"),
    ] {
        let mut documented: Vec<_> = rows(heading).iter().map(|(key, _)| *key).collect();
        let mut known: Vec<_> =
            KEYS.iter().filter(|key| key.section == section).map(|key| key.name).collect();
        documented.sort_unstable();
        known.sort_unstable();
        assert_eq!(documented, known, "{heading}");
    }
}

#[test]
fn documented_variables_are_the_variables_of_bodies() {
    let documented: Vec<_> = rows("Variables of a body").iter().map(|(name, _)| *name).collect();
    assert_eq!(documented, Variable::ALL.map(|variable| format!("{{{}}}", variable.name())));
}

fn names(some: &[AlgorithmName]) -> String {
    some.iter().map(|named| format!("`{}`", named.name())).collect::<Vec<_>>().join(", ")
}

#[test]
fn documented_algorithm_lists_its_own_keys() {
    let rows = rows("Algorithms");
    assert_eq!(
        rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        AlgorithmName::ALL.map(AlgorithmName::name)
    );
    for (named, (_, row)) in AlgorithmName::ALL.into_iter().zip(rows) {
        let own = KEYS.iter().filter(|key| match key.applies_to {
            AppliesTo::Any | AppliesTo::Limited | AppliesTo::Named => false,
            AppliesTo::ClassicOr(some) | AppliesTo::Only(some) => some.contains(&named),
        });
        let documented: Vec<_> = row.split('|').nth(2).unwrap().trim().split(", ").collect();
        assert_eq!(documented, own.map(|key| format!("`{}`", key.name)).collect::<Vec<_>>(), "{row}");
    }
}

#[test]
fn documented_key_lists_its_algorithms() {
    let rows = rows("`rate_limit`");
    for key in KEYS.iter().filter(|key| key.section == KeySection::RateLimit) {
        let (_, row) = rows.iter().find(|(name, _)| *name == key.name).unwrap();
        let applies_to = row.rsplit('|').nth(1).unwrap().trim();
        match key.applies_to {
            AppliesTo::Any => assert_eq!(applies_to, "any rule", "{}", key.name),
            AppliesTo::Limited => assert_eq!(applies_to, "any rule that limits", "{}", key.name),
            AppliesTo::Named => assert_eq!(applies_to, "any rule with an `algorithm`", "{}", key.name),
            AppliesTo::ClassicOr(some) => {
                assert_eq!(applies_to, format!("no `algorithm`, {}", names(some)), "{}", key.name)
            }
            AppliesTo::Only(some) => assert_eq!(applies_to, names(some), "{}", key.name),
        }
    }
}

#[test]
fn documentation_names_every_algorithm_and_unit() {
    let names = AlgorithmName::ALL.map(AlgorithmName::name).into_iter().chain(Unit::ALL.map(Unit::name));
    names.for_each(|name| assert!(PAGE.contains(&format!("`{name}`")), "{name}"));
}

#[test]
fn documented_examples_are_valid_without_warnings() {
    let examples: Vec<_> =
        PAGE.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 5);
    for example in examples {
        let rules = rules(example);
        assert_eq!((rules.warnings(), rules.is_empty()), (&[][..], false), "{example}");
    }
}
