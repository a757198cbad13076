//! The content of a rule file as written, each value with its location, before it is interpreted.

use jiff::civil::Weekday;
use serde_json::{Map, Value as Json};

use crate::{
    algorithm::AlgorithmName,
    rules::{
        DenialBody, OnDenied, OnOwnerUnavailable, Quota, TrialNumbers, Unit,
        denial_body::denial_body,
        diagnostics::Diagnostics,
        group::{Group, GroupedKey},
        keys::{self, Key, Section, Takes},
        network_keys,
        prefix_tree::MatchKind,
        quotas,
        reader::{Fields, Located, required},
    },
    yaml::{Mark, Node, Pair, Value},
};

/// The values of `on_denied`.
pub(crate) const ON_DENIED: [(&str, OnDenied); 2] =
    [("charge_all", OnDenied::ChargeAll), ("charge_none", OnDenied::ChargeNone)];

/// One document.
pub(crate) struct Document<'t> {
    /// The location of `domain`.
    pub(crate) mark: Mark,
    /// Never empty.
    pub(crate) domain: String,
    pub(crate) on_denied: Option<Located<OnDenied>>,
    pub(crate) denial_body: Option<Located<DenialBody>>,
    /// Read and dropped one by one: there may be many.
    pub(crate) descriptors: Vec<Node<'t>>,
}

/// One item of `descriptors`.
pub(crate) struct Descriptor<'n> {
    pub(crate) mark: Mark,
    /// Never empty; `None` if the key is invalid and was reported.
    pub(crate) key: Option<String>,
    /// Empty if any value matches. A network in its one spelling.
    pub(crate) value: String,
    /// `None` if the way in which it matches is invalid and was reported.
    pub(crate) kind: Option<MatchKind>,
    /// The location of a `value` that is given without a text, as if it were absent.
    pub(crate) empty_value: Option<Mark>,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) shadow_mode: Option<Located<bool>>,
    pub(crate) quota_mode: Option<Located<bool>>,
    pub(crate) detailed_metric: Option<Located<bool>>,
    pub(crate) value_to_metric: Option<Located<bool>>,
    pub(crate) share_threshold: Option<Located<bool>>,
    pub(crate) group: Option<Located<Group>>,
    pub(crate) metadata: Option<Located<Map<String, Json>>>,
    /// The nested descriptors, read one by one.
    pub(crate) descriptors: &'n [Node<'n>],
}

/// The value of `rate_limit`. A key in `given` that has no value had an invalid one, which was reported.
#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    pub(crate) mark: Mark,
    pub(crate) given: Vec<GivenKey>,
    pub(crate) replaces: Vec<Located<String>>,
    pub(crate) unit: Option<Located<Unit>>,
    pub(crate) algorithm: Option<Located<AlgorithmName>>,
    pub(crate) calendar: Option<Calendar>,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) on_owner_unavailable: Option<Located<OnOwnerUnavailable>>,
    pub(crate) quotas: Vec<Located<Quota>>,
    pub(crate) denial_body: Option<Located<DenialBody>>,
    pub(crate) candidate: Option<Box<RateLimit>>,
}

/// The value of `calendar`.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// `None` if the value is invalid and was reported.
    pub(crate) timezone: Option<Located<String>>,
    /// The location of the key `week_start`.
    pub(crate) week_start_given: Option<Mark>,
    pub(crate) week_start: Option<Located<Weekday>>,
}

/// The value of `penalty`. A key that is given without a value had an invalid one, which was reported.
#[derive(Clone, Debug)]
pub(crate) struct Penalty {
    pub(crate) mark: Mark,
    given: Vec<String>,
    pub(crate) after: Option<Located<u64>>,
    pub(crate) first: Option<Located<String>>,
    pub(crate) factor: Option<Located<u64>>,
    pub(crate) max: Option<Located<String>>,
    pub(crate) forget_after: Option<Located<String>>,
}

/// A key that is present.
#[derive(Clone, Debug)]
pub(crate) struct GivenKey {
    pub(crate) key: &'static Key,
    pub(crate) mark: Mark,
    /// `None` also for a key with a field of its own.
    value: Option<PlainValue>,
}

/// The value of a key that takes any integer, boolean or text.
#[derive(Clone, Debug)]
enum PlainValue {
    Integer(Located<u64>),
    Boolean(Located<bool>),
    Text(Located<String>),
}

