use std::fmt::Write as _;

use proptest::prelude::*;

use super::{SECRET, keyed, path, with};
use tollgate_counter::descriptor::{Entry, Key, Secret};

use crate::{keyed_rules::KeyedRules, rule::Allowance};

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

/// The domain `d` with these descriptors, written as flow mappings; `LIMIT` stands for a `rate_limit`.
fn domain_of(descriptors: &[&str]) -> KeyedRules {
    let items: String =
        descriptors.iter().map(|item| format!("  - {}\n", item.replace("LIMIT", LIMIT))).collect();
    keyed(&format!("domain: d\ndescriptors:\n{items}"))
}

fn key(rules: &KeyedRules, entries: &[(&str, &str)]) -> Key {
    with(rules, entries, |found, entries| {
        let found = found.unwrap();
        let Allowance::Limited(limit) = &found.rule.allowance else {
            panic!("{} has no limit", found.rule.path)
        };
        let key = found.key(entries, limit);
        let hash = found.key_text(entries).key(&limit.kind().bytes(), &SECRET);
        assert_eq!(key, hash, "the hash of the key text");
        key
    })
}

fn metric_name(rules: &KeyedRules, entries: &[(&str, &str)]) -> String {
    with(rules, entries, |found, entries| found.unwrap().metric_name(entries).into_owned())
}

#[test]
fn exact_value_precedes_pattern_and_pattern_precedes_key_only() {
    let rules = domain_of(&["{key: a, LIMIT}", "{key: a, value: x*, LIMIT}", "{key: a, value: x1, LIMIT}"]);
    assert_eq!(path(&rules, &[("a", "x1")]), Some("d.a_x1"));
    assert_eq!(path(&rules, &[("a", "x2")]), Some("d.a_x*"));
    assert_eq!(path(&rules, &[("a", "y")]), Some("d.a"));
    assert_eq!(path(&rules, &[("a", "")]), Some("d.a"));
    assert_eq!(path(&rules, &[("b", "x1")]), None);
}

#[test]
fn first_declared_matching_pattern_wins() {
    let rules = domain_of(&[
        "{key: a, value: 'x*', LIMIT}",
        "{key: a, value: 'xy*', LIMIT}",
        "{key: a, value: '*', LIMIT}",
    ]);
    assert_eq!(path(&rules, &[("a", "xyz")]), Some("d.a_x*"));
    assert_eq!(path(&rules, &[("a", "z")]), Some("d.a_*"));
    assert_eq!(path(&rules, &[("a", "")]), Some("d.a_*"), "a star matches an empty value too");
    let rules = domain_of(&["{key: a, value: '*z', LIMIT}", "{key: a, value: 'xy*', LIMIT}"]);
    assert_eq!(path(&rules, &[("a", "xyz")]), Some("d.a_*z"));
}

#[test]
fn value_equal_to_a_pattern_matches_it_literally() {
    let rules = domain_of(&["{key: a, value: '*', LIMIT}", "{key: a, value: 'x*', LIMIT}"]);
    assert_eq!(path(&rules, &[("a", "x*")]), Some("d.a_x*"));
}

#[test]
fn lookup_does_not_backtrack() {
    let rules = domain_of(&[
        "{key: a, value: x, descriptors: [{key: b, value: '1', LIMIT}]}",
        "{key: a, value: 'x*', descriptors: [{key: b, LIMIT}]}",
        "{key: a, descriptors: [{key: b, LIMIT}, {key: c, LIMIT}]}",
    ]);
    assert_eq!(path(&rules, &[("a", "x"), ("b", "1")]), Some("d.a_x.b_1"));
    assert_eq!(path(&rules, &[("a", "x"), ("b", "2")]), None);
    assert_eq!(path(&rules, &[("a", "x2"), ("b", "2")]), Some("d.a_x*.b"));
    assert_eq!(path(&rules, &[("a", "x2"), ("c", "")]), None);
    assert_eq!(path(&rules, &[("a", "y"), ("c", "")]), Some("d.a.c"));
}

#[test]
fn value_without_limit_is_exempt() {
    let rules = domain_of(&["{key: a, LIMIT}", "{key: a, value: vip}"]);
    assert_eq!(path(&rules, &[("a", "vip")]), None);
    assert_eq!(path(&rules, &[("a", "other")]), Some("d.a"));
}

#[test]
fn only_the_node_of_the_last_entry_applies() {
    let rules = domain_of(&["{key: a, LIMIT, descriptors: [{key: b}]}"]);
    assert_eq!(path(&rules, &[("a", "x")]), Some("d.a"));
    assert_eq!(path(&rules, &[("a", "x"), ("b", "y")]), None);
    assert_eq!(path(&rules, &[("a", "x"), ("c", "y")]), None);
    assert_eq!(path(&rules, &[("a", "x"), ("b", "y"), ("c", "z")]), None);
    assert_eq!(path(&rules, &[]), None);
}

