//! The value of `rate_limit` as written, each value with its location.

use jiff::{SignedDuration, civil::Weekday};
use tollgate_counter::algorithm::AlgorithmName;

use crate::{
    DenialBody, OnOwnerUnavailable, Quota, TrialNumbers, Unit,
    denial_body::denial_body,
    diagnostics::Diagnostics,
    keys::{self, KeySection, RuleKey, Takes},
    own::OwnNumbers,
    quotas,
    reader::{Located, MappingFields},
    yaml::{Mark, YamlNode, YamlPair, YamlValue},
};

const SEVERAL_LIMITS: &str = "`rate_limit` takes one limit, a mapping, not a list; nest each further limit below `descriptors` of this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller send a descriptor with that entry too";

/// The value of `rate_limit`. A key in `given` that has no value had an invalid one, which was reported.
#[derive(Clone, Debug)]
pub(crate) struct RateLimitDraft {
    pub(crate) mark: Mark,
    pub(crate) given: Vec<GivenKey>,
    pub(crate) replaces: Vec<Located<String>>,
    pub(crate) unit: Option<Located<Unit>>,
    pub(crate) algorithm: Option<Located<AlgorithmName>>,
    pub(crate) calendar: Option<CalendarDraft>,
    pub(crate) penalty: Option<PenaltyDraft>,
    pub(crate) own: Option<OwnDraft>,
    pub(crate) on_owner_unavailable: Option<Located<OnOwnerUnavailable>>,
    pub(crate) quotas: Vec<Located<Quota>>,
    pub(crate) denial_body: Option<Located<DenialBody>>,
    pub(crate) candidate: Option<Box<RateLimitDraft>>,
}

/// The value of `calendar`.
#[derive(Clone, Debug)]
pub(crate) struct CalendarDraft {
    /// `None` if the value is invalid and was reported.
    pub(crate) timezone: Option<Located<String>>,
    /// The location of the key `week_start`.
    pub(crate) week_start_given: Option<Mark>,
    pub(crate) week_start: Option<Located<Weekday>>,
}

/// The value of `penalty`. A key that is given without a value had an invalid one, which was reported.
#[derive(Clone, Debug)]
pub(crate) struct PenaltyDraft {
    pub(crate) mark: Mark,
    given: Vec<String>,
    pub(crate) after: Option<Located<u64>>,
    pub(crate) first: Option<Located<String>>,
    pub(crate) factor: Option<Located<u64>>,
    pub(crate) max: Option<Located<String>>,
    pub(crate) forget_after: Option<Located<String>>,
}

/// The value of `own`.
#[derive(Clone, Debug)]
pub(crate) struct OwnDraft {
    pub(crate) mark: Mark,
    /// The largest number of each.
    pub(crate) bounds: Vec<(&'static str, Located<u64>)>,
    pub(crate) unlimited: bool,
    /// Whether keys look up their limits.
    pub(crate) is_from_source: bool,
}

/// A key that is present.
#[derive(Clone, Debug)]
pub(crate) struct GivenKey {
    pub(crate) key: &'static RuleKey,
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

impl RateLimitDraft {
    /// The location of a key, if present.
    pub(crate) fn given(&self, name: &str) -> Option<Mark> {
        self.given.iter().find(|given| given.key.name == name).map(|given| given.mark)
    }

    /// Whether `unlimited` is set.
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

    /// Sets the number of a key that takes an integer.
    pub(crate) fn set(&mut self, name: &str, number: u64) {
        let mark = self.given(name).unwrap_or(self.mark);
        self.set_value(name, Some(PlainValue::Integer(Located { value: number, mark })), mark);
    }

    /// Sets the window, in place of another period.
    pub(crate) fn set_window(&mut self, window: &str) {
        let span = window.parse::<SignedDuration>().ok().map(|window| window.as_nanos());
        self.calendar = None;
        self.given.retain(|given| given.key.name != "calendar");
        // Answers name a unit where there is one.
        match Unit::ALL.into_iter().find(|unit| Some(i128::from(unit.span().nanos())) == span) {
            Some(unit) => self.set_unit(unit),
            None => {
                let mark = self.mark;
                self.unit = None;
                self.given.retain(|given| !["unit", "unit_multiplier"].contains(&given.key.name));
                let value = PlainValue::Text(Located { value: window.to_owned(), mark });
                self.set_value("window", Some(value), mark);
            }
        }
    }

    fn set_value(&mut self, name: &str, value: Option<PlainValue>, mark: Mark) {
        self.given.retain(|given| given.key.name != name);
        self.given.extend(keys::find(name, KeySection::RateLimit).map(|key| GivenKey { key, mark, value }));
    }

