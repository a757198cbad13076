//! The notation of `clients/vectors`, which `clients/behaviour.md` describes.

use std::{collections::HashMap, fs, path::PathBuf, thread, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    Decision, Descriptor, Limit, OnExpiry, OnNoAnswer, Options, Request, SliceOptions, Source, Terms, Unit,
    v1,
};

/// Bounds each wait. Long, so that a busy machine does not look like a fault.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../vectors")
}

/// The vectors of a file, whose names are printed.
pub(super) fn vectors(file: &str) -> impl Iterator<Item = Fields> {
    let text = fs::read(folder().join(file).with_extension("json")).unwrap();
    serde_json::from_slice::<Vec<_>>(&text).unwrap().into_iter().map(|vector| {
        let mut fields = Fields(vector);
        println!("{}", fields.get::<String>("name").unwrap());
        fields
    })
}

/// The fields of an object. One that nothing reads is an error.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn of(value: Value) -> Self {
        Self(serde_json::from_value(value).unwrap())
    }

    /// A text is the value of this field.
    fn of_text_or(value: Value, name: &str) -> Self {
        Self::of(if value.is_string() { json!({name: value}) } else { value })
    }

    /// None also if it is `null`.
    pub(super) fn get<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        self.0.remove(name).and_then(|value| serde_json::from_value(value).unwrap())
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn list(&mut self, name: &str) -> Vec<Value> {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn time(&mut self, name: &str) -> Option<Duration> {
        self.get(name).map(Duration::from_millis)
    }

    fn wire_time(&mut self, name: &str) -> Option<prost_types::Duration> {
        self.time(name).map(|time| time.try_into().unwrap())
    }

    /// Options of a client, slices or a reservation.
    pub(super) fn options(&mut self) -> Self {
        Self(self.get("options").unwrap_or_default())
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        assert!(thread::panicking() || self.0.is_empty(), "unknown fields: {:?}", self.0);
    }
}

/// The user of a request, which names its call.
pub(super) fn user_of(request: &Value) -> Option<String> {
    request.as_str().or(request["user"].as_str()).map(str::to_owned)
}

pub(super) fn request_of(value: Value) -> Request {
    let mut fields = Fields::of_text_or(value, "user");
    let pad = "x".repeat(fields.get("pad").unwrap_or(0));
    let first = fields.get::<String>("user").map(|user| Descriptor::new([("user", user + &pad)]));
    let further = fields.list("descriptors").into_iter().map(descriptor_of);
    let domain = fields.get("domain").unwrap_or_else(|| "edge".to_owned());
    let request = Request::new(domain, first.into_iter().chain(further).collect::<Vec<_>>());
    let id: String = fields.get("request_id").unwrap_or_default();
    request.hits(fields.get("hits").unwrap_or(1)).request_id(id)
}

fn descriptor_of(value: Value) -> Descriptor {
    let mut fields = Fields::of(value);
    let limit = fields.get("limit").map(|(requests_per_unit, unit): (u32, String)| Limit {
        requests_per_unit,
        unit: Unit::from_str_name(&unit.to_uppercase()).unwrap(),
    });
    let (entries, hits) = (fields.get("entries").unwrap(), fields.get("hits"));
    Descriptor { entries, limit, hits, on_expiry: fields.get("on_expiry").map(on_expiry_of) }
}

pub(super) fn answer_of(value: Value) -> v1::Answer {
    if let Ok((remaining, reset)) = serde_json::from_value::<(u64, u64)>(value.clone()) {
        let limit = json!({"remaining": remaining, "reset_after_ms": reset});
        return answer_of(json!({"verdict": "allowed", "limits": [limit]}));
    }
    let mut fields = Fields::of_text_or(value, "verdict");
    let verdict = fields.get::<String>("verdict").unwrap_or_else(|| "undecided".to_owned());
    let error = fields.get("error").map(|error| {
        let status = status_of(error);
        let (code, message) = (status.code().into(), status.message().to_owned());
        tonic_types::Status { code, message, details: Vec::new() }
    });
    v1::Answer {
        verdict: v1::answer::Verdict::from_str_name(&verdict.to_uppercase()).unwrap().into(),
        delay: fields.wire_time("delay_ms"),
        retry_after: fields.wire_time("retry_after_ms"),
        limits: fields.list("limits").into_iter().map(limit_of).collect(),
        error,
        never_because: fields.get("never_because").unwrap_or_default(),
        ..v1::Answer::default()
    }
}

