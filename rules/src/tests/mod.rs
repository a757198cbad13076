use tollgate_counter::descriptor::{Entry, Secret};

use crate::{
    compile,
    contents::RuleInput,
    keyed_rules::{KeyedRules, Match},
    rule_set::Rules,
};

mod denial_body;
mod documented;
mod errors;
mod groups;
mod limit_errors;
mod matching;
mod meaning;
mod networks;
mod overlay;
mod penalty;
mod quotas;
mod several_files;

const SECRET: Secret = Secret::from_bytes([3; 16]);

/// The rules of a valid file.
fn rules(text: &str) -> Rules {
    Rules::parse("rules.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn keyed(text: &str) -> KeyedRules {
    KeyedRules::new(Some(rules(text).into()), SECRET)
}

/// All problems of an invalid file, one to a line.
fn problems(text: &str) -> String {
    Rules::parse("f", text).expect_err("the file is invalid").to_string()
}

fn sources<const N: usize>(files: [(&str, &str); N]) -> Vec<RuleInput> {
    files.map(|(path, text)| RuleInput::file(path, text)).into()
}

/// The path of the rule for a descriptor in the domain `d`.
fn path<'r>(rules: &'r KeyedRules, entries: &[(&str, &str)]) -> Option<&'r str> {
    with(rules, entries, |found, _| found.map(|found| &*found.rule.path))
}

/// Inspects what is found for a descriptor in the domain `d`.
fn with<'r, T>(
    rules: &'r KeyedRules,
    entries: &[(&str, &str)],
    inspect: impl FnOnce(Option<Match<'r>>, &[Entry<'_>]) -> T,
) -> T {
    let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry::new(key, value)).collect();
    inspect(rules.domain("d").unwrap().find(&entries), &entries)
}

#[test]
fn hash_depends_on_contents_only() {
    let text = "domain: d\n";
    let one = compile(&sources([("a", text)])).unwrap();
    let other = compile(&sources([("b", text)])).unwrap();
    assert_eq!((one.hash(), one.hash().len()), (other.hash(), 32));
    assert_ne!(one.hash(), rules("domain: d \n").hash());
}

#[test]
fn problems_of_descriptors_are_reported_without_a_domain() {
    let text = "descriptors:\n  - {key: a, descriptors: [{value: x}]}\n  - {key: b, rate_limit: 5}\n";
    assert_eq!(
        problems(text),
        "f:1:1: `domain` is missing; it is the name that requests ask under and must not be empty\n\
         f:2:28: `key` is missing; it is the key of a descriptor entry and must not be empty\n\
         f:3:26: expected a mapping, not the number `5`"
    );
}