impl RateLimit {
    /// The location of a key, if present.
    pub(crate) fn given(&self, name: &str) -> Option<Mark> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.mark)
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.is_set("unlimited")
    }

    /// The name, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.text("name").map(|name| &*name.value).filter(|name| !name.is_empty())
    }

    fn value(&self, name: &str) -> Option<&PlainValue> {
        self.given.iter().find(|given| given.key.name == name).and_then(|given| given.value.as_ref())
    }

    /// The value of a key that takes an integer.
    pub(crate) fn integer(&self, name: &str) -> Option<&Located<u64>> {
        assert_takes(name, Takes::Integer);
        match self.value(name)? {
            PlainValue::Integer(value) => Some(value),
            PlainValue::Boolean(_) | PlainValue::Text(_) => None,
        }
    }

    /// Whether a key that takes a boolean is set to `true`.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.boolean(name).is_some_and(|boolean| boolean.value)
    }

    /// The value of a key that takes a boolean.
    pub(crate) fn boolean(&self, name: &str) -> Option<&Located<bool>> {
        assert_takes(name, Takes::Boolean);
        match self.value(name)? {
            PlainValue::Boolean(value) => Some(value),
            PlainValue::Integer(_) | PlainValue::Text(_) => None,
        }
    }

    /// The value of a key that takes a text.
    pub(crate) fn text(&self, name: &str) -> Option<&Located<String>> {
        assert_takes(name, Takes::Text);
        match self.value(name)? {
            PlainValue::Text(value) => Some(value),
            PlainValue::Integer(_) | PlainValue::Boolean(_) => None,
        }
    }

    /// Replaces its numbers, as if the file had these.
    pub(crate) fn set_numbers(&mut self, numbers: TrialNumbers) {
        let TrialNumbers { limit, burst } = numbers;
        if self.given("refill_amount").is_some() {
            self.set("refill_amount", limit);
        } else {
            self.set("requests_per_unit", limit);
        }
        if let Some(burst) = burst {
            self.set("burst", burst);
        }
    }

    fn set(&mut self, name: &str, number: u64) {
        let mark = self.given(name).unwrap_or(self.mark);
        let value = Some(PlainValue::Integer(Located { value: number, mark }));
        self.given.retain(|given| given.key.name != name);
        self.given.extend(keys::find(name, Section::RateLimit).map(|key| GivenKey { key, mark, value }));
    }
}

impl<'t> Document<'t> {
    /// Reads a document; `None` if the domain is unknown.
    pub(crate) fn read(mut node: Node<'t>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(&node, Section::Root, diagnostics)?;
        let mark = fields.pair("domain").map_or(fields.mark, |pair| pair.mark);
        let domain = required(&fields, "domain", "the name that requests ask under", diagnostics);
        let on_denied = on_denied(&fields, diagnostics);
        let denial_body = denial_body(&fields, diagnostics);
        let descriptors = fields.items("descriptors", diagnostics);
        let Some(domain) = domain else {
            // The descriptors cannot be used without a domain, but their problems are reported.
            Descriptor::report_all(descriptors, diagnostics);
            return None;
        };
        let descriptors = node.take_items("descriptors");
        Some(Self { mark, domain, on_denied, denial_body, descriptors })
    }
}

impl<'n> Descriptor<'n> {
    /// Reads a descriptor without the nested ones; `None` if the node is not a mapping.
    pub(crate) fn read(node: &'n Node<'n>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::Descriptor, diagnostics)?;
        let rate_limit = fields.pair("rate_limit").and_then(|pair| RateLimit::read(&pair.value, diagnostics));
        let key = required(&fields, "key", "the key of a descriptor entry", diagnostics);
        let value = fields.text("value", diagnostics);
        let (value, kind) = network_keys::value_and_kind(&fields, key.as_deref(), value, diagnostics);
        Some(Self {
            mark: fields.mark,
            key,
            value,
            kind,
            empty_value: empty_value(node),
            rate_limit,
            shadow_mode: fields.boolean("shadow_mode", diagnostics),
            quota_mode: fields.boolean("quota_mode", diagnostics),
            detailed_metric: fields.boolean("detailed_metric", diagnostics),
            value_to_metric: fields.boolean("value_to_metric", diagnostics),
            share_threshold: fields.boolean("share_threshold", diagnostics),
            group: network_keys::group(&fields, diagnostics),
            metadata: metadata(&fields, diagnostics),
            descriptors: fields.items("descriptors", diagnostics),
        })
    }
}

impl Descriptor<'_> {
    /// Whether its value reads like a network, but is compared as text, and no caller is known to send such texts.
    pub(crate) fn is_network_as_text(&self) -> bool {
        self.kind == Some(MatchKind::Exact)
            && self.key.as_deref() != Some(network_keys::MASKED_ADDRESS)
            && network_keys::reads_like_network(&self.value)
    }

    /// Its key with its group, if it has one.
    pub(crate) fn grouped_key(&self) -> Option<GroupedKey> {
        let (key, group) = (self.key.as_ref()?, self.group.as_ref()?);
        Some(GroupedKey { key: key.clone(), group: group.value })
    }

    /// Reports the problems of descriptors and of those nested in them.
    fn report_all(nodes: &[Node<'_>], diagnostics: &mut Diagnostics<'_>) {
        for node in nodes {
            if let Some(descriptor) = Descriptor::read(node, diagnostics) {
                Self::report_all(descriptor.descriptors, diagnostics);
            }
        }
    }
}

