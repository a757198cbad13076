//! Reads a resource of a control plane as the document of a rule file.

use std::{borrow::Cow, fmt::Display, sync::Arc};

use prost::{DecodeError, Message};
use prost_types::{Struct, Value as Json, value::Kind};
use tollgate_limiter::{
    rules::{DESCRIPTORS_MAX, Origin, Place, Source, Unit, composite},
    yaml::{Mark, Node, Pair, Problem, Scalar, Stream, Value},
};

use crate::rule_source::xds::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

/// The maximum depth of nested descriptors; a request has at most as many entries by default.
const DEPTH_MAX: usize = 128;

/// The name of a resource; empty if it cannot be read.
pub(super) fn name(bytes: &[u8]) -> String {
    RateLimitConfig::decode(bytes).map(|config| config.name).unwrap_or_default()
}

/// A resource with these bytes, as a source of rules.
pub(super) fn source(bytes: Vec<u8>) -> Source {
    Source::resource(bytes, |_path, bytes| documents(bytes))
}

/// The document of a resource, with its places.
fn documents(bytes: &[u8]) -> (Arc<Origin>, Stream<'static>) {
    let mut reader = Reader::default();
    let (name, documents) = match RateLimitConfig::decode(bytes) {
        Ok(config) => {
            let document = reader.document(&config);
            (config.name, vec![document])
        }
        Err(error) => {
            reader.problem(Mark::START, unreadable("resource", &error));
            (String::new(), Vec::new())
        }
    };
    let origin = Origin::Resource { name: name.into(), places: reader.places };
    (Arc::new(origin), Stream { documents, problems: reader.problems })
}

fn unreadable(what: &str, error: &DecodeError) -> String {
    format!("the {what} cannot be read: {error}")
}

#[derive(Default)]
struct Reader {
    places: Vec<Place>,
    problems: Vec<Problem>,
}

impl Reader {
    /// Adds a place and returns its mark.
    fn place(&mut self, parent: Option<Mark>, text: &str) -> Mark {
        let parent = parent.map(|parent| parent.line - 1);
        self.places.push(Place { parent, text: text.into() });
        // At most `DESCRIPTORS_MAX` and a few more.
        Mark { line: u32::try_from(self.places.len()).unwrap_or(u32::MAX), column: 1 }
    }

    fn problem(&mut self, mark: Mark, what: String) {
        self.problems.push(Problem { mark, what });
    }

    fn document(&mut self, config: &RateLimitConfig) -> Node<'static> {
        let mark = self.place(None, &config.domain);
        let fields = Fields::at(mark).text("domain", &config.domain);
        let descriptors = self.descriptors(&config.descriptors, mark, 1);
        fields.list("descriptors", descriptors).node()
    }

    fn descriptors(&mut self, descriptors: &[Vec<u8>], parent: Mark, depth: usize) -> Vec<Node<'static>> {
        if depth > DEPTH_MAX && !descriptors.is_empty() {
            self.problem(parent, format!("descriptors are nested more than {DEPTH_MAX} deep"));
            return Vec::new();
        }
        let mut nodes = Vec::with_capacity(descriptors.len());
        for bytes in descriptors {
            if self.places.len() > DESCRIPTORS_MAX {
                self.problem(parent, format!("more than {DESCRIPTORS_MAX} descriptors in one resource"));
                break;
            }
            match RateLimitDescriptor::decode(&**bytes) {
                Ok(descriptor) => nodes.push(self.descriptor(descriptor, parent, depth)),
                Err(error) => self.problem(parent, unreadable("descriptor", &error)),
            }
        }
        nodes
    }

    fn descriptor(&mut self, descriptor: RateLimitDescriptor, parent: Mark, depth: usize) -> Node<'static> {
        let RateLimitDescriptor { key, value, rate_limit, descriptors, metadata, .. } = &descriptor;
        let mark = self.place(Some(parent), &composite(key, value));
        let mut fields = Fields::at(mark).text("key", key).text_if("value", value);
        if let Some(limit) = rate_limit {
            // Control planes set these on every descriptor of a path; they count where the limit is.
            fields = fields
                .with("rate_limit", limit_node(limit, mark))
                .boolean("shadow_mode", descriptor.shadow_mode)
                .boolean("quota_mode", descriptor.quota_mode)
                .boolean("detailed_metric", descriptor.detailed_metric);
        }
        if let Some(metadata) = metadata {
            fields = fields.with("metadata", struct_node(metadata, mark));
        }
        let descriptors = self.descriptors(descriptors, mark, depth + 1);
        fields.list("descriptors", descriptors).node()
    }
}

