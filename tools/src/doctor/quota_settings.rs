//! What the settings of buckets say in the configuration of a rate limit quota filter, and its matchers with their faults
//! repaired.

use serde_json::{Map, Value, json};

use crate::doctor::located::{field, field_mut, message, objects, remove, text};

/// The name of the extension with the settings of a bucket.
const SETTINGS_TYPE: &str =
    "type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings";
/// Values that need no quotes in rules, logs and shells. Envoys have few of them, if clients cannot choose longer ones.
const BOUNDED: &str = "[a-z0-9-]{1,32}";
/// The value of the bucket of all other requests.
const OTHERS: &str = "none";

/// The strategy of a behaviour of a bucket without an assignment.
pub(super) fn fallback<'v>(settings: &'v Map<String, Value>, name: &str) -> Option<&'v Map<String, Value>> {
    message(message(settings, name)?, "fallback_rate_limit")
}

fn denies(strategy: &Map<String, Value>) -> bool {
    text(strategy, "blanket_rule").is_some_and(|rule| rule == "DENY_ALL")
}

/// Whether nothing passes before an assignment.
pub(super) fn denies_before(settings: &Map<String, Value>) -> bool {
    fallback(settings, "no_assignment_behavior").is_some_and(denies)
}

/// Whether nothing passes after the end of an assignment.
pub(super) fn closes_after(settings: &Map<String, Value>) -> bool {
    let timeout = message(settings, "expired_assignment_behavior")
        .and_then(|behavior| text(behavior, "expired_assignment_behavior_timeout"));
    fallback(settings, "expired_assignment_behavior").is_some_and(denies)
        && timeout.is_some_and(|time| !is_short(&time))
}

/// Whether a predicate bounds the values that it matches.
pub(super) fn bounds_values(predicate: &Map<String, Value>) -> bool {
    ["safe_regex", "exact", "custom_match"].into_iter().any(|name| contains(predicate, name))
}

/// Whether there is a field of this name in the fields, at any depth.
pub(super) fn contains(fields: &Map<String, Value>, name: &str) -> bool {
    let has = |fields: &Map<String, Value>| field(fields, name).is_some();
    has(fields) || fields.values().flat_map(objects).any(has)
}

/// Whether a duration, in the JSON form of Protocol Buffers, is shorter than a day.
fn is_short(text: &str) -> bool {
    const DAY_SECONDS: f64 = 86_400.0;
    let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.is_none_or(|seconds| seconds < DAY_SECONDS)
}

/// `matcher`, repaired: all buckets deny without an assignment, their values are bounded, and each request has a
/// bucket.
pub(super) fn repaired(matcher: &Map<String, Value>) -> Value {
    let mut matcher = matcher.clone();
    repair_matcher(&mut matcher, false);
    if message(&matcher, "on_no_match").is_none() {
        remove(&mut matcher, "on_no_match");
        let others = others(&bucket_key(&Value::Object(matcher.clone())));
        matcher.insert("on_no_match".to_owned(), others);
    }
    Value::Object(matcher)
}

/// Repairs a matcher. `is_bounded`: whether a predicate around it bounds the values.
fn repair_matcher(matcher: &mut Map<String, Value>, is_bounded: bool) {
    let list = field_mut(matcher, "matcher_list").and_then(Value::as_object_mut);
    let items = list.and_then(|list| field_mut(list, "matchers")).and_then(Value::as_array_mut);
    for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
        let is_bounded = is_bounded || message(item, "predicate").is_some_and(bounds_values);
        remove(item, "keep_matching");
        let Some(on_match) = field_mut(item, "on_match").and_then(Value::as_object_mut) else { continue };
        let free = repair_match(on_match, is_bounded);
        if let Some(predicate) = field_mut(item, "predicate").filter(|_| !free.is_empty()) {
            let all = std::iter::once(predicate.take()).chain(free.iter().map(bounding));
            *predicate = json!({"and_matcher": {"predicate": all.collect::<Vec<_>>()}});
        }
    }
    if let Some(tree) = field_mut(matcher, "matcher_tree").and_then(Value::as_object_mut) {
        for name in ["exact_match_map", "prefix_match_map"] {
            let map = field_mut(tree, name).and_then(Value::as_object_mut);
            let map = map.and_then(|map| field_mut(map, "map")).and_then(Value::as_object_mut);
            map.into_iter()
                .flat_map(|map| map.values_mut())
                .for_each(|on_match| repair_alone(on_match, is_bounded));
        }
    }
    if let Some(on_match) = field_mut(matcher, "on_no_match") {
        repair_alone(on_match, is_bounded);
    }
}