impl RateLimit {
    pub(crate) fn read(node: &Node<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::RateLimit, diagnostics)?;
        let read = |(key, pair): (&'static Key, &Pair<'_>)| GivenKey {
            key,
            mark: pair.mark,
            value: PlainValue::read(key, &fields, diagnostics),
        };
        let given = fields.pairs().map(read).collect();
        Some(Self {
            mark: fields.mark,
            given,
            replaces: replaces(&fields, diagnostics),
            unit: fields.choice("unit", &Unit::NAMED, str::eq_ignore_ascii_case, diagnostics),
            algorithm: fields.choice("algorithm", &AlgorithmName::NAMED, str::eq, diagnostics),
            calendar: fields.pair("calendar").and_then(|pair| Calendar::read(&pair.value, diagnostics)),
            penalty: fields.pair("penalty").and_then(|pair| Penalty::read(&pair.value, diagnostics)),
            on_owner_unavailable: fields.choice(
                "on_owner_unavailable",
                &OnOwnerUnavailable::NAMED,
                str::eq,
                diagnostics,
            ),
            quotas: quotas::read(&fields, diagnostics),
            denial_body: denial_body(&fields, diagnostics),
            candidate: fields
                .pair("candidate")
                .and_then(|pair| Self::read(&pair.value, diagnostics))
                .map(Box::new),
        })
    }
}

impl PlainValue {
    fn read(key: &Key, fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        match key.takes {
            Takes::Integer => fields.integer(key.name, diagnostics).map(Self::Integer),
            Takes::Boolean => fields.boolean(key.name, diagnostics).map(Self::Boolean),
            Takes::Text => fields.text(key.name, diagnostics).map(Self::Text),
            Takes::Required
            | Takes::OnDenied
            | Takes::Unit
            | Takes::Algorithm
            | Takes::OnOwnerUnavailable
            | Takes::Weekday
            | Takes::Match
            | Takes::PrefixLength(_)
            | Takes::Anything
            | Takes::Json
            | Takes::DenialBody
            | Takes::Mapping(_)
            | Takes::Candidate
            | Takes::List(_)
            | Takes::Path => None,
        }
    }
}

/// The table of keys says what the reader of `rate_limit` has kept.
fn assert_takes(name: &str, takes: Takes) {
    debug_assert!(keys::find(name, Section::RateLimit).is_some_and(|key| key.takes == takes), "{name}");
}

impl Calendar {
    pub(crate) const WEEKDAYS: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];

    fn read(node: &Node<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::Calendar, diagnostics)?;
        if fields.pair("timezone").is_none() {
            let what = "`timezone` is missing; it is an IANA name such as `Europe/Berlin`";
            diagnostics.add(fields.mark, what);
        }
        Some(Self {
            timezone: fields.text("timezone", diagnostics),
            week_start_given: fields.pair("week_start").map(|pair| pair.mark),
            week_start: fields.choice("week_start", &Self::WEEKDAYS, str::eq, diagnostics),
        })
    }
}

impl Penalty {
    fn read(node: &Node<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::Penalty, diagnostics)?;
        Some(Self {
            mark: fields.mark,
            given: fields.pairs().map(|(_, pair)| pair.key.to_string()).collect(),
            after: fields.integer("after", diagnostics),
            first: fields.text("first", diagnostics),
            factor: fields.integer("factor", diagnostics),
            max: fields.text("max", diagnostics),
            forget_after: fields.text("forget_after", diagnostics),
        })
    }

    /// Whether a key is present.
    pub(crate) fn is_given(&self, name: &str) -> bool {
        self.given.iter().any(|given| given == name)
    }
}

/// The location of a `value` without a text. `Fields` leaves out keys without a value.
fn empty_value(descriptor: &Node<'_>) -> Option<Mark> {
    let Value::Mapping(pairs) = &descriptor.value else { return None };
    let pair = pairs.iter().find(|pair| *pair.key == *"value")?;
    let is_empty = match &pair.value.value {
        Value::Scalar(scalar) => scalar.text.is_empty() || pair.value.is_null(),
        Value::List(_) | Value::Mapping(_) | Value::Unreadable => false,
    };
    is_empty.then_some(pair.mark)
}

/// The value of `on_denied`.
pub(crate) fn on_denied(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Located<OnDenied>> {
    fields.choice("on_denied", &ON_DENIED, str::eq, diagnostics)
}

/// The value of `metadata`.
pub(crate) fn metadata(
    fields: &Fields<'_>,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Located<Map<String, Json>>> {
    let node = &fields.pair("metadata")?.value;
    let mut problems = Vec::new();
    let json = node.to_json(&mut problems);
    diagnostics.add_all(problems);
    match json {
        Json::Object(value) => Some(Located { value, mark: node.mark }),
        _other_json if node.value == crate::yaml::Value::Unreadable => None,
        _other_json => {
            diagnostics.add(node.mark, format!("`metadata` takes a mapping, not {}", node.describe()));
            None
        }
    }
}

fn replaces(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Vec<Located<String>> {
    let items = fields.items("replaces", diagnostics);
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let Some(fields) = Fields::read(item, Section::Replaced, diagnostics) else { continue };
        let name = fields.text("name", diagnostics).map(|name| name.value).unwrap_or_default();
        if name.is_empty() {
            diagnostics.add(item.mark, "an item of `replaces` needs a `name`, that of the limit it replaces");
        } else {
            names.push(Located { value: name, mark: item.mark });
        }
    }
    names
}
