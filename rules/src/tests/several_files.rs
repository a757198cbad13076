use super::{SECRET, keyed, problems, rules, sources};
use tollgate_counter::descriptor::Entry;

use crate::{OnDenied, compile, keyed_rules::KeyedRules};

const A: &str = "domain: d\ndescriptors: [{key: a, value: '*', rate_limit: {unlimited: true}}]\n";
const B: &str = "domain: d\ndescriptors: [{key: a, value: 'x*', rate_limit: {unlimited: true}}]\n";

fn failure<const N: usize>(files: [(&str, &str); N]) -> String {
    compile(&sources(files)).expect_err("the files disagree").to_string()
}

#[test]
fn documents_and_files_are_merged_in_order() {
    let both = compile(&sources([("a", A), ("b", B), ("c", "domain: e\n---\ndomain: f\n")])).unwrap();
    let names: Vec<_> = both.domains().map(|domain| &*domain.name).collect();
    assert_eq!((names, both.len()), (vec!["d", "e", "f"], 2));
    for (files, first) in [([("a", A), ("b", B)], "d.a_*"), ([("b", B), ("a", A)], "d.a_x*")] {
        let merged = KeyedRules::new(Some(compile(&sources(files)).unwrap().into()), SECRET);
        assert_eq!(super::path(&merged, &[("a", "x")]), Some(first), "earlier files come first");
    }
    let documents = rules(&format!("{A}---\n{B}"));
    assert_eq!(documents.len(), 2);
}

#[test]
fn position_of_a_match_finds_it_again_among_all_domains() {
    let domain = |name: &str, keys: &[&str]| {
        let keys: Vec<_> =
            keys.iter().map(|key| format!("{{key: {key}, rate_limit: {{unlimited: true}}}}")).collect();
        format!("domain: {name}\ndescriptors: [{}]\n", keys.join(", "))
    };
    let domains =
        [("none", &[][..]), ("d", &["a", "b"]), ("empty", &[]), ("e", &["b", "c", "a"]), ("last", &[])];
    let text: Vec<_> = domains.iter().map(|(name, keys)| domain(name, keys)).collect();
    let all = keyed(&text.join("---\n"));
    for (name, keys) in domains {
        for key in keys {
            let found = all.domain(name).unwrap().find(&[Entry::new(key, "x")]).unwrap();
            let again = all.match_at(found.position().unwrap()).unwrap();
            assert!(std::ptr::eq(again.rule, found.rule), "{name} {key}");
            assert_eq!(&*again.domain.name, name);
        }
    }
}

#[test]
fn duplicate_descriptor_in_two_files_is_refused_with_both_places() {
    assert_eq!(
        failure([("one", A), ("two", A)]),
        "two:2:15: `d.a_*` is already given at one:2:15; keys and values together must differ"
    );
    let parent =
        |child: &str| format!("domain: d\ndescriptors: [{{key: a, descriptors: [{{key: {child}}}]}}]\n");
    let what = failure([("one", &parent("b")), ("two", &parent("c"))]);
    assert_eq!(what, "two:2:15: `d.a` is already given at one:2:15; keys and values together must differ");
}

#[test]
fn conflicting_on_denied_in_two_files_is_refused() {
    let none = "domain: d\non_denied: charge_none\n";
    let merged = compile(&sources([("a", A), ("b", none), ("c", none)])).unwrap();
    assert_eq!(merged.domain("d").unwrap().on_denied, Some(OnDenied::ChargeNone));
    assert_eq!(
        failure([("a", none), ("b", "domain: d\non_denied: charge_all\n")]),
        "b:2:12: `on_denied` of this domain has another value at a:2:12; set it once, or to the same value"
    );
}

#[test]
fn one_invalid_file_refuses_all_and_all_problems_are_reported() {
    let what = failure([("a", A), ("b", "domain: [\n"), ("c", ""), ("d", "domain: e\nx: 1\n")]);
    let places: Vec<_> = what.lines().map(|line| &line[..2]).collect();
    assert_eq!(places, ["b:", "c:", "d:"]);
}

#[test]
fn invalid_document_does_not_hide_problems_of_others() {
    assert_eq!(problems("domain: [\n---\ndomain: d\nx: 1\n---\ndomain: ''\n").lines().count(), 3);
}