#[test]
fn keys_and_values_with_equal_composite_text_match() {
    let rules = domain_of(&["{key: a, value: b, LIMIT}", "{key: 'us*', LIMIT}"]);
    assert_eq!(path(&rules, &[("a_b", "x")]), Some("d.a_b"));
    assert_eq!(path(&rules, &[("user", "x")]), Some("d.us*"));
    assert_eq!(path(&rules, &[("us", "")]), Some("d.us*"));
}

#[test]
fn pattern_matches_in_the_middle_and_at_nested_levels() {
    let rules = domain_of(&["{key: path, value: /api/*/item/*, descriptors: [{key: m, value: G*, LIMIT}]}"]);
    assert_eq!(path(&rules, &[("path", "/api/v1/item/5"), ("m", "GET")]), Some("d.path_/api/*/item/*.m_G*"));
    assert_eq!(path(&rules, &[("path", "/api/v1/items"), ("m", "GET")]), None);
}

#[test]
fn values_of_a_pattern_share_a_counter_with_share_threshold() {
    let rules = domain_of(&[
        "{key: own, value: 'x*', LIMIT}",
        "{key: all, value: 'x*', share_threshold: true, LIMIT}",
        "{key: all, value: x1, LIMIT}",
    ]);
    assert_ne!(key(&rules, &[("own", "x1")]), key(&rules, &[("own", "x2")]));
    assert_eq!(key(&rules, &[("all", "x2")]), key(&rules, &[("all", "x3")]));
    assert_ne!(
        key(&rules, &[("all", "x1")]),
        key(&rules, &[("all", "x2")]),
        "an exact sibling has its own counter"
    );
    assert_ne!(
        key(&rules, &[("all", "x*")]),
        key(&rules, &[("all", "x2")]),
        "a literal match is not a wildcard match"
    );
}

#[test]
fn level_above_the_limit_can_be_shared() {
    let rules = domain_of(&["{key: a, value: 'x*', share_threshold: true, descriptors: [{key: b, LIMIT}]}"]);
    assert_eq!(key(&rules, &[("a", "x1"), ("b", "1")]), key(&rules, &[("a", "x2"), ("b", "1")]));
    assert_ne!(key(&rules, &[("a", "x1"), ("b", "1")]), key(&rules, &[("a", "x1"), ("b", "2")]));
}

#[test]
fn metric_name_is_the_path_unless_the_rule_adds_values() {
    let rules = domain_of(&[
        "{key: plain, value: v, descriptors: [{key: sub, LIMIT}]}",
        "{key: detailed, detailed_metric: true, LIMIT}",
        "{key: route, value_to_metric: true, descriptors: [{key: m, value_to_metric: true, descriptors: [{key: id, LIMIT}]}]}",
        "{key: user, value: 'a*', value_to_metric: true, descriptors: [{key: id, LIMIT}]}",
        "{key: path, value: 'p/*', share_threshold: true, value_to_metric: true, descriptors: [{key: id, detailed_metric: true, LIMIT}]}",
    ]);
    for (entries, name) in [
        (&[("plain", "v"), ("sub", "9")][..], "d.plain_v.sub"),
        (&[("detailed", "x")], "d.detailed_x"),
        (&[("detailed", "")], "d.detailed_"),
        (&[("detailed", "\x1b]\u{202e}")], r"d.detailed_\u{1b}]\u{202e}"),
        (&[("route", "draw"), ("m", "GET"), ("id", "7")], "d.route_draw.m_GET.id"),
        (&[("route", ""), ("m", "GET"), ("id", "7")], "d.route.m_GET.id"),
        (&[("user", "alice"), ("id", "7")], "d.user_alice.id"),
        (&[("path", "p/1"), ("id", "7")], "d.path_p/*.id_7"),
        (&[("path", "p/1"), ("id", "")], "d.path_p/*.id"),
    ] {
        assert_eq!(metric_name(&rules, entries), name);
    }
}

#[test]
fn lookup_cost_does_not_grow_with_the_number_of_rules() {
    let visits = |number: usize| {
        let mut text = String::from("domain: d\ndescriptors:\n");
        for rule in 0..number {
            writeln!(text, "  - {{key: exact, value: v{rule:06}, {LIMIT}}}").unwrap();
            writeln!(text, "  - {{key: only{rule:06}, {LIMIT}}}").unwrap();
            writeln!(text, "  - {{key: path, value: /{rule:06}/*, {LIMIT}}}").unwrap();
        }
        let rules = keyed(&text);
        assert_eq!(rules.rules().map(|rules| rules.len()), Some(3 * number));
        let domain = rules.domain("d").unwrap();
        [
            ("exact", "v000005", "d.exact_v000005"),
            ("only000005", "anything", "d.only000005"),
            ("path", "/000005/x", "d.path_/000005/*"),
        ]
        .map(|(key, value, expected)| {
            assert_eq!(path(&rules, &[(key, value)]), Some(expected));
            domain.visits(&[Entry::new(key, value)])
        })
    };
    let few = visits(10);
    assert_eq!(few, [1, 3, 4]);
    assert_eq!(few, visits(1_000));
    assert_eq!(few, visits(33_334), "100,002 rules");
}

