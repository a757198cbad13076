//! The content of a rule file as written, each value with its location, before it is interpreted.

use jiff::civil::Weekday;
use serde_json::{Map, Value as Json};

use crate::{
    algorithm::AlgorithmName,
    rules::{
        OnDenied, OnOwnerUnavailable, TrialNumbers, Unit,
        diagnostics::Diagnostics,
        keys::{self, Key, Section},
        reader::{Fields, Located},
    },
    yaml::{Mark, Node},
};

/// The values of `on_denied`.
pub(crate) const ON_DENIED: [(&str, OnDenied); 2] =
    [("charge_all", OnDenied::ChargeAll), ("charge_none", OnDenied::ChargeNone)];

/// One document.
pub(crate) struct Document {
    /// Never empty.
    pub(crate) domain: String,
    pub(crate) on_denied: Option<Located<OnDenied>>,
    /// Read and dropped one by one: there may be many.
    pub(crate) descriptors: Vec<Node>,
}

/// One item of `descriptors`.
pub(crate) struct Descriptor<'n> {
    pub(crate) mark: Mark,
    /// Never empty; `None` if the key is invalid and was reported.
    pub(crate) key: Option<String>,
    /// Empty if any value matches.
    pub(crate) value: String,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) shadow_mode: Option<Located<bool>>,
    pub(crate) quota_mode: Option<Located<bool>>,
    pub(crate) detailed_metric: Option<Located<bool>>,
    pub(crate) value_to_metric: Option<Located<bool>>,
    pub(crate) share_threshold: Option<Located<bool>>,
    pub(crate) metadata: Option<Located<Map<String, Json>>>,
    /// The nested descriptors, read one by one.
    pub(crate) descriptors: &'n [Node],
}

/// The value of `rate_limit`. A key in `given` whose field is `None` had an invalid value, which was reported.
#[derive(Clone, Debug)]
pub(crate) struct RateLimit {
    pub(crate) mark: Mark,
    pub(crate) given: Vec<GivenKey>,
    pub(crate) requests_per_unit: Option<Located<u64>>,
    pub(crate) unlimited: bool,
    pub(crate) name: Option<String>,
    pub(crate) replaces: Vec<Located<String>>,
    pub(crate) unit: Option<Located<Unit>>,
    pub(crate) unit_multiplier: Option<Located<u64>>,
    pub(crate) window: Option<Located<String>>,
    pub(crate) algorithm: Option<Located<AlgorithmName>>,
    pub(crate) calendar: Option<Calendar>,
    pub(crate) sub_windows: Option<Located<u64>>,
    pub(crate) burst: Option<Located<u64>>,
    pub(crate) refill_amount: Option<Located<u64>>,
    pub(crate) refill_interval: Option<Located<String>>,
    pub(crate) max_delay: Option<Located<String>>,
    pub(crate) max_in_flight: Option<Located<u64>>,
    pub(crate) hold_max: Option<Located<String>>,
    pub(crate) count_denied: Option<Located<bool>>,
    pub(crate) overdraft: Option<Located<bool>>,
    pub(crate) overdraft_limit: Option<Located<u64>>,
    pub(crate) on_owner_unavailable: Option<Located<OnOwnerUnavailable>>,
    pub(crate) lease: Option<Located<bool>>,
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

/// A key that is present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenKey {
    pub(crate) key: &'static Key,
    pub(crate) mark: Mark,
}

impl RateLimit {
    /// The location of a key, if present.
    pub(crate) fn given(&self, name: &str) -> Option<Mark> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.mark)
    }

    /// Replaces its numbers, as if the file had these.
    pub(crate) fn set_numbers(&mut self, numbers: TrialNumbers) {
        let TrialNumbers { limit, burst } = numbers;
        if self.given("refill_amount").is_some() {
            self.set("refill_amount", limit, |limit| &mut limit.refill_amount);
        } else {
            self.set("requests_per_unit", limit, |limit| &mut limit.requests_per_unit);
        }
        if let Some(burst) = burst {
            self.set("burst", burst, |limit| &mut limit.burst);
        }
    }

    fn set(&mut self, name: &str, value: u64, field: impl Fn(&mut Self) -> &mut Option<Located<u64>>) {
        let mark = self.given(name).unwrap_or(self.mark);
        *field(self) = Some(Located { value, mark });
        let key = keys::find(name, Section::RateLimit).filter(|_| self.given(name).is_none());
        self.given.extend(key.map(|key| GivenKey { key, mark }));
    }
}

