use tollgate_rules::{Rules, compile};

use super::*;

fn resource(name: &str, descriptors: &[RateLimitDescriptor]) -> RuleInput {
    let config = RateLimitConfig {
        name: name.to_owned(),
        domain: "d".to_owned(),
        descriptors: descriptors.iter().map(Message::encode_to_vec).collect(),
    };
    source(config.encode_to_vec())
}

fn compiled(descriptors: &[RateLimitDescriptor]) -> Result<Rules, String> {
    compile(&[resource("r", descriptors)]).map_err(|problems| problems.to_string())
}

fn nested(key: &str, inner: &[RateLimitDescriptor]) -> RateLimitDescriptor {
    let descriptors = inner.iter().map(Message::encode_to_vec).collect();
    RateLimitDescriptor { key: key.to_owned(), descriptors, ..RateLimitDescriptor::default() }
}

/// The path and the limit of each rule.
fn limits(rules: &Rules) -> Vec<(String, u64)> {
    let limit = |rule: &tollgate_rules::Rule| (rule.path.to_string(), rule.displayed_limit.requests_per_unit);
    rules.domain("d").unwrap().rules().map(limit).collect()
}

/// The rules of a file with these descriptors, whose locations are those of `like`.
fn of_file(yaml: &str, like: &Rules) -> Vec<tollgate_rules::Rule> {
    let rules = Rules::parse("f", &format!("{{domain: d, descriptors: [{yaml}]}}")).unwrap();
    let pairs = rules.domain("d").unwrap().rules().zip(like.domain("d").unwrap().rules());
    pairs
        .map(|(rule, like)| tollgate_rules::Rule { location: like.location.clone(), ..rule.clone() })
        .collect()
}

fn limited(unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitDescriptor {
    let policy = RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor { key: "k".to_owned(), rate_limit: Some(policy), ..RateLimitDescriptor::default() }
}

#[test]
fn resource_has_the_rules_of_an_equal_file() {
    let number = |number| Json { kind: Some(Kind::NumberValue(number)) };
    let metadata = Struct { fields: [("n".to_owned(), number(1.5)), ("i".to_owned(), number(7.0))].into() };
    let policy = RateLimitPolicy {
        name: "a".to_owned(),
        replaces: vec![Default::default()],
        ..limited(RateLimitUnit::Week, 3).rate_limit.unwrap()
    };
    let mut policy = policy;
    policy.replaces[0].name = "b".to_owned();
    let inner = RateLimitDescriptor {
        key: "user".to_owned(),
        value: "true".to_owned(),
        rate_limit: Some(policy),
        shadow_mode: true,
        quota_mode: true,
        detailed_metric: true,
        metadata: Some(metadata),
        ..RateLimitDescriptor::default()
    };
    let outer = RateLimitDescriptor {
        key: "path".to_owned(),
        shadow_mode: true,
        descriptors: vec![inner.encode_to_vec()],
        ..RateLimitDescriptor::default()
    };
    let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
    let free = RateLimitDescriptor { rate_limit: Some(unlimited), ..limited(RateLimitUnit::Day, 0) };
    let rules = compiled(&[outer, free]).unwrap();
    let yaml = "{key: path, descriptors: [{key: user, value: 'true', shadow_mode: true, quota_mode: true, \
                detailed_metric: true, metadata: {n: 1.5, i: 7}, rate_limit: {unit: week, \
                requests_per_unit: 3, name: a, replaces: [{name: b}]}}]}, \
                {key: k, rate_limit: {unlimited: true}}";
    let found: Vec<_> = rules.domain("d").unwrap().rules().cloned().collect();
    assert_eq!(format!("{found:?}"), format!("{:?}", of_file(yaml, &rules)));
    let unknown = "no limit of domain `d` has the name `b`; this replaces nothing";
    let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, [format!("resource r at d.path.user_true: {unknown}")], "none for shadow mode");
}

