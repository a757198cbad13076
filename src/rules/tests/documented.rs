//! Holds `docs/rules.md` against the code.

use super::rules;
use crate::rules::{
    Unit,
    keys::{KEYS, Level, Named, Use},
};

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rules.md"));

/// The rows of the tables below a heading: what the first cell names, and the whole row.
fn rows(heading: &str) -> Vec<(&'static str, &'static str)> {
    let (_, section) =
        PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    let section = section.split("\n## ").next().unwrap();
    let row = |line: &'static str| Some((line.strip_prefix("| `")?.split_once('`')?.0, line));
    section.lines().filter_map(row).collect()
}

#[test]
fn every_key_has_a_row_at_its_level_and_every_row_is_a_key() {
    for (level, heading) in [
        (Level::Root, "The document"),
        (Level::Descriptor, "A descriptor"),
        (Level::RateLimit, "`rate_limit`"),
        (Level::Replaced, "An item of `replaces`"),
        (Level::Calendar, "`calendar`"),
    ] {
        let mut documented: Vec<_> = rows(heading).iter().map(|(key, _)| *key).collect();
        let mut known: Vec<_> = KEYS.iter().filter(|key| key.level == level).map(|key| key.name).collect();
        documented.sort_unstable();
        known.sort_unstable();
        assert_eq!(documented, known, "{heading}");
    }
}

fn names(some: &[Named]) -> String {
    some.iter().map(|named| format!("`{}`", named.name())).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_row_of_an_algorithm_names_the_keys_that_are_its_own() {
    let rows = rows("Algorithms");
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(), Named::ALL.map(Named::name));
    for (named, (_, row)) in Named::ALL.into_iter().zip(rows) {
        let own = KEYS.iter().filter(|key| match key.goes_with {
            Use::Any | Use::Limited => false,
            Use::ClassicOr(some) | Use::Only(some) => some.contains(&named),
        });
        let documented: Vec<_> = row.split('|').nth(2).unwrap().trim().split(", ").collect();
        assert_eq!(documented, own.map(|key| format!("`{}`", key.name)).collect::<Vec<_>>(), "{row}");
    }
}

#[test]
fn the_row_of_a_key_names_the_algorithms_it_goes_with() {
    let rows = rows("`rate_limit`");
    for key in KEYS.iter().filter(|key| key.level == Level::RateLimit) {
        let (_, row) = rows.iter().find(|(name, _)| *name == key.name).unwrap();
        let goes_with = row.rsplit('|').nth(1).unwrap().trim();
        match key.goes_with {
            Use::Any => assert_eq!(goes_with, "any rule", "{}", key.name),
            Use::Limited => assert_eq!(goes_with, "any rule that limits", "{}", key.name),
            Use::ClassicOr(some) => {
                assert_eq!(goes_with, format!("no `algorithm`, {}", names(some)), "{}", key.name)
            }
            Use::Only(some) => assert_eq!(goes_with, names(some), "{}", key.name),
        }
    }
}

#[test]
fn every_algorithm_and_every_unit_is_named() {
    let names = Named::ALL.map(Named::name).into_iter().chain(Unit::ALL.map(Unit::name));
    names.for_each(|name| assert!(PAGE.contains(&format!("`{name}`")), "{name}"));
}

#[test]
fn every_example_is_right_and_means_something() {
    let examples: Vec<_> =
        PAGE.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(5 <= examples.len());
    for example in examples {
        let rules = rules(example);
        assert_eq!((rules.warnings(), rules.is_empty()), (&[][..], false), "{example}");
    }
}