fn limit_node(limit: &RateLimitPolicy, mark: Mark) -> Node<'static> {
    let replaces = limit.replaces.iter().map(|replaced| Fields::at(mark).text("name", &replaced.name).node());
    let fields = Fields::at(mark).text_if("name", &limit.name).list("replaces", replaces.collect());
    // `UNKNOWN` means that there is none.
    let fields = match limit.unit() {
        RateLimitUnit::Unknown if limit.unit == 0 => fields,
        RateLimitUnit::Unknown => fields.text("unit", &limit.unit.to_string()),
        RateLimitUnit::Second => fields.text("unit", Unit::Second.name()),
        RateLimitUnit::Minute => fields.text("unit", Unit::Minute.name()),
        RateLimitUnit::Hour => fields.text("unit", Unit::Hour.name()),
        RateLimitUnit::Day => fields.text("unit", Unit::Day.name()),
        RateLimitUnit::Week => fields.text("unit", Unit::Week.name()),
        RateLimitUnit::Month => fields.text("unit", Unit::Month.name()),
        RateLimitUnit::Year => fields.text("unit", Unit::Year.name()),
    };
    let fields = if limit.unlimited {
        fields.boolean("unlimited", true)
    } else {
        fields.with("requests_per_unit", plain(limit.requests_per_unit, mark))
    };
    fields.node()
}

fn struct_node(object: &Struct, mark: Mark) -> Node<'static> {
    let fields = object.fields.iter();
    fields
        .fold(Fields::at(mark), |fields, (name, value)| fields.with(name.clone(), json_node(value, mark)))
        .node()
}

fn json_node(value: &Json, mark: Mark) -> Node<'static> {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => plain("null", mark),
        Some(Kind::BoolValue(value)) => plain(value, mark),
        Some(Kind::NumberValue(number)) => number_node(*number, mark),
        Some(Kind::StringValue(text)) => text_node(text, mark),
        Some(Kind::StructValue(object)) => struct_node(object, mark),
        Some(Kind::ListValue(list)) => {
            let items = list.values.iter().map(|item| json_node(item, mark));
            Node { mark, value: Value::List(items.collect()) }
        }
    }
}

fn number_node(number: f64, mark: Mark) -> Node<'static> {
    /// Up to here every integer has a float of its own.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        plain(number as i64, mark)
    } else if number.is_finite() {
        plain(format_args!("{number:?}"), mark)
    } else {
        plain(".nan", mark)
    }
}

fn text_node(text: &str, mark: Mark) -> Node<'static> {
    Node { mark, value: Value::Scalar(Scalar { text: text.to_owned().into(), quoted: true }) }
}

/// A number, a boolean or null.
fn plain(value: impl Display, mark: Mark) -> Node<'static> {
    Node { mark, value: Value::Scalar(Scalar { text: value.to_string().into(), quoted: false }) }
}

/// A mapping under construction; everything in it has one mark.
struct Fields {
    mark: Mark,
    pairs: Vec<Pair<'static>>,
}

impl Fields {
    fn at(mark: Mark) -> Self {
        Self { mark, pairs: Vec::new() }
    }

    fn with(mut self, key: impl Into<Cow<'static, str>>, value: Node<'static>) -> Self {
        self.pairs.push(Pair { key: key.into(), mark: self.mark, value });
        self
    }

    fn text(self, key: &'static str, text: &str) -> Self {
        let value = text_node(text, self.mark);
        self.with(key, value)
    }