/// Repairs what follows a match, and returns the inputs whose values are not bounded.
fn repair_match(on_match: &mut Map<String, Value>, is_bounded: bool) -> Vec<Value> {
    remove(on_match, "keep_matching");
    if let Some(matcher) = field_mut(on_match, "matcher").and_then(Value::as_object_mut) {
        repair_matcher(matcher, is_bounded);
        return Vec::new();
    }
    let action = field_mut(on_match, "action").and_then(Value::as_object_mut);
    let settings = action.and_then(|action| field_mut(action, "typed_config")).and_then(Value::as_object_mut);
    let Some(settings) = settings else { return Vec::new() };
    if !denies_before(settings) {
        remove(settings, "no_assignment_behavior");
        settings.insert("no_assignment_behavior".to_owned(), denial());
    }
    if !closes_after(settings) {
        remove(settings, "expired_assignment_behavior");
        settings.insert("expired_assignment_behavior".to_owned(), lasting_denial());
    }
    if is_bounded { Vec::new() } else { inputs(&Value::Object(settings.clone())) }
}

/// Repairs what follows without a predicate of its own: unbounded values get a matcher.
fn repair_alone(on_match: &mut Value, is_bounded: bool) {
    let Some(fields) = on_match.as_object_mut() else { return };
    let free = repair_match(fields, is_bounded);
    if free.is_empty() {
        return;
    }
    let predicate = match free.as_slice() {
        [one] => bounding(one),
        several => json!({"and_matcher": {"predicate": several.iter().map(bounding).collect::<Vec<_>>()}}),
    };
    let others = others(&bucket_key(on_match));
    let item = json!({"predicate": predicate, "on_match": on_match.take()});
    *on_match = json!({"matcher": {"matcher_list": {"matchers": [item]}, "on_no_match": others}});
}

fn denial() -> Value {
    json!({"fallback_rate_limit": {"blanket_rule": "DENY_ALL"}})
}

fn lasting_denial() -> Value {
    let mut denial = denial();
    denial["expired_assignment_behavior_timeout"] = "31536000s".into();
    denial
}

/// A predicate that bounds the values of an input.
fn bounding(input: &Value) -> Value {
    let expression = json!({"safe_regex": {"google_re2": {}, "regex": BOUNDED}});
    json!({"single_predicate": {"input": input, "value_match": expression}})
}

/// A match with one bucket for all requests.
fn others(key: &str) -> Value {
    let settings = json!({
        "@type": SETTINGS_TYPE,
        "bucket_id_builder": {"bucket_id_builder": {key: {"string_value": OTHERS}}},
        "reporting_interval": "5s",
        "no_assignment_behavior": denial(),
        "expired_assignment_behavior": lasting_denial(),
    });
    json!({"action": {"name": "others", "typed_config": settings}})
}

/// The inputs from which buckets take values.
fn inputs(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.iter().flat_map(inputs).collect(),
        Value::Object(fields) => match field(fields, "custom_value") {
            Some(input) => vec![input.clone()],
            None => fields.values().flat_map(inputs).collect(),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// The first key of a bucket in `value`.
fn bucket_key(value: &Value) -> String {
    let mut keys = objects(value).filter_map(|fields| {
        message(message(fields, "bucket_id_builder")?, "bucket_id_builder")?.keys().next()
    });
    keys.next().map_or_else(|| "others".to_owned(), String::clone)
}
