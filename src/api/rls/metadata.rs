//! Dynamic metadata of replies: the fields of envoyproxy/ratelimit, and what each limit has decided.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Map;
use tollgate_counter::{
    descriptor::{Entry, escaped},
    named,
};
use tollgate_limiter::limiter::{Answer, Descriptor, LimitFrom, Override, Request, Status};

use crate::api::rls::decode::SentHits;

/// The request, the metadata of rules whose descriptors passed, what each limit has decided, the rules that denied, and
/// whether the decision was made without the owner.
pub(super) fn metadata(sent: &SentHits, request: &Request<'_>, answer: &Answer<'_>) -> Struct {
    // What each limit has decided, with the most hits that can ever pass if the request has more.
    let decided = answer.statuses.iter().zip(request.descriptors());
    let decided: Vec<Decided<'_, '_>> =
        decided.map(|(status, descriptor)| (status, status.most_hits(descriptor))).collect();
    let each = request.descriptors().iter().zip(&sent.each).zip(&answer.statuses);
    let descriptors = each.map(|((asked, hits), status)| descriptor(asked, *hits, status)).collect();
    let merged = merged(answer);
    let limits = limits(&decided).into_iter();
    let limits: BTreeMap<_, _> = limits.map(|(name, decided)| (name.to_owned(), limit(decided))).collect();
    let refused = decided.iter().filter(|(status, _)| !status.passes);
    let refused: Vec<_> = refused.map(|decided| denial(request, *decided)).collect();
    let statuses = &answer.statuses;
    let names_by = |outcome| {
        // In a string, because access logs cannot read lists.
        let is = move |status: &Status<'_>| DescriptorOutcome::from_status(status) == Some(outcome);
        some_text(&names(answer, is))
    };
    fields([
        ("domain", Some(text(request.domain()))),
        ("descriptors", Some(list(descriptors))),
        ("hitsAddend", (sent.of_request != 0).then(|| Kind::NumberValue(sent.of_request.into()))),
        // Set on the reply in addition to its descriptors, because access logs cannot read lists.
        ("degraded", flag(statuses.iter().any(|status| status.degraded))),
        ("limit_unknown", flag(statuses.iter().any(|status| status.limit_from == LimitFrom::RuleForUnknown))),
        ("metadata", (!merged.is_empty()).then(|| structure(&merged))),
        ("limits", (!limits.is_empty()).then_some(Kind::StructValue(Struct { fields: limits }))),
        ("passed_by", names_by(DescriptorOutcome::Passed)),
        ("refused_by", names_by(DescriptorOutcome::Refused)),
        ("refused_in_shadow_by", names_by(DescriptorOutcome::RefusedInShadow)),
        ("degraded_by", some_text(&names(answer, |status| status.degraded))),
        ("refused", (!refused.is_empty()).then(|| list(refused))),
    ])
}

/// The names of the limits for which `is` is true, each once, in the order of the descriptors.
fn names<'s>(answer: &Answer<'s>, is: impl Fn(&Status<'s>) -> bool) -> String {
    let mut seen = HashSet::new();
    let names = answer.statuses.iter().filter(|status| is(status)).map(Status::name);
    names.filter(|name| seen.insert(*name)).collect::<Vec<_>>().join(",")
}

/// A status, and the most hits that can ever pass if the request never does.
type Decided<'a, 's> = (&'a Status<'s>, Option<u64>);

named! {
    /// What a limit has decided about a descriptor, the strictest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum DescriptorOutcome {
        Refused = "refused",
        RefusedInShadow = "refused_in_shadow",
        Passed = "passed",
    }
}

impl DescriptorOutcome {
    /// `None` if no limit applies.
    fn from_status(status: &Status<'_>) -> Option<Self> {
        if !status.passes {
            return Some(Self::Refused);
        }
        if status.refused_in_shadow {
            return Some(Self::RefusedInShadow);
        }
        (status.limit.is_some() || status.rule.is_some()).then_some(Self::Passed)
    }
}

/// What each limit has decided, by its name. Of two with one name, the tighter one.
fn limits<'a, 's>(each: &[Decided<'a, 's>]) -> BTreeMap<&'s str, Decided<'a, 's>> {
    let mut limits = BTreeMap::new();
    let tightness =
        |(status, _): &Decided<'_, '_>| (DescriptorOutcome::from_status(status), status.remaining);
    for decided in each.iter().filter(|(status, _)| DescriptorOutcome::from_status(status).is_some()) {
        let tightest = limits.entry(decided.0.name()).or_insert(*decided);
        if tightness(decided) < tightness(tightest) {
            *tightest = *decided;
        }
    }
    limits
}

/// What a limit has decided. Without the numbers if it is unlimited.
fn limit((status, most_hits): Decided<'_, '_>) -> Value {
    let limit = status.limit.as_ref();
    let outcome = DescriptorOutcome::from_status(status);
    let from = status.limit_from;
    let metadata = status.rule.and_then(|rule| rule.options().metadata.as_ref());
    structure_value([
        ("outcome", outcome.map(|outcome| text(outcome.name()))),
        ("limit", limit.map(|limit| count(limit.requests_per_unit))),
        ("remaining", limit.map(|_| count(status.remaining))),
        ("resetMillis", status.reset_after.filter(|_| most_hits.is_none()).map(millis)),
        ("retryAfterMillis", status.retry_after.map(millis)),
        ("from", (from != LimitFrom::Rule).then(|| text(from.name()))),
        ("degraded", flag(status.degraded)),
        ("metadata", metadata.map(structure)),
    ])
}