    fn text_if(self, key: &'static str, text: &str) -> Self {
        if text.is_empty() { self } else { self.text(key, text) }
    }

    /// A boolean, unless it is `false`, which is the default of all.
    fn boolean(self, key: &'static str, value: bool) -> Self {
        let node = plain(value, self.mark);
        if value { self.with(key, node) } else { self }
    }

    /// A list, unless it is empty.
    fn list(self, key: &'static str, items: Vec<Node<'static>>) -> Self {
        let value = Node { mark: self.mark, value: Value::List(items) };
        if matches!(&value.value, Value::List(items) if items.is_empty()) {
            self
        } else {
            self.with(key, value)
        }
    }

    fn node(self) -> Node<'static> {
        Node { mark: self.mark, value: Value::Mapping(self.pairs) }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::rules::{Rules, compile};

    use super::*;

    fn resource(name: &str, descriptors: &[RateLimitDescriptor]) -> Source {
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
        let limit = |rule: &tollgate_limiter::rules::Rule| {
            (rule.path.to_string(), rule.displayed_limit.requests_per_unit)
        };
        rules.domain("d").unwrap().rules().map(limit).collect()
    }

    /// The rules of a file with these descriptors, whose locations are those of `like`.
    fn of_file(yaml: &str, like: &Rules) -> Vec<tollgate_limiter::rules::Rule> {
        let rules = Rules::parse("f", &format!("{{domain: d, descriptors: [{yaml}]}}")).unwrap();
        let pairs = rules.domain("d").unwrap().rules().zip(like.domain("d").unwrap().rules());
        pairs
            .map(|(rule, like)| tollgate_limiter::rules::Rule {
                location: like.location.clone(),
                ..rule.clone()
            })
            .collect()
    }

    fn limited(unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitDescriptor {
        let policy = RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() };
        RateLimitDescriptor {
            key: "k".to_owned(),
            rate_limit: Some(policy),
            ..RateLimitDescriptor::default()
        }
    }

    #[test]
    fn resource_has_the_rules_of_an_equal_file() {
        let number = |number| Json { kind: Some(Kind::NumberValue(number)) };
        let metadata =
            Struct { fields: [("n".to_owned(), number(1.5)), ("i".to_owned(), number(7.0))].into() };
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
        assert_eq!(found, of_file(yaml, &rules));
        let unknown = "no limit of domain `d` has the name `b`; this replaces nothing";
        let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [format!("resource r at d.path.user_true: {unknown}")], "none for shadow mode");
    }

    #[test]
    fn conflicting_descriptor_is_left_out_and_everything_else_applies() {
        let first = nested("route", &[limited(RateLimitUnit::Day, 1)]);
        let other = RateLimitDescriptor { key: "other".to_owned(), ..limited(RateLimitUnit::Day, 4) };
        let second = nested(
            "route",
            &[limited(RateLimitUnit::Hour, 2), limited(RateLimitUnit::Hour, 3), other.clone()],
        );
        let rules = compile(&[resource("a", &[first]), resource("b", &[second, other])]).unwrap();
        let expected = [("d.route.k", 1), ("d.route.other", 4), ("d.other", 4)];
        assert_eq!(limits(&rules), expected.map(|(path, limit)| (path.to_owned(), limit)));
        let warnings: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
        let expected = "resource b at d.route.k: this descriptor is left out: resource a has a limit for the same \
                        key and value before it";
        assert_eq!((warnings, rules.conflicts()), (vec![expected.to_owned(); 2], 2));
    }

    #[test]
    fn descriptors_of_which_one_has_a_limit_are_one() {
        let (bare, limit) = (nested("k", &[]), limited(RateLimitUnit::Day, 1));
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
            assert_eq!((rules.conflicts(), rules.warnings().len()), (0, 0));
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
        nested = RateLimitDescriptor {
            descriptors: vec![nested.encode_to_vec()],
            ..limited(RateLimitUnit::Day, 1)
        };
        assert!(compiled(&[nested]).unwrap_err().contains("nested more than 128 deep"));
    }
}