#[test]
fn conflicting_descriptor_is_left_out_and_everything_else_applies() {
    let first = nested("route", &[limited(RateLimitUnit::Day, 1)]);
    let other = RateLimitDescriptor { key: "other".to_owned(), ..limited(RateLimitUnit::Day, 4) };
    let second =
        nested("route", &[limited(RateLimitUnit::Hour, 2), limited(RateLimitUnit::Hour, 3), other.clone()]);
    let rules = compile(&[resource("a", &[first]), resource("b", &[second, other])]).unwrap();
    let expected = [("d.route.k", 1), ("d.route.other", 4), ("d.other", 4)];
    assert_eq!(limits(&rules), expected.map(|(path, limit)| (path.to_owned(), limit)));
    let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
    let expected = "resource b at d.route.k: this descriptor is left out: resource a has a limit for the same \
                    key and value before it";
    assert_eq!((warnings, rules.conflicts), (vec![expected.to_owned(); 2], 2));
}

#[test]
fn descriptors_of_which_one_has_a_limit_are_one() {
    let bare = nested("k", &[]);
    let limit = limited(RateLimitUnit::Day, 1);
    let inner = RateLimitDescriptor { key: "inner".to_owned(), ..limited(RateLimitUnit::Day, 2) };
    let parent = nested("k", &[inner]);
    for descriptors in [
        vec![bare.clone(), limit.clone(), parent.clone()],
        vec![parent.clone(), limit.clone()],
        vec![limit, bare, parent],
    ] {
        let rules = compiled(&descriptors).unwrap();
        let mut found = limits(&rules);
        found.sort();
        assert_eq!(found, [("d.k".to_owned(), 1), ("d.k.inner".to_owned(), 2)]);
        assert_eq!((rules.conflicts, rules.warnings().len()), (0, 0));
    }
}

#[test]
fn every_unit_is_that_of_files() {
    let names = ["second", "minute", "hour", "day", "month", "year", "week"];
    for (number, name) in (1..).zip(names) {
        let unit = RateLimitUnit::try_from(number).unwrap();
        let rules = compiled(&[limited(unit, 1)]).unwrap();
        let shown = rules.domain("d").unwrap().rules().next().unwrap().displayed_limit;
        assert_eq!(shown.unit.unwrap().name(), name);
    }
}

#[test]
fn problems_name_resource_and_path() {
    let unknown = limited(RateLimitUnit::Unknown, 1);
    let mut later = limited(RateLimitUnit::Day, 1);
    later.rate_limit.as_mut().unwrap().unit = 99;
    later.key = "l\n".to_owned();
    let problems = compiled(&[unknown.clone(), later]).unwrap_err();
    let lines: Vec<_> = problems.lines().collect();
    assert!(lines[0].starts_with("resource r at d.k: `unit` is missing"), "{problems}");
    assert!(lines[1].starts_with("resource r at d.l\\n: `unit` cannot be `99`"), "{problems}");
    let broken = RateLimitDescriptor {
        key: "outer".to_owned(),
        descriptors: vec![vec![0xff]],
        ..RateLimitDescriptor::default()
    };
    let problems = compiled(&[broken]).unwrap_err();
    assert!(problems.starts_with("resource r at d.outer: the descriptor cannot be read"), "{problems}");
    let whole = compile(&[source(vec![0xff])]).unwrap_err().to_string();
    assert!(whole.starts_with("resource : the resource cannot be read"), "{whole}");
    let number = Json { kind: Some(Kind::NumberValue(f64::INFINITY)) };
    let metadata = Some(Struct { fields: [("n".to_owned(), number)].into() });
    let infinite = RateLimitDescriptor { metadata, ..limited(RateLimitUnit::Day, 1) };
    let problems = compiled(&[infinite]).unwrap_err();
    assert!(problems.contains("is a number that JSON cannot hold"), "{problems}");
}