impl Document {
    /// Reads a document; `None` if the domain is unknown.
    pub(crate) fn read(mut node: Node, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(&node, Section::Root, diagnostics)?;
        let domain = required(&fields, "domain", "the name that requests ask under", diagnostics);
        let on_denied = on_denied(&fields, diagnostics);
        let descriptors = fields.items("descriptors", diagnostics);
        let Some(domain) = domain else {
            // The descriptors cannot be used without a domain, but their problems are reported.
            Descriptor::report_all(descriptors, diagnostics);
            return None;
        };
        let descriptors = node.take_items("descriptors");
        Some(Self { domain, on_denied, descriptors })
    }
}

impl<'n> Descriptor<'n> {
    /// Reads a descriptor without the nested ones; `None` if the node is not a mapping.
    pub(crate) fn read(node: &'n Node, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::Descriptor, diagnostics)?;
        let rate_limit = fields.pair("rate_limit").and_then(|pair| RateLimit::read(&pair.value, diagnostics));
        Some(Self {
            mark: fields.mark,
            key: required(&fields, "key", "the key of a descriptor entry", diagnostics),
            value: fields.text("value", diagnostics).map(|value| value.value).unwrap_or_default(),
            rate_limit,
            shadow_mode: fields.boolean("shadow_mode", diagnostics),
            quota_mode: fields.boolean("quota_mode", diagnostics),
            detailed_metric: fields.boolean("detailed_metric", diagnostics),
            value_to_metric: fields.boolean("value_to_metric", diagnostics),
            share_threshold: fields.boolean("share_threshold", diagnostics),
            metadata: metadata(&fields, diagnostics),
            descriptors: fields.items("descriptors", diagnostics),
        })
    }
}

impl Descriptor<'_> {
    /// Reports the problems of descriptors and of those nested in them.
    fn report_all(nodes: &[Node], diagnostics: &mut Diagnostics<'_>) {
        for node in nodes {
            if let Some(descriptor) = Descriptor::read(node, diagnostics) {
                Self::report_all(descriptor.descriptors, diagnostics);
            }
        }
    }
}

impl RateLimit {
    pub(crate) fn read(node: &Node, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = Fields::read(node, Section::RateLimit, diagnostics)?;
        let given = |pair: &crate::yaml::Pair| {
            keys::find(&pair.key, Section::RateLimit).map(|key| GivenKey { key, mark: pair.mark })
        };
        Some(Self {
            mark: fields.mark,
            given: fields.pairs().filter_map(given).collect(),
            requests_per_unit: fields.integer("requests_per_unit", diagnostics),
            unlimited: fields.boolean("unlimited", diagnostics).is_some_and(|boolean| boolean.value),
            name: fields.text("name", diagnostics).map(|name| name.value).filter(|name| !name.is_empty()),
            replaces: replaces(&fields, diagnostics),
            unit: fields.choice("unit", &Unit::NAMED, str::eq_ignore_ascii_case, diagnostics),
            unit_multiplier: fields.integer("unit_multiplier", diagnostics),
            window: fields.text("window", diagnostics),
            algorithm: fields.choice("algorithm", &AlgorithmName::NAMED, str::eq, diagnostics),
            calendar: fields.pair("calendar").and_then(|pair| Calendar::read(&pair.value, diagnostics)),
            sub_windows: fields.integer("sub_windows", diagnostics),
            burst: fields.integer("burst", diagnostics),
            refill_amount: fields.integer("refill_amount", diagnostics),
            refill_interval: fields.text("refill_interval", diagnostics),
            max_delay: fields.text("max_delay", diagnostics),
            max_in_flight: fields.integer("max_in_flight", diagnostics),
            hold_max: fields.text("hold_max", diagnostics),
            count_denied: fields.boolean("count_denied", diagnostics),
            overdraft: fields.boolean("overdraft", diagnostics),
            overdraft_limit: fields.integer("overdraft_limit", diagnostics),
            on_owner_unavailable: fields.choice(
                "on_owner_unavailable",
                &OnOwnerUnavailable::NAMED,
                str::eq,
                diagnostics,
            ),
            lease: fields.boolean("lease", diagnostics),
            candidate: fields
                .pair("candidate")
                .and_then(|pair| Self::read(&pair.value, diagnostics))
                .map(Box::new),
        })
    }
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

    fn read(node: &Node, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
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

/// The value of `on_denied`.
pub(crate) fn on_denied(fields: &Fields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Located<OnDenied>> {
    fields.choice("on_denied", &ON_DENIED, str::eq, diagnostics)
}

/// A required text that must not be empty.
pub(crate) fn required(
    fields: &Fields<'_>,
    key: &str,
    meaning: &str,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<String> {
    if fields.pair(key).is_none() {
        diagnostics.add(fields.mark, format!("`{key}` is missing; it is {meaning} and must not be empty"));
        return None;
    }
    let text = fields.text(key, diagnostics)?;
    if text.value.is_empty() {
        diagnostics.add(text.mark, format!("`{key}` is empty; it is {meaning} and must not be empty"));
        return None;
    }
    Some(text.value)
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