/// Which rule denied, and why.
fn denial(request: &Request<'_>, (status, most_hits): Decided<'_, '_>) -> Value {
    let limit = status.limit.map_or(0, |limit| limit.requests_per_unit);
    let why = match most_hits {
        _ if limit == 0 => "banned",
        Some(_) => "more hits than ever pass",
        None => "over limit",
    };
    structure_value([
        ("rule", Some(text(status.name()))),
        ("domain", Some(text(request.domain()))),
        ("why", Some(text(why))),
        ("mostHits", most_hits.map(count)),
        ("retryAfterMillis", status.retry_after.map(millis)),
    ])
}

fn descriptor(descriptor: &Descriptor<'_>, hits: Option<u64>, status: &Status<'_>) -> Value {
    let entry = |entry: &Entry<'_>| text(&format!("{}={}", escaped(entry.key), escaped(entry.value)));
    let entries = descriptor.entries.iter().map(|each| value(entry(each))).collect();
    structure_value([
        ("entries", Some(list(entries))),
        ("limit", descriptor.limit.map(|limit| text(&limit_text(limit)))),
        ("hitsAddend", hits.map(count)),
        ("degraded", flag(status.degraded)),
    ])
}

fn limit_text(limit: Override) -> String {
    let unit = format!("{:?}", limit.unit).to_uppercase();
    format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit)
}

/// Merges the metadata of rules whose descriptors passed. The first value of a key wins; maps are merged recursively.
fn merged(answer: &Answer<'_>) -> Map<String, serde_json::Value> {
    let passed = answer.statuses.iter().filter(|status| status.passes && status.limit.is_some());
    let mut merged = Map::new();
    for metadata in passed.filter_map(|status| status.rule?.options().metadata.as_ref()) {
        merge(&mut merged, metadata);
    }
    merged
}

fn merge(into: &mut Map<String, serde_json::Value>, from: &Map<String, serde_json::Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
            (Some(serde_json::Value::Object(into)), serde_json::Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}

fn structure(map: &Map<String, serde_json::Value>) -> Kind {
    let fields = map.iter().map(|(key, json)| (key.clone(), value(kind(json)))).collect();
    Kind::StructValue(Struct { fields })
}

fn kind(json: &serde_json::Value) -> Kind {
    match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        serde_json::Value::String(string) => text(string),
        serde_json::Value::Array(items) => list(items.iter().map(|item| value(kind(item))).collect()),
        serde_json::Value::Object(map) => structure(map),
    }
}

/// The fields that have a value.
fn fields<const N: usize>(each: [(&str, Option<Kind>); N]) -> Struct {
    let field = |(name, kind): (&str, Option<Kind>)| Some((name.to_owned(), value(kind?)));
    Struct { fields: each.into_iter().filter_map(field).collect() }
}

fn structure_value<const N: usize>(each: [(&str, Option<Kind>); N]) -> Value {
    value(Kind::StructValue(fields(each)))
}

/// A number. Numbers are floating point: above 2^53 the nearest value is used.
fn count(number: u64) -> Kind {
    Kind::NumberValue(number as f64)
}

/// Whole milliseconds, rounded up.
fn millis(time: Duration) -> Kind {
    Kind::NumberValue(time.as_nanos().div_ceil(1_000_000) as f64)
}

/// `None` if it is not set.
fn flag(is_set: bool) -> Option<Kind> {
    is_set.then_some(Kind::BoolValue(true))
}

fn list(values: Vec<Value>) -> Kind {
    Kind::ListValue(ListValue { values })
}

/// `None` if the text is empty.
fn some_text(string: &str) -> Option<Kind> {
    (!string.is_empty()).then(|| text(string))
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_counter::algorithm::Operation;

    use super::*;

    #[test]
    fn only_decision_without_owner_is_marked_degraded() {
        let marked = |degraded: [bool; 2]| {
            let asked = Descriptor { entries: &[], operation: Operation::Peek, limit: None };
            let request = Request::new("d", [asked; 2], None).unwrap();
            let sent = SentHits { of_request: 0, each: vec![None; 2] };
            let statuses = degraded.map(|degraded| Status { degraded, ..Status::WITHOUT_LIMIT });
            let answer = Answer {
                passes: true,
                passes_in_shadow: false,
                delay: Duration::ZERO,
                statuses: statuses.into_iter().collect(),
            };
            let fields = metadata(&sent, &request, &answer).fields;
            let flag = |map: &std::collections::BTreeMap<String, Value>| map.get("degraded").cloned();
            let Some(Kind::ListValue(list)) = fields["descriptors"].kind.clone() else { panic!("no list") };
            let each = list.values.into_iter().map(|each| match each.kind {
                Some(Kind::StructValue(fields)) => flag(&fields.fields),
                other => panic!("{other:?}"),
            });
            (flag(&fields), each.collect::<Vec<_>>())
        };
        let yes = Some(value(Kind::BoolValue(true)));
        assert_eq!(marked([false, true]), (yes.clone(), vec![None, yes]));
        assert_eq!(marked([false, false]), (None, vec![None, None]));
    }
}