fn limit_of(value: Value) -> v1::LimitStatus {
    let mut fields = Fields::of(value);
    v1::LimitStatus {
        requests_per_unit: fields.get("requests_per_unit").unwrap_or(0),
        unit: Unit::Minute.into(),
        remaining: fields.get("remaining").unwrap_or(0),
        reset_after: fields.wire_time("reset_after_ms"),
        retry_after: fields.wire_time("retry_after_ms"),
        refused: fields.get("refused").unwrap_or(false),
        ..v1::LimitStatus::default()
    }
}

/// An error by its code, its message and, if there is one, its reason.
pub(super) fn status_of(error: Vec<String>) -> Status {
    let code = (0..=16).map(Code::from_i32).find(|code| code_name(*code) == error[0]).unwrap();
    match error.get(2) {
        None => Status::new(code, &error[1]),
        Some(reason) => {
            let details = ErrorDetails::with_error_info(reason, "tollgate", HashMap::new());
            Status::with_error_details(code, &error[1], details)
        }
    }
}

/// The name of a code, as gRPC writes it.
pub(super) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").char_indices() {
        if index > 0 && letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

pub(super) fn client_options(mut fields: Fields, timeout: Duration) -> Options {
    let usual = Options::default();
    Options {
        timeout: fields.time("timeout_ms").unwrap_or(timeout),
        on_no_answer: match fields.get::<String>("on_no_answer").as_deref() {
            Some("deny") => OnNoAnswer::Deny,
            Some("allow") => OnNoAnswer::Allow,
            Some(other) => panic!("unknown default: {other}"),
            None => usual.on_no_answer,
        },
        calls_max: fields.get("calls_max").unwrap_or(usual.calls_max),
        batch_max: fields.get("batch_max").unwrap_or(usual.batch_max),
        queue_max: fields.get("queue_max").unwrap_or(usual.queue_max),
        deny_cache_keys: fields.get("deny_cache_keys").unwrap_or(usual.deny_cache_keys),
        deny_cache_max: fields.time("deny_cache_max_ms").unwrap_or(usual.deny_cache_max),
        admin_token: Some("secret".to_owned()),
        ..usual
    }
}

pub(super) fn slice_options(mut fields: Fields) -> SliceOptions {
    let usual = SliceOptions::default();
    SliceOptions {
        hits: fields.get("hits").unwrap_or(usual.hits),
        ttl: fields.time("ttl_ms").unwrap_or(usual.ttl),
        keys_max: fields.get("keys_max").unwrap_or(usual.keys_max),
    }
}

pub(super) fn terms_of(mut fields: Fields) -> Terms {
    let usual = Terms::default();
    let on_expiry = fields.get("on_expiry").map_or(usual.on_expiry, on_expiry_of);
    Terms { ttl: fields.time("ttl_ms").unwrap_or(usual.ttl), on_expiry }
}

fn on_expiry_of(name: String) -> OnExpiry {
    OnExpiry::from_str_name(&name.to_uppercase()).unwrap()
}

/// A decision in the notation.
pub(super) fn describe(decision: &Decision) -> Value {
    let source = match decision.source {
        Source::Server => "server",
        Source::DenyCache => "deny_cache",
        Source::Prepaid => "prepaid",
        Source::Default => "default",
    };
    let limit = decision.limits.first();
    json!({
        "allowed": decision.allowed,
        "source": source,
        "retry_after_ms": decision.retry_after.map(|wait| wait.as_millis()),
        "remaining": limit.map(|limit| limit.remaining),
        "reset_after_ms": limit.map(|limit| limit.reset_after.as_millis()),
        "no_answer": decision.no_answer.as_ref().map(|reason| (code_name(reason.code), &reason.message)),
    })
}

/// Compares the fields that are expected, and as many elements of a list.
pub(super) fn assert_covers(value: &Value, expected: &Value) {
    match expected {
        Value::Object(fields) => fields.iter().for_each(|(name, each)| assert_covers(&value[name], each)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, each)| assert_covers(&value[i], each)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => assert_eq!(value, expected),
    }
}