/// The message with a field of this number, whose value is 10.
fn with_field(message: &impl Message, number: u32) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    prost::encoding::uint32::encode(number, &10, &mut bytes);
    bytes
}

/// A message with one field, which has these bytes.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(number, &content.to_vec(), &mut bytes);
    bytes
}

#[test]
fn unknown_field_of_a_limit_is_a_warning_for_each_resource() {
    let limit = limited(RateLimitUnit::Minute, 5);
    let policy = with_field(limit.rate_limit.as_ref().unwrap(), 6);
    let newer = [field(1, b"k"), field(3, &policy)].concat();
    let replacing = with_field(&RateLimitReplace { name: "k".to_owned() }, 2);
    let replacing = [field(1, b"r"), field(3, &[field(5, &replacing), vec![8, 1, 16, 1]].concat())].concat();
    let inner = [field(1, b"outer"), field(4, &with_field(&limit, 9))].concat();
    let of = |name: &str, descriptors: &[&[u8]]| {
        let descriptors: Vec<_> = descriptors.iter().map(|bytes| field(3, bytes)).collect();
        source([field(1, name.as_bytes()), field(2, b"d"), descriptors.concat()].concat())
    };
    let rules = compile(&[of("a", &[&newer, &replacing, &inner]), of("b", &[&field(1, b"none")])]).unwrap();
    assert_eq!(rules.unknown_fields, 3);
    let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
    let expected = "resource a at d.k: the field rate_limit.6 is unknown to this version and is ignored, here and \
                    at 2 other descriptors; the limit may not be the one that the control plane means";
    assert!(warnings.contains(&expected.to_owned()), "{warnings:?}");
    for (descriptor, named) in [(&replacing, "rate_limit.replaces.2 "), (&inner, "outer.k: the field 9 ")] {
        let rules = compile(&[of("c", &[descriptor])]).unwrap();
        assert_eq!(rules.unknown_fields, 1);
        let is_named = rules.warnings().iter().any(|warning| warning.to_string().contains(named));
        assert!(is_named, "{:?}", rules.warnings());
    }
    let config = with_field(&RateLimitConfig { domain: "d".to_owned(), ..Default::default() }, 4);
    assert_eq!(compile(&[source(config)]).unwrap().unknown_fields, 1);
}

#[test]
fn every_field_of_this_version_is_known() {
    let metadata = Struct { fields: [("n".to_owned(), Json::default())].into() };
    let policy = RateLimitPolicy {
        unit: RateLimitUnit::Week.into(),
        requests_per_unit: 3,
        unlimited: true,
        name: "a".to_owned(),
        replaces: vec![RateLimitReplace { name: "b".to_owned() }],
    };
    let descriptor = RateLimitDescriptor {
        key: "k".to_owned(),
        value: "v".to_owned(),
        rate_limit: Some(policy),
        descriptors: vec![vec![0xff]],
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: Some(metadata),
    };
    assert_eq!(unknown_field(&descriptor.encode_to_vec(), &KnownFields::DESCRIPTOR), None);
    let config =
        RateLimitConfig { name: "n".to_owned(), domain: "d".to_owned(), descriptors: vec![vec![0xff]] };
    assert_eq!(unknown_field(&config.encode_to_vec(), &KnownFields::CONFIG), None);
}

#[test]
fn descriptors_are_read_to_128_levels() {
    let mut nested = limited(RateLimitUnit::Day, 1);
    for _ in 1..DEPTH_MAX {
        nested = RateLimitDescriptor {
            key: "k".to_owned(),
            descriptors: vec![nested.encode_to_vec()],
            ..RateLimitDescriptor::default()
        };
    }
    assert_eq!(compiled(&[nested.clone()]).unwrap().len(), 1);
    nested =
        RateLimitDescriptor { descriptors: vec![nested.encode_to_vec()], ..limited(RateLimitUnit::Day, 1) };
    assert!(compiled(&[nested]).unwrap_err().contains("nested more than 128 deep"));
}
