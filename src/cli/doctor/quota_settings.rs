//! What the settings of a bucket say, in the configuration of a rate limit quota filter.

use serde_json::{Map, Value};

use crate::cli::doctor::fields::{field, message, text};

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
    fn is_in(value: &Value, name: &str) -> bool {
        match value {
            Value::Array(items) => items.iter().any(|item| is_in(item, name)),
            Value::Object(fields) => contains(fields, name),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    field(fields, name).is_some() || fields.values().any(|value| is_in(value, name))
}

/// Whether a duration, in the JSON form of Protocol Buffers, is shorter than a day.
fn is_short(text: &str) -> bool {
    const DAY_SECONDS: f64 = 86_400.0;
    let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.is_none_or(|seconds| seconds < DAY_SECONDS)
}
