//! Dynamic metadata of replies: the fields of envoyproxy/ratelimit, and the rules that denied.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Map;
use tollgate_limiter::{
    algorithm::Admission,
    limiter::{Answer, Status},
    rules::Rule,
};

use crate::api::{
    descriptors::{DescriptorView, LimitOverride},
    proto::envoy::r#type::v3::RateLimitUnit,
    rls::decode::Request,
};

/// The request, the metadata of rules whose descriptors passed, the rules that denied, and whether the decision was
/// made without the owner.
pub(super) fn of(request: &Request<'_>, answer: &Answer<'_>) -> Struct {
    let mut fields = Struct::default();
    let pairs = request.descriptor_views().zip(&answer.statuses);
    let descriptors = pairs.map(|(view, status)| descriptor(view, status)).collect();
    set(&mut fields, "domain", text(request.domain));
    set(&mut fields, "descriptors", Kind::ListValue(ListValue { values: descriptors }));
    if request.hits_addend != 0 {
        set(&mut fields, "hitsAddend", Kind::NumberValue(request.hits_addend.into()));
    }
    if answer.statuses.iter().any(|status| status.degraded) {
        // Set on the reply besides its descriptors, because access logs cannot read lists.
        set(&mut fields, "degraded", Kind::BoolValue(true));
    }
    let merged = merged(answer);
    if !merged.is_empty() {
        set(&mut fields, "metadata", structure(&merged));
    }
    let refused: Vec<_> = answer.statuses.iter().filter(|status| !status.passes).collect();
    if !refused.is_empty() {
        // A string besides the list, because access logs cannot read lists.
        let names: Vec<_> = refused.iter().map(|status| status.name()).collect();
        set(&mut fields, "refused_by", text(&names.join(",")));
        let refused = refused.into_iter().map(|status| denial(request, status)).collect();
        set(&mut fields, "refused", Kind::ListValue(ListValue { values: refused }));
    }
    fields
}

/// Which rule denied, and why.
fn denial(request: &Request<'_>, status: &Status<'_>) -> Value {
    let mut fields = Struct::default();
    set(&mut fields, "rule", text(status.name()));
    set(&mut fields, "domain", text(request.domain));
    let limit = status.limit.map_or(0, |limit| limit.requests_per_unit);
    let why = match status.retry_after {
        _ if limit == 0 => "banned",
        // Places may be freed at any time.
        None if status.rule.and_then(Rule::admission) == Some(Admission::InFlight) => "over limit",
        None => "more hits than ever pass",
        Some(_) => "over limit",
    };
    set(&mut fields, "why", text(why));
    if let Some(wait) = status.retry_after {
        set(&mut fields, "retryAfterMillis", Kind::NumberValue(wait.as_nanos().div_ceil(1_000_000) as f64));
    }
    value(Kind::StructValue(fields))
}

fn descriptor(descriptor: DescriptorView<'_, '_>, status: &Status<'_>) -> Value {
    let mut fields = Struct::default();
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| value(text(&format!("{}={}", entry.key, entry.value)))).collect();
    set(&mut fields, "entries", Kind::ListValue(ListValue { values: entries }));
    if let Some(limit) = descriptor.limit {
        set(&mut fields, "limit", text(&limit_text(limit)));
    }
    if let Some(hits) = descriptor.hits {
        // Numbers are floating point: above 2^53 the nearest value is used.
        set(&mut fields, "hitsAddend", Kind::NumberValue(hits as f64));
    }
    if status.degraded {
        set(&mut fields, "degraded", Kind::BoolValue(true));
    }
    value(Kind::StructValue(fields))
}

fn limit_text(limit: LimitOverride) -> String {
    let unit = RateLimitUnit::try_from(limit.unit).map_or("WEEK", |unit| unit.as_str_name());
    format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit)
}

/// Merges the metadata of rules whose descriptors passed. The first value of a key wins; maps are merged recursively.
fn merged(answer: &Answer<'_>) -> Map<String, serde_json::Value> {
    let passed = answer.statuses.iter().filter(|status| status.passes && status.limit.is_some());
    let mut merged = Map::new();
    for metadata in passed.filter_map(|status| status.rule?.metadata.as_ref()) {
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
        serde_json::Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(|item| value(kind(item))).collect() })
        }
        serde_json::Value::Object(map) => structure(map),
    }
}

fn set(fields: &mut Struct, name: &str, kind: Kind) {
    fields.fields.insert(name.to_owned(), value(kind));
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

    use tollgate_limiter::limiter::Bounds;

    use super::*;
    use crate::api::rls::decode;

    #[test]
    fn only_decision_without_owner_is_marked_degraded() {
        let status = Status {
            passes: true,
            limit: None,
            remaining: 0,
            reset_after: None,
            retry_after: None,
            rule: None,
            refused_in_shadow: false,
            candidate_refuses: false,
            degraded: false,
        };
        let marked = |degraded: [bool; 2]| {
            // Two descriptors without entries.
            let request =
                decode(&[0x12, 0, 0x12, 0], Bounds { requests: 1, descriptors: 2, entries: 1 }).unwrap();
            let statuses = degraded.map(|degraded| Status { degraded, ..status });
            let answer = Answer {
                passes: true,
                passes_in_shadow: false,
                delay: Duration::ZERO,
                statuses: statuses.into_iter().collect(),
            };
            let fields = of(&request, &answer).fields;
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