/// A descriptor for the oracle below.
#[derive(Clone, Debug)]
struct TestNode {
    key: String,
    value: String,
    limited: bool,
    shared: bool,
    in_metric: bool,
    children: Vec<TestNode>,
}

impl TestNode {
    fn text(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }

    fn yaml(&self) -> String {
        let limit = if self.limited { LIMIT } else { "rate_limit: " };
        let children: Vec<_> = self.children.iter().map(Self::yaml).collect();
        let Self { key, value, in_metric, .. } = self;
        let shared = self.shared && value.ends_with('*');
        let children = children.join(", ");
        format!(
            "{{key: '{key}', value: '{value}', {limit}, share_threshold: {shared}, value_to_metric: {in_metric}, \
             descriptors: [{children}]}}",
        )
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text
            .strip_prefix(before)
            .is_some_and(|rest| (0..=rest.len()).any(|at| matches(after, &rest[at..]))),
    }
}

/// The lookup by its definition, which checks one rule after the other.
fn by_definition(level: &[TestNode], path: &str, entries: &[(&str, &str)]) -> Option<String> {
    let ((key, value), rest) = entries.split_first()?;
    let text = format!("{key}_{value}");
    let exact = level.iter().find(|node| node.text() == text);
    let pattern = || level.iter().find(|node| node.text().contains('*') && matches(&node.text(), &text));
    let node = exact.or_else(pattern).or_else(|| level.iter().find(|node| node.text() == *key))?;
    let path = format!("{path}.{}", node.text());
    if rest.is_empty() { node.limited.then_some(path) } else { by_definition(&node.children, &path, rest) }
}

fn level(children: BoxedStrategy<Vec<TestNode>>) -> BoxedStrategy<Vec<TestNode>> {
    let node = ("[ab*]{1,2}", "[ab_*]{0,3}", any::<[bool; 3]>(), children).prop_map(
        |(key, value, [limited, shared, in_metric], children)| TestNode {
            key,
            value,
            limited,
            shared,
            in_metric,
            children,
        },
    );
    let distinct = |nodes: Vec<TestNode>| {
        let mut seen = std::collections::HashSet::new();
        nodes.into_iter().filter(|node| seen.insert(node.text())).collect()
    };
    prop::collection::vec(node, 0..6).prop_map(distinct).boxed()
}

proptest! {
    #[test]
    fn lookup_agrees_with_its_definition(
        nodes in level(level(Just(Vec::new()).boxed())),
        entries in prop::collection::vec(("[ab]{1,2}", "[ab_*]{0,3}"), 0..4),
    ) {
        let items: Vec<_> = nodes.iter().map(TestNode::yaml).collect();
        let rules = keyed(&format!("domain: d\ndescriptors: [{}]\n", items.join(", ")));
        let entries: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let found = with(&rules, &entries, |found, _| found.map(|found| found.rule.path.to_string()));
        prop_assert_eq!(found, by_definition(&nodes, "d", &entries));
    }

    #[test]
    fn key_is_hash_of_key_text_for_any_cached_prefix(
        nodes in level(level(Just(Vec::new()).boxed())),
        all in prop::collection::vec(prop::collection::vec(("[ab]{1,2}", "[ab_*]{0,3}"), 1..4), 1..8),
        other: [u8; 16],
    ) {
        let items: Vec<_> = nodes.iter().map(TestNode::yaml).collect();
        let first = keyed(&format!("domain: d\ndescriptors: [{}]\n", items.join(", ")));
        let other = Secret::from_bytes(other);
        let second = first.with_secret(other.clone());
        // The first descriptor of a rule fills the cache for the following ones.
        for entries in &all {
            let entries: Vec<_> = entries.iter().map(|(key, value)| Entry::new(key, value)).collect();
            for (rules, secret) in [(&first, &SECRET), (&second, &other)] {
                let Some(found) = rules.domain("d").unwrap().find(&entries) else { continue };
                let Allowance::Limited(limit) = &found.rule.allowance else { continue };
                let hash = found.key_text(&entries).key(&limit.kind().bytes(), secret);
                prop_assert_eq!(found.key(&entries, limit), hash);
            }
        }
    }
}