    /// Sets the unit, in place of another period.
    pub(crate) fn set_unit(&mut self, unit: Unit) {
        let mark = self.given("requests_per_unit").unwrap_or(self.mark);
        self.given.retain(|given| !["unit", "unit_multiplier", "window"].contains(&given.key.name));
        let key = keys::find("unit", KeySection::RateLimit);
        self.given.extend(key.map(|key| GivenKey { key, mark, value: None }));
        self.unit = Some(Located { value: unit, mark });
    }
}

impl RateLimitDraft {
    /// Reads the value of `rate_limit`; `None` after reporting that it is no mapping.
    pub(crate) fn read(node: &YamlNode<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        if let YamlValue::List(limits) = &node.value {
            diagnostics.add(node.mark, SEVERAL_LIMITS);
            for limit in limits {
                Self::read(limit, diagnostics);
            }
            return None;
        }
        let fields = MappingFields::read(node, KeySection::RateLimit, diagnostics)?;
        let read = |(key, pair): (&'static RuleKey, &YamlPair<'_>)| GivenKey {
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
            calendar: fields.pair("calendar").and_then(|pair| CalendarDraft::read(&pair.value, diagnostics)),
            penalty: fields.pair("penalty").and_then(|pair| PenaltyDraft::read(&pair.value, diagnostics)),
            own: fields.pair("own").and_then(|pair| OwnDraft::read(&pair.value, diagnostics)),
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
    fn read(key: &RuleKey, fields: &MappingFields<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        match key.takes {
            Takes::Integer => fields.integer(key.name, diagnostics).map(Self::Integer),
            Takes::Boolean => fields.boolean(key.name, diagnostics).map(Self::Boolean),
            Takes::Text => fields.text(key.name, diagnostics).map(Self::Text),
            Takes::Required
            | Takes::OnDenied
            | Takes::Unit
            | Takes::Algorithm
            | Takes::OnOwnerUnavailable
            | Takes::LimitSource
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

impl CalendarDraft {
    /// The days of the week by their names in rule files.
    pub(crate) const WEEKDAYS: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];

    fn read(node: &YamlNode<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = MappingFields::read(node, KeySection::Calendar, diagnostics)?;
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

impl PenaltyDraft {
    fn read(node: &YamlNode<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = MappingFields::read(node, KeySection::Penalty, diagnostics)?;
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

impl OwnDraft {
    /// The values of `from` by their names in rule files.
    pub(crate) const FROM: [(&str, ()); 1] = [("source", ())];

    fn read(node: &YamlNode<'_>, diagnostics: &mut Diagnostics<'_>) -> Option<Self> {
        let fields = MappingFields::read(node, KeySection::Own, diagnostics)?;
        let unlimited = fields.boolean("unlimited", diagnostics).is_some_and(|boolean| boolean.value);
        let is_from_source = fields.choice("from", &Self::FROM, str::eq, diagnostics).is_some();
        let mut bounds = Vec::new();
        for name in OwnNumbers::NAMES {
            let Some(pair) = fields.pair(name) else { continue };
            let Some(bound) = MappingFields::read(&pair.value, KeySection::OwnBound, diagnostics) else {
                continue;
            };
            if bound.pair("max").is_none() {
                diagnostics.add(pair.mark, format!("`{name}` needs a `max`, the largest number of a key"));
            }
            let max = bound.integer("max", diagnostics);
            if let Some(max) = max.as_ref().filter(|max| max.value == 0) {
                diagnostics.add(max.mark, "`max` is at least 1");
            }
            bounds.extend(max.map(|max| (name, max)));
        }
        if fields.pairs().next().is_none() {
            let what = "`own` names no number that a key may have, as in `requests_per_unit: {max: 1000}`, and no source";
            diagnostics.add(node.mark, what);
        }
        Some(Self { mark: fields.mark, bounds, unlimited, is_from_source })
    }
}

/// Asserts that the table of keys says what the reader of `rate_limit` has retained.
fn assert_takes(name: &str, takes: Takes) {
    debug_assert!(keys::find(name, KeySection::RateLimit).is_some_and(|key| key.takes == takes), "{name}");
}

fn replaces(fields: &MappingFields<'_>, diagnostics: &mut Diagnostics<'_>) -> Vec<Located<String>> {
    let items = fields.items("replaces", diagnostics);
    let mut names = Vec::with_capacity(items.len());
    for item in items {
        let Some(fields) = MappingFields::read(item, KeySection::Replaced, diagnostics) else { continue };
        let name = fields.text("name", diagnostics).map(|name| name.value).unwrap_or_default();
        if name.is_empty() {
            diagnostics.add(item.mark, "an item of `replaces` needs a `name`, that of the limit it replaces");
        } else {
            names.push(Located { value: name, mark: item.mark });
        }
    }
    names
}
